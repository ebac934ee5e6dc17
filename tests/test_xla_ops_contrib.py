"""com.microsoft's attention and fused operators against ONNX Runtime."""

from __future__ import annotations

import functools

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("jax")

from xla_cases import COLUMNS, case, check, f32, i32, i64, ints, run

pytestmark = pytest.mark.usefixtures("quick_compilation")

case = functools.partial(case, domain="com.microsoft")
B, S, H, N, P = 2, 3, 8, 2, 4
X, W, BIAS = f32(B, S, H), f32(H, 3 * H), f32(3 * H)
PAST = f32(2, B, N, P, H // N)
RAW = ints(np.int32, B, S, low=0, high=2)
ATTENTION = [
    case("Attention", X, W, BIAS, num_heads=N),
    case("Attention", X, W, BIAS, num_heads=N, unidirectional=1),
    case("Attention", X, W, BIAS, RAW, num_heads=N, mask_filter_value=-100.0),
    case("Attention", X, W, BIAS, i32(2, 3), num_heads=N, id="Attention-lengths"),
    case("Attention", X, W, BIAS, i32(2, 3, 0, 1), num_heads=N, id="Attention-ends-starts"),
    case("Attention", X, W, BIAS, ints(np.int32, B, S, S, low=0, high=2), num_heads=N, id="Attention-3d-mask"),
    case("Attention", X, W, BIAS, None, PAST, num_heads=N, outputs=(True, True), unidirectional=1),
    case("Attention", X, W, BIAS, None, None, f32(B, N, S, S), num_heads=N, scale=0.3),
    case("Attention", X, f32(H, 4 + 4 + 6), f32(14), num_heads=N, qkv_hidden_sizes=[4, 4, 6]),
    case("MultiHeadAttention", X, f32(B, 5, H), f32(B, 5, H), BIAS, num_heads=N),
    case("MultiHeadAttention", X, f32(B, 5, H), f32(B, 5, 6), f32(2 * H + 6), num_heads=N, id="MHA-value-size"),
    case("MultiHeadAttention", X, X, X, None, RAW, num_heads=N, id="MHA-padding"),
    case("MultiHeadAttention", X, X, X, None, i32(3, 2), num_heads=N, id="MHA-lengths"),
    case("MultiHeadAttention", X, X, X, None, None, f32(1, N, S, S), num_heads=N, scale=0.7, unidirectional=1),
    case("MultiHeadAttention", X, f32(B, N, 5, 4), f32(B, N, 5, 4), num_heads=N, id="MHA-cached-cross"),
    case("MultiHeadAttention", X, X, X, BIAS, None, None, PAST[0], PAST[1], num_heads=N, outputs=(True, True, True)),
]  # fmt: skip

COS, SIN = f32(16, 2), f32(16, 2)
ROTARY = [
    *(case("RotaryEmbedding", X, np.array([[0, 1, 2], [3, 4, 5]]), COS, SIN, interleaved=i) for i in (0, 1)),
    case("RotaryEmbedding", X, i64(2), COS, SIN, id="RotaryEmbedding-offset"),
    case("RotaryEmbedding", f32(B, N, S, 4), np.array([[0, 1, 2], [3, 4, 5]]), COS, SIN, id="RotaryEmbedding-4d"),
    case("RotaryEmbedding", f32(B, S, 12), i64(1), f32(16, 2), f32(16, 2), num_heads=2, rotary_embedding_dim=4),
]

THREE = (True, True, True)


def grouped(id, steps, past, last, total, packed=False, rotary=False, bias=None, **attributes):
    q, k, v = f32(B, steps, 64), f32(B, steps, 32), f32(B, steps, 32)
    inputs = [np.concatenate([q, k, v], -1), None, None] if packed else [q, k, v]
    cache = [f32(B, 2, past, 16), f32(B, 2, past, 16)] if past else [None, None]
    inputs += [*cache, i32(*last), i32(total).reshape(())]
    inputs += [f32(16, 8), f32(16, 8)] if rotary else []
    attributes |= {"num_heads": 4, "kv_num_heads": 2, "do_rotary": int(rotary)}
    return case("GroupQueryAttention", *inputs, outputs=THREE, id=id, **attributes)


GROUPED = [
    grouped("GQA-prompt", 3, 0, [2, 2], 3),
    grouped("GQA-prompt-rotary", 3, 0, [2, 2], 3, rotary=True, rotary_interleaved=1),
    grouped("GQA-token", 1, 4, [4, 4], 5, rotary=True),
    grouped("GQA-token-packed", 1, 4, [4, 4], 5, packed=True, scale=0.3),
    grouped("GQA-token-ragged", 1, 4, [4, 2], 5, rotary=True),
    grouped("GQA-window", 5, 0, [4, 4], 5, local_window_size=2),
    grouped("GQA-softcap", 3, 0, [2, 2], 3, softcap=2.0),
    grouped("GQA-smooth", 3, 0, [2, 2], 3, smooth_softmax=1),
]

IMAGE = f32(2, 4, 6, 5)
FOUR = (True, False, False, True)
FUSED = [
    case("SkipLayerNormalization", X, f32(B, S, H), f32(H), f32(H), f32(H), outputs=FOUR, epsilon=1e-5),
    case("SkipLayerNormalization", X, f32(S, H), f32(H), id="SkipLayerNormalization-broadcast"),
    case("SkipSimplifiedLayerNormalization", X, X, f32(H), f32(H), outputs=FOUR, epsilon=1e-5),
    case("SimplifiedLayerNormalization", X, f32(H), domain="", epsilon=1e-5),
    case("EmbedLayerNormalization", ints(np.int32, B, S, low=0), ints(np.int32, B, S, low=0, high=2), f32(10, H),
         f32(S, H), f32(2, H), f32(H), f32(H), RAW, outputs=(True, True, True), epsilon=1e-5),
    case("EmbedLayerNormalization", ints(np.int32, B, S, low=0), None, f32(10, H), f32(9, H), None, f32(H), f32(H),
         None, np.array([[0, 5, 2], [3, 4, 8]], np.int32), outputs=(True, True), id="EmbedLayerNorm-positions"),
    case("FusedConv", IMAGE, f32(3, 4, 3, 3), f32(3), activation="Relu", pads=[1, 1, 1, 1]),
    case("FusedConv", IMAGE, f32(3, 4, 3, 3), f32(3), f32(2, 3, 4, 3), activation="LeakyRelu", activation_params=[0.2]),
    case("FusedConv", IMAGE, f32(4, 1, 3, 3), activation="Clip", activation_params=[-0.5, 0.5], group=4),
    case("FusedGemm", f32(2, 3), f32(3, 4), f32(4), activation="LeakyRelu", activation_alpha=0.3, alpha=0.5, beta=2.0),
    *(case("CDist", f32(4, 3), f32(5, 3), metric=m) for m in ("euclidean", "sqeuclidean")),
    case("Range", f32(1).reshape(()), np.float32(4.5), np.float32(0.5)),
    case("Range", i64(2).reshape(()), i64(6).reshape(()), id="Range-default-step"),
    case("DecoderMaskedMultiHeadAttention", f32(B, 1, H), f32(B, N, 5, 4), f32(B, N, 5, 4), num_heads=N),
    case("ExpandDims", X, i32(1).reshape(())),
    case("Inverse", f32(2, 3, 3)),
    case("Trilu", f32(2, 4, 4), i64(1).reshape(()), upper=0),
    case("GatherND", f32(3, 4, 2), np.array([[0, 1], [2, 1]])),
    case("NhwcMaxPool", ints(np.uint8, 1, 5, 5, 2, low=0, high=200), kernel_shape=[2, 2], strides=[2, 2], pads=[1] * 4),
]  # fmt: skip


@pytest.mark.parametrize(COLUMNS, [*ATTENTION, *ROTARY, *GROUPED, *FUSED])
def test_rule_equals_onnx_runtime(op, inputs, opset, outputs, domain, attributes):
    check(op, inputs, opset, outputs, domain, attributes)


def test_attention_of_packed_operands_is_that_of_the_parts():
    parts = [f32(B, S, N, 4) for _ in range(3)]
    call = functools.partial(run, "MultiHeadAttention", domain="com.microsoft", num_heads=N)
    (want,) = call(*(x.reshape(B, S, -1) for x in parts))
    np.testing.assert_allclose(call(np.stack(parts, 3))[0], want, rtol=1e-6)
    np.testing.assert_allclose(call(parts[0].reshape(B, S, -1), np.stack(parts[1:], 3))[0], want, rtol=1e-6)


def test_fusions_without_a_kernel_in_onnx_runtime():
    call = functools.partial(run, domain="com.microsoft")
    x, bias = f32(2, 3, 4), f32(3, 4)
    shares = np.exp(x + bias) / np.exp(x + bias).sum(-1, keepdims=True)
    np.testing.assert_allclose(call("BiasSoftmax", x, bias, axis=2, is_inner_broadcast=1)[0], shares, rtol=1e-5)
    np.testing.assert_allclose(call("BiasDropout", x, bias, x)[0], x + bias + x, rtol=1e-6)
    a, b = f32(2, 6), f32(2, 6)
    product = a.view(np.complex64) * b.view(np.complex64)
    np.testing.assert_allclose(call("ComplexMul", a, b)[0].view(np.complex64), product, rtol=1e-4)
    product = a.view(np.complex64) * b.view(np.complex64).conj()
    np.testing.assert_allclose(call("ComplexMulConj", a, b)[0].view(np.complex64), product, rtol=1e-4)
