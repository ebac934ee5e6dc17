"""Promises: what ONNX Runtime lacks is expanded to what it has, with equal results; what it runs is left alone."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx.reference
import pytest
from pfvm.compiler.importer import read_model
from pfvm.errors import InvalidModelError, UnsupportedOpError
from pfvm.runtime.ort import OrtExecutable, supported_ops
from pfvm.runtime.ort_expand import opsets
from pfvm.runtime.ort_expand.expander import expand, needs_expansion
from pfvm.runtime.ort_expand.kernels import has_kernel, registry

RNG = np.random.default_rng(0)


def parse(text: str, opset: int = 21) -> onnx.ModelProto:
    header = "" if text.startswith("<") else f'<ir_version: 10, opset_import: ["" : {opset}]> '
    return onnx.parser.parse_model(header + text)


def run(model: onnx.ModelProto, **feeds: np.ndarray) -> list[np.ndarray]:
    return list(OrtExecutable(read_model(model))(feeds).values())


def check(model: onnx.ModelProto, tolerance: float = 1e-6, **feeds: np.ndarray) -> None:
    """Plain ONNX Runtime refuses the model (or is known to be wrong); expanded it equals onnx.reference."""
    expected = onnx.reference.ReferenceEvaluator(model).run(None, feeds)
    for got, want in zip(run(model, **feeds), expected, strict=True):
        if not model.opset_import[0].domain:  # the reference's optimizers compute in float64
            assert got.dtype == want.dtype
        assert got.shape == want.shape
        wide = np.float64 if got.dtype.kind != "b" else bool
        np.testing.assert_allclose(got.astype(wide), want.astype(wide), rtol=tolerance, atol=tolerance)


def refused(model: onnx.ModelProto) -> bool:
    try:
        OrtExecutable(read_model(model), expand=False)
    except UnsupportedOpError:
        return True
    return False


def floats(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


# ---- knowing


def test_the_registry_knows_versions_and_types() -> None:
    assert has_kernel("", "Add", 14, {"T": "tensor(float)"})
    assert not has_kernel("", "Add", 6)
    assert not has_kernel("", "Conv", 22, {"T": "tensor(double)"})
    assert has_kernel("", "Conv", 22, {"T": "tensor(float16)"})  # ONNX Runtime casts around it
    assert not has_kernel("", "RoiAlign", 22) and has_kernel("", "RoiAlign", 16)
    assert ("com.microsoft", "FusedMatMul") in registry()


def test_a_model_that_onnxruntime_runs_is_left_alone() -> None:
    """What ONNX Runtime makes of an operator's own function included."""
    model = parse("g (float[2,3] x) => (float[2,3] y) { a = Softmax (x)  b = Mish (a)  y = Add (a, b) }")
    assert not needs_expansion(model)
    plain = parse("g (float[2,3] x) => (float[2,3] y) { a = Softmax (x)  y = Pow (a, x) }")
    assert not needs_expansion(plain)
    assert expand(plain) is None


def test_the_given_model_is_not_changed() -> None:
    loaded = read_model(parse("g (float[3] x) => (float[3] y) { y = Swish (x) }", 24))
    OrtExecutable(loaded)
    assert [node.op_type for node in loaded.graph] == ["Swish"]


def test_supported_ops_tell_the_truth() -> None:
    ops = supported_ops()
    assert 28 in ops["", "QuantizeLinear"] and 24 in ops["", "Swish"] and 6 not in ops["", "GRU"]
    assert ops["ai.onnx.preview.training", "Adam"] == (1,)
    assert ("", "ImageDecoder") not in ops and ("ai.onnx.preview.training", "Gradient") not in ops


# ---- functions of the schema


def test_a_schema_function_is_used_where_there_is_no_kernel() -> None:
    model = parse("g (float[4,6] x, float[4,6] z) => (float[4,6] y) { y = SwiGLU <alpha: float = 1.5> (x, z) }", 28)
    assert refused(model)
    check(model, x=floats(4, 6), z=floats(4, 6))


def test_inside_bodies_and_functions() -> None:
    inside_if = parse(
        """g (bool c, float[3] x) => (float[3] y) { y = If (c) <
           then_branch = t () => (float[3] a) { a = Swish (x) },
           else_branch = e () => (float[3] b) { b = Neg (x) } > }""",
        24,
    )
    x = floats(3)
    for flag in (True, False):
        check(inside_if, c=np.array(flag), x=x)
    local = parse(
        """<ir_version: 10, opset_import: ["" : 24, "my" : 1]> g (float[3] x) => (float[3] y) { y = my.Twice (x) }
           <domain: "my", opset_import: ["" : 24]> Twice (x) => (y) { a = Swish (x)  y = Add (a, a) }"""
    )
    check(local, x=x)


