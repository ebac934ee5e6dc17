"""com.microsoft's operators on 8-bit tensors against ONNX Runtime."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("jax")

from xla_cases import COLUMNS, case, check, f32, ints

pytestmark = pytest.mark.usefixtures("quick_compilation")

case = functools.partial(case, domain="com.microsoft")
U8, S8 = functools.partial(ints, np.uint8, low=0, high=256), functools.partial(ints, np.int8, low=-128, high=128)


def scale(value):
    return np.float32(value)


Z = np.uint8(120)
IMAGE = U8(1, 4, 6, 5)
X = f32(2, 3, 8)
QUANTIZED = [
    *(case(op, U8(3, 4), scale(0.02), Z, U8(4), scale(0.03), np.uint8(5), scale(0.05), np.uint8(100))
      for op in ("QLinearAdd", "QLinearMul")),
    case("QLinearAdd", S8(3, 4), scale(0.02), np.int8(3), S8(4), scale(0.03), np.int8(-5), scale(0.05), np.int8(0),
         id="QLinearAdd-signed"),
    case("QLinearLeakyRelu", U8(3, 4), scale(0.02), Z, scale(0.03), np.uint8(100), alpha=0.1),
    case("QLinearSigmoid", U8(3, 4), scale(0.02), Z, scale(1 / 256), np.uint8(0)),
    case("QLinearSoftmax", U8(3, 4), scale(0.02), Z, scale(1 / 256), np.uint8(0), axis=-1, opset=13),
    case("QLinearAveragePool", IMAGE, scale(0.02), Z, scale(0.0317), Z, kernel_shape=[2, 2], strides=[2, 2]),
    case("QLinearAveragePool", U8(1, 6, 5, 4), scale(0.02), Z, scale(0.0317), np.uint8(100), kernel_shape=[3, 3],
         pads=[1, 1, 1, 1], channels_last=1),
    *(case("QLinearGlobalAveragePool", IMAGE, scale(0.02), Z, scale(0.03), np.uint8(100), channels_last=c)
      for c in (0, 1)),
    case("QLinearConcat", scale(0.05), Z, U8(2, 3), scale(0.02), Z, U8(2, 1), scale(0.03), np.uint8(9), axis=1),
    case("QLinearWhere", f32(3, 4) > 0, U8(3, 4), scale(0.02), Z, U8(4), scale(0.03), np.uint8(5), scale(0.05), Z),
    case("QLinearConv", U8(1, 6, 5, 4), scale(0.02), Z, S8(3, 4, 3, 3), scale(0.01), np.int8(0), scale(0.5), Z,
         channels_last=1, pads=[1, 1, 1, 1]),
    case("QGemm", U8(3, 4), scale(0.02), Z, S8(4, 5), scale(0.01), np.int8(0), ints(np.int32, 5), scale(0.1), Z),
    case("QGemm", U8(3, 4), scale(0.02), Z, S8(5, 4), np.abs(f32(5)) / 50, np.zeros(5, np.int8), transB=1, alpha=0.5),
    case("MatMulIntegerToFloat", U8(3, 4), S8(4, 5), scale(0.02), scale(0.03), Z, np.int8(4), f32(5)),
    case("MatMulIntegerToFloat", U8(2, 3, 4), U8(4, 5), scale(0.02), np.abs(f32(5)), Z, U8(5), id="per-column"),
    case("DynamicQuantizeMatMul", X, S8(8, 5), scale(0.03), np.int8(2), f32(5)),
    case("DynamicQuantizeMatMul", X, U8(8, 5), np.abs(f32(5)), U8(5), id="DynamicQuantizeMatMul-per-column"),
    case("QAttention", U8(2, 3, 8), S8(8, 24), f32(24), scale(0.02), scale(0.03), None, Z, np.int8(0), num_heads=2),
    case("QAttention", U8(2, 3, 8), U8(8, 24), f32(24), scale(0.02), scale(0.03), np.array([2, 3], np.int32), Z, Z,
         f32(2, 2, 2, 4, 4), num_heads=2, outputs=(True, True)),
    case("QuantizeLinear", f32(3, 4), np.abs(f32(4)) / 50, U8(4), axis=1),
    case("QuantizeLinear", f32(3, 4), scale(0.001), np.uint16(30000), axis=0, id="QuantizeLinear-16"),
    case("DequantizeLinear", U8(3, 4), scale(0.02), Z),
    case("DequantizeLinear", S8(3, 4), np.abs(f32(3)), S8(3), axis=0),
]  # fmt: skip
IDS = ints(np.int32, 2, 3, low=0)
TABLES = [S8(10, 8), S8(3, 8), S8(10, 8), S8(8), S8(8)]
SCALES, ZEROS = [scale(0.02) for _ in TABLES], [np.int8(3) for _ in TABLES]
BITS = [
    case("QEmbedLayerNormalization", IDS, IDS, *TABLES, None, *SCALES, *ZEROS, outputs=(True, True), epsilon=1e-5),
    case("GatherBlockQuantized", U8(6, 16), IDS % 6, np.abs(f32(6, 2)), block_size=16, bits=4),
    case("GatherBlockQuantized", U8(6, 32), IDS % 6, np.abs(f32(6, 2)), U8(6, 2), block_size=16, bits=8),
    case("GatherBlockQuantized", U8(6, 32), IDS[0] % 6, np.abs(f32(6, 4)), U8(6, 2), block_size=16, bits=4),
    case("MatMulNBits", f32(2, 3, 32), U8(5, 2, 8), np.abs(f32(10)), K=32, N=5, bits=4, block_size=16),
    case("MatMulNBits", f32(3, 40), U8(5, 3, 8), np.abs(f32(15)), U8(10), None, f32(5), K=40, N=5, bits=4,
         block_size=16, id="MatMulNBits-zeros-ragged-bias"),
    case("MatMulNBits", f32(3, 32), U8(5, 1, 32), np.abs(f32(5)), K=32, N=5, bits=8, block_size=32),
]  # fmt: skip


@pytest.mark.parametrize(COLUMNS, [*QUANTIZED, *BITS])
def test_rule_equals_onnx_runtime(op, inputs, opset, outputs, domain, attributes):
    if op == "QLinearSoftmax":
        attributes = attributes | {"opset": opset}
        opset = 17
    check(op, inputs, opset, outputs, domain, attributes)
