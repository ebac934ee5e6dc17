"""Arithmetic with broadcasting, and functions of one element."""

from __future__ import annotations

import math
from collections.abc import Callable

import onnx_ir as ir
from pfvm.compiler.grad.builder import Builder
from pfvm.compiler.grad.registry import ForwardNode, Gradients, NotCovered, gradient_of

V = ir.Value


def _broadcast(b: Builder, n: ForwardNode, *parts: Callable[[], V]) -> Gradients:
    """Each part is the gradient of an operand before the sum over what broadcasting repeated; only wanted ones run."""
    return [b.sum_to(part(), n.x(i)) if n.wants(i) else None for i, part in enumerate(parts)]


@gradient_of("Add")
def _add(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    return _broadcast(b, n, lambda: dy, lambda: dy)


@gradient_of("Sub")
def _sub(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    return _broadcast(b, n, lambda: dy, lambda: b.op("Neg", dy))


@gradient_of("Mul")
def _mul(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    return _broadcast(b, n, lambda: b.mul(dy, n.x(1)), lambda: b.mul(dy, n.x(0)))


@gradient_of("Div")
def _div(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    def left() -> V:
        return b.div(dy, n.x(1))

    return _broadcast(b, n, left, lambda: b.op("Neg", b.mul(left(), n.y)))


@gradient_of("Pow")
def _pow(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    x, exponent, known = n.x(0), b.cast(n.x(1), n.x(0).dtype), n.known(1)

    def base() -> V:
        if known is not None and known.size == 1:
            p = float(known.reshape(()))
            if p in (1.0, 2.0):
                return dy if p == 1.0 else b.mul(dy, b.mul(x, 2))
            return b.mul(dy, b.mul(b.op("Pow", x, b.like(p - 1, x)), p))
        zero = b.op("Equal", exponent, b.like(0, x))  # 0 · 0⁻¹ is no number
        slope = b.mul(exponent, b.op("Pow", x, b.sub(exponent, 1)))
        return b.mul(dy, b.op("Where", zero, b.like(0, x), slope))

    def power() -> V:
        positive = b.op("Greater", x, b.like(0, x))
        log = b.op("Log", b.where(positive, x, 1))
        return b.mul(dy, b.mul(n.y, log))

    return _broadcast(b, n, base, lambda: b.cast(power(), n.x(1).dtype))


@gradient_of("Sum")
def _sum(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    return _broadcast(b, n, *[lambda: dy] * n.count)


@gradient_of("Mean")
def _mean(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    return _broadcast(b, n, *[lambda: b.div(dy, n.count)] * n.count)


@gradient_of("Max", "Min")
def _extreme(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    """Equal operands share the gradient."""
    if n.count == 1:
        return [dy]
    hits = [b.cast(b.op("Equal", n.x(i), n.y), dy.dtype) for i in range(n.count)]
    shared = b.div(dy, b.op("Sum", *hits))
    return _broadcast(b, n, *(lambda hit=hit: b.mul(shared, hit) for hit in hits))


@gradient_of("Where")
def _where(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    condition, zero = n.x(0), b.like(0, dy)
    parts = [
        lambda: dy,
        lambda: b.op("Where", condition, dy, zero),
        lambda: b.op("Where", condition, zero, dy),
    ]
    return _broadcast(b, n, *parts)


@gradient_of("Clip")
def _clip(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    if n.wants(1) or n.wants(2):
        raise NotCovered
    return [b.where(b.op("Equal", n.x(), n.y), dy, 0)]


@gradient_of("Identity", "Dropout")
def _identity(b: Builder, n: ForwardNode, dy: V) -> V:
    if n.node.op_type == "Dropout" and n.view.at(2) is not None and (n.known(2) is None or bool(n.known(2))):
        raise NotCovered
    return dy


@gradient_of("Cast", "CastLike")
def _cast(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    return [b.cast(dy, n.x().dtype)]


@gradient_of("Relu")
def _relu(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.where(b.op("Greater", n.y, b.like(0, dy)), dy, 0)


@gradient_of("LeakyRelu")
def _leaky_relu(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.where(b.op("Greater", n.x(), b.like(0, dy)), dy, b.mul(dy, n.attr("alpha")))


@gradient_of("PRelu")
def _prelu(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    x, slope = n.x(), n.x(1)
    positive = b.op("Greater", x, b.like(0, x))
    right = lambda: b.op("Where", positive, b.like(0, dy), b.mul(dy, x))  # noqa: E731
    return _broadcast(b, n, lambda: b.op("Where", positive, dy, b.mul(dy, slope)), right)


@gradient_of("Elu")
def _elu(b: Builder, n: ForwardNode, dy: V) -> V:
    slope = b.add(n.y, n.attr("alpha"))
    return b.op("Where", b.op("Greater", n.x(), b.like(0, dy)), dy, b.mul(dy, slope))


@gradient_of("Selu")
def _selu(b: Builder, n: ForwardNode, dy: V) -> V:
    gamma, alpha = n.attr("gamma"), n.attr("alpha")
    slope = b.add(n.y, gamma * alpha)
    return b.op("Where", b.op("Greater", n.x(), b.like(0, dy)), b.mul(dy, gamma), b.mul(dy, slope))


@gradient_of("Sigmoid")
def _sigmoid(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.mul(dy, b.mul(n.y, b.one_minus(n.y)))


@gradient_of("HardSigmoid")
def _hard_sigmoid(b: Builder, n: ForwardNode, dy: V) -> V:
    inside = b.op("And", b.op("Greater", n.y, b.like(0, dy)), b.op("Less", n.y, b.like(1, dy)))
    return b.where(inside, b.mul(dy, n.attr("alpha")), 0)


@gradient_of("HardSwish")
def _hard_swish(b: Builder, n: ForwardNode, dy: V) -> V:
    x = n.x()
    slope = b.add(b.div(x, 3), 0.5)
    inner = b.op("Where", b.op("Less", x, b.like(3, x)), b.mul(dy, slope), dy)
    return b.where(b.op("Greater", x, b.like(-3, x)), inner, 0)


@gradient_of("Tanh")
def _tanh(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.mul(dy, b.one_minus(b.square(n.y)))


@gradient_of("Exp")
def _exp(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.mul(dy, n.y)


@gradient_of("Log")
def _log(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.div(dy, n.x())


@gradient_of("Sqrt")
def _sqrt(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.div(b.mul(dy, 0.5), n.y)


@gradient_of("Reciprocal")
def _reciprocal(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.op("Neg", b.mul(dy, b.square(n.y)))


@gradient_of("Neg")
def _neg(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.op("Neg", dy)


@gradient_of("Abs")
def _abs(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.mul(dy, b.op("Sign", n.x()))


@gradient_of("Sin")
def _sin(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.mul(dy, b.op("Cos", n.x()))


@gradient_of("Cos")
def _cos(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.op("Neg", b.mul(dy, b.op("Sin", n.x())))


@gradient_of("Softplus")
def _softplus(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.mul(dy, b.op("Sigmoid", n.x()))


@gradient_of("Softsign")
def _softsign(b: Builder, n: ForwardNode, dy: V) -> V:
    return b.div(dy, b.square(b.add(b.op("Abs", n.x()), 1)))


@gradient_of("Erf")
def _erf(b: Builder, n: ForwardNode, dy: V) -> V:
    bell = b.op("Exp", b.op("Neg", b.square(n.x())))
    return b.mul(dy, b.mul(bell, 2 / math.sqrt(math.pi)))


@gradient_of("Gelu")
def _gelu(b: Builder, n: ForwardNode, dy: V) -> V:
    x = n.x()
    if n.attr("approximate", "none") == "tanh":
        c, cubic = math.sqrt(2 / math.pi), 0.044715
        squared = b.square(x)
        t = b.op("Tanh", b.mul(b.mul(x, c), b.add(b.mul(squared, cubic), 1)))
        inner = b.mul(b.add(b.mul(squared, 3 * cubic), 1), c)
        rise = b.mul(b.mul(x, 0.5), b.mul(b.one_minus(b.square(t)), inner))
        return b.mul(dy, b.add(b.mul(b.add(t, 1), 0.5), rise))
    distribution = b.mul(b.add(b.op("Erf", b.mul(x, math.sqrt(0.5))), 1), 0.5)
    density = b.mul(b.op("Exp", b.mul(b.square(x), -0.5)), 1 / math.sqrt(2 * math.pi))
    return b.mul(dy, b.add(distribution, b.mul(x, density)))


@gradient_of(
    "Shape", "Size", "ArgMax", "ArgMin", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And",
    "Or", "Xor", "IsNaN", "IsInf", "NonZero", "Floor", "Ceil", "Round", "Sign", "ConstantOfShape", "EyeLike", "Range",
    "OneHot", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial", "Hardmax",
)  # fmt: skip
def _flat(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    """Integer or piecewise constant: the derivative is zero wherever it exists."""
    if n.node.op_type == "OneHot" and n.wants(2):
        raise NotCovered
    return [None] * n.count
