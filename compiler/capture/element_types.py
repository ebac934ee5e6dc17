"""Element types that an ONNX operator does not take: which wider one computes the same."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import onnx
import onnx_ir as ir

OPSET = 20  # the first with Gelu and with N-dimensional GridSample

_T = ir.DataType
# Integers wrap around as they do in torch when the result of a wider integer type is cast back. Halves in float are
# exact; integers in a float (a convolution, a pool) are wherever torch does not overflow.
_WIDER: dict[_T, tuple[_T, ...]] = {
    **dict.fromkeys((_T.BOOL, _T.UINT8, _T.INT8, _T.UINT16, _T.INT16), (_T.INT32, _T.FLOAT)),
    **dict.fromkeys((_T.INT32, _T.UINT32), (_T.INT64, _T.DOUBLE)),
    **dict.fromkeys((_T.FLOAT16, _T.BFLOAT16), (_T.FLOAT,)),
}


class _Schema(NamedTuple):
    """The type variable (or the type) of each input and output, and the types that a variable may be."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    is_variadic: bool
    allowed: dict[str, frozenset[str]]


@functools.cache
def _schema(op_type: str) -> _Schema:
    schema = onnx.defs.get_schema(op_type, OPSET, "")
    variadic = onnx.defs.OpSchema.FormalParameterOption.Variadic
    return _Schema(
        tuple(i.type_str if i.is_homogeneous else "" for i in schema.inputs),
        tuple(o.type_str if o.is_homogeneous else "" for o in schema.outputs),
        bool(schema.inputs) and schema.inputs[-1].option == variadic,
        {c.type_param_str: frozenset(c.allowed_type_strs) for c in schema.type_constraints},
    )


def _text(dtype: ir.DataType) -> str:
    return f"tensor({dtype.name.lower()})"


_NAMED = {_text(dtype): dtype for dtype in ir.DataType}


class Fit(NamedTuple):
    """What each input is to be cast to (None: nothing), and the types of the outputs, None where the inputs do not say:
    those that are computed, and those that are wanted.
    """

    casts: list[ir.DataType | None]
    computed: list[ir.DataType | None]
    wanted: list[ir.DataType | None]


# ONNX Runtime 1.32's kernels of these fail at a call.
_NOT_SCATTERED = frozenset(map(_text, (_T.BOOL, _T.FLOAT16, _T.BFLOAT16)))


def fit(op_type: str, inputs: Sequence[ir.DataType | None], reduction: str | None = None) -> Fit:
    """The types to compute an operator in. Raises LookupError with the type that neither it nor a wider one takes."""
    schema = _schema(op_type)
    if reduction is not None and op_type in ("ScatterElements", "ScatterND"):
        schema = schema._replace(allowed={**schema.allowed, "T": schema.allowed["T"] - _NOT_SCATTERED})
    variables = [*schema.inputs, *([schema.inputs[-1]] * len(inputs) if schema.is_variadic else [])]
    known = {v: dtype for v, dtype in zip(variables, inputs) if dtype is not None and v in schema.allowed}
    chosen = {v: _chosen(schema.allowed[v], dtype) for v, dtype in known.items()}
    return Fit(
        [chosen[v] if chosen.get(v) != known.get(v) else None for v, _ in zip(variables, inputs)],
        [chosen.get(v) or _only(schema, v) for v in schema.outputs],
        [known.get(v) or _only(schema, v) for v in schema.outputs],
    )


def _only(schema: _Schema, variable: str) -> ir.DataType | None:
    """The type of an output that always has the same."""
    types = schema.allowed.get(variable, {variable})
    return _NAMED.get(next(iter(types))) if len(types) == 1 else None


def _chosen(allowed: frozenset[str], dtype: ir.DataType) -> ir.DataType:
    for choice in (dtype, *_WIDER.get(dtype, ())):
        if _text(choice) in allowed:
            return choice
    raise LookupError(dtype.name.lower())
