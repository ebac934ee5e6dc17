"""Promise: pfvm:cpu runs every element type, never trades accuracy silently, and says which node it cannot run."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from pfvm.compiler.importer import read_model
from pfvm.errors import InputError, InvalidModelError, OptionError, UnsupportedOpError
from pfvm.runtime import ort_model, ort_session
from pfvm.runtime.ort import OrtExecutable, evaluate
from pfvm.runtime.ort_values import from_ort, to_ort

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'


def model(text: str) -> ir.Model:
    return ir.from_proto(onnx.parser.parse_model(HEAD + text))


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


# ---- accuracy: each pin is needed


def largest(a: dict, b: dict) -> float:
    return max(float(np.abs(a[name] - b[name]).max()) for name in a)


def transpose_matmul() -> tuple[bytes, dict]:
    text = HEAD + "g (float[5,3] a, float[5] b) => (float[3] y) { t = Transpose <perm=[1,0]> (a) y = MatMul (t, b) }"
    return onnx.parser.parse_model(text).SerializeToString(), {"a": normal(5, 3), "b": normal(5, seed=1)}


def masked_attention() -> tuple[bytes, dict]:
    """BERT's attention, whose mask (1 - m) * -10000 is arithmetic: m = 2 is not the same as m = 1."""
    text = """<ir_version: 6, opset_import: ["" : 9]>
    g (float[1,3,8] x, int32[1,3] mask) => (float[1,3,8] y)
    <float[8] scale = {1,1,1,1,1,1,1,1}, float[8] bias = {0,0,0,0,0,0,0,0}, float one = {1}, float big = {-10000},
     float root = {2}, int64[4] split = {0,0,2,4}, int64[3] merge = {0,0,8}>
    { h = LayerNormalization <axis: int = -1> (x, scale, bias)
      m1 = Unsqueeze <axes: ints = [1]> (mask)  m2 = Unsqueeze <axes: ints = [2]> (m1)  mf = Cast <to: int = 1> (m2)
      inv = Sub (one, mf)  added = Mul (inv, big)
      q0 = MatMul (h, wq)  q = Add (q0, bias)  k0 = MatMul (h, wk)  k = Add (k0, bias)
      v0 = MatMul (h, wv)  v = Add (v0, bias)
      qr = Reshape (q, split)  qt = Transpose <perm: ints = [0,2,1,3]> (qr)
      kr = Reshape (k, split)  kt = Transpose <perm: ints = [0,2,3,1]> (kr)
      vr = Reshape (v, split)  vt = Transpose <perm: ints = [0,2,1,3]> (vr)
      qk = MatMul (qt, kt)  scaled = Div (qk, root)  masked = Add (scaled, added)
      p = Softmax <axis: int = 3> (masked)  c = MatMul (p, vt)
      ct = Transpose <perm: ints = [0,2,1,3]> (c)  cr = Reshape (ct, merge)
      o0 = MatMul (cr, wo)  o = Add (o0, bias)  y = Add (o, h) }"""
    proto = onnx.parser.parse_model(text)
    for seed, name in enumerate(("wq", "wk", "wv", "wo")):
        proto.graph.initializer.append(numpy_helper.from_array(normal(8, 8, seed=seed), name))
    return proto.SerializeToString(), {"x": normal(1, 3, 8), "mask": np.array([[2, 1, 0]], np.int32)}


def quantized_matmul(qdq_output: bool = False) -> tuple[bytes, dict]:
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["wd"]),
        helper.make_node("MatMul", ["x", "wd"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["b", 32])],
        [
            numpy_helper.from_array(rng.integers(-127, 127, (64, 32)).astype(np.int8), "w"),
            numpy_helper.from_array(np.float32(0.01), "s"),
        ],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return proto.SerializeToString(), {"x": normal(4, 64)}


