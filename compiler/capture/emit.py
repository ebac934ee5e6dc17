"""Writing ONNX nodes for the FX node at hand: names, origin and constants are taken care of here, meaning in aten/."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from pfvm.errors import CaptureError
from pfvm.passes.provenance import MODULE, SOURCE

from .dtypes import onnx_dtype, to_numpy
from .element_types import fit
from .names import Names
from .source import Origin, origin_of_node
from .symbols import Symbols

Arg = Any  # an FX argument: fx.Node, number, None, or a list of those


def val(node: torch.fx.Node) -> Any:
    """What the trace saw this node produce: a fake tensor, a tuple of them, or a symbolic number."""
    return node.meta["val"]


def sizes(shape: Sequence[Any]) -> list[Any]:
    """A shape to compare: comparing symbolic sizes themselves would fix them to the sample's."""
    return [s.node.expr if isinstance(s, torch.SymInt) else s for s in shape]


def axis(dim: int, rank: int) -> int:
    """A dimension counted from the front. A 0-d tensor has the one dimension 0, as in torch."""
    return dim % max(rank, 1)


class Emitter:
    """Appends ONNX nodes. `values` maps FX nodes to what they became: a Value, or a list for several results."""

    def __init__(self, names: Names, symbols: Symbols) -> None:
        self.nodes: list[ir.Node] = []
        self.initializers: list[ir.Value] = []
        self.values: dict[torch.fx.Node, Any] = {}
        self.names = names
        self.symbols = symbols
        self._prefix = ""
        self._origin = Origin("", "")
        self._sizes: dict[Any, tuple[torch.fx.Node, int]] = {}

    def begin(self, node: torch.fx.Node) -> None:
        """All that follows belongs to this FX node."""
        self._prefix = node.name
        self._origin = origin_of_node(node)

    def bind(self, node: torch.fx.Node, value: Any) -> None:
        """Note what an FX node became, and where a symbolic size can be read from."""
        self.values[node] = value
        seen = node.meta.get("val")
        if isinstance(seen, torch.Tensor) and isinstance(value, ir.Value):
            for i, size in enumerate(seen.shape):
                if isinstance(size, torch.SymInt):
                    self._sizes.setdefault(size.node.expr, (node, i))

    @contextlib.contextmanager
    def nested(self) -> Iterator[None]:
        """Within, `nodes` are those of a body, which reads what is outside, and whose sizes nobody outside reads."""
        outer, sizes, prefix, origin = self.nodes, dict(self._sizes), self._prefix, self._origin
        self.nodes = []
        try:
            yield
        finally:
            self.nodes, self._sizes, self._prefix, self._origin = outer, sizes, prefix, origin

    # Nodes

    def op(self, op_type: str, *inputs: ir.Value | None, outputs: int = 1, **attributes: Any) -> Any:
        """One node of the standard domain; its output, or a list when `outputs` > 1. None attributes are left out.

        Types that ONNX's operator does not take are cast to wider ones, and the results back.
        """
        while inputs and inputs[-1] is None:
            inputs = inputs[:-1]
        try:
            types = fit(op_type, [None if v is None else v.dtype for v in inputs], attributes.get("reduction"))
        except LookupError as error:
            raise CaptureError(
                f"{self._origin.where}: ONNX has no {op_type} of {error.args[0]} tensors; cast them with .to(dtype)"
            ) from error
        if any(types.casts):
            inputs = tuple(
                v if v is None or to is None else self.op("Cast", v, to=to) for v, to in zip(inputs, types.casts)
            )
        made = [ir.Value(name=self.names.take(f"{self._prefix}.{op_type}")) for _ in range(outputs)]
        computed = [attributes["to"]] if op_type == "Cast" else types.computed
        for value, dtype in zip(made, computed):
            if dtype is not None:
                value.dtype = dtype
        node = ir.node(
            op_type,
            inputs=list(inputs),
            attributes={k: v for k, v in attributes.items() if v is not None},
            outputs=made,
            name=self.names.take(f"{self._prefix}/{op_type}"),
        )
        origin = {SOURCE: self._origin.known_source, MODULE: self._origin.module}
        node.metadata_props.update({key: text for key, text in origin.items() if text})
        self.nodes.append(node)
        if any(types.casts):
            back = zip(made, types.computed, types.wanted)
            made = [v if a == b or b is None else self.op("Cast", v, to=b) for v, a, b in back]
        return made[0] if outputs == 1 else made

    def cast(self, value: ir.Value, dtype: torch.dtype) -> ir.Value:
        """A Cast node."""
        return self.op("Cast", value, to=onnx_dtype(dtype))

    # Constants

    def constant(self, array: np.ndarray[Any, Any], label: str) -> ir.Value:
        """An initializer named after the FX node."""
        name = self.names.take(f"{self._prefix}.{label}")
        tensor = ir.Tensor(array, name=name)
        value = ir.Value(name=name, const_value=tensor, shape=ir.Shape(array.shape), type=ir.TensorType(tensor.dtype))
        self.initializers.append(value)
        return value

    def ints(self, numbers: Sequence[int], label: str = "axes") -> ir.Value:
        """A 1-D int64 initializer."""
        return self.constant(np.asarray(numbers, dtype=np.int64).reshape(len(numbers)), label)

    def scalar(self, number: Any, dtype: torch.dtype, label: str = "scalar") -> ir.Value:
        """A 0-d initializer."""
        if dtype in (torch.complex64, torch.complex128):
            return self.constant(to_numpy(torch.tensor(number, dtype=dtype)), label)
        return self.constant(np.asarray(number).astype(onnx_dtype(dtype).numpy()), label)

    def torch_constant(self, tensor: torch.Tensor, label: str) -> ir.Value:
        """An initializer with a copy of the tensor's values."""
        if tensor.layout is not torch.strided:
            raise CaptureError(f"{self._origin.where}: a {tensor.layout} tensor has no ONNX form; use its to_dense()")
        return self.constant(to_numpy(tensor).copy(), label)

    # Arguments

    def tensor(self, arg: Arg, dtype: torch.dtype | None = None) -> ir.Value:
        """The value of a tensor or number argument. Cast when the trace saw another dtype than the one asked for."""
        if not isinstance(arg, torch.fx.Node):
            return self.scalar(arg, dtype or _dtype_of_number(arg))
        value = self.values[arg]
        seen = dtype_of(arg)
        return value if dtype is None or seen == dtype else self.cast(value, dtype)

    def optional(self, arg: Arg, dtype: torch.dtype | None = None) -> ir.Value | None:
        """As `tensor`, None for None."""
        return None if arg is None else self.tensor(arg, dtype)

    def shape(self, sizes: Sequence[Arg], label: str = "shape") -> ir.Value:
        """A 1-D int64 value from numbers, FX symbols and symbolic sizes; an initializer when all are numbers."""
        if all(isinstance(s, int) for s in sizes):
            return self.ints(list(sizes), label)
        parts = [self._size_part(s) for s in sizes]
        return parts[0] if len(parts) == 1 else self.op("Concat", *parts, axis=0)

    def _size_part(self, size: Arg) -> ir.Value:
        if isinstance(size, int):
            return self.ints([size], "size")
        return self.op("Unsqueeze", self.size(size), self.ints([0], "axes"))

    def size(self, size: Arg) -> ir.Value:
        """A 0-d int64 value: of a number, an FX symbol, or a symbolic size that some tensor has."""
        if isinstance(size, torch.fx.Node):
            return self.tensor(size, torch.int64)
        if isinstance(size, int):
            return self.scalar(size, torch.int64, "size")
        where = self._sizes.get(size.node.expr)
        if where is None:
            raise CaptureError(
                f"{self._origin.where}: symbolic size {self.symbols.dim(size)} is no dimension of any tensor here"
            )
        shape = self.op("Shape", self.values[where[0]])
        return self.op("Gather", shape, self.scalar(where[1], torch.int64, "index"), axis=0)

    def refuse(self, reason: str, node: torch.fx.Node) -> CaptureError:
        """The error for a form of an op that has no translation."""
        inside = f" in {self._origin.module}" if self._origin.module else ""
        return CaptureError(f"{self._origin.where}: {node.target}{inside}: {reason}")


def dtype_of(node: torch.fx.Node) -> torch.dtype:
    """Element type of what a node became; symbolic numbers are int64, float64 or bool scalars."""
    seen = val(node)
    if isinstance(seen, torch.Tensor):
        return seen.dtype
    if isinstance(seen, (torch.SymFloat, float)):
        return torch.float64
    return torch.bool if isinstance(seen, (torch.SymBool, bool)) else torch.int64


def _dtype_of_number(number: Any) -> torch.dtype:
    if isinstance(number, bool):
        return torch.bool
    return torch.float32 if isinstance(number, float) else torch.int64
