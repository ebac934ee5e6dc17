"""Each lowering rule against ONNX Runtime without optimizations: one row per operator form."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import helper

pytest.importorskip("onnxruntime")
pytest.importorskip("jax")

from pfvm.runtime.xla import XlaExecutable
from xla_cases import COLUMNS, RNG, assert_equal, case, check, f32, f64, i64, ints, model_of

pytestmark = pytest.mark.usefixtures("quick_compilation")

NAN = np.array([np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 1.5, -2.5], np.float32)
IMAGE = f32(2, 4, 7, 6)
ELEMENTWISE = [
    *(case(op, f32(2, 3), f32(3)) for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "PRelu")),
    *(case(op, f32(2, 3), f32(3), f32(2, 1), id=f"{op}-three") for op in ("Sum", "Mean", "Max", "Min")),
    *(case(op, f32(3, 4)) for op in ("Abs", "Neg", "Sign", "Floor", "Ceil", "Round", "Exp", "Sin", "Cos", "Tan")),
    *(case(op, f32(3, 4)) for op in ("Atan", "Sinh", "Cosh", "Asinh", "Erf", "Reciprocal", "IsNaN", "IsInf")),
    *(case(op, np.abs(f32(3, 4)) + 1) for op in ("Sqrt", "Log", "Acosh")),
    *(case(op, np.tanh(f32(3, 4))) for op in ("Asin", "Acos", "Atanh")),
    *(case(op, f64(3, 4), id=f"{op}-double") for op in ("Abs", "Exp", "Log", "Sin", "Round", "Sigmoid", "Tanh")),
    *(case(op, ints(t, 3, 4), ints(t, 4, low=1), id=f"{op}-{t.__name__}")
      for op in ("Add", "Sub", "Mul", "Div") for t in (np.int32, np.int64, np.uint8, np.int8)),
    case("Div", i64(7, -7, 7, -7), i64(2, 2, -2, -2), id="Div-truncates"),
    case("Mod", i64(7, -7, 7, -7), i64(3, 3, -3, -3)),
    case("Mod", i64(7, -7, 7, -7), i64(3, 3, -3, -3), fmod=1),
    case("Mod", f32(9), f32(9), fmod=1, id="Mod-float"),
    case("Pow", i64(2, 3, -2), np.array([3.0, 0.0, 3.0], np.float32), id="Pow-int-float"),
    case("Pow", f32(4), i64(2, 3, 1, 0), id="Pow-float-int"),
    case("Pow", i64(7, 1, -1, -1, -2), i64(-2, -3, -3, -2, 3), id="Pow-int-negative"),
    case("Round", np.array([0.5, 1.5, 2.5, -0.5, -1.5], np.float32), id="Round-half-even"),
    *(case(op, NAN, NAN[::-1].copy(), id=f"{op}-nan") for op in ("Max", "Min", "Add", "Mul", "Div")),
    *(case(op, NAN, id=f"{op}-nan") for op in ("Relu", "Abs", "Sign", "IsNaN", "IsInf", "Sigmoid", "Tanh", "Floor")),
    case("Clip", NAN, np.float32(-1).reshape(()), np.float32(1).reshape(()), id="Clip-nan"),
    case("Clip", f32(9), opset=6, min=-0.5, max=0.5),
    case("Clip", f32(9), None, np.array(0.1, np.float32), id="Clip-high-only"),
    case("Clip", ints(np.int64, 9), np.array(-2), np.array(5), id="Clip-int"),
    case("IsInf", NAN, detect_negative=0),
    *(case(op, ints(np.uint8, 5, low=0), ints(np.uint8, 5, low=0), opset=18)
      for op in ("BitwiseAnd", "BitwiseOr", "BitwiseXor")),
    case("BitwiseNot", ints(np.int32, 5), opset=18),
    case("BitShift", np.array([1, 200, 3], np.uint8), np.array([1, 3, 7], np.uint8), direction="LEFT"),
    case("BitShift", np.array([1, 200, 3], np.uint8), np.array([1, 3, 7], np.uint8), direction="RIGHT"),
    *(case(op, f32(2, 3).round(), f32(3).round())
      for op in ("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual")),
    *(case(op, f32(5) > 0, f32(5) > 0) for op in ("And", "Or", "Xor")),
    case("Not", f32(5) > 0),
    case("Where", f32(2, 3) > 0, f32(3), f32(2, 1)),
]  # fmt: skip

ACTIVATIONS = [
    *(case(op, f32(3, 4)) for op in ("Relu", "Sigmoid", "Tanh", "Softplus", "Softsign", "LeakyRelu", "Elu", "Selu")),
    *(case(op, f32(3, 4)) for op in ("Celu", "HardSigmoid", "HardSwish", "ThresholdedRelu", "Shrink")),
    case("Mish", f32(3, 4), opset=18),
    case("Gelu", f32(3, 4), opset=20),
    case("Gelu", f32(3, 4), opset=20, approximate="tanh"),
    *(case(op, f32(3, 4), domain="com.microsoft", opset=17) for op in ("Gelu", "FastGelu", "QuickGelu")),
    *(case(op, f32(2, 3, 4), opset=o, axis=a)
      for op in ("Softmax", "LogSoftmax", "Hardmax") for o, a in ((11, 1), (11, 2), (13, 1), (13, -1))),
    case("Softmax", f32(2, 3, 4), opset=11),
    *(case(op, f32(2, 0, 4), opset=o, axis=1, id=f"{op}-{o}-empty")
      for op in ("Softmax", "LogSoftmax", "Hardmax") for o in (11, 13)),
    case("Softmax", np.array([[1e4, -1e4, 3.0]], np.float32), id="Softmax-large"),
    case("Relu", ints(np.int32, 6), opset=14, id="Relu-int"),
]  # fmt: skip

CASTS = [
    *(case("Cast", np.array([-3.7, 0.0, 2.5, 99.9], np.float32), to=to, id=f"Cast-float-{to}")
      for to in (3, 5, 6, 7, 9, 10, 11)),
    *(case("Cast", ints(np.int64, 6), to=to, id=f"Cast-int64-{to}") for to in (1, 2, 3, 5, 6, 9, 10, 11)),
    case("Cast", np.array([True, False]), to=1, id="Cast-bool"),
    case("Cast", np.array([300, -1, 2**40 + 5], np.int64), to=6, id="Cast-int-wraps"),
    case("CastLike", f32(3), ints(np.int32, 1), opset=15),
]  # fmt: skip

SHAPES = [
    case("Shape", f32(2, 3, 4)),
    case("Shape", f32(2, 3, 4), start=1, end=-1),
    case("Size", f32(2, 3)),
    case("Reshape", f32(2, 3, 4), i64(0, -1)),
    case("Reshape", f32(0, 3), i64(3, 0), allowzero=1),
    *(case("Flatten", f32(2, 3, 4), axis=a) for a in (0, 1, 2, -1)),
    case("Squeeze", f32(1, 3, 1), opset=11, axes=[0]),
    case("Squeeze", f32(1, 3, 1), i64(-1)),
    case("Squeeze", f32(1, 3, 1)),
    case("Unsqueeze", f32(3), opset=11, axes=[0, 2]),
    case("Unsqueeze", f32(3), i64(0, -1)),
    case("Transpose", f32(2, 3, 4)),
    case("Transpose", f32(2, 3, 4), perm=[1, 0, 2]),
    case("Expand", f32(3, 1), i64(2, 1, 4)),
    case("Identity", f32(3)),
    case("DepthToSpace", f32(1, 8, 2, 3), blocksize=2),
    case("DepthToSpace", f32(1, 8, 2, 3), blocksize=2, mode="CRD"),
    case("SpaceToDepth", f32(1, 2, 4, 6), blocksize=2),
    case("Dropout", f32(3), opset=11),
    case("Dropout", f32(3), opset=13, outputs=(True, True)),
    case("Slice", f32(5, 6), i64(1, -2), i64(10, -100), i64(0, 1), i64(2, -1)),
    case("Slice", f32(5, 6), i64(-3), i64(2**62), i64(1), id="Slice-maxint"),
    case("Slice", f32(3, 6), i64(-5, -9), i64(-100, -(2**62)), i64(0, 1), i64(-1, -2), id="Slice-back-from-before-all"),
    case("Slice", f32(5, 6), i64(-1, 4), i64(2**31 - 1, 2**63 - 1), i64(0, 1), i64(-1, -2), id="Slice-back-to-maxint"),
    case("Slice", f32(5, 6), opset=9, starts=[1], ends=[-1], axes=[1]),
    case("Slice", f32(5), i64(3), i64(1), i64(0), i64(1), id="Slice-empty"),
    case("Concat", f32(2, 3), f32(2, 1), axis=-1),
    case("Split", f32(6, 2), opset=11, outputs=(True, True), split=[2, 4]),
    case("Split", f32(6, 2), i64(1, 5), outputs=(True, True)),
    case("Split", f32(7, 2), opset=18, outputs=(True, True, True), num_outputs=3),
    case("Tile", f32(2, 3), i64(2, 1)),
    *(case("Pad", f32(3, 4), i64(1, 0, 0, 2), opset=19, mode=m) for m in ("constant", "reflect", "edge", "wrap")),
    case("Pad", f32(3, 4), i64(1, -1, 0, 2), np.array(7, np.float32), id="Pad-crops"),
    case("Pad", f32(3, 4), i64(1, 2), None, i64(1), opset=18, id="Pad-axes"),
    case("Pad", f32(3, 4), opset=10, pads=[0, 1, 1, 0], value=2.0),
    case("ReverseSequence", f32(4, 3, 2), i64(1, 4, 2)),
    case("ConstantOfShape", i64(2, 3)),
    case("Range", i64(3).reshape(()), i64(-4).reshape(()), i64(-2).reshape(())),
    case("EyeLike", f32(3, 4), k=1),
    case("OneHot", i64(0, -1, 9), i64(4).reshape(()), np.array([2.0, 5.0], np.float32), axis=0),
    case("Trilu", f32(2, 4, 4), opset=14, upper=0),
    case("Trilu", f32(3, 4), i64(-1).reshape(()), opset=14),
    case("HannWindow", i64(8).reshape(())),
    case("BlackmanWindow", i64(8).reshape(()), periodic=0),
]

PRODUCTS = [
    case("MatMul", f32(2, 3), f32(3, 4)),
    case("MatMul", f32(5, 2, 3), f32(3), id="MatMul-vector"),
    case("MatMul", f64(2, 1, 3, 4), f64(5, 4, 2), id="MatMul-batched-double"),
    case("MatMul", ints(np.int32, 2, 3), ints(np.int32, 3, 2), id="MatMul-int"),
    case("Gemm", f32(3, 2), f32(4, 3), f32(4), transA=1, transB=1, alpha=0.5, beta=2.0),
    case("Gemm", f32(2, 3), f32(3, 4)),
    case("Einsum", f32(2, 3, 4), f32(2, 4, 5), equation="bij,bjk->bik"),
    case("Einsum", f32(3, 3), equation="ii"),
    case("MatMulInteger", ints(np.uint8, 2, 3, low=0), ints(np.int8, 3, 4), np.uint8(3), np.int8(-2)),
    case("Det", f32(2, 3, 3)),
    case("FusedMatMul", f32(2, 3), f32(4, 3), domain="com.microsoft", transB=1, alpha=0.5),
    case("FusedMatMul", f32(2, 5, 3), f32(4, 5, 3), domain="com.microsoft", transBatchA=1, transBatchB=1, transB=1),
]

REDUCTIONS = [
    *(case(op, f32(2, 3, 4), axes=[1], keepdims=k)
      for op in ("ReduceMax", "ReduceMin", "ReduceMean", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare",
                 "ReduceLogSumExp") for k in (0, 1)),
    case("ReduceLogSum", np.abs(f32(2, 3)), axes=[0]),
    case("ReduceSum", f32(2, 3, 4), i64(0, -1)),
    case("ReduceSum", f32(2, 3, 4)),
    case("ReduceSum", f32(2, 3, 4), i64(), noop_with_empty_axes=1),
    case("ReduceSum", f32(2, 3), opset=11, axes=[1]),
    case("ReduceSum", ints(np.int32, 3, 4), i64(1), id="ReduceSum-int"),
    case("ReduceMean", ints(np.int32, 3, 4), axes=[1], id="ReduceMean-int"),
    case("ReduceMax", NAN.reshape(2, 4), axes=[1], id="ReduceMax-nan"),
    *(case(op, np.array([[1, 3, 3], [2, 2, 0]], np.float32), axis=1, select_last_index=s, keepdims=k)
      for op in ("ArgMax", "ArgMin") for s in (0, 1) for k in (0, 1)),
    case("CumSum", f32(0, 4), i64(0).reshape(()), exclusive=1, id="CumSum-empty"),
    *(case("CumSum", f32(3, 4), i64(1).reshape(()), exclusive=e, reverse=r) for e in (0, 1) for r in (0, 1)),
    case("TopK", np.array([[3, 1, 3, 2]], np.float32), i64(2), outputs=(True, True)),
    case("TopK", f32(3, 5), i64(3), outputs=(True, True), axis=0, largest=0),
    case("NonZero", f32(8) > 0),
    case("Compress", f32(4, 3), np.array([True, False, True]), axis=1),
    case("Unique", i64(3, 1, 3, 2), outputs=(True, True, True, True), sorted=0),
]  # fmt: skip

CONVOLUTIONS = [
    case("Conv", IMAGE, f32(5, 4, 3, 3), f32(5)),
    case("Conv", IMAGE, f32(5, 4, 3, 2), strides=[2, 1], pads=[1, 0, 2, 1], dilations=[1, 2]),
    case("Conv", IMAGE, f32(6, 2, 3, 3), group=2, auto_pad="SAME_UPPER", strides=[2, 2]),
    case("Conv", IMAGE, f32(4, 1, 3, 3), f32(4), group=4, pads=[1, 1, 1, 1], id="Conv-depthwise"),
    case("Conv", IMAGE, f32(8, 1, 3, 3), group=4, strides=[2, 2], dilations=[2, 1], id="Conv-depthwise-multiplier"),
    case("Conv", IMAGE, f32(4, 1, 2, 2), group=4, auto_pad="SAME_LOWER", id="Conv-depthwise-same-lower"),
    case("Conv", f32(2, 3, 9), f32(4, 3, 3)),
    case("Conv", f32(1, 2, 4, 5, 6), f32(3, 2, 2, 2, 2)),
    case("ConvTranspose", IMAGE, f32(4, 3, 3, 3), f32(3), strides=[2, 2], pads=[1, 0, 1, 1], output_padding=[1, 0]),
    case("ConvTranspose", IMAGE, f32(4, 3, 2, 2), group=2, strides=[2, 2], dilations=[1, 2]),
    case("ConvTranspose", IMAGE, f32(4, 3, 3, 3), strides=[2, 2], auto_pad="SAME_UPPER"),
    case("ConvTranspose", IMAGE, f32(4, 3, 2, 2), strides=[3, 3], auto_pad="SAME_LOWER"),
    case("ConvTranspose", IMAGE, f32(4, 3, 2, 2), strides=[3, 3], auto_pad="SAME_UPPER",
         output_shape=[3 * n + 1 for n in IMAGE.shape[2:]]),
    case("ConvInteger", ints(np.uint8, 1, 2, 5, 5, low=0), ints(np.uint8, 3, 2, 3, 3, low=0), np.uint8(4),
         pads=[1] * 4),
    case("MaxPool", IMAGE, kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1], ceil_mode=1),
    case("MaxPool", IMAGE, outputs=(True, True), kernel_shape=[2, 2], strides=[2, 2], pads=[1, 1, 1, 1]),
    case("MaxPool", IMAGE, kernel_shape=[2, 2], dilations=[2, 2], auto_pad="VALID"),
    case("MaxPool", ints(np.uint8, 1, 1, 4, 4, low=0), kernel_shape=[2, 2], id="MaxPool-uint8"),
    *(case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, ceil_mode=c, count_include_pad=i)
      for c in (0, 1) for i in (0, 1)),
    case("AveragePool", IMAGE, kernel_shape=[3, 3], strides=[2, 2], auto_pad="SAME_UPPER"),
    case("LpPool", IMAGE, opset=11, kernel_shape=[2, 2], p=2),
    *(case(op, IMAGE) for op in ("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool")),
]  # fmt: skip

NORMALIZATIONS = [
    case("BatchNormalization", IMAGE, f32(4), f32(4), f32(4), np.abs(f32(4))),
    case("BatchNormalization", IMAGE, f32(4), f32(4), f32(4), np.abs(f32(4)), opset=8, epsilon=0.1),
    case("InstanceNormalization", IMAGE, f32(4), f32(4)),
    case("LayerNormalization", IMAGE, f32(6), f32(6), outputs=(True, True, True)),
    case("LayerNormalization", IMAGE, f32(7, 6), axis=2),
    case("GroupNormalization", IMAGE, f32(2), f32(2), opset=18, num_groups=2),
    case("GroupNormalization", IMAGE, f32(4), f32(4), opset=21, num_groups=2),
    case("RMSNormalization", IMAGE, f32(6), opset=23),
    case("LRN", f32(1, 5, 3, 3), size=3, alpha=0.2),
    case("LpNormalization", f32(3, 4), p=1),
    case("LpNormalization", f32(3, 4), axis=0),
    case("MeanVarianceNormalization", IMAGE, id="MeanVarianceNormalization-by-schema-function"),
]

INDEXING = [
    case("Gather", f32(5, 3), i64(0, -1, 2)),
    case("Gather", f32(5, 3), np.array([[0], [-1]]), axis=1),
    case("GatherElements", f32(3, 4), np.array([[0, -1], [2, 1]]), axis=1),
    case("GatherND", f32(3, 4, 2), np.array([[0, -1], [2, 1]])),
    case("GatherND", f32(2, 3, 4), np.array([[1], [-1]]), batch_dims=1),
    case("ScatterElements", f32(3, 4), np.array([[0, -1]]), f32(1, 2), axis=1),
    case("ScatterElements", f32(3, 4), np.array([[1, 1]]), f32(1, 2), opset=18, axis=1, reduction="add"),
    case("ScatterElements", f32(3, 4), np.array([[1, 1]]), f32(1, 2), opset=18, axis=1, reduction="max"),
    case("ScatterND", f32(4, 3), np.array([[-1], [0]]), f32(2, 3)),
    case("ScatterND", f32(4, 3), np.array([[1], [1]]), f32(2, 3), opset=18, reduction="mul"),
]

SCALES = np.array([1, 1, 2, 1.5], np.float32)
EMPTY = np.zeros(0, np.float32)
RESIZES = [
    *(case("Resize", IMAGE, EMPTY, SCALES, opset=13, mode=m, coordinate_transformation_mode=t)
      for m in ("nearest", "linear") for t in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")),
    *(case("Resize", IMAGE, None, None, i64(2, 4, 3, 9), opset=13, mode="nearest", nearest_mode=n)
      for n in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")),
    case("Resize", IMAGE, EMPTY, SCALES, opset=13, mode="cubic"),
    case("Resize", ints(np.int32, 1, 2, 4, 4), EMPTY, np.array([1, 1, 2, 2], np.float32), opset=13, mode="linear",
         id="Resize-int"),
    case("Resize", IMAGE, EMPTY, SCALES, opset=13, mode="cubic", exclude_outside=1),
    case("Resize", IMAGE, np.array([1, 1, 0.6, 0.6], np.float32), opset=10, mode="linear"),
    case("Resize", IMAGE, None, None, i64(14, 5), opset=18, mode="linear", axes=[2, 3]),
    case("Resize", IMAGE, None, None, i64(4, 3), opset=18, mode="linear", axes=[2, 3], antialias=1),
    case("Upsample", IMAGE, np.array([1, 1, 2, 3], np.float32), opset=9, mode="nearest"),
    case("Upsample", IMAGE, np.array([1, 1, 2, 3], np.float32), opset=9, mode="linear"),
]  # fmt: skip

SCALE, ZERO = np.array([0.1, 0.2, 0.3], np.float32), np.array([1, 2, 3], np.uint8)
QUANTIZED = [
    case("QuantizeLinear", f32(4, 3), np.array(0.05, np.float32), np.array(10, np.uint8)),
    case("QuantizeLinear", f32(4, 3), SCALE, ZERO, axis=1),
    case("QuantizeLinear", f32(4, 3), np.array(0.01, np.float32), np.array(0, np.int8), id="QuantizeLinear-saturates"),
    case("QuantizeLinear", np.float32([0, 1, -1]), np.float32(0), np.int8(57), id="QuantizeLinear-scale-0"),
    case("DequantizeLinear", ints(np.uint8, 4, 3, low=0), SCALE, ZERO, axis=-1),
    case("DequantizeLinear", ints(np.int32, 4), np.array(0.5, np.float32)),
    case("DynamicQuantizeLinear", f32(4, 3), outputs=(True, True, True)),
    case("QLinearMatMul", ints(np.uint8, 2, 3, low=0), SCALE[0], ZERO[0],
         ints(np.uint8, 3, 2, low=0), SCALE[1], ZERO[1], SCALE[2], ZERO[2]),
    case("QLinearConv", ints(np.uint8, 1, 2, 4, 4, low=0), SCALE[0], ZERO[0],
         ints(np.uint8, 3, 2, 2, 2, low=0), SCALE[1], ZERO[1], SCALE[2], ZERO[2]),
]  # fmt: skip

GRID = RNG.uniform(-1.3, 1.3, (2, 3, 5, 2)).astype(np.float32)
SAMPLED = [
    *(case("GridSample", IMAGE, GRID, opset=16, mode=m, padding_mode=p, align_corners=a)
      for m in ("bilinear", "nearest", "bicubic") for p in ("zeros", "border", "reflection") for a in (0, 1)),
    case("Col2Im", f32(1, 8, 12), i64(4, 5), i64(2, 2), opset=18),
    case("DFT", f32(2, 8, 1), opset=17, onesided=1),
    case("DFT", f32(2, 8, 2), i64(5).reshape(()), opset=17, inverse=1),
    case("STFT", f32(1, 32, 1), i64(8).reshape(()), None, i64(16).reshape(()), opset=17),
    case("MelWeightMatrix", i64(8).reshape(()), i64(64).reshape(()), i64(8000).reshape(()), np.float32(0),
         np.float32(4000), opset=17),
]  # fmt: skip

ALL = [
    *SAMPLED,
    *ELEMENTWISE, *ACTIVATIONS, *CASTS, *SHAPES, *PRODUCTS, *REDUCTIONS, *CONVOLUTIONS, *NORMALIZATIONS, *INDEXING,
    *RESIZES, *QUANTIZED,
]  # fmt: skip


@pytest.mark.parametrize(COLUMNS, ALL)
def test_rule_equals_onnx_runtime(op, inputs, opset, outputs, domain, attributes):
    check(op, inputs, opset, outputs, domain, attributes)


@pytest.mark.parametrize("dtype", [onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE])
def test_element_types_are_kept(dtype):
    x = np.array([1.5, -2.0, 3.0]).astype(helper.tensor_dtype_to_np_dtype(dtype))
    model = model_of("Mul", [x, x], 17, (True,), "", {})
    got = XlaExecutable(ir.serde.deserialize_model(model))({"x0": x, "x1": x})["y0"]
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got.astype(np.float64), [2.25, 4.0, 9.0])


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div", "Pow"])
def test_broadcast_before_opset_7_starts_at_axis(op):
    a, b = np.abs(f32(2, 3, 4)), np.abs(f32(3))
    model = model_of(op, [a, b], 6, (True,), "", {"axis": 1, "broadcast": 1})
    functions = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Pow": np.power}
    want = functions[op](a, b[:, None])
    assert_equal(XlaExecutable(ir.serde.deserialize_model(model))({"x0": a, "x1": b})["y0"], want)
