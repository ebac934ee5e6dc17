"""If, Loop and Scan on xla:cpu against ONNX Runtime: every form, nesting, captures, and what XLA cannot express."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

pytest.importorskip("jax")
pytest.importorskip("onnxruntime")

import jax
from pfvm.errors import InvalidModelError, UnsupportedOpError
from pfvm.runtime.ort import OrtExecutable
from pfvm.runtime.xla import XlaExecutable
from pfvm.runtime.xla.context import DataDependentShapeError, Scope
from pfvm.runtime.xla.interpreter import Interpreter
from pfvm.runtime.xla.random_keys import Keys, fresh_entropy
from pfvm.runtime.xla.schema_functions import SchemaFunctions
from pfvm.runtime.xla.weights import Weights
from xla_cases import assert_equal

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = np.array([1.0, -2.0, 3.0], np.float32)
TRUE, FALSE = np.array(True), np.array(False)


def model(text: str, opset: int = 17) -> onnx.ModelProto:
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "local" : 1, "com.unknown" : 1]>\n'
    return onnx.parser.parse_model(header + text)


def load(text: str, opset: int = 17, **options: bool) -> XlaExecutable:
    return XlaExecutable(ir.serde.deserialize_model(model(text, opset)), **options)


def check(text: str, *calls: dict[str, np.ndarray], opset: int = 17, compilations: int | None = None) -> XlaExecutable:
    """Every call gives what ONNX Runtime gives, from `compilations` executables."""
    proto = model(text, opset)
    exe = XlaExecutable(ir.serde.deserialize_model(proto))
    oracle = OrtExecutable(ir.serde.deserialize_model(proto), optimize=False)
    for feeds in calls:
        got = exe(feeds)
        for name, want in oracle(feeds).items():
            assert_equal(got[name], want)
    if compilations is not None:
        assert exe.compilations == compilations
    return exe


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def int_(value: int) -> np.ndarray:
    return np.array(value, np.int64)


# ---- If


def test_if_decides_at_run_time_and_captures_outer_values():
    text = """
    g (float[N] x, bool flag) => (float[N] y, float[N] z) <float[1] w = {10}> {
      twice = Add(x, x)
      y, z = If(flag) <
        then_branch = t () => (float[N] a, float[N] b) { a = Add(twice, w) b = Identity(x) },
        else_branch = e () => (float[N] c, float[N] d) { c = Mul(twice, x) d = Neg(x) }
      >
    }
    """
    check(text, {"x": X, "flag": TRUE}, {"x": X, "flag": FALSE}, compilations=1)


NESTED_IF = """
g (float[N] x, float[1] s) => (float[N] y) <float[1] zero = {0}> {
  positive = Greater(s, zero)
  y = If(positive) <
    then_branch = t () => (float[N] a) {
      big = Greater(x, s) count = Cast<to = 7>(big) total = ReduceSum<keepdims = 0>(count) any = Cast<to = 9>(total)
      a = If(any) <
        then_branch = tt () => (float[N] p) { p = Mul(x, s) },
        else_branch = te () => (float[N] q) { q = Sub(x, s) }
      >
    },
    else_branch = e () => (float[N] b) { b = Identity(x) }
  >
}
"""


def test_nested_if_with_conditions_of_one_element():
    scales = (np.float32([2]), np.float32([9]), np.float32([-1]))
    check(NESTED_IF, *({"x": X, "s": s} for s in scales), compilations=1)


def test_a_branch_may_return_outer_values_and_initializers():
    text = """
    g (float[3] x, bool f) => (float[3] y, int64[2] k) <float[3] w = {5, 6, 7}, int64[2] one = {1, 2}> {
      y, k = If(f) <then_branch = t () => (float[3] a, int64[2] b) { a = Identity(w) b = Identity(one) },
                    else_branch = e () => (float[3] c, int64[2] d) { c = Identity(x) d = Add(one, one) }>
    }
    """
    check(text, {"x": X, "f": TRUE}, {"x": X, "f": FALSE}, compilations=1)


def test_what_both_branches_agree_on_is_known_at_compile_time():
    text = """
    g (float[N, 2] x, bool f) => (float[M] y) {
      shape = If(f) <then_branch = t () => (int64[1] a) { a = Size(x) },
                     else_branch = e () => (int64[1] b) { b = Size(x) }>
      one = Constant<value = int64[1] {1}>() list = Reshape(shape, one) y = Reshape(x, list)
    }
    """
    check(text, *({"x": np.ones((2, 2), np.float32), "f": f} for f in (TRUE, FALSE)), compilations=1)


DIFFERENT_SHAPES = """
g (float[N] x, COND f) => (float[M] y) {
  c = Cast<to = 9>(f)
  y = If(c) <then_branch = t () => (float[K] a) { a = Concat<axis = 0>(x, x) },
             else_branch = e () => (float[L] b) { b = Neg(x) }>
}
"""


def test_branches_of_different_shapes_are_chosen_by_the_value_of_a_flag():
    text = DIFFERENT_SHAPES.replace("COND", "int64")
    check(text, {"x": X, "f": int_(1)}, {"x": X, "f": int_(0)}, {"x": X, "f": int_(1)}, compilations=2)


def test_branches_of_different_shapes_that_follow_from_data_are_an_error():
    text = (
        DIFFERENT_SHAPES.replace("COND f", "float[40] h")
        .replace("(f)", "(m)")
        .replace("c = Cast", "m = ReduceMax<keepdims = 0>(h) c = Cast")
    )
    message = r"If .*output 0 \('y'\) is float32\[6\] .*float32\[3\]"
    with pytest.raises(DataDependentShapeError, match=message) as error:
        load(text, allow_host=False)({"x": X, "h": np.ones(40, np.float32)})
    assert error.value.node.op_type == "If"


def test_a_branch_that_does_not_fit_is_no_error_where_it_is_not_taken():
    text = """
    g (float[N] x, int64 rate) => (float[N] y) <int64 eight = {8}, float[2] w2 = {1, 2}, float[3] w3 = {1, 2, 3}> {
      low = Equal(rate, eight)
      y = If(low) <then_branch = t () => (float[N] a) { a = Add(x, w2) },
                   else_branch = e () => (float[N] b) { b = Add(x, w3) }>
    }
    """
    check(text, {"x": X[:2], "rate": int_(8)}, {"x": X, "rate": int_(16)})
    with pytest.raises(InvalidModelError, match=r"Add .* in a body of If .*float32\[3\], float32\[2\]"):
        load(text)({"x": X, "rate": int_(8)})


# ---- Loop

LOOPS = {
    "counts": """y = Loop(m, , x) <body = b (int64 i, bool c, float[N] a) => (bool d, float[N] z) {
        d = Identity(c) f = Cast<to = 1>(i) s = Add(a, f) z = Mul(s, x) }>""",
    "while": """y = Loop(, go, x) <body = b (int64 i, bool c, float[N] a) => (bool d, float[N] z) {
        z = Add(a, a) s = ReduceMax<keepdims = 0>(z) k = Cast<to = 1>(m) d = Less(s, k) }>""",
    "both": """y = Loop(m, go, x) <body = b (int64 i, bool c, float[N] a) => (bool d, float[N] z) {
        z = Add(a, a) s = ReduceMax<keepdims = 0>(z) h = Constant<value = float {20}>() d = Less(s, h) }>""",
    "unbounded trips": """k = Constant<value = int64 {9223372036854775807}>()
        y = Loop(k, go, x) <body = b (int64 i, bool c, float[N] a) => (bool d, float[N] z) {
        z = Add(a, a) d = Less(i, m) }>""",
    "ends without a condition": """k = Constant<value = int64 {9}>()
        y = Loop(k, , x) <body = b (int64 i, bool c, float[N] a) => (bool d, float[N] z) {
        z = Add(a, a) d = Less(i, m) }>""",
    "no condition holds": """y = Loop(m, go, x) <body = b (int64 i, bool c, float[N] a) => (bool d, float[N] z) {
        z = Add(a, a) d = Constant<value = bool {0}>() }>""",
    "two values": """swap = Neg(x) y, w = Loop(m, , x, swap) <body =
        b (int64 i, bool c, float[N] p, float[N] q) => (bool d, float[N] r, float[N] s) {
        d = Identity(c) r = Identity(q) s = Add(p, q) }>""",
}


@pytest.mark.parametrize("name", LOOPS)
def test_loop_of_any_number_of_trips_is_one_executable(name):
    text = "g (float[N] x, int64 m, bool go) => (float[N] y) { %s }" % LOOPS[name]  # noqa: UP031
    calls = [{"x": X, "m": int_(m), "go": go} for m in (0, 1, 4) for go in (TRUE, FALSE)]
    check(text, *calls, compilations=1)


@pytest.mark.parametrize(
    ("opset", "dtype"), [(1, "float"), (11, "int64"), (13, "double"), (16, "float16"), (21, "int8")]
)
@pytest.mark.parametrize("trips", [0, 1, 5])
def test_loop_with_known_trips_has_scan_outputs(opset, dtype, trips):
    text = f"""
    g ({dtype}[2, 2] x) => ({dtype}[2, 2] y, {dtype}[K, 2, 2] s, int64[K] n) <int64 m = {{{trips}}}, bool go = {{1}}> {{
      y, s, n = Loop(m, go, x) <body = b (int64 i, bool c, {dtype}[2, 2] a) =>
        (bool d, {dtype}[2, 2] z, {dtype}[2, 2] e, int64 j) {{
          d = Identity(c) z = MatMul(a, x) e = Identity(a) j = Identity(i) }}>
    }}
    """
    # Opset 1 has no such Identity and MatMul in ONNX Runtime; the oldest that it runs has the first Loop.
    opset = max(opset, 10)
    if dtype == "int8":
        text = text.replace("MatMul(a, x)", "Add(a, x)")
    x = np.array([[1, 1], [0, 1]]).astype({"float": "f4", "double": "f8"}.get(dtype, dtype))
    check(text, {"x": x}, opset=opset, compilations=1)


def test_trips_and_condition_of_shape_1():
    text = """
    g (float[N] x, int64[1] m, bool[1] go) => (float[N] y) {
      y = Loop(m, go, x) <body = b (int64[1] i, bool[1] c, float[N] a) => (bool[1] d, float[N] z) {
        z = Add(a, a) k = Constant<value = int64[1] {2}>() d = Less(i, k) }>
    }
    """
    check(text, *({"x": X, "m": i64(m), "go": np.array([go])} for m in (0, 9) for go in (True, False)), compilations=1)


SCANNED = """
g (float[N] x, int64 m) => (float[N] y, float[K, N] s) <bool go = {1}> {
  y, s = Loop(m, go, x) <body = b (int64 i, bool c, float[N] a) => (bool d, float[N] z, float[N] e) {
    z = Add(a, x) e = Neg(z) LAST }>
}
"""


def test_scan_outputs_are_compiled_for_each_number_of_trips():
    text = SCANNED.replace("LAST", "d = Identity(c)")
    exe = check(text, *({"x": X, "m": int_(m)} for m in (1, 3, 3)), compilations=2)
    # ONNX Runtime has 0 for N here, as nothing was computed.
    assert_equal(exe({"x": X, "m": int_(0)})["s"], np.zeros((0, 3), np.float32))


def test_scan_outputs_of_a_loop_that_ends_by_integers():
    text = SCANNED.replace("LAST", "one = Constant<value = int64 {1}>() j = Add(i, one) d = Less(j, n)").replace(
        "int64 m", "int64 m, int64 n"
    )
    check(text, *({"x": X, "m": int_(m), "n": int_(n)} for m, n in ((5, 3), (2, 9), (5, 1))))


def test_scan_outputs_whose_length_follows_from_data_are_an_error():
    text = SCANNED.replace("LAST", "t = ReduceMax<keepdims = 0>(z) k = Constant<value = float {9}>() d = Less(t, k)")
    with pytest.raises(DataDependentShapeError, match=r"Loop .*data-dependent shape: scan output 'e'"):
        load(text, allow_host=False)({"x": np.ones(40, np.float32), "m": int_(100)})


GROWS = """
g (float[N] x, int64 m) => (float[M] y) {
  y = Loop(m, , x) <body = b (int64 i, bool c, float[K] a) => (bool d, float[L] z) {
    d = Identity(c) z = Concat<axis = 0>(a, x) }>
}
"""


def test_a_carried_value_may_change_its_shape_in_a_short_loop():
    check(GROWS, *({"x": X, "m": int_(m)} for m in (0, 1, 5)), compilations=3)


def test_a_carried_value_may_not_change_its_shape_in_a_long_loop():
    with pytest.raises(DataDependentShapeError, match=r"carried value 'a' is \[3\] before an iteration and \[6\]"):
        load(GROWS, allow_host=False)({"x": X, "m": int_(100_000)})


def test_a_carried_value_keeps_its_type():
    text = GROWS.replace("z = Concat<axis = 0>(a, x)", "z = Cast<to = 11>(a)")
    with pytest.raises(InvalidModelError, match=r"carried value 'a' is float32 .*float64"):
        load(text)({"x": X, "m": int_(3)})


def test_a_slice_by_the_counter_is_written_out():
    text = """
    g (float[N, 2] x) => (float[2] y, float[K, 2] s) <int64[1] one = {1}, int64 zero = {0}, bool go = {1}> {
      shape = Shape(x) rows = Gather(shape, zero) start = Constant<value = float[2] {0, 0}>()
      y, s = Loop(rows, go, start) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] z, float[2] e) {
        d = Identity(c) from = Reshape(i, one) to = Add(from, one) row = Slice(x, from, to)
        axis = Constant<value = int64[1] {0}>() flat = Squeeze(row, axis) z = Add(a, flat) e = Identity(z) }>
    }
    """
    check(text, *({"x": np.arange(2 * n, dtype=np.float32).reshape(n, 2)} for n in (1, 3, 7)))


def test_a_shape_that_a_loop_carries_along_stays_known():
    text = """
    g (float[1] x, int64[2] shape, int64 m) => (float[A, B] y) {
      y0 = Expand(x, shape)
      s, y = Loop(m, , shape, y0) <body = b (int64 i, bool c, int64[2] p, float[A, B] a) =>
        (bool d, int64[2] q, float[A, B] z) { d = Identity(c) q = Identity(p) e = Expand(x, p) z = Add(a, e) }>
    }
    """
    check(text, *({"x": X[:1], "shape": i64(2, 3), "m": int_(m)} for m in (0, 1, 70)), compilations=1)


def test_a_shape_that_a_loop_computes_is_known_after_it():
    text = """
    g (float[N] x, int64 m) => (float[M, 1] y) <int64[2] start = {1, 1}, int64[2] two = {2, 1}> {
      shape, n = Loop(m, , start, x) <body = b (int64 i, bool c, int64[2] p, float[N] a) =>
        (bool d, int64[2] q, float[N] z) { d = Identity(c) q = Mul(p, two) z = Neg(a) }>
      y = Expand(n, shape)
    }
    """
    check(text.replace("float[M, 1] y", "float[M, N] y"), *({"x": X, "m": int_(m)} for m in (0, 1, 4)), compilations=3)


NESTED_LOOPS = """
g (float[N] x, int64 m) => (float[N] y, float[K, N] s) <int64 three = {3}, bool go = {1}, float[1] w = {0.5}> {
  y, s = Loop(three, go, x) <body = outer (int64 i, bool c, float[N] a) => (bool d, float[N] z, float[N] e) {
    d = Identity(c)
    inner = Loop(m, , a) <body = inner (int64 j, bool h, float[N] p) => (bool k, float[N] q) {
      k = Identity(h) ij = Add(i, j) f = Cast<to = 1>(ij) odd = local.odd(ij)
      r = If(odd) <then_branch = t () => (float[N] u) { u = Add(p, f) },
                   else_branch = l () => (float[N] v) { v = local.scale <by = 0.25>(p, x) }>
      q = Mul(r, w) }>
    z = Add(inner, x) e = Identity(inner) }>
}
<domain: "local", opset_import: ["" : 17]> odd (n) => (b)
  { two = Constant<value = int64 {2}>() r = Mod(n, two) b = Cast<to = 9>(r) }
