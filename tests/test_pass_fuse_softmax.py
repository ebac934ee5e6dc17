"""fuse-softmax: only the form that Softmax computes."""

from __future__ import annotations

import pytest
from pass_settings import assert_rewritten
from support import assert_stays

PASS = "fuse-softmax"
FRAME = "agraph (float[N,3,4] x) => (float[N,3,4] y) {{ q = Constant <value = int64[1] {{{}}}> () {} }}"
STEPS = "m = ReduceMax <axes = [1]> (x) d = Sub(x, m) e = Exp(d) s = ReduceSum(e, q) y = Div(e, s)"


@pytest.mark.parametrize("axis", [1, -2])
def test_softmax(axis: int) -> None:
    assert_rewritten(FRAME.format(axis, STEPS), ["Softmax"], PASS)


@pytest.mark.parametrize(
    ("axis", "lines"),
    [
        (2, STEPS),
        (1, "e = Exp(x) s = ReduceSum(e, q) y = Div(e, s)"),  # overflows where Softmax does not
        (1, STEPS.replace("Div(e, s)", "Div(s, e)")),
        (1, STEPS.replace("Sub(x, m)", "Sub(m, x)")),
    ],
)
def test_other_quotients_stay(axis: int, lines: str) -> None:
    assert_stays(FRAME.format(axis, lines), PASS)
