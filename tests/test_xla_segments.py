"""Host segments on xla:cpu: what XLA cannot express runs in ONNX Runtime, the rest is compiled."""

from __future__ import annotations

import threading

import numpy as np
import onnx
import onnx_ir as ir
import pytest

pytest.importorskip("jax")
pytest.importorskip("onnxruntime")

from pfvm.errors import UnsupportedOpError
from pfvm.runtime.api import load as load_on
from pfvm.runtime.ort import OrtExecutable
from pfvm.runtime.xla import XlaExecutable
from xla_cases import assert_equal

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = np.array([[1.0, -2.0, 3.0], [0.0, 5.0, -6.0]], np.float32)


def model(text: str, opset: int = 20) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}, "local" : 1]>\n' + text)


def load(text: str, opset: int = 20, **options) -> XlaExecutable:
    return load_on(model(text, opset), "xla:cpu", **options)


def check(text: str, *calls: dict[str, np.ndarray], opset: int = 20, **options) -> XlaExecutable:
    """Every call gives what ONNX Runtime gives."""
    exe, reference = load(text, opset, **options), OrtExecutable(ir.from_proto(model(text, opset)))
    for feeds in calls:
        expected, actual = reference(feeds), exe(feeds)
        assert list(actual) == list(expected)
        for name, value in expected.items():
            assert_same(actual[name], value)
    return exe


def assert_same(actual, expected) -> None:
    if isinstance(expected, list):
        assert len(actual) == len(expected)
        for a, b in zip(actual, expected):
            assert_same(a, b)
    elif expected is None or expected.dtype.kind in "OUST":
        assert np.array_equal(actual, expected)
    else:
        assert_equal(actual, expected)


def kinds(exe: XlaExecutable) -> list[tuple[str, list[str]]]:
    return [(segment.kind, [node.op_type for node in segment.nodes]) for segment in exe.segments]


POSITIVE = """
g (float[N, 3] x) => (float[A] y, float[N, 3] z) <float zero = {0}, int64[1] all = {-1}> {
  s = Tanh(x)
  big = Greater(x, zero)
  where = NonZero(big)
  columns = Transpose(where)
  picked = GatherND(s, columns)
  y = Exp(picked)
  z = Mul(s, s)
}
"""


def test_a_data_dependent_node_is_cut_out_and_named():
    exe = check(POSITIVE, {"x": X}, {"x": -X}, {"x": np.zeros_like(X)}, {"x": np.ones((4, 3), np.float32)})
    assert kinds(exe) == [
        ("device", ["Tanh", "Greater", "Mul"]),
        ("host", ["NonZero"]),
        ("device", ["Transpose", "GatherND", "Exp"]),
    ]
    assert exe.segments[1].names == ("NonZero (→ 'where')",)
    assert "data-dependent shape" in exe.segments[1].reason and "'big'" in exe.segments[1].reason


def test_behind_a_cut_a_segment_is_compiled_for_so_many_shapes_and_then_runs_on_the_host():
    inputs = [np.where(np.arange(6).reshape(2, 3) < n, 1, -1).astype(np.float32) for n in range(7)]
    exe = check(POSITIVE, *({"x": x} for x in inputs), *({"x": x} for x in inputs), cut_shapes=3)
    assert exe.compilations == 1 + 3
    assert exe.host_calls == 2 * 4


def test_a_cut_is_an_error_that_names_the_node_where_the_host_is_forbidden():
    exe = load(POSITIVE, allow_host=False)
    with pytest.raises(UnsupportedOpError, match=r"NonZero .*'where'.*needs the value of 'big'.*data of 'x'"):
        exe({"x": X.repeat(100, 0)})
    with pytest.raises(UnsupportedOpError, match="StringConcat"):
        load("g (string[N] a) => (string[N] b) { b = StringConcat(a, a) }", allow_host=False)