@pytest.mark.parametrize(
    ("make", "unpin"),
    [
        (transpose_matmul, {"DISABLED_OPTIMIZERS": ("AttentionFusion",)}),
        (masked_attention, {"DISABLED_OPTIMIZERS": ("MatmulTransposeFusion",)}),
        (quantized_matmul, {"_INTEGER_KERNELS": "none", "SESSION_CONFIG": {}}),
    ],
    ids=["MatmulTransposeFusion", "AttentionFusion", "MatMulNBits"],
)
def test_accuracy_pins(make: Callable[[], tuple[bytes, dict]], unpin: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    source, feeds = make()
    reference = OrtExecutable(source, optimize=False)(feeds)
    assert largest(reference, OrtExecutable(source)(feeds)) < 1e-5
    for name, value in unpin.items():
        monkeypatch.setattr(ort_session, name, value)
    if largest(reference, OrtExecutable(source)(feeds)) < 1e-3:
        pytest.skip("this version of ONNX Runtime no longer needs the pin")


KEYWORDS = Path(__file__).resolve().parents[1].parent / "shared/corpus/emmtrix__emx-onnx-cgen/tests/onnx"


@pytest.mark.skipif(not KEYWORDS.is_dir(), reason="../shared/corpus is not here")
def test_quantized_models_compute_as_they_are_written() -> None:
    """On integer kernels two of this classifier's twenty scores are a quantization step off."""
    source = (KEYWORDS / "micro_kws_m_static_qdq.onnx").read_bytes()
    exe = OrtExecutable(source)
    (spec,) = exe.inputs
    feeds = {spec.name: normal(1, 1960)}
    assert largest(evaluate_bytes(source, feeds), exe(feeds)) < 1e-5


def test_integer_kernels_keep_activations_in_float() -> None:
    """The opt-in may use int8 weights as they are, but never rounds activations that the model does not quantize."""
    source, feeds = quantized_matmul()
    assert largest(evaluate_bytes(source, feeds), OrtExecutable(source, integer_kernels=True)(feeds)) < 1e-4


def evaluate_bytes(source: bytes, feeds: dict) -> dict:
    return OrtExecutable(source, optimize=False)(feeds)


# ---- types in and out

_EXTENSION = ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"]
_PLAIN = ["float16", "float64", "int8", "uint16", "int32", "uint64", "bool"]


@pytest.mark.parametrize("shape", [(3, 5), (), (0, 2)], ids=str)
@pytest.mark.parametrize("name", [*_PLAIN, *_EXTENSION])
def test_every_element_type_passes_through(name: str, shape: tuple[int, ...]) -> None:
    dtype = np.dtype(getattr(ml_dtypes, name) if name in _EXTENSION else name)
    element = ir.DataType.from_numpy(dtype)
    value = np.random.default_rng(0).integers(0, 2 if name == "bool" else 6, shape).astype(dtype)
    value = np.asarray(value).reshape(shape)
    there_and_back = [
        helper.make_node("Cast", ["x"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["f"], ["t"]),
        helper.make_node("Cast", ["t"], ["y"], to=int(element)),
    ]
    graph = helper.make_graph(
        there_and_back,
        "g",
        [helper.make_tensor_value_info("x", int(element), shape)],
        [helper.make_tensor_value_info("y", int(element), shape[::-1])],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=12)
    result = evaluate(ir.from_proto(proto), {"x": value})["y"]
    assert result.dtype == dtype
    assert result.shape == shape[::-1]
    np.testing.assert_array_equal(result.astype(np.float64), value.T.astype(np.float64))


@pytest.mark.parametrize("name", [*_EXTENSION, "float4_e2m1fn", "int2", "uint2"])
def test_arrays_survive_the_trip_to_ort_memory(name: str) -> None:
    """ONNX Runtime has no float4 kernel for a model to test this with."""
    if not hasattr(ml_dtypes, name):
        pytest.skip(f"this ml_dtypes has no {name}")
    value = np.arange(-6 if "uint" not in name else 0, 9).astype(np.float32)
    value = np.clip(value, *_LIMITS.get(name, (-6, 9))).astype(getattr(ml_dtypes, name)).reshape(3, -1)
    again = from_ort(to_ort(value))
    assert again.dtype == value.dtype
    np.testing.assert_array_equal(again.astype(np.float32), value.astype(np.float32))


_LIMITS = {"int2": (-2, 1), "uint2": (0, 3), "int4": (-8, 7), "uint4": (0, 15)}


def test_strings() -> None:
    exe = OrtExecutable(model("g (string[n] x) => (string[n] y) { y = Identity (x) }"))
    kinds = (None, object, np.dtypes.StringDType())
    for given in (*(np.array(["a", "ß"], kind) for kind in kinds), np.array([b"a", "ß".encode()])):
        assert exe({"x": given})["y"].tolist() == ["a", "ß"]


def test_sequences_and_absent_optionals() -> None:
    exe = OrtExecutable(
        model(
            "g (seq(float[n]) s, int64 i) => (float[n] x, seq(float[n]) t) { x = SequenceAt (s, i) t = Identity (s) }"
        )
    )
    results = exe({"s": [np.zeros(2, np.float32), np.ones(3, np.float32)], "i": np.array(1)})
    assert results["x"].tolist() == [1, 1, 1]
    assert [v.shape for v in results["t"]] == [(2,), (3,)]
    absent = OrtExecutable(model("g (optional(float[2]) o) => (bool h) { h = OptionalHasElement (o) }"))
    assert not absent({"o": None})["h"]
    assert absent({"o": np.zeros(2, np.float32)})["h"]


def test_sequences_together_with_bfloat16_are_refused_by_name() -> None:
    exe = OrtExecutable(
        model(
            "g (seq(float[n]) s, bfloat16[2] b) => (int64 k, bfloat16[2] c) { k = SequenceLength (s) c = Identity (b) }"
        )
    )
    with pytest.raises(UnsupportedOpError, match=r"input 's' is a sequence.*together with bfloat16"):
        exe({"s": [np.zeros(2, np.float32)], "b": np.zeros(2, ml_dtypes.bfloat16)})


def test_maps_of_a_classifier() -> None:
    graph = helper.make_graph(
        [helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["a", "b"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
        [onnx.ValueInfoProto(name="y")],
    )
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=10)
    exe = OrtExecutable(proto.SerializeToString())
    assert exe.outputs[0].kind == "sequence map"
    assert exe({"x": np.array([[0.25, 0.75]], np.float32)})["y"] == [{"a": 0.25, "b": 0.75}]


# ---- weights


def test_large_and_external_weights_are_shared_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_model, "_LARGE_BYTES", 1024)
    weight, small = normal(64, 64), normal(64)
    proto = onnx.parser.parse_model(HEAD + "g (float[n,64] x) => (float[n,64] y) { z = MatMul (x, w) y = Add (z, b) }")
    proto.graph.initializer.extend([numpy_helper.from_array(weight, "w"), numpy_helper.from_array(small, "b")])
    onnx.save(proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    loaded = ir.load(tmp_path / "m.onnx")
    before = {n: v.const_value for n, v in loaded.graph.initializers.items()}
    result = OrtExecutable(loaded)({"x": normal(2, 64)})["y"]
    np.testing.assert_allclose(result, normal(2, 64) @ weight + small, rtol=1e-4, atol=1e-4)
    assert {n: v.const_value for n, v in loaded.graph.initializers.items()} == before
    shared = ort_model.large_initializers(loaded)
    assert set(shared) == {"w"}
    assert len(ort_model.serialize(loaded, shared)) < 2048


def test_overridable_initializers_have_a_default_even_when_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort_model, "_LARGE_BYTES", 1)
    exe = OrtExecutable(model("g (float[2] x, float[2] w = {1,2}) => (float[2] y) { y = Mul (x, w) }"))
    ones = np.ones(2, np.float32)
    assert [s.name for s in exe.inputs] == ["x"]
    assert [s.name for s in exe.optional_inputs] == ["w"]
    assert exe({"x": ones})["y"].tolist() == [1, 2]
    assert exe({"x": ones, "w": 3 * ones})["y"].tolist() == [3, 3]


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        ("g (float[2] x) => (float[2] y) <float[2] w = {1,2}> { y = Add (x, x) }", {"y": [2, 2]}),
        ("g (float[2] x, float[2] w = {1,2}) => (float[2] y) { y = Add (x, x) }", {"y": [2, 2]}),
        (
            "g (float[2] x) => (float[2] y, float[2] w) <float[2] w = {1,2}> { y = Add (x, x) }",
            {"y": [2, 2], "w": [1, 2]},
        ),
    ],
    ids=["read by nobody", "an input", "an output"],
)
def test_large_weights_that_no_node_reads(
    graph: str, expected: dict[str, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass leaves such behind, and its result is run as it is."""
    monkeypatch.setattr(ort_model, "_LARGE_BYTES", 1)
    results = OrtExecutable(model(graph))({"x": np.ones(2, np.float32)})
    assert {name: value.tolist() for name, value in results.items()} == expected


def test_ir_version_3_in_normal_form() -> None:
    """There, initializers have to be inputs as well; in memory they are not."""
    value = model("g (float[2] x) => (float[2] y) <float[2] w = {1,2}> { y = Add (x, w) }")
    value.ir_version = 3
    assert evaluate(value, {"x": np.zeros(2, np.float32)})["y"].tolist() == [1, 2]


@pytest.mark.parametrize("shape", ["", "[1]"])
def test_a_loop_counts_in_the_shape_that_its_body_declares(shape: str) -> None:
    """Normal form keeps declared shapes of inner values aside; ONNX Runtime cannot run a Loop without them."""
    text = f"""g (int64 n) => (int64[k] y) <bool t = {{1}}>
    {{ y = Loop (n, t) <body = b (int64{shape} i, bool c) => (bool c2, int64{shape} o)
                       {{ c2 = Identity (c)  o = Add (i, i) }}> }}"""
    loaded = read_model(onnx.parser.parse_model(HEAD + text))
    assert OrtExecutable(loaded)({"n": np.array(3)})["y"].reshape(-1).tolist() == [0, 2, 4]


# ---- errors


def test_no_kernel_names_the_node() -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (double[1,4,3,3] x) => (double[1,4,3,3] y)'
        "{ [first] y = LRN <size = 3> (x) }"
    )
    value = ir.from_proto(onnx.parser.parse_model(text))
    value.graph.node(0).metadata_props["pfvm.source"] = "net.py:42"
    with pytest.raises(UnsupportedOpError, match=r"no kernel for LRN 'first' from net\.py:42"):
        OrtExecutable(value)


def test_no_kernel_names_the_type_even_where_the_file_does_not() -> None:
    text = "g (double[1,4,3,3] x) => (double[1,4,3,3] y) { a = Neg (x)  y = LRN <size = 3> (a) }"
    with pytest.raises(UnsupportedOpError, match=r"LRN \(→ 'y'\) at version 13 with double; cast"):
        OrtExecutable(model(text))


def test_unknown_op_names_the_node() -> None:
    with pytest.raises(UnsupportedOpError, match=r"Foo 'n1'.*no operator 'Foo' in domain 'ai\.onnx'"):
        OrtExecutable(model("g (float[2] x) => (float[2] y) { [n1] y = Foo (x) }"))
    text = (
        '<ir_version: 8, opset_import: ["" : 17, "my.ops" : 1]> g (float[2] x) => (float[2] y) { y = my.ops.Foo (x) }'
    )
    with pytest.raises(UnsupportedOpError, match=r"my\.ops::Foo \(→ 'y'\): .*domain 'my\.ops'.*--custom-ops-lib"):
        OrtExecutable(ir.from_proto(onnx.parser.parse_model(text)))


def test_a_failing_node_is_named() -> None:
    exe = OrtExecutable(model("g (float[3] x, int64[n] i) => (float[n] y) { [pick] y = Gather (x, i) }"))
    with pytest.raises(InputError, match=r"Gather 'pick' failed on these inputs: .*idx=7"):
        exe({"x": np.zeros(3, np.float32), "i": np.array([7])})
    assert exe({"x": np.zeros(3, np.float32), "i": np.array([2])})["y"].tolist() == [0]


def test_an_ill_typed_graph_is_invalid() -> None:
    with pytest.raises(InvalidModelError, match=r"cannot load the model: .*Type"):
        OrtExecutable(model("g (float[3] x, int64[3] i) => (float[3] y) { [bad] y = Add (x, i) }"))


def test_custom_operator_library(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="does not exist"):
        OrtExecutable(model("g (float[2] x) => (float[2] y) { y = Relu (x) }"), custom_ops_library="nowhere.so")
    junk = tmp_path / "junk.so"
    junk.write_text("no library")
    with pytest.raises(OptionError, match="is not a custom operator library"):
        OrtExecutable(model("g (float[2] x) => (float[2] y) { y = Relu (x) }"), custom_ops_library=junk)


# ---- calls


def test_calls_from_several_threads() -> None:
    exe = OrtExecutable(model("g (float[n] x) => (float[n] y) { z = Mul (x, x) y = Add (z, x) }"), threads=1)

    def call(k: int) -> bool:
        value = np.full(1000 + k, k, np.float32)
        return bool((exe({"x": value})["y"] == k * k + k).all())

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(call, range(64)))


def test_thread_count_is_passed_on() -> None:
    assert ort_session.session_options(threads=3).intra_op_num_threads == 3
    assert ort_session.session_options().use_deterministic_compute
    with pytest.raises(OptionError, match="threads must be at least 1"):
        ort_session.session_options(threads=0)


@pytest.mark.parametrize("optimize", [True, False])
def test_batch_normalization_of_training_leaves_its_inputs_as_they_are(optimize: bool) -> None:
    """ONNX Runtime's own kernel updates initializers and the caller's arrays in place."""
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[4,2,3] x, float[2] mean, float[2] var) =>
        (float[4,2,3] y, float[2] m, float[2] v, float[2] first) <float[2] s = {1,2}, float[2] b = {3,4}> {
        y, running, v = BatchNormalization <training_mode = 1> (x, s, b, mean, var)
        m = Neg (running)  o, a, c = BatchNormalization <training_mode = 1> (x, s, b, s, b)  first = Add (a, s) }"""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    feeds = {name: random.random(shape, np.float32) for name, shape in (("x", (4, 2, 3)), ("mean", 2), ("var", 2))}
    before = {name: value.copy() for name, value in feeds.items()}
    expected = dict(zip(("y", "m", "v", "first"), ReferenceEvaluator(proto).run(None, feeds)))
    executable = OrtExecutable(ir.from_proto(proto), optimize=optimize, expand=optimize)
    for _ in range(2):
        for name, value in executable(feeds).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5, atol=1e-6)
        assert all((feeds[name] == value).all() for name, value in before.items())


@pytest.mark.parametrize("optimize", [True, False])
def test_batch_normalization_of_training_of_unknown_rank_leaves_a_body_as_it_is(optimize: bool) -> None:
    """Each iteration would else start from the statistics of the last one."""
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[3,2] rows, float[4,2,3] z, int64[k] shape) => (float[2] last, float[3,2] all)
        <float[2] s = {1,2}, float[2] m = {3,4}, float[2] zero = {0,0}> {
        x = Reshape (z, shape)
        last, all = Scan <num_scan_inputs = 1, body = b (float[2] sum, float[2] row) => (float[2] next, float[2] out) {
            v = Constant <value = float[2] {4, 4}> ()
            y, mean, variance = BatchNormalization <training_mode = 1> (x, s, s, m, v)
            both = Add (mean, variance)  next = Add (sum, both)  out = Add (row, both) }> (zero, rows) }"""
    proto = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    feeds = {"rows": random.random((3, 2), np.float32), "z": random.random((4, 2, 3), np.float32)}
    feeds["shape"] = np.array([4, 2, 3], np.int64)
    expected = dict(zip(("last", "all"), ReferenceEvaluator(proto).run(None, feeds)))
    executable = OrtExecutable(ir.from_proto(proto), optimize=optimize, expand=optimize)
    for _ in range(2):
        for name, value in executable(feeds).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-5)
