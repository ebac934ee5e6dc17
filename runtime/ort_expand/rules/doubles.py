"""Elementwise and normalizing operators whose kernels lack double, by double operators that there are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onnx import TensorProto
from pfvm.runtime.ort_expand.node import Builder, Node, Rule

_DOUBLE = TensorProto.DOUBLE

# W. J. Cody, "Rational Chebyshev approximations for the error function", Math. Comp. 23 (1969), as in his program
# CALERF; numerator and denominator, highest power first. Error below one unit of double.
_NEAR = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
_MIDDLE = (
    (
        *(2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1),
        *(2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3),
        1.23033935479799725e3,
    ),
    (
        *(1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3),
        *(3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
    ),
)
_NEAR_UP_TO = 0.46875
# erf(6) is 1 in double, and the middle form is still right there to far below one unit of the result.
_ONE_FROM = 6.0


def _erf(node: Node, b: Builder) -> list[str] | None:
    """x · R(x²) near zero, sign(x) · (1 - exp(-x²) · R(|x|)) elsewhere."""
    if node.dtype(0) != _DOUBLE:
        return None
    x = node.input(0)
    size = b.op("Abs", x)
    square = b.op("Mul", x, x)
    near = b.op("Mul", x, _rational(square, *_NEAR, b))
    # No infinities into the quotient; a NaN is not greater and stays.
    capped = b.op("Where", b.op("Greater", size, _number(_ONE_FROM, b)), _number(_ONE_FROM, b), size)
    decay = b.op("Exp", b.op("Neg", b.op("Mul", capped, capped)))
    rest = b.op("Mul", decay, _rational(capped, *_MIDDLE, b))
    far = b.op("Mul", b.op("Sign", x), b.op("Sub", _number(1, b), rest))
    return [b.op("Where", b.op("Less", size, _number(_NEAR_UP_TO, b)), near, far)]


def _rational(x: str, over: Sequence[float], under: Sequence[float], b: Builder) -> str:
    return b.op("Div", _polynomial(x, over, b), _polynomial(x, under, b))


def _polynomial(x: str, coefficients: Sequence[float], b: Builder) -> str:
    value = _number(coefficients[0], b)
    for each in coefficients[1:]:
        value = b.op("Add", b.op("Mul", value, x), _number(each, b))
    return value


def _number(value: float, b: Builder) -> str:
    return b.scalar(value, _DOUBLE)


def _tan(node: Node, b: Builder) -> list[str] | None:
    if node.dtype(0) != _DOUBLE:
        return None
    return [b.op("Div", b.op("Sin", node.input(0)), b.op("Cos", node.input(0)))]


def _mean(node: Node, b: Builder) -> list[str] | None:
    if node.dtype(0) != _DOUBLE:
        return None
    return [b.op("Div", b.op("Sum", *node.inputs), _number(len(node.inputs), b))]


def _instance_normalization(node: Node, b: Builder) -> list[str] | None:
    """scale · (x - mean) / sqrt(variance + ε) + bias, mean and variance over the spatial axes."""
    rank = node.rank(0)
    if node.dtype(0) != _DOUBLE or rank is None:
        return None
    axes = range(2, rank)
    centred = b.op("Sub", node.input(0), b.reduce("ReduceMean", node.input(0), axes))
    variance = b.reduce("ReduceMean", b.op("Mul", centred, centred), axes)
    deviation = b.op("Sqrt", b.op("Add", variance, _number(node.attr("epsilon"), b)))
    scale, bias = (b.unsqueeze(node.input(i), *range(1, rank - 1)) for i in (1, 2))
    return [b.op("Add", b.op("Mul", scale, b.op("Div", centred, deviation)), bias)]


RULES: Mapping[tuple[str, str], Rule] = {
    ("", "Erf"): _erf,
    ("", "Tan"): _tan,
    ("", "Mean"): _mean,
    ("", "InstanceNormalization"): _instance_normalization,
}
