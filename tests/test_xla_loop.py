"""Promise: Loop on xla:cpu equals ONNX Runtime, for every kind of trip count, condition and carried value."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

pytest.importorskip("jax")
pytest.importorskip("onnxruntime")

from control_flow import FALSE, TRUE, X, check, i64, int_, load, model
from pfvm.errors import InvalidModelError
from pfvm.runtime.xla import XlaExecutable
from pfvm.runtime.xla.context import DataDependentShapeError
from xla_cases import assert_equal

pytestmark = pytest.mark.usefixtures("quick_compilation")

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
