"""ai.onnx.preview.training: optimizer steps, by the formulas in the operators' documentation."""

from __future__ import annotations

from pfvm.runtime.ort_expand.node import Builder, Node

_DOMAIN = "ai.onnx.preview.training"


def _groups(node: Node, per_tensor: int) -> list[list[str]]:
    """Inputs after (R, T) are lists of equal length: all X, all gradients, all states; zipped per tensor."""
    operands = node.inputs[2:]
    count = len(operands) // per_tensor
    return [[operands[k * count + i] for k in range(per_tensor)] for i in range(count)]


def _in_order(results: list[list[str]]) -> list[str]:
    return [name for kind in zip(*results) for name in kind]


class _Step:
    """Arithmetic in the element type of the tensors; R and T have types of their own."""

    def __init__(self, node: Node, b: Builder) -> None:
        self.node, self.b = node, b
        self.dtype = node.dtype(2)

    def number(self, name: str) -> str:
        return self.b.scalar(self.node.attr(name), self.dtype)

    def scalar(self, value: float) -> str:
        return self.b.scalar(value, self.dtype)

    def rate(self) -> str:
        return self.b.cast(self.node.input(0), self.dtype)

    def count(self) -> str:
        return self.b.cast(self.node.input(1), self.dtype)

    def mul(self, a: str, c: str) -> str:
        return self.b.op("Mul", a, c)

    def add(self, a: str, c: str) -> str:
        return self.b.op("Add", a, c)

    def regularized(self, gradient: str, x: str) -> str:
        """G + norm_coefficient * X"""
        return self.add(gradient, self.mul(self.number("norm_coefficient"), x))


def _adagrad(node: Node, b: Builder) -> list[str] | None:
    """H' = H + G², X' = X - r G / (sqrt(H') + ε) with r = R / (1 + T decay)"""
    s = _Step(node, b)
    rate = b.op("Div", s.rate(), s.add(s.scalar(1), s.mul(s.count(), s.number("decay_factor"))))
    results = []
    for x, gradient, squares in _groups(node, 3):
        g = s.regularized(gradient, x)
        new_squares = s.add(squares, s.mul(g, g))
        scale = s.add(b.op("Sqrt", new_squares), s.number("epsilon"))
        results.append([b.op("Sub", x, b.op("Div", s.mul(rate, g), scale)), new_squares])
    return _in_order(results)


def _adam(node: Node, b: Builder) -> list[str] | None:
    """V' = αV + (1-α)G, H' = βH + (1-β)G², X' = (1 - post) (X - r V' / (sqrt(H') + ε)), r bias-corrected for T > 0"""
    s = _Step(node, b)
    alpha, beta = node.attr("alpha"), node.attr("beta")
    one, count = s.scalar(1), s.count()
    root = b.op("Sqrt", b.op("Sub", one, b.op("Pow", s.scalar(beta), count)))
    corrected = b.op("Div", s.mul(s.rate(), root), b.op("Sub", one, b.op("Pow", s.scalar(alpha), count)))
    is_later = b.op("Greater", node.input(1), b.const(0, "int64"))
    rate = b.op("Where", is_later, corrected, s.rate())
    kept = s.scalar(1 - node.attr("norm_coefficient_post"))
    results = []
    for x, gradient, mean, square in _groups(node, 4):
        g = s.regularized(gradient, x)
        new_mean = s.add(s.mul(s.scalar(alpha), mean), s.mul(s.scalar(1 - alpha), g))
        new_square = s.add(s.mul(s.scalar(beta), square), s.mul(s.scalar(1 - beta), s.mul(g, g)))
        scale = s.add(b.op("Sqrt", new_square), s.number("epsilon"))
        step = b.op("Div", s.mul(rate, new_mean), scale)
        results.append([s.mul(kept, b.op("Sub", x, step)), new_mean, new_square])
    return _in_order(results)


def _momentum(node: Node, b: Builder) -> list[str] | None:
    """V' = αV + β'G with β' = 1 at the first step, X' = X - R V'; Nesterov: X' = X - R (G + αV')"""
    s = _Step(node, b)
    alpha = s.number("alpha")
    is_later = b.op("Greater", node.input(1), b.const(0, "int64"))
    beta = b.op("Where", is_later, s.number("beta"), s.scalar(1))
    results = []
    for x, gradient, velocity in _groups(node, 3):
        g = s.regularized(gradient, x)
        new_velocity = s.add(s.mul(alpha, velocity), s.mul(beta, g))
        nesterov = node.attr("mode") == "nesterov"
        step = s.add(g, s.mul(alpha, new_velocity)) if nesterov else new_velocity
        results.append([b.op("Sub", x, s.mul(s.rate(), step)), new_velocity])
    return _in_order(results)


RULES = {
    (_DOMAIN, "Adagrad"): _adagrad,
    (_DOMAIN, "Adam"): _adam,
    (_DOMAIN, "Momentum"): _momentum,
}
