"""The constants of a model: initializers of the graph and its bodies, and Constant nodes.

Small integer and bool constants are shape data: they stay numpy and are known at trace time. So are single numbers
(a clip's bounds, a scale), which the compiler does more with when it knows them. Everything else is a weight: an
argument of the executable, put on the device once, never a constant of the compiled program.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import onnx_ir as ir

from .attributes import value_of
from .context import HOST_ELEMENTS

if TYPE_CHECKING:
    from .placement import Placement

_SUB_BYTE = {"int4", "uint4", "int2", "uint2", "float4_e2m1fn"}
_VALUE_ATTRIBUTES = ("value", "value_int", "value_ints", "value_float", "value_floats")


class Weights:
    """`ir.Value → constant` for one model. Overridable initializers are state: known only at run time."""

    def __init__(self, model: ir.Model) -> None:
        # Before IR version 4 every initializer was listed among the inputs; those are constants.
        overridable = model.graph.inputs if model.ir_version >= 4 else ()
        self.state = {v for v in overridable if v.name in model.graph.initializers}
        self._tensors: dict[ir.Value, ir.TensorProtocol | np.ndarray] = {}
        self._inline: dict[ir.Value, np.ndarray] = {}
        self._numpy: dict[ir.Value, np.ndarray] = {}
        self._device: dict[ir.Value, jax.Array] = {}
        self._structs: dict[ir.Value, jax.ShapeDtypeStruct] = {}
        for value, tensor in _constants(model):
            self._tensors[value] = tensor
            if value not in self.state and _is_small(*_dtype_and_size(tensor)):
                self._inline[value] = self.read(value)

    def __contains__(self, value: ir.Value) -> bool:
        return value in self._tensors

    def inline(self, value: ir.Value) -> np.ndarray | None:
        """The value where it is small integer or bool data or a single number, else None."""
        return self._inline.get(value)

    def constant(self, value: ir.Value, at_most: int | None = None) -> np.ndarray | None:
        """The value as numpy where no call can change it and it has no more than `at_most` elements, else None."""
        tensor = self._tensors.get(value)
        if tensor is None or value in self.state or (at_most is not None and tensor.size > at_most):
            return None
        return self.read(value)

    def arguments(self) -> list[ir.Value]:
        """The constants that executables take as arguments."""
        return [value for value in self._tensors if value not in self._inline]

    def struct(self, value: ir.Value) -> jax.ShapeDtypeStruct:
        """Shape and dtype of a constant."""
        struct = self._structs.get(value)
        if struct is None:
            struct = self._structs[value] = _struct(self._tensors[value])
        return struct

    def on_device(self, value: ir.Value, placement: Placement) -> jax.Array:
        """The constant as a device array, copied there the first time. Call with 64-bit types enabled."""
        array = self._device.get(value)
        if array is None:
            array = self._device.setdefault(value, placement.put(self.read(value), value))
        return array

    def read(self, value: ir.Value) -> np.ndarray:
        """The constant as numpy."""
        array = self._numpy.get(value)
        if array is None:
            tensor = self._tensors[value]
            array = np.asarray(tensor if isinstance(tensor, np.ndarray) else tensor.numpy())
            if array.size <= HOST_ELEMENTS:  # large ones live on the device and in the model
                self._numpy[value] = array
        return array


def put(array: Any, device: jax.Device) -> jax.Array:
    """An array on the device. Numbers of less than a byte are not bound to it: jax 0.10 refuses those that are, since
    it describes their layout in two ways."""
    if array.dtype.name not in _SUB_BYTE:
        return jax.device_put(array, device)
    with jax.default_device(device):
        return jax.device_put(array)


def unbound(value: Any) -> Any:
    """A result of one program as another takes it (see `put`)."""
    return np.asarray(value) if isinstance(value, jax.Array) and value.dtype.name in _SUB_BYTE else value


def _is_small(dtype: np.dtype, size: int) -> bool:
    return size <= (HOST_ELEMENTS if dtype.kind in "iub" else 1 if dtype.kind == "f" else 0)


def _dtype_and_size(tensor: ir.TensorProtocol | np.ndarray) -> tuple[np.dtype, int]:
    if isinstance(tensor, np.ndarray):
        return tensor.dtype, tensor.size
    return np.dtype(tensor.dtype.numpy()), tensor.size


def _struct(tensor: ir.TensorProtocol | np.ndarray) -> jax.ShapeDtypeStruct:
    if isinstance(tensor, np.ndarray):
        return jax.ShapeDtypeStruct(tensor.shape, tensor.dtype)
    return jax.ShapeDtypeStruct(tensor.shape.numpy(), np.dtype(tensor.dtype.numpy()))


def _constants(model: ir.Model) -> Iterator[tuple[ir.Value, ir.TensorProtocol | np.ndarray]]:
    bodies = [g for function in model.functions.values() for g in function.subgraphs()]
    for graph in (model.graph, *model.graph.subgraphs(), *bodies):
        for value in graph.initializers.values():
            if value.const_value is not None and value.const_value.dtype != ir.DataType.STRING:
                yield value, value.const_value
    containers: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for container in containers:
        for node in container.all_nodes():
            if node.op_type == "Constant" and node.domain == "":
                tensor = constant_of(node)
                if tensor is not None:
                    yield node.outputs[0], tensor


def constant_of(node: ir.Node) -> ir.TensorProtocol | np.ndarray | None:
    """The tensor of a Constant node; None for strings, sparse tensors and attribute references."""
    for name in _VALUE_ATTRIBUTES:
        attribute = node.attributes.get(name)
        if attribute is None or attribute.is_ref():
            continue
        if name == "value":
            return None if attribute.value.dtype == ir.DataType.STRING else attribute.value
        return np.asarray(value_of(attribute), np.int64 if "int" in name else np.float32)
    return None
