"""Promise: Scan on xla:cpu equals ONNX Runtime, in every form that an opset gives it."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("onnxruntime")

from control_flow import X, check, i64, int_, load
from pfvm.errors import InputError
from xla_cases import assert_equal

pytestmark = pytest.mark.usefixtures("quick_compilation")

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
    with pytest.raises(InputError, match=r"Scan .*lengths \[3, 2\]"):
        load(text.replace("BODY", "Sum(p, q, r)"))({"s": X[:2], "a": a, "b": a[:2]})
    with pytest.raises(InputError, match=r"Scan .*carried value 'p' is \[2\] .*\[4\]"):
        load(text.replace("BODY", "Concat<axis = 0>(p, q)"))({"s": X[:2], "a": a, "b": a})