def test_a_result_that_is_used_twice_or_handed_on() -> None:
    model = parse("g (float[3] x) => (float[3] y, float[3] z) { y = Swish (x)  z = Add (y, y) }", 24)
    check(model, x=floats(3))


# ---- opsets


def test_a_newer_form_is_lowered() -> None:
    model = parse(
        "g (float[6] x, float s, uint8 z) => (float[6] y)"
        "{ q = QuantizeLinear (x, s, z)  y = DequantizeLinear (q, s, z) }",
        28,
    )
    assert refused(model)
    check(model, x=floats(6), s=np.float32(0.1), z=np.uint8(128))


def test_lowering_stops_where_the_meaning_changes() -> None:
    assert opsets.lowers_to("Relu", 28, 13)
    assert not opsets.lowers_to("Softmax", 13, 12)
    assert not opsets.lowers_to("ReduceSum", 13, 12)  # axes became an input
    model = parse("g (float[4] x) => (float[4] y) { y = Swish (x) }", 25)
    assert not opsets.lower(model, 23) and model.opset_import[0].version == 25


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_broadcasting_before_opset_7(op: str) -> None:
    model = parse(
        f"g (float[2,3,4] x, float[3] b) => (float[2,3,4] y) {{ y = {op} <broadcast = 1, axis = 1> (x, b) }}", 6
    )
    assert refused(model)
    x, b = floats(2, 3, 4), floats(3)
    function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[op]
    np.testing.assert_allclose(run(model, x=x, b=b)[0], function(x, b[:, None]), rtol=1e-6)


def test_prelu_with_a_slope_per_channel_before_opset_7() -> None:
    model = parse("g (float[2,3,4] x, float[3] s) => (float[2,3,4] y) { y = PRelu (x, s) }", 6)
    x, s = floats(2, 3, 4), floats(3)
    np.testing.assert_allclose(run(model, x=x, s=s)[0], np.where(x < 0, x * s[:, None], x))


def test_large_weights_survive_the_way_up() -> None:
    weight = floats(600, 600)
    model = parse("g (float[600] x) => (float[600,600] y) { y = Add <broadcast = 1> (w, x) }", 6)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    assert weight.nbytes > 1 << 20
    x = floats(600)
    np.testing.assert_allclose(run(model, x=x)[0], weight + x)


# ---- element types


@pytest.mark.parametrize("dtype", ["int8", "int16", "uint16"])
@pytest.mark.parametrize("op", ["Max", "Min"])
def test_narrow_integers(op: str, dtype: str) -> None:
    model = parse(f"g ({dtype}[5] a, {dtype}[5] b) => ({dtype}[5] y) {{ y = {op} (a, b) }}")
    limits = np.iinfo(dtype)
    a = np.array([limits.min, limits.max, 0, 1, 2], dtype)
    check(model, a=a, b=a[::-1].copy())


