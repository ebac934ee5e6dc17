"""Reductions, running sums, order."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from .translate import NoOnnxForm, Translator, dtype_of, in_shape, lowers

_REDUCTIONS = {
    "reduce_sum": "ReduceSum",
    "reduce_max": "ReduceMax",
    "reduce_min": "ReduceMin",
    "reduce_prod": "ReduceProd",
}


@lowers(*_REDUCTIONS)
def _reduce(t: Translator, eqn: Any, x: ir.Value) -> ir.Value:
    axes = eqn.params["axes"]
    if not axes:
        return t.b.op("Identity", x)
    return t.b.op(_REDUCTIONS[eqn.primitive.name], x, t.b.ints(*axes), keepdims=0)


@lowers("reduce_and", "reduce_or")
def _reduce_logic(t: Translator, eqn: Any, x: ir.Value) -> ir.Value:
    kind = "ReduceMin" if eqn.primitive.name == "reduce_and" else "ReduceMax"
    number = t.b.op("Cast", x, to=int(ir.DataType.INT32))
    return t.b.cast(t.b.op(kind, number, t.b.ints(*eqn.params["axes"]), keepdims=0), ir.DataType.BOOL)


@lowers("argmax", "argmin")
def _arg(t: Translator, eqn: Any, x: ir.Value) -> ir.Value:
    (axis,) = eqn.params["axes"]
    kind = "ArgMax" if eqn.primitive.name == "argmax" else "ArgMin"
    return t.b.cast(t.b.op(kind, x, axis=axis, keepdims=0), dtype_of(eqn.outvars[0].aval))


@lowers("cumsum")
def _cumsum(t: Translator, eqn: Any, x: ir.Value) -> ir.Value:
    axis = t.b.constant(np.int64(eqn.params["axis"]))
    return t.b.op("CumSum", x, axis, reverse=int(eqn.params["reverse"]))


@lowers("sort")
def _sort(t: Translator, eqn: Any, *operands: ir.Value) -> Any:
    axis, keys = eqn.params["dimension"], eqn.params["num_keys"]
    if keys != 1:
        raise NoOnnxForm("sort by several keys has no ONNX form")
    size = t.dims.vector([in_shape(eqn)[axis]])
    values, where = t.b.ops(2, "TopK", operands[0], size, axis=axis, largest=0)
    return [values, *(t.b.op("GatherElements", x, where, axis=axis) for x in operands[1:])]


@lowers("top_k")
def _top_k(t: Translator, eqn: Any, x: ir.Value) -> Any:
    axis = eqn.params.get("axis", -1)
    values, where = t.b.ops(2, "TopK", x, t.b.ints(eqn.params["k"]), axis=axis)
    return [values, t.b.cast(where, dtype_of(eqn.outvars[1].aval))]
