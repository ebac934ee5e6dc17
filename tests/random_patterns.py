"""Groups of nodes that exporters write for one operator, for random graphs: as they are, or with something off.

Each is a function of the builder; it picks its operands, and does nothing where none fits. Order of operands, forms of
constants and the axis are drawn, and so are near misses: another constant, another axis, a result that is read inside.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from random_graphs import Builder, Tensor

FLOAT, BOOL = 1, 9


def _number(b: Builder, value: float) -> str:
    """Now and then not quite the number."""
    off = b.rng.choice([0.0, 0.0, 0.0, 0.0, 1e-2])
    return b.constant(np.full((1,) * b.rng.randint(0, 1), value * (1 + off), np.float32))


def _either(b: Builder, op: str, x: str, y: str, shape: tuple[int, ...]) -> Tensor:
    """An operator whose operands may change places."""
    return b.emit(op, [x, y] if b.rng.random() < 0.5 else [y, x], FLOAT, shape)


def _reduced(b: Builder, op: str, x: Tensor, axis: int) -> Tensor:
    shape = tuple(1 if i == axis % len(x.shape) else size for i, size in enumerate(x.shape))
    if b.opset >= 18 or op == "ReduceSum":
        return b.emit(op, [x.name, b.ints(axis)], FLOAT, shape)
    return b.emit(op, [x.name], FLOAT, shape, axes=[axis])


def _ranked(b: Builder) -> Tensor | None:
    x = b.pick(FLOAT)
    return x if x is not None and x.shape and 0 not in x.shape else None


def softmax(b: Builder) -> None:
    x = _ranked(b)
    if x is None:
        return
    axis = b.rng.choice([-1, len(x.shape) - 1, 0])
    top = _reduced(b, "ReduceMax", x, axis)
    e = b.emit("Exp", [b.emit("Sub", [x.name, top.name], FLOAT, x.shape).name], FLOAT, x.shape)
    total = _reduced(b, "ReduceSum", e, axis if b.rng.random() < 0.8 else 0)
    b.emit("Div", [e.name, total.name], FLOAT, x.shape)


def layer_norm(b: Builder) -> None:
    x = _ranked(b)
    if x is None:
        return
    axis = b.rng.choice([-1, -1, len(x.shape) - 1, 0])
    centred = b.emit("Sub", [x.name, _reduced(b, "ReduceMean", x, axis).name], FLOAT, x.shape)
    normalized = _normalized(b, centred, axis)
    _affine(b, normalized, 0.8)


def rms_norm(b: Builder) -> None:
    x = _ranked(b)
    if x is not None:
        _affine(b, _normalized(b, x, b.rng.choice([-1, -1, 0])), 0.3)


def _normalized(b: Builder, x: Tensor, axis: int) -> Tensor:
    """x over the root of the mean of its squares."""
    if b.rng.random() < 0.5:
        square = b.emit("Pow", [x.name, _number(b, 2.0)], FLOAT, x.shape)
    else:
        square = b.emit("Mul", [x.name, x.name], FLOAT, x.shape)
    mean = _reduced(b, "ReduceMean", square, axis)
    root = b.emit(
        "Sqrt", [_either(b, "Add", mean.name, b.constant(np.float32(1e-3)), mean.shape).name], FLOAT, mean.shape
    )
    if b.rng.random() < 0.6:
        return b.emit("Div", [x.name, root.name], FLOAT, x.shape)
    inverse = b.emit("Reciprocal", [root.name], FLOAT, root.shape)
    return _either(b, "Mul", x.name, inverse.name, x.shape)


def _affine(b: Builder, x: Tensor, bias: float) -> None:
    size = x.shape[-1] if b.rng.random() < 0.8 else 1
    scale = b.constant(np.arange(1, size + 1, dtype=np.float32))
    y = _either(b, "Mul", x.name, scale, x.shape)
    if b.rng.random() < bias:
        _either(b, "Add", y.name, b.constant(np.full(size, 0.5, np.float32)), x.shape)


def gelu(b: Builder) -> None:
    x = _ranked(b)
    if x is None:
        return
    if b.rng.random() < 0.5:
        inner = b.emit("Erf", [b.emit("Div", [x.name, _number(b, math.sqrt(2))], FLOAT, x.shape).name], FLOAT, x.shape)
    else:
        cube = b.emit("Pow", [x.name, _number(b, 3.0)], FLOAT, x.shape)
        term = _either(b, "Mul", cube.name, _number(b, 0.044715), x.shape)
        total = _either(b, "Add", x.name, term.name, x.shape)
        inner = b.emit(
            "Tanh", [_either(b, "Mul", total.name, _number(b, math.sqrt(2 / math.pi)), x.shape).name], FLOAT, x.shape
        )
    one = _either(b, "Add", inner.name, _number(b, 1.0), x.shape)
    if b.rng.random() < 0.5:
        _either(b, "Mul", _either(b, "Mul", x.name, one.name, x.shape).name, _number(b, 0.5), x.shape)
    else:
        _either(b, "Mul", _either(b, "Mul", x.name, _number(b, 0.5), x.shape).name, one.name, x.shape)


def silu(b: Builder) -> None:
    x = _ranked(b)
    if x is None:
        return
    if b.rng.random() < 0.5:
        gate = b.emit("Sigmoid", [x.name], FLOAT, x.shape)
    else:
        alpha = b.rng.choice([1 / 6, 0.2])
        gate = b.emit("HardSigmoid", [x.name], FLOAT, x.shape, alpha=alpha, beta=0.5)
    _either(b, "Mul", x.name, gate.name, x.shape)


def scales(b: Builder) -> None:
    x = _ranked(b)
    if x is None:
        return
    for _ in range(b.rng.randint(1, 3)):
        op = b.rng.choice(["Mul", "Mul", "Div", "Add"])
        x = b.emit(op, [x.name, b.constant(np.float32(b.rng.choice([0.25, 2, 3])))], FLOAT, x.shape)


def convolution(b: Builder) -> None:
    """With what may go into its weights: a padding, a scale, a normalization."""
    x = b.pick(FLOAT, 3)
    if x is None or 0 in x.shape:
        return
    channels, out = x.shape[1], b.rng.randint(1, 2)
    weight = b.constant(np.arange(out * channels, dtype=np.float32).reshape(out, channels, 1) / 4)
    bias = [b.constant(np.arange(out, dtype=np.float32))] if b.rng.random() < 0.5 else []
    y = b.emit("Conv", [x.name, weight, *bias], FLOAT, (x.shape[0], out, x.shape[2]))
    if b.rng.random() < 0.5:
        y = _either(b, "Mul", y.name, b.constant(np.full((1, out, 1), 2.0, np.float32)), y.shape)
    if b.rng.random() < 0.5:
        statistics = [b.constant(np.full(out, 1.0 + i, np.float32)) for i in range(4)]
        b.emit("BatchNormalization", [y.name, *statistics], FLOAT, y.shape)


def linear(b: Builder) -> None:
    x = b.pick(FLOAT)
    if x is None or len(x.shape) < 2:
        return
    weight = b.constant(np.arange(3 * x.shape[-1], dtype=np.float32).reshape(x.shape[-1], 3) / 8)
    y = b.emit("MatMul", [x.name, weight], FLOAT, (*x.shape[:-1], 3))
    y = _either(b, "Add", y.name, b.constant(np.array([1, 2, 3], np.float32)), y.shape)
    if b.rng.random() < 0.4 and len(y.shape) == 2:
        statistics = [b.constant(np.full(3, 1.0 + i, np.float32)) for i in range(4)]
        b.emit("BatchNormalization", [y.name, *statistics], FLOAT, y.shape)


def attention(b: Builder) -> None:
    q = b.pick(FLOAT, 2)
    if q is None or 0 in q.shape:
        return
    n, d = q.shape
    k = b.emit("Transpose", [b.emit("Neg", [q.name], FLOAT, q.shape).name], FLOAT, (d, n), perm=[1, 0])
    scores = b.emit("MatMul", [q.name, k.name], FLOAT, (n, n))
    scaled = b.emit("Div", [scores.name, _number(b, math.sqrt(d))], FLOAT, (n, n))
    weights = b.emit("Softmax", [scaled.name], FLOAT, (n, n), axis=b.rng.choice([-1, 1, 0]))
    b.emit("MatMul", [weights.name, q.name], FLOAT, (n, d))


def attention_by_heads(b: Builder) -> None:
    """Two heads of two, or of four that are turned by their positions; masked by what may hide a whole row, or not."""
    x = b.pick(FLOAT, 2)
    if x is None or 0 in x.shape:
        return
    n, size = x.shape[0], b.rng.choice([2, 4])
    apart = (1, 2, n, size)
    q, k, v = (_head(b, x, i, size, (0, 2, 1, 3)) for i in range(3))
    if b.rng.random() < 0.5:
        q, k = _turned(b, q, apart), _turned(b, k, apart)
    kt = _hidden(b, "Transpose", [k], (1, 2, size, n), perm=[0, 1, 3, 2])
    scores = _hidden(b, "MatMul", [q, kt], (1, 2, n, n))
    scores = _hidden(b, b.rng.choice(["Mul", "Div"]), [scores, _number(b, 0.5)], (1, 2, n, n))
    scores = _masked(b, scores, n)
    share = _hidden(b, "Softmax", [scores], (1, 2, n, n), axis=b.rng.choice([-1, -1, 3, 2]))
    if b.rng.random() < 0.1:
        b.emit("Reshape", [share, b.ints(-1)], FLOAT, (2 * n * n,))
    y = _hidden(b, "MatMul", [share, v], apart)
    joined = _hidden(b, "Transpose", [y], (1, n, 2, size), perm=[0, 2, 1, 3])
    b.emit("Reshape", [joined, b.ints(-1, 2 * size)], FLOAT, (n, 2 * size))


def _hidden(b: Builder, op: str, inputs: list[str], shape: tuple[int, ...], **attributes: object) -> str:
    """A value of four dims, which other writers do not know."""
    name = b.emit(op, inputs, FLOAT, shape, **attributes).name
    b.values.pop()
    b.own.pop()
    return name


def _head(b: Builder, x: Tensor, number: int, size: int, perm: tuple[int, ...]) -> str:
    n, width = x.shape
    weight = b.constant(np.sin(np.arange(width * 2 * size, dtype=np.float32) + number).reshape(width, 2 * size))
    projected = b.emit("MatMul", [x.name, weight], FLOAT, (n, 2 * size))
    apart = _hidden(b, "Reshape", [projected.name, b.ints(1, -1, 2, size)], (1, n, 2, size))
    return _hidden(b, "Transpose", [apart], (1, 2, n, size), perm=list(perm))


def _turned(b: Builder, x: str, shape: tuple[int, ...]) -> str:
    """By angles for each position; now and then the halves of a table are not equal, or turned the other way."""
    half = shape[3] // 2
    angles = np.arange(shape[2] * half, dtype=np.float32).reshape(shape[2], half)
    twice = np.concatenate([angles, angles + b.rng.choice([0, 0, 0, 1])], axis=1).astype(np.float32)
    cos, sin = b.constant(np.cos(twice)), b.constant(np.sin(twice))
    part = (*shape[:3], half)
    low = _hidden(b, "Slice", [x, b.ints(0), b.ints(half), b.ints(3)], part)
    high = _hidden(b, "Slice", [x, b.ints(half), b.ints(2 * half), b.ints(-1)], part)
    order = [_hidden(b, "Neg", [high], part), low]
    swapped = _hidden(b, "Concat", order if b.rng.random() < 0.9 else order[::-1], shape, axis=-1)
    straight, across = _hidden(b, "Mul", [x, cos], shape), _hidden(b, "Mul", [swapped, sin], shape)
    return _hidden(b, "Add", [straight, across], shape)


def _masked(b: Builder, scores: str, n: int) -> str:
    """Nothing, a constant added, Where, or a mask of a bool; how far it hides what it hides, is drawn."""
    shape, low = (1, 2, n, n), b.rng.choice([-1e4, -1e9, float(np.finfo(np.float32).min), -np.inf])
    kept = np.tri(n, k=b.rng.choice([0, 0, 1]), dtype=bool)
    kind = b.rng.choice(["none", "added", "where", "computed"])
    if kind == "added":
        mask = b.constant(np.where(kept, 0, low).astype(np.float32))
        return _hidden(b, "Add", [scores, mask] if b.rng.random() < 0.5 else [mask, scores], shape)
    if kind == "where":
        return _hidden(b, "Where", [b.constant(kept), scores, b.constant(np.float32(low))], shape)
    number = b.pick(FLOAT, 0)
    if kind == "computed" and number is not None and np.isfinite(low):
        some = b.emit("Greater", [number.name, b.constant(np.float32(0.1))], BOOL, ())
        cast = b.emit("Cast", [some.name], FLOAT, (), to=FLOAT)
        numbers = b.emit("Mul", [cast.name, b.constant(np.full((1, n), low, np.float32))], FLOAT, (1, n))
        return _hidden(b, "Add", [scores, numbers.name], shape)
    return scores


def update(b: Builder) -> None:
    """A weight less a scaled product, as gradient descent writes it."""
    x, g, w = b.pick(FLOAT, 2), b.pick(FLOAT, 2), b.pick(FLOAT, 2)
    if x is None or g is None or w is None or x.shape[0] != g.shape[0] or w.shape != (x.shape[1], g.shape[1]):
        return
    t = b.emit("Transpose", [x.name], FLOAT, x.shape[::-1], perm=[1, 0])
    product = b.emit("MatMul", [t.name, g.name], FLOAT, w.shape)
    step = _either(b, "Mul", product.name, b.constant(np.float32(0.1)), w.shape)
    b.emit("Sub", [w.name, step.name], FLOAT, w.shape)


def pieces(b: Builder) -> None:
    """Joined and cut again: in order, out of order, one of them alone."""
    x, y = b.pick(FLOAT, 2), b.pick(FLOAT, 2)
    if x is None or y is None or x.shape[0] != y.shape[0]:
        return
    size = x.shape[1] + y.shape[1]
    whole = b.emit("Concat", [x.name, y.name], FLOAT, (x.shape[0], size), axis=1)
    cut = x.shape[1] if b.rng.random() < 0.7 else b.rng.randint(0, size)
    first = b.emit("Slice", [whole.name, b.ints(0), b.ints(cut), b.ints(-1)], FLOAT, (x.shape[0], cut))
    rest = b.emit("Slice", [whole.name, b.ints(cut), b.ints(size), b.ints(1)], FLOAT, (x.shape[0], size - cut))
    if b.rng.random() < 0.5:
        b.emit("Concat", [first.name, rest.name], FLOAT, whole.shape, axis=1)


def bounds(b: Builder) -> None:
    x = _ranked(b)
    if x is None:
        return
    for _ in range(2):
        low = b.rng.choice([-1.0, 0.0, 0.5])
        numbers = [b.constant(np.float32(low)), b.constant(np.float32(low + b.rng.choice([0.5, 2.0])))]
        kind = b.rng.choice(["Clip", "Max", "Min", "Relu"])
        operands = {"Clip": numbers, "Relu": []}.get(kind, numbers[:1])
        x = b.emit(kind, [x.name, *operands], FLOAT, x.shape)


PATTERNS = (
    softmax, layer_norm, rms_norm, gelu, silu, scales, convolution, linear, attention, attention_by_heads, update,
    pieces, bounds,
)  # fmt: skip