def test_bfloat16_is_computed_in_float_and_rounded_once_per_operator() -> None:
    model = parse("g (bfloat16[8] a, bfloat16[8] b) => (bfloat16[8] y) { c = Mul (a, b)  y = Exp (c) }")
    assert refused(model)
    a, b = (floats(8).astype(ml_dtypes.bfloat16) for _ in range(2))
    product = (a.astype(np.float32) * b.astype(np.float32)).astype(ml_dtypes.bfloat16)
    expected = np.exp(product.astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert run(model, a=a, b=b)[0].tolist() == expected.tolist()


def test_top_k_of_uint64_orders_the_whole_range() -> None:
    model = parse("g (uint64[5] x, int64[1] k) => (uint64[3] v, int64[3] i) { v, i = TopK (x, k) }", 24)
    x = np.array([1, 1 << 63, (1 << 64) - 1, 5, (1 << 63) - 1], np.uint64)
    values, indices = run(model, x=x, k=np.array([3]))
    assert values.tolist() == [(1 << 64) - 1, 1 << 63, (1 << 63) - 1] and indices.tolist() == [2, 1, 4]


def test_uint64_wraps_as_it_does() -> None:
    model = parse("g (uint64[3] x) => (uint64[3] y) <int64 a = {0}> { y = CumSum (x, a) }")
    assert refused(model)
    x = np.array([(1 << 63) + 5, (1 << 63) + 7, 3], np.uint64)
    assert run(model, x=x)[0].tolist() == x.cumsum().tolist()


@pytest.mark.parametrize("node", ["ReduceSum <keepdims = 0> (x)", "ReduceProd <keepdims = 0> (x)"])
def test_sums_that_onnxruntime_computes_in_double_are_refused(node: str) -> None:
    with pytest.raises(UnsupportedOpError, match="no kernel"):
        run(parse(f"g (uint32[3] x) => (uint32 y) {{ y = {node} }}"), x=np.ones(3, np.uint32))


def test_moving_uint64_and_bool() -> None:
    for dtype in ("uint64", "bool"):
        model = parse(f"g (bool[3] c, {dtype}[3] a, {dtype}[3] b) => ({dtype}[3] y) {{ y = Where (c, a, b) }}")
        a = np.array([0, (1 << 64) - 1, 1 << 63], np.uint64).astype(dtype)
        check(model, c=np.array([True, False, True]), a=a, b=a[::-1].copy())


def test_powers_with_unsigned_exponents() -> None:
    for dtype in ("uint32", "uint64"):
        model = parse(f"g (float[3] x, {dtype}[3] e) => (float[3] y) {{ y = Pow (x, e) }}")
        check(model, x=np.array([2, -3, 0.5], np.float32), e=np.array([10, 3, 0], dtype))


def test_max_and_min_of_no_bools() -> None:
    for op, expected in (("ReduceMax", False), ("ReduceMin", True)):
        model = parse(f"g (bool[2,0] x, int64[1] a) => (bool[2,1] y) {{ y = {op} (x, a) }}")
        assert run(model, x=np.zeros((2, 0), bool), a=np.array([1]))[0].tolist() == [[expected]] * 2
    model = parse("g (bool[2,3] x, int64[1] a) => (bool[2] y) { y = ReduceMax <keepdims = 0> (x, a) }")
    check(model, x=np.array([[0, 1, 0], [0, 0, 0]], bool), a=np.array([1]))


def test_one_hot_of_any_type() -> None:
    model = parse("g (uint8[3] i, int64 d, double[2] v) => (double[3,4] y) { y = OneHot (i, d, v) }")
    assert refused(model)
    check(model, i=np.array([0, 3, 1], np.uint8), d=np.array(4), v=np.array([-1.5, 2.5]))


@pytest.mark.parametrize(
    ("inputs", "dtype"), [("float[2,3] x", 9), ("bool[2,3] x", 3), ("uint8[2,3] x", None), ("float[2,3] x", 10)]
)
def test_a_diagonal_of_any_type(inputs: str, dtype: int | None) -> None:
    attributes = "k = 1" if dtype is None else f"k = 1, dtype = {dtype}"
    found = {9: "bool", 3: "int8", 10: "float16", None: "uint8"}[dtype]
    model = parse(f"g ({inputs}) => ({found}[2,3] y) {{ y = EyeLike <{attributes}> (x) }}")
    assert refused(model)
    (y,) = run(model, x=np.zeros((2, 3), {"f": np.float32, "b": bool, "u": np.uint8}[inputs[0]]))
    assert (y.dtype, y.tolist()) == (found, [[0, 1, 0], [0, 0, 1]])


MADE = "RandomNormal <dtype = 10, shape = [2,3]> ()", "RandomUniformLike <dtype = 16> (x)"


@pytest.mark.parametrize("node", [*MADE, "HannWindow <output_datatype = 10> (n)"])
def test_what_is_made_in_a_type_without_a_kernel(node: str) -> None:
    dtype, shape = ("bfloat16" if "16> (x)" in node else "float16"), "5" if "Window" in node else "2,3"
    model = parse(f"g (float[2,3] x, int64 n) => ({dtype}[{shape}] y) {{ y = {node} }}")
    assert refused(model)
    (y,) = run(model, x=np.zeros((2, 3), np.float32), n=np.array(5))
    assert str(y.dtype) == dtype and len(set(y.astype(np.float32).ravel().tolist())) > 2


def test_bools_as_bits() -> None:
    x = np.array([True, False])
    assert run(parse("g (bool[2] x) => (uint8[2] y) { y = BitCast <to = 2> (x) }", 26), x=x)[0].tolist() == [1, 0]


# ---- single operators


def test_conv_integer_with_a_zero_point_per_channel() -> None:
    model = parse(
        "g (uint8[2,4,5,5] x, uint8[6,2,3,3] w, uint8 a, uint8[6] b) => (int32[2,6,3,3] y)"
        "{ y = ConvInteger <group = 2, strides = [2, 2], pads = [1, 1, 1, 1]> (x, w, a, b) }"
    )
    feeds = {
        "x": RNG.integers(0, 256, (2, 4, 5, 5), np.uint8),
        "w": RNG.integers(0, 256, (6, 2, 3, 3), np.uint8),
        "a": np.uint8(3),
        "b": RNG.integers(0, 256, 6, np.uint8),
    }
    wide = parse(
        "g (double[2,4,5,5] x, double[6,2,3,3] w) => (double[2,6,3,3] y)"
        "{ y = Conv <group = 2, strides = [2, 2], pads = [1, 1, 1, 1]> (x, w) }"
    )
    shifted = {"x": feeds["x"].astype(float) - 3, "w": feeds["w"].astype(float) - feeds["b"][:, None, None, None]}
    expected = onnx.reference.ReferenceEvaluator(wide).run(None, shifted)[0]
    assert (run(model, **feeds)[0] == expected).all()


@pytest.mark.parametrize(("op", "gates", "states"), [("RNN", 1, 1), ("GRU", 3, 1), ("LSTM", 4, 2)])
def test_recurrent_operators_with_the_batch_first(op: str, gates: int, states: int) -> None:
    outputs = ["y", "h", "c"][: 1 + states]
    initial = ", ".join(["", "h0", "c0"][: 1 + states])
    shapes = "float[2,4,3] x, float[1,G,3] w, float[1,G,5] r, float[2,1,5] h0, float[2,1,5] c0".replace(
        "G", str(5 * gates)
    )
    body = f"{', '.join(outputs)} = {op} <hidden_size = 5, layout = LAYOUT> (X, w, r, , {initial})"
    declared = ", ".join(f"float[?,?,?{',?' if o == 'y' else ''}] {o}".replace("?", d) for o, d in zip(outputs, "abc"))
    first = parse(f"g ({shapes}) => ({declared}) {{ {body} }}".replace("LAYOUT", "1").replace("X", "x"))
    feeds = {"x": floats(2, 4, 3), "w": floats(1, 5 * gates, 3), "r": floats(1, 5 * gates, 5)}
    feeds |= {"h0": floats(2, 1, 5), "c0": floats(2, 1, 5)}
    second = parse(f"g ({shapes}) => ({declared}) {{ {body} }}".replace("LAYOUT", "0").replace("X", "x"))
    for value in (*second.graph.input, *second.graph.output):
        value.type.tensor_type.ClearField("shape")
    time_first = {n: a.swapaxes(0, 1) if n in ("x", "h0", "c0") else a for n, a in feeds.items()}
    expected = run(second, **time_first)
    moved = [expected[0].transpose(2, 0, 1, 3), *(e.swapaxes(0, 1) for e in expected[1:])]
    for got, want in zip(run(first, **feeds), moved, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)


def test_dft_of_awkward_lengths_is_accurate() -> None:
    model = parse("g (float[1,97,1] x, int64 n, int64 a) => (float[1,97,2] y) { y = DFT (x, n, a) }")
    x = (100 * RNG.standard_normal((1, 97, 1))).astype(np.float32)
    got = run(model, x=x, n=np.array(97), a=np.array(1))[0]
    want = np.fft.fft(x[..., 0].astype(np.float64))
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], want, rtol=1e-6, atol=1e-3)


