"""For each operator: along which axis of the result its rows still depend on one row of the operands only."""

from __future__ import annotations

from .row_facts import Rule
from .row_math import (
    along,
    batched,
    by_batch,
    cumulative,
    dropout,
    elementwise,
    from_axis,
    gemm,
    matmul,
    quantize,
    recurrent,
    reduce,
    softmax,
)
from .row_moves import (
    concat,
    expand,
    filled,
    flatten,
    gather,
    one_hot,
    pad,
    reshape,
    resize,
    slice_,
    squeeze,
    tile,
    transpose,
    unsqueeze,
)

_ELEMENTWISE = (
    *("Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "BitShift", "BitwiseAnd", "BitwiseNot"),
    *("BitwiseOr", "BitwiseXor", "Cast", "Ceil", "Celu", "Clip", "Cos", "Cosh", "Div", "Elu", "Equal", "Erf", "Exp"),
    *("Floor", "Gelu", "Greater", "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN"),
    *("LeakyRelu", "Less", "LessOrEqual", "Log", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or"),
    *("PRelu", "Pow", "Reciprocal", "Relu", "Round", "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus"),
    *("Softsign", "Sqrt", "Sub", "Sum", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Where", "Xor"),
)
_BATCHED = (
    *("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace", "GlobalAveragePool"),
    *("GlobalLpPool", "GlobalMaxPool", "GroupNormalization", "InstanceNormalization", "LRN", "LpPool", "MaxPool"),
    "SpaceToDepth",
)
_REDUCE = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")

RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, elementwise),
    **dict.fromkeys(_BATCHED, batched),
    **dict.fromkeys((f"Reduce{kind}" for kind in _REDUCE), reduce),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), quantize),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), softmax),
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), from_axis(-1)),
    **dict.fromkeys(("ArgMax", "ArgMin", "Split"), along(0)),
    **dict.fromkeys(("TopK", "LpNormalization"), along(-1)),
    **dict.fromkeys(("LSTM", "GRU", "RNN"), recurrent),
    **dict.fromkeys(("ConstantOfShape", "Range"), filled),
    **dict.fromkeys(("Attention", "RotaryEmbedding"), by_batch),
    "MatMul": matmul,
    "MatMulInteger": matmul,
    "Gemm": gemm,
    "Dropout": dropout,
    "CumSum": cumulative,
    "Transpose": transpose,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Concat": concat,
    "Slice": slice_,
    "Pad": pad,
    "Tile": tile,
    "Gather": gather,
    "OneHot": one_hot,
    "Flatten": flatten,
    "Reshape": reshape,
    "Expand": expand,
    "Resize": resize,
}