@pytest.mark.parametrize(
    ("nodes", "cut"),
    [
        ("k = ReduceMax<keepdims = 0>(n) r = Range(zero, k, one) y = Cast<to = 1>(r)", ["Range"]),
        ("k = ReduceMax<keepdims = 1>(n) a = Expand(ten, k) y = Sqrt(a)", ["Expand"]),
        ("k = ReduceMax<keepdims = 1>(n) r = Slice(x, start, k) y = Exp(r)", ["Slice"]),
        ("c = Greater(x, ten) d = Compress(x, c) y = Neg(d)", ["Compress"]),
        ("u = Unique(x) y = Neg(u)", ["Unique"]),
    ],
)
def test_shapes_computed_from_data(nodes: str, cut: list[str]):
    text = f"""
    g (float[N] x) => (float[A] y) <int64 zero = {{0}}, int64 one = {{1}}, int64[1] start = {{0}}, float[1] ten = {{9}}>
    {{
      n = Cast<to = 7>(x) {nodes}
    }}
    """
    values = np.arange(40, dtype=np.float32) % 13
    exe = check(text, {"x": values}, {"x": values[:20]}, {"x": values + 1})
    assert [ops for kind, ops in kinds(exe) if kind == "host"] == [cut]


def test_strings():
    text = """
    g (string[N] s, float[N] x) => (string[N] t, float[N] y) <string[1] dot = {"."}> {
      u = StringConcat(s, dot) t = Identity(u) e = Equal(u, s) f = Cast<to = 1>(e) z = Exp(x) y = Add(f, z)
    }
    """
    exe = check(text, {"s": np.array(["a", "b"], object), "x": np.ones(2, np.float32)})
    assert kinds(exe) == [
        ("device", ["Exp"]),
        ("host", ["StringConcat", "Identity", "Equal"]),
        ("device", ["Cast", "Add"]),
    ]
    assert all(why == "strings" for _, why in exe.segments[1].reasons)


def test_strings_that_nothing_computes_are_outputs():
    text = """
    g (float[2] x, string[2] s) => (float[2] y, string[2] c, string[2] s) <string[2] c = {"a", "b"}> { y = Relu(x) }
    """
    check(text, {"s": np.array(["p", "q"], object), "x": np.ones(2, np.float32)})
    with pytest.raises(UnsupportedOpError, match=r"'s' holds strings, which XLA has no type for; pfvm:cpu has all"):
        load(text, allow_host=False)


def test_sequences_and_optionals_cross_the_interface():
    text = """
    g (seq(float[N]) q, float[N] x) => (seq(float[N]) r, float[N] y, optional(float[N]) o) <int64 one = {1}> {
      z = Exp(x) r = SequenceInsert(q, z) a = SequenceAt(r, one) y = Neg(a) o = Optional(y)
    }
    """
    exe = check(text, *({"q": [np.ones(2, np.float32)] * n, "x": np.zeros(2, np.float32)} for n in (1, 2)))
    assert [kind for kind, _ in kinds(exe)] == ["device", "host", "device", "host"]


def test_optional_inputs_and_empty_sequences():
    text = """
    g (optional(float[N]) o, float[N] x, seq(float[N]) q) => (float[N] y, int64 n) {
      has = OptionalHasElement(o) z = Exp(x) n = SequenceLength(q)
      y = If(has) <then_branch = t () => (float[N] a) { e = OptionalGetElement(o) a = Add(e, z) },
                   else_branch = f () => (float[N] b) { b = Neg(z) }>
    }
    """
    x = np.ones(2, np.float32)
    exe = check(text, {"o": x, "x": x, "q": []}, {"o": x, "x": x, "q": [x, x]})
    assert [kind for kind, _ in kinds(exe)] == ["device", "host"]


def test_sequences_within():
    text = """
    g (float[N, 3] x) => (float[N, M] y) <int64 one = {1}> {
      q = SplitToSequence<axis = 1>(x, one) a = SequenceAt(q, one) b = Exp(a) p = SequenceInsert(q, b)
      y = ConcatFromSequence<axis = 1>(p)
    }
    """
    exe = check(text, {"x": X}, {"x": X[:1]})
    assert [kind for kind, _ in kinds(exe)] == ["host", "device", "host"]
    assert kinds(exe)[1] == ("device", ["Exp"])