<domain: "local", opset_import: ["" : 17, "local" : 1]> scale <by: float>(a, b) => (c) {
  factor = Constant<value_float: float = @by>() trips = Constant<value = int64 {2}>()
  none = Constant<value = bool {1}>()
  c = Loop(trips, none, a) <body = s (int64 i, bool g, float[N] p) => (bool h, float[N] q) {
    h = Identity(g) m = Mul(p, factor) q = Add(m, b) }>
}
"""


def test_nested_loops_with_branches_and_local_functions():
    check(NESTED_LOOPS, *({"x": X, "m": int_(m)} for m in (0, 1, 5)), compilations=1)


def test_large_initializers_of_bodies_are_arguments():
    text = """
    g (float[2, 64] x, int64 m) => (float[2, 64] y) {
      y = Loop(m, , x) <body = b (int64 i, bool c, float[2, 64] a) => (bool d, float[2, 64] z) {
        d = Identity(c) z = MatMul(a, w) }>
    }
    """
    proto = model(text)
    w = np.random.default_rng(0).random((64, 64), np.float32) / 64
    proto.graph.node[0].attribute[0].g.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    exe = XlaExecutable(ir.serde.deserialize_model(proto))
    x = np.ones((2, 64), np.float32)
    np.testing.assert_allclose(exe({"x": x, "m": int_(2)})["y"], x @ w @ w, rtol=1e-5)
    (program,) = exe.hlo()
    assert not any("constant" in line for line in program.splitlines() if "f32[64,64]" in line)


# ---- Scan

# name → (attributes, the scan input)
SCANS = {
    "forward": ("", "float[N, 2] a"),
    "backward": ("scan_input_directions = [1],", "float[N, 2] a"),
    "output backward": ("scan_output_directions = [1],", "float[N, 2] a"),
    "axes": ("scan_input_axes = [1], scan_output_axes = [1],", "float[2, N] a"),
    "negative axes": ("scan_input_axes = [-1], scan_output_axes = [-1], scan_input_directions = [1],", "float[2, N] a"),
}
SCAN_BODY = (
    """body = b (float[2] p, float[2] q) => (float[2] r, float[2] v) { m = Mul(q, w) r = Add(p, m) v = Neg(r) }"""
)


@pytest.mark.parametrize("name", SCANS)
@pytest.mark.parametrize("opset", [9, 11, 21])
def test_scan(name, opset):
    if "negative" in name and opset == 9:
        pytest.skip("opset 9 has no negative axes")
    attributes, given = SCANS[name]
    text = f"""
    g (float[2] s, {given}) => (float[2] t, float[A, B] u) <float[2] w = {{2, 3}}> {{
      t, u = Scan <num_scan_inputs = 1, {attributes} {SCAN_BODY}>(s, a)
    }}
    """
    rng = np.random.default_rng(0)
    arrays = (rng.random((n, 2) if given.startswith("float[N") else (2, n), np.float32) for n in (4, 1))
    check(text, *({"s": X[:2], "a": a} for a in arrays), opset=opset, compilations=2)


def test_scan_of_several_inputs_states_and_of_no_state():
    text = """
    g (float[2] s, int64 k, float[N, 2] a, float[2, N] b) => (float[2] t, int64 n, float[N, 2] u, float[2, N] v) {
      t, n, u = Scan <num_scan_inputs = 2, scan_input_axes = [0, 1], scan_input_directions = [0, 1], body =
        f (float[2] p, int64 i, float[2] q, float[2] r) => (float[2] o, int64 j, float[2] e) {
          one = Constant<value = int64 {1}>() j = Add(i, one) x = Mul(q, r) o = Add(p, x) c = Cast<to = 1>(i)
          e = Add(o, c) }>(s, k, a, b)
      v = Scan <num_scan_inputs = 1, scan_output_axes = [1], body = h (float[2] q) => (float[2] e) { e = Add(q, s) }>(a)
    }
    """
    rng = np.random.default_rng(0)
    a, b = rng.random((3, 2), np.float32), rng.random((2, 3), np.float32)
    check(text, {"s": X[:2], "k": int_(7), "a": a, "b": b}, compilations=1)


def test_scan_of_an_empty_sequence():
    text = (
        "g (float[2] s, float[N, 2] a) => (float[2] t, float[N, 2] u) <float[2] w = {2, 3}> { t, u = Scan <%s>(s, a) }"
    )
    out = load(text % ("num_scan_inputs = 1, " + SCAN_BODY))({"s": X[:2], "a": np.zeros((0, 2), np.float32)})
    assert_equal(out["t"], X[:2])
    assert_equal(out["u"], np.zeros((0, 2), np.float32))


@pytest.mark.parametrize("directions", ["", "directions = [1], "])
@pytest.mark.parametrize("lengths", [None, [3, 1, 2], [3, 3, 3]])
def test_scan_of_opset_8_has_a_batch_axis_and_lengths(directions, lengths):
    text = """
    g (int64[3] l, float[3, 2] s, float[3, N, 2] a) => (float[3, 2] t, float[3, N, 2] u) <float[2] w = {2, 3}> {
      t, u = Scan <num_scan_inputs = 1, %s %s>(%s, s, a)
    }
    """ % (directions, SCAN_BODY, "" if lengths is None else "l")  # noqa: UP031
    rng = np.random.default_rng(0)
    feeds = {"l": i64(*(lengths or [0, 0, 0])), "s": rng.random((3, 2), np.float32)}
    check(text, feeds | {"a": rng.random((3, 3, 2), np.float32)}, opset=8, compilations=1)


def test_a_shape_that_a_scan_computes_is_known_after_it():
    text = """
    g (float[1] x, int64[N] sizes) => (float[M] y) <int64[1] start = {1}> {
      n = Scan <num_scan_inputs = 1, body = b (int64[1] p, int64 q) => (int64[1] r) { r = Add(p, q) }>(start, sizes)
      y = Expand(x, n)
    }
    """
    check(text, *({"x": X[:1], "sizes": i64(*sizes)} for sizes in ((2, 3), (1,), (3, 2))), compilations=3)


def test_slices_by_the_counters_of_nested_loops_are_written_out():
    text = """
    g (float[4, 4] x) => (float[1, 1] y) <int64 four = {4}, float[1, 1] zero = {0}, int64[1] one = {1}> {
      y = Loop(four, , zero) <body = o (int64 i, bool c, float[1, 1] a) => (bool d, float[1, 1] r) {
        d = Identity(c)
        r = Loop(four, , a) <body = n (int64 j, bool g, float[1, 1] p) => (bool h, float[1, 1] q) {
          h = Identity(g) row = Reshape(i, one) column = Reshape(j, one) s = Concat<axis = 0>(row, column)
          e = Add(s, one) v = Slice(x, s, e) w = Mul(p, p) q = Add(w, v) }> }>
    }
    """
    check(text, {"x": np.random.default_rng(0).random((4, 4), np.float32) / 4}, compilations=1)


def test_slices_by_elements_of_a_scan_are_compiled_for_their_values():
    text = """
    g (float[6] x, int64[N] at) => (float[N, 2] y) <int64[1] one = {1}, int64[1] two = {2}> {
      y = Scan <num_scan_inputs = 1, body = b (int64 k) => (float[2] e) {
        s = Reshape(k, one) t = Add(s, two) e = Slice(x, s, t) }>(at)
    }
    """
    x = np.arange(6, dtype=np.float32)
    check(text, *({"x": x, "at": at} for at in (i64(0, 3, 1), i64(4, 0, 2))), compilations=2)


def test_scan_errors_name_the_node():
    text = """
    g (float[2] s, float[N, 2] a, float[M, 2] b) => (float[2] t) {
      t = Scan <num_scan_inputs = 2, body =
        f (float[2] p, float[2] q, float[2] r) => (float[2] o) { o = BODY }>(s, a, b)
    }
    """
    a = np.ones((3, 2), np.float32)
    with pytest.raises(InvalidModelError, match=r"Scan .*lengths \[3, 2\]"):
        load(text.replace("BODY", "Sum(p, q, r)"))({"s": X[:2], "a": a, "b": a[:2]})
    with pytest.raises(InvalidModelError, match=r"Scan .*carried value 'p' is \[2\] .*\[4\]"):
        load(text.replace("BODY", "Concat<axis = 0>(p, q)"))({"s": X[:2], "a": a, "b": a})


# ---- derivatives


def test_counted_loops_scans_and_branches_can_be_differentiated():
    text = """
    g (float[2] x, bool f) => (float total) <int64 m = {3}, bool go = {1}, float[2] w = {2, 3}> {
      y, s = Loop(m, go, x) <body = b (int64 i, bool c, float[2] a) => (bool d, float[2] z, float[2] e) {
        d = Identity(c) z = Mul(a, x) e = Identity(a) }>
      t, u = Scan <num_scan_inputs = 1, body = c (float[2] p, float[2] q) => (float[2] r, float[2] v) {
        n = Mul(q, w) r = Add(p, n) v = Neg(r) }>(y, s)
      k = If(f) <then_branch = t () => (float[2] g) { g = Mul(t, x) },
                 else_branch = e () => (float[2] h) { h = Neg(t) }>
      total = ReduceSum<keepdims = 0>(k)
    }
    """
    graph = ir.serde.deserialize_model(model(text))
    weights = Weights(graph)

    def total(x: jax.Array, flag: jax.Array) -> jax.Array:
        constants = {v: weights.constant(v) for v in weights.arguments()}
        interpreter = Interpreter(graph.functions, SchemaFunctions(), weights, constants, set(), Keys(fresh_entropy()))
        scope = Scope(graph.graph.opset_imports, dict(zip(graph.graph.inputs, (x, flag))))
        interpreter.run(graph.graph, scope)
        return interpreter.read(graph.graph.outputs[0], scope)

    with jax.enable_x64(True):
        # total = Σ (x⁴ + w (x + x² + x³)) x
        gradient = jax.jit(jax.grad(total))(X[:2], TRUE)
    x, w = X[:2], np.array([2, 3])
    np.testing.assert_allclose(gradient, 5 * x**4 + w * (2 * x + 3 * x**2 + 4 * x**3), rtol=1e-5)


# ---- errors


def test_unsupported_operators_in_bodies_are_found_when_the_model_is_loaded():
    text = """
    g (float[N] x, int64 m, bool f) => (float[N] y) {
      y = Loop(m, , x) <body = b (int64 i, bool c, float[N] a) => (bool d, float[N] z) {
        d = Identity(c)
        z = If(f) <then_branch = t () => (float[N] u) { u = com.unknown.Foo(a) },
                   else_branch = e () => (float[N] v) { v = Neg(a) }> }>
    }
    """
    with pytest.raises(UnsupportedOpError, match=r"com.unknown::Foo .*in a body of If .*in a body of Loop"):
        load(text)


def test_a_body_that_does_not_fit_its_node_is_named():
    text = """g (float[N] x, int64 m) => (float[N] y) {
      y = Loop(m, , x) <body = b (int64 i, bool c) => (bool d) { d = Identity(c) }> }"""
    with pytest.raises(InvalidModelError, match=r"Loop .*its body has 2 inputs and 1 outputs, the node gives it 3"):
        load(text)({"x": X, "m": int_(1)})