def test_strings_are_cased_on_systems_without_english() -> None:
    model = parse('g (string[2] x) => (string[n] y) { y = StringNormalizer <case_change_action = "UPPER"> (x) }')
    assert run(model, x=np.array(["straße é", "b"], object))[0].tolist() == ["STRASSE É".replace("SS", "ß"), "B"]


def test_optimizer_steps() -> None:
    model = parse(
        """<ir_version: 10, opset_import: ["ai.onnx.preview.training" : 1]>
           g (float r, int64 t, float[3] x, float[3] d, float[3] v, float[3] h) => (float[3] a, float[3] b, float[3] c)
           { a, b, c = ai.onnx.preview.training.Adam <alpha: float = 0.9, beta: float = 0.99,
             norm_coefficient: float = 0.01> (r, t, x, d, v, h) }"""
    )
    x, d, v, h = floats(3), floats(3), floats(3), np.abs(floats(3))
    for t in (0, 3):
        feeds = {"r": np.float32(0.1), "t": np.array(t), "x": x, "d": d, "v": v, "h": h}
        check(model, tolerance=1e-5, **feeds)


def test_attention_scores_with_a_causal_mask() -> None:
    model = parse(
        "g (float[1,2,4,8] q, float[1,2,6,8] k, float[1,2,6,8] v, float[4,6] m) => (float[1,2,4,8] y, float[1,2,4,6] s)"
        "{ y, , , s = Attention <is_causal = 1, qk_matmul_output_mode = 2> (q, k, v, m) }",
        23,
    )
    q, k, v, m = floats(1, 2, 4, 8), floats(1, 2, 6, 8), floats(1, 2, 6, 8), floats(4, 6)
    y, scores = run(model, q=q, k=k, v=v, m=m)
    expected = onnx.reference.ReferenceEvaluator(model).run(None, {"q": q, "k": k, "v": v, "m": m})
    np.testing.assert_allclose(y, expected[0], rtol=1e-5, atol=1e-5)
    assert (np.isinf(scores) == np.isinf(expected[1])).all()


