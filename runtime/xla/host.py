"""A segment on the host: its nodes as a model of their own in ONNX Runtime (and Pillow, for images)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
from pfvm.errors import UnsupportedOpError
from pfvm.runtime.executable import Executable
from pfvm.runtime.image_decoding import load_ort

from .segments import Segment


class HostRunner:
    """Runs a segment in ONNX Runtime. Sessions are made at the first call, which tells the types of the inputs.

    types: gives the inferred types of the model's values, where arrays do not tell (optionals, empty sequences).
    """

    def __init__(self, segment: Segment, model: ir.Model, types: Callable[[], Mapping[str, ir.TypeProtocol]]) -> None:
        self.segment = segment
        self._model = model
        self._types = types
        self._sessions: dict[tuple[Any, ...], Executable] = {}
        self._lock = threading.Lock()

    def __call__(self, env: Mapping[ir.Value, Any]) -> dict[ir.Value, Any]:
        """Run on the values of `env`; state that it lacks is taken from the model. Returns the segment's outputs."""
        values = [_on_host(env[v]) if v in env else _stored(v) for v in self.segment.inputs]
        key = tuple(_signature(value) for value in values)
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                session = self._sessions[key] = self._open(values)
        results = session({v.name or "": x for v, x in zip(self.segment.inputs, values)})
        return {v: results[v.name or ""] for v in self.segment.outputs}

    def _open(self, values: list[Any]) -> Executable:
        try:
            return load_ort(self._submodel(values))
        except UnsupportedOpError as error:
            why = self.segment.reason or "behind a cut, and called with too many shapes"
            raise UnsupportedOpError(f"host segment ({why}): {error}") from error

    def _submodel(self, values: list[Any]) -> ir.Model:
        """The segment as a model. It shares the tensors of the whole model's constants."""
        graph = self._model.graph
        read = set(self.segment.constants)
        nodes = [n for n in graph if n.op_type == "Constant" and n.outputs[0] in read]  # before IR version 4
        view = ir.GraphView(
            self.segment.inputs,
            self.segment.outputs,
            nodes=[*nodes, *self.segment.nodes],
            initializers=[v for v in graph.initializers.values() if v in read],
            opset_imports=graph.opset_imports,
            name=graph.name,
        )
        clone = view.clone()
        for original, value, array in zip(self.segment.inputs, clone.inputs, values):
            if value.type is None and (not isinstance(array, np.ndarray) or "optionals" in self.segment.reason):
                value.type = self._types().get(value.name or "")  # inferring them takes a while
            _set_type(value, array, keep_shape=original.is_graph_input())
            value.const_value = None
        return ir.Model(clone, ir_version=self._model.ir_version, functions=list(self._model.functions.values()))


def _stored(value: ir.Value) -> np.ndarray:
    return value.const_value.numpy()  # type: ignore[union-attr]  # state has one


def _on_host(value: Any) -> Any:
    return np.asarray(value) if isinstance(value, jax.Array) else value


def _signature(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(sorted({str(_signature(v)) for v in value}))
    return None if value is None else (value.dtype.name, value.ndim)


def _set_type(value: ir.Value, array: Any, keep_shape: bool) -> None:
    """Element type and rank as they are in this call. Sizes only where every call is checked against them."""
    if isinstance(value.type, (ir.OptionalType, ir.SequenceType)) or not isinstance(array, np.ndarray):
        return
    kind = ir.DataType.STRING if array.dtype.kind in "OUST" else ir.DataType.from_numpy(array.dtype)
    value.type = ir.TensorType(kind)
    if not keep_shape or value.shape is None:
        value.shape = ir.Shape([None] * array.ndim)
