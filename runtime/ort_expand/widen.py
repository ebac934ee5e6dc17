"""Kernels that lack an element type: cast to one that holds all its values, compute there, cast back.

Only where the result is equal or at least as accurate: a value rounded once instead of in every step. double is never
computed in float.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from onnx import TensorProto

from .kernels import kernels_at
from .node import Builder, Node
from .scope import repeated

_T = TensorProto


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Real functions of real values, and selections among values: rounding at the end is as good as it gets.
_FLOATS = _words(
    """
    Abs Acos Acosh Add ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Ceil Celu Clip Concat Conv
    ConvTranspose Cos Cosh CumSum CumProd DepthToSpace Det Div Einsum Elu Equal Erf Exp Expand Flatten Floor Gather
    GatherElements GatherND Gelu Gemm GlobalAveragePool GlobalMaxPool GreaterOrEqual Greater GridSample
    GroupNormalization HardSigmoid HardSwish Hardmax InstanceNormalization IsInf IsNaN LRN LayerNormalization
    LeakyRelu Less LessOrEqual Log LogSoftmax LpNormalization LpPool MatMul Max MaxPool Mean
    MeanVarianceNormalization Min Mish Mod Mul Neg NonZero OneHot PRelu Pad Pow RMSNormalization ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Reciprocal Relu
    Reshape Resize ReverseSequence RotaryEmbedding Round ScatterElements ScatterND Selu Shape Shrink Sigmoid Sign
    Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth Split Sqrt Squeeze Sub Sum Swish Tan Tanh
    ThresholdedRelu Tile TopK Transpose Trilu Unique Unsqueeze Where
    """
)
# Integers: what a wider type computes equals the narrow result modulo its size, or picks one of the operands. Sums and
# products over an axis are not here: ONNX Runtime computes those of int64 in double, and saturates.
_INTEGERS = _words(
    """
    Abs Add ArgMax ArgMin Clip Concat CumSum DepthToSpace Div Equal Expand Flatten Gather GatherElements GatherND
    Gemm Greater GreaterOrEqual Less LessOrEqual MatMul Max Min Mod Mul Neg NonZero OneHot Pad Pow PRelu ReduceMax
    ReduceMin Relu Reshape ReverseSequence ScatterElements ScatterND
    Shape Sign Size Slice SpaceToDepth Split Squeeze Sub Sum Tile TopK Transpose Trilu Unique Unsqueeze Where
    """
)
# Values are moved, never computed with: a bool may travel as a byte.
_MOVES = _words(
    """
    Concat DepthToSpace Equal Expand Flatten Gather GatherElements GatherND NonZero OneHot Pad Reshape
    ReverseSequence ScatterElements ScatterND Shape Size Slice SpaceToDepth Split Squeeze Tile Transpose Trilu
    Unique Unsqueeze Where
    """
)
# Modulo 2⁶⁴ uint64 is int64, and so are the casts between them; Unique would sort differently.
_UINT64 = (_MOVES | {"CumSum"}) - {"Unique"}
_WIDER: Mapping[int, tuple[int, ...]] = {
    _T.FLOAT16: (_T.FLOAT,),
    _T.BFLOAT16: (_T.FLOAT,),
    _T.INT8: (_T.INT32, _T.INT64),
    _T.UINT8: (_T.INT32, _T.INT64),
    _T.INT16: (_T.INT32, _T.INT64),
    _T.UINT16: (_T.INT32, _T.INT64),
    _T.INT32: (_T.INT64,),
    _T.UINT32: (_T.INT64,),
}
_CARRIER: Mapping[int, tuple[int, ...]] = {
    _T.BOOL: (_T.UINT8, _T.INT32, _T.INT64),
    _T.UINT64: (_T.INT64,),
    _T.INT4: (_T.INT8, _T.INT32),
    _T.UINT4: (_T.UINT8, _T.INT32),
    _T.INT2: (_T.INT8, _T.INT32),
    _T.UINT2: (_T.UINT8, _T.INT32),
    _T.FLOAT8E4M3FN: (_T.FLOAT,),
    _T.FLOAT8E4M3FNUZ: (_T.FLOAT,),
    _T.FLOAT8E5M2: (_T.FLOAT,),
    _T.FLOAT8E5M2FNUZ: (_T.FLOAT,),
}


def widen(node: Node, b: Builder) -> list[str] | None:
    """The node in a wider type between casts, where it has a kernel for that; None where it has not."""
    if node.domain or node.schema is None:
        return None
    for kernel in kernels_at(node.domain, node.op_type, node.since_version):
        changed = _changed_types(node, kernel.types)
        if changed:
            return _between_casts(node, changed, b)
    return None


def _changed_types(node: Node, allowed: Mapping[str, frozenset[str]]) -> dict[str, tuple[int, int]] | None:
    """Type parameter → (its type, the wider one) for what a kernel does not take; None where nothing wider exists."""
    changed = {}
    types = node.types
    for parameter, texts in allowed.items():
        text = types.get(parameter)
        if text is None or text in texts:
            continue
        narrow = _element(text)
        wide = next((w for w in _candidates(node.op_type, narrow) if _text(w) in texts), None)
        if wide is None or narrow is None:
            return None
        changed[parameter] = (narrow, wide)
    return changed


@functools.cache
def _candidates(op_type: str, element: int | None) -> tuple[int, ...]:
    if element is None:
        return ()
    found: tuple[int, ...] = ()
    is_float = element in (_T.FLOAT16, _T.BFLOAT16)
    if op_type in (_FLOATS if is_float else _INTEGERS):
        found += _WIDER.get(element, ())
    if op_type in (_UINT64 if element == _T.UINT64 else _MOVES):
        found += _CARRIER.get(element, ())
    return found


def _between_casts(node: Node, changed: Mapping[str, tuple[int, int]], b: Builder) -> list[str]:
    formals = repeated(node.schema.inputs, len(node.inputs))
    inputs = []
    for formal, name in zip(formals, node.inputs):
        parameter = formal.type_str if formal.type_str in changed else formal.name
        inputs.append(b.cast(name, changed[parameter][1]) if name and parameter in changed else name)
    results = b.copy(node, inputs=inputs)
    outputs = []
    for formal, name in zip(repeated(node.schema.outputs, len(results)), results):
        cast_back = name and formal.type_str in changed
        outputs.append(b.cast(name, changed[formal.type_str][0]) if cast_back else name)
    return outputs


def _element(text: str) -> int | None:
    return _T.DataType.Value(text[7:-1].upper()) if text.startswith("tensor(") else None


def _text(element: int) -> str:
    return f"tensor({_T.DataType.Name(element).lower()})"