def test_what_stays_unsupported_is_named() -> None:
    model = parse("g (uint8[n] x) => (uint8[a,b,3] y) { [photo] y = ImageDecoder (x) }")
    with pytest.raises(UnsupportedOpError, match=r"no kernel for ImageDecoder 'photo'"):
        OrtExecutable(read_model(model))


# ---- float4


F4 = ml_dtypes.float4_e2m1fn
ALL_CODES = np.arange(16, dtype=np.uint8).view(F4)


@pytest.mark.parametrize("dtype", ["float", "float16", "double", "int32"])
def test_from_float4(dtype: str) -> None:
    model = parse(f"g (float4e2m1[16] x) => ({dtype}[16] y) {{ y = Cast <to = 1> (x) }}", 23)
    element = model.graph.output[0].type.tensor_type.elem_type
    model.graph.node[0].attribute[0].i = element
    got = run(model, x=ALL_CODES)[0]
    assert got.tolist() == ALL_CODES.astype(onnx.helper.tensor_dtype_to_np_dtype(element)).tolist()


@pytest.mark.parametrize("dtype", ["float", "float16"])
def test_to_float4_rounds_ties_to_even_and_saturates(dtype: str) -> None:
    model = parse(f"g ({dtype}[n] x) => (float4e2m1[n] y) {{ y = Cast <to = 23> (x) }}", 23)
    x = np.concatenate([np.linspace(-8, 8, 129), [1e4, -1e4, np.inf, -np.inf, 0.0, -0.0]])
    x = x.astype(np.float32 if dtype == "float" else np.float16)
    got = run(model, x=x)[0]
    assert got.dtype == F4
    assert got.view(np.uint8).tolist() == np.clip(x, -6, 6).astype(F4).view(np.uint8).tolist()


def test_float4_inside_a_graph_and_quantized() -> None:
    text = """g (float[2,6] x, float[2] s) => (float[6,2] y, float4e2m1[2,6] q) {
        q = QuantizeLinear <axis = 0, output_dtype = 23> (x, s)
        t = Transpose (q)  y = DequantizeLinear <axis = 1> (t, s) }"""
    x, s = floats(2, 6), np.array([0.5, 0.25], np.float32)
    y, q = run(parse(text, 23), x=x, s=s)
    expected = np.clip(x / s[:, None], -6, 6).astype(F4)
    assert q.view(np.uint8).tolist() == expected.view(np.uint8).tolist()
    np.testing.assert_array_equal(y, (expected.astype(np.float32) * s[:, None]).T)


def test_codes_are_not_computed_with() -> None:
    model = parse("g (float4e2m1[3] x) => (float[3] y, float4e2m1[3] z) { y = Cast <to = 1> (x)  z = Foo (x) }", 23)
    model.graph.node[1].op_type = "Transpose"
    assert run(model, x=ALL_CODES[:3])[1].tolist() == ALL_CODES[:3].tolist()
    model.graph.node[1].op_type = "NonZero"
    model.graph.output[1].type.CopyFrom(onnx.helper.make_tensor_type_proto(onnx.TensorProto.INT64, [1, "k"]))
    model.graph.output[1].name = "z"
    with pytest.raises((UnsupportedOpError, InvalidModelError)):
        run(model, x=ALL_CODES[:3])
