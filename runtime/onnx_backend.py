"""ONNX's standard backend interface, so that its own tests drive a pfvm device.

    import onnx.backend.test, pfvm.runtime.onnx_backend as backend
    test = onnx.backend.test.BackendTest(backend, __name__)

The device is PFVM_DEVICE (default pfvm:cpu): the suite itself only knows "CPU" and "CUDA". PFVM_HOST=0 forbids host
segments on xla devices, so that two runs tell which tests need one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.backend.base import Backend, BackendRep, namedtupledict
from pfvm.errors import InputError, PfvmError

from .api import load
from .device import parse_device
from .executable import Executable


def default_device() -> str:
    """The device that this module runs on."""
    return os.environ.get("PFVM_DEVICE", "pfvm:cpu")


def default_options() -> dict[str, Any]:
    """What `load` is given besides: allow_host=False on xla devices where PFVM_HOST is 0."""
    forbidden = os.environ.get("PFVM_HOST", "1") == "0" and parse_device(default_device()).backend == "xla"
    return {"allow_host": False} if forbidden else {}


class PfvmRep(BackendRep):
    """A loaded model."""

    def __init__(self, executable: Executable) -> None:
        self.executable = executable

    def run(self, inputs: Any, **kwargs: Any) -> Any:
        """inputs: arrays in the order of the graph's inputs, one bare array, or a dict by name.

        Returns the outputs as a named tuple. Raises InputError.
        """
        outputs = self.executable(self._feeds(inputs))
        return namedtupledict("Outputs", list(outputs))(*outputs.values())

    def _feeds(self, inputs: Any) -> Mapping[str, Any]:
        if isinstance(inputs, Mapping):
            return inputs
        if isinstance(inputs, np.ndarray):
            inputs = [inputs]
        specs = [*self.executable.inputs, *self.executable.optional_inputs]
        if len(inputs) > len(specs):
            raise InputError(f"{len(inputs)} inputs given, the model has {len(specs)}")
        return {spec.name: value for spec, value in zip(specs, inputs)}


class PfvmBackend(Backend):
    """The backend of `default_device()`."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """True when the model loads on the device."""
        try:
            load(model, default_device(), **default_options())
        except PfvmError:
            return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> PfvmRep:
        """Loads a model. kwargs are those of `pfvm.load`. Raises what `pfvm.load` raises."""
        return PfvmRep(load(model, default_device(), **{**default_options(), **kwargs}))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any) -> Any:
        """Loads and runs a model once."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Runs one node. kwargs: opset_version, else the newest that onnx knows."""
        arrays = [np.asarray(x) for x in ([inputs] if isinstance(inputs, np.ndarray) else inputs)]
        version = int(kwargs.pop("opset_version", onnx.defs.onnx_opset_version()))
        return cls.run_model(_single_node(node, arrays, version), arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """True for the platform of `default_device()`, in ONNX's spelling ("CPU", "CUDA:0")."""
        kind = device.split(":")[0].lower()
        return parse_device(default_device()).platform in (kind, "emu", "auto")


def _single_node(node: onnx.NodeProto, arrays: Sequence[np.ndarray], version: int) -> onnx.ModelProto:
    names = list(dict.fromkeys(name for name in node.input if name))
    if len(names) != len(arrays):
        raise InputError(f"run_node({node.op_type}): {len(arrays)} inputs given, the node has {len(names)}")
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in zip(names, arrays)
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    imports = [onnx.helper.make_opsetid("", version)]
    if node.domain:
        imports.append(onnx.helper.make_opsetid(node.domain, 1))
    graph = onnx.helper.make_graph([node], "node", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=imports, producer_name="pfvm")
    model.ir_version = min(model.ir_version, onnx.helper.find_min_ir_version_for(imports[:1]))
    return onnx.shape_inference.infer_shapes(model)


is_compatible = PfvmBackend.is_compatible
prepare = PfvmBackend.prepare
run_model = PfvmBackend.run_model
run_node = PfvmBackend.run_node
supports_device = PfvmBackend.supports_device


def run(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """One call: inputs by name → outputs in the graph's order."""
    return list(load(model, default_device(), **default_options())(feeds).values())
