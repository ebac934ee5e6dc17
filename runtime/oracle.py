"""The reference answer for a model: ONNX Runtime without optimizations, else ONNX's own reference implementation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from pfvm.errors import InputError, UnsupportedOpError, one_line

from .executable import check_feeds, representation, specs_of
from .ort import OrtExecutable
from .ort_model import serialize

ORT = "onnxruntime with optimizations disabled"
REFERENCE = "onnx.reference"


class Oracle:
    """An executable that computes reference outputs; `engine` says what computes them.

    ONNX Runtime runs the graph exactly as written, on one thread. Where it has no kernel (double Conv, say)
    onnx.reference does, at the types of the model: a double model in float64.
    Raises InvalidModelError, and UnsupportedOpError when neither engine has an op.
    """

    def __init__(self, model: ir.Model, custom_ops_library: str | os.PathLike[str] | None = None) -> None:
        self.inputs, self.optional_inputs, self.outputs = specs_of(model)
        self.engine = ORT
        self._run: Any
        try:
            self._run = OrtExecutable(
                model, threads=1, optimize=False, custom_ops_library=custom_ops_library, expand=False
            )
        except UnsupportedOpError as unsupported:
            self.engine = REFERENCE
            self._run = _Reference(model, unsupported)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """One call. Raises InputError."""
        values = check_feeds(self.inputs, self.optional_inputs, feeds)
        return dict(zip((spec.name for spec in self.outputs), self._run(values).values()))

    def __repr__(self) -> str:
        return representation(self.engine, self.inputs, self.outputs)


class OracleResult(NamedTuple):
    """Outputs by name, and which engine computed them."""

    outputs: dict[str, Any]
    engine: str


def oracle(model: ir.Model, feeds: Mapping[str, Any]) -> OracleResult:
    """The reference outputs for these feeds. Raises what Oracle raises."""
    executable = Oracle(model)
    return OracleResult(executable(feeds), executable.engine)


class _Reference:
    """onnx.reference behind the same call."""

    def __init__(self, model: ir.Model, unsupported: UnsupportedOpError) -> None:
        from onnx.reference import ReferenceEvaluator

        self._names = [v.name or "" for v in model.graph.outputs]
        try:
            self._evaluator = ReferenceEvaluator(onnx.ModelProto.FromString(serialize(model, {})))
        except Exception as error:  # it raises whatever its parts do; the first engine's reason is the clear one
            raise UnsupportedOpError(f"{unsupported}; onnx.reference: {one_line(error)}") from error

    def __call__(self, values: Mapping[str, Any]) -> dict[str, Any]:
        try:
            results = self._evaluator.run(None, dict(values))
        except NotImplementedError as error:
            raise UnsupportedOpError(f"onnx.reference: {one_line(error)}") from error
        except Exception as error:
            raise InputError(f"onnx.reference failed on these inputs: {one_line(error)}") from error
        return {name: _array(value) for name, value in zip(self._names, results)}


def _array(value: Any) -> Any:
    return value if value is None or isinstance(value, (list, dict)) else np.asarray(value)