def test_a_loop_whose_body_must_be_cut_runs_on_the_host_with_its_captures():
    text = """
    g (float[N] x, int64 m) => (float[N] y) <float[1] two = {2}, bool go = {1}> {
      w = Mul(x, two)
      q = Loop(m, go, w) <body = b (int64 i, bool c, float[N] a) => (bool d, float[N] e) {
        d = Identity(c) k = SequenceConstruct(a, w) j = Constant<value = int64 {1}>() f = SequenceAt(k, j) e = Add(a, f)
      }>
      y = Neg(q)
    }
    """
    exe = check(text, {"x": X[0], "m": np.array(3)}, {"x": X[1], "m": np.array(0)})
    assert kinds(exe) == [("device", ["Mul"]), ("host", ["Loop"]), ("device", ["Neg"])]
    assert "sequences in its body, at SequenceConstruct" in exe.segments[1].reason
    assert "so all of the Loop runs there" in exe.segments[1].reason


def test_a_loop_that_grows_by_data_runs_on_the_host():
    text = """
    g (float[N] x) => (float[M] y) <bool go = {1}, int64 many = {100000}> {
      y = Loop(many, go, x) <body = b (int64 i, bool c, float[K] a) => (bool d, float[L] z) {
        z = Concat<axis = 0>(a, x) t = ReduceSum<keepdims = 0>(z) k = Constant<value = float {9}>() d = Less(t, k) }>
    }
    """
    exe = check(text, {"x": np.full(20, 0.1, np.float32)}, {"x": np.full(30, 0.1, np.float32)})
    assert kinds(exe) == [("host", ["Loop"])]


def test_a_function_that_must_be_cut_runs_on_the_host():
    text = """
    g (float[N] x) => (float[A] y) { z = Exp(x) p = local.pick(z) y = Neg(p) }
    <domain: "local", opset_import: ["" : 20]>
    pick (a) => (b) { k = Constant<value = float {1.5}>() c = Greater(a, k) b = Compress(a, c) }
    """
    exe = check(text, {"x": np.linspace(-1, 1, 30, dtype=np.float32)})
    assert kinds(exe) == [("device", ["Exp"]), ("host", ["pick"]), ("device", ["Neg"])]


def test_state_reaches_host_and_device_segments():
    text = """
    g (float[N] x, float[1] w) => (float[A] y) <float[1] w = {1}> {
      c = Greater(x, w) d = Compress(x, c) y = Mul(d, w)
    }
    """
    x = np.arange(4, dtype=np.float32)
    exe = check(text, {"x": x}, {"x": x, "w": np.array([2.5], np.float32)}, {"x": x})
    assert [kind for kind, _ in kinds(exe)] == ["device", "host", "device"]


def test_integer_results_of_a_host_segment_may_fix_shapes():
    text = """
    g (float[N] x) => (float[A, B] y) <int64[1] one = {1}, int64[1] two = {2}, float zero = {0}> {
      c = Greater(x, zero) d = Compress(x, c) n = Size(d) k = Reshape(n, one)
      half = Div(k, two) t = Concat<axis = 0>(half, two) y = Reshape(d, t)
    }
    """
    check(text, {"x": np.array([1, 2, -1, 3, 4], np.float32)}, {"x": np.array([1, 2, 3, 4, 5, 6, -1], np.float32)})


def test_low_precision_values_cross_between_segments():
    text = """
    g (float[N] x) => (bfloat16[A] y) <float zero = {0}> {
      h = Cast<to = 16>(x) c = Greater(x, zero) n = NonZero(c) t = Transpose(n) d = GatherND(h, t) y = Add(d, d)
    }
    """
    y = load(text)({"x": np.array([1, -1, 2.5], np.float32)})["y"]
    assert y.dtype.name == "bfloat16"
    assert_equal(y.astype(np.float32), np.array([2, 5], np.float32))


def test_a_model_without_nodes():
    exe = load("g (float[N] x) => (float[N] x) { }")
    assert exe.segments == () and np.array_equal(exe({"x": X[0]})["x"], X[0])


def test_eight_threads_share_one_executable_with_cuts():
    exe, wrong = load(POSITIVE, cut_shapes=2), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(6):
            x = rng.standard_normal((2, 3)).astype(np.float32)
            if not np.allclose(exe({"x": x})["y"], np.exp(np.tanh(x[x > 0])), atol=1e-6):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and exe.compilations <= 3
