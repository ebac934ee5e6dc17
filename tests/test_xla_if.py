"""Promise: If on xla:cpu equals ONNX Runtime, whatever its branches read and return."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("onnxruntime")

from control_flow import FALSE, TRUE, X, check, int_, load
from pfvm.errors import InputError
from pfvm.runtime.xla.context import DataDependentShapeError

pytestmark = pytest.mark.usefixtures("quick_compilation")


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
    with pytest.raises(InputError, match=r"Add .* in a body of If .*float32\[3\], float32\[2\]"):
        load(text)({"x": X, "rate": int_(8)})
