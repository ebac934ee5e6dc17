"""The reference answer for a model: ONNX Runtime without optimizations, else ONNX's own reference implementation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from pfvm.errors import UnsupportedOpError

from .executable import check_feeds, specs_of
from .ort import OrtExecutable

ORT = "onnxruntime, optimizations disabled"
REFERENCE = "onnx.reference"


class OracleResult(NamedTuple):
    """Outputs by name, and which engine computed them."""

    outputs: dict[str, Any]
    engine: str


def oracle(model: ir.Model, feeds: Mapping[str, Any]) -> OracleResult:
    """The reference outputs for these feeds.

    Where ONNX Runtime has no kernel (double Conv, say) onnx.reference computes them, a double model in float64.
    Raises InputError, InvalidModelError, and UnsupportedOpError when neither engine has the op.
    """
    try:
        return OracleResult(OrtExecutable(model, threads=1, optimize=False)(feeds), ORT)
    except UnsupportedOpError as unsupported:
        return OracleResult(_reference(model, feeds, unsupported), REFERENCE)


def _reference(model: ir.Model, feeds: Mapping[str, Any], unsupported: UnsupportedOpError) -> dict[str, Any]:
    from onnx.reference import ReferenceEvaluator

    required, optional, outputs = specs_of(model)
    values = check_feeds(required, optional, feeds)
    try:
        results = ReferenceEvaluator(ir.to_proto(model)).run(None, values)
    except Exception as error:  # the reference raises whatever numpy does; the first engine's reason is the clear one
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise UnsupportedOpError(f"{unsupported}; onnx.reference cannot run it either ({reason})") from error
    return {spec.name: _array(value) for spec, value in zip(outputs, results)}


def _array(value: Any) -> Any:
    return value if value is None or isinstance(value, (list, dict)) else np.asarray(value)
