"""Exact evaluation in numpy: operators that move data, and integer and boolean arithmetic.

Each evaluator gets the node's view and its operands (None for an absent one) and returns the first output. Floating
point arithmetic is not here: it is folded by the engine that runs it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import ml_dtypes  # noqa: F401  (registers the small floats with numpy)
import numpy as np
import onnx_ir as ir

from .view import RUNTIME, View

Operands = Sequence[np.ndarray | None]
Evaluator = Callable[[View, Operands], np.ndarray]


def evaluate(view: View, operands: Operands) -> np.ndarray | None:
    """First output of the node, or None when it is not exactly computable here."""
    evaluator = MOVES.get(view.node.op_type)
    if evaluator is None and all(x is None or x.dtype.kind in "iub" for x in operands):
        evaluator = ARITHMETIC.get(view.node.op_type)
    if evaluator is None or view.node.domain != "" or len(view.used_outputs()) > 1:
        return None
    try:
        with np.errstate(all="ignore"):
            return evaluator(view, operands)
    except (IndexError, ValueError, TypeError, ZeroDivisionError, OverflowError, NotImplementedError):
        return None  # the node is ill-formed or of a form not covered here; whoever runs the model reports it


def _ints(view: View, name: str) -> tuple[int, ...] | None:
    found = view.ints(name)
    if found is RUNTIME:
        raise NotImplementedError(name)
    return found


def _axes(view: View, rank: int) -> tuple[int, ...] | None:
    axes = _ints(view, "axes")
    return None if axes is None else tuple(a % rank if rank else a for a in axes)


def _gather(view: View, x: Operands) -> np.ndarray:
    data, indices = x[0], x[1]
    assert data is not None and indices is not None
    axis = view.attr("axis")
    if indices.size and (indices.min() < -data.shape[axis] or indices.max() >= data.shape[axis]):
        raise IndexError("Gather")
    return np.take(data, indices, axis=axis)


def _slice(view: View, x: Operands) -> np.ndarray:
    data = x[0]
    assert data is not None
    cuts = view.cuts()
    if cuts is None:
        raise NotImplementedError("bounds of another form")
    for axis, start, end, step in cuts:
        data = np.take(data, sliced(data.shape[axis], start, end, step), axis=axis)
    return data


TO_THE_END = 2**31 - 1
"""Slice ends from here on mean "to the end": exporters write INT32_MAX or INT64_MAX."""


def sliced(size: int, start: int, end: int, step: int) -> range:
    """The indices that Slice takes along an axis of `size`: negative bounds count from the end, then are clamped.

    An end at INT_MAX is Python's None in both directions: backwards, ONNX Runtime goes on to the first element.
    """
    if step < 0 and end in (TO_THE_END, 2**63 - 1):
        end = -size - 1
    low, high = (0, size) if step > 0 else (-1, size - 1)
    start = min(max(start + size if start < 0 else start, max(low, 0)), high)
    end = min(max(end + size if end < 0 else end, low), high)
    return range(start, end, step)


def _squeeze(view: View, x: Operands) -> np.ndarray:
    assert x[0] is not None
    return np.squeeze(x[0], axis=_axes(view, x[0].ndim))


def _unsqueeze(view: View, x: Operands) -> np.ndarray:
    assert x[0] is not None
    axes = _ints(view, "axes")
    assert axes is not None
    return np.expand_dims(x[0], axes)


def _reshape(view: View, x: Operands) -> np.ndarray:
    data, target = x[0], _ints(view, "shape")
    assert data is not None and target is not None
    allowzero = view.opset >= 14 and view.attr("allowzero")
    dims = [data.shape[i] if d == 0 and not allowzero else d for i, d in enumerate(target)]
    return data.reshape(dims)


def _flatten(view: View, x: Operands) -> np.ndarray:
    assert x[0] is not None
    axis = view.attr("axis")
    axis = axis + x[0].ndim if axis < 0 else axis
    return x[0].reshape(int(np.prod(x[0].shape[:axis], dtype=np.int64)), -1)


def _transpose(view: View, x: Operands) -> np.ndarray:
    assert x[0] is not None
    turned = np.transpose(x[0], view.attr("perm"))
    return np.asarray(turned, order="C")  # not ascontiguousarray: that turns a scalar into a vector


def _expand(view: View, x: Operands) -> np.ndarray:
    target = _ints(view, "shape")
    assert x[0] is not None and target is not None
    return np.broadcast_to(x[0], np.broadcast_shapes(x[0].shape, target))


def _concat(view: View, x: Operands) -> np.ndarray:
    return np.concatenate(
        [v for v in x if v is not None], axis=view.attr("axis") if view.attr("axis") is not None else 1
    )


def _cast(view: View, x: Operands) -> np.ndarray:
    assert x[0] is not None
    target = ir.DataType(view.attr("to")).numpy()
    if target.kind not in "iub":
        raise NotImplementedError("Cast to a floating point type")
    return x[0].astype(target)


def _constant_of_shape(view: View, x: Operands) -> np.ndarray:
    assert x[0] is not None
    fill = view.attr("value")
    value = np.zeros(1, np.float32) if fill is None else fill.numpy()
    return np.full(tuple(int(d) for d in x[0]), value.reshape(-1)[0], dtype=value.dtype)


def _where(view: View, x: Operands) -> np.ndarray:
    assert x[0] is not None and x[1] is not None and x[2] is not None
    return np.where(x[0], x[1], x[2])


def _div(view: View, x: Operands) -> np.ndarray:
    """Integer division truncates towards zero."""
    a, b = _divisible(view, x)
    quotient = a // b
    return (quotient + ((a % b != 0) & ((a < 0) != (b < 0)))).astype(a.dtype)


def _mod(view: View, x: Operands) -> np.ndarray:
    a, b = _divisible(view, x)
    return np.fmod(a, b) if view.attr("fmod") else np.mod(a, b)


def _divisible(view: View, x: Operands) -> tuple[np.ndarray, np.ndarray]:
    a, b = x
    assert a is not None and b is not None
    if view.opset < 7:
        raise NotImplementedError("broadcast attribute")
    if not np.all(b):
        raise ZeroDivisionError
    return a, b


def _range(view: View, x: Operands) -> np.ndarray:
    start, limit, delta = x
    assert start is not None and limit is not None and delta is not None
    return np.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


def _reduce(function: Callable[..., np.ndarray]) -> Evaluator:
    def evaluator(view: View, x: Operands) -> np.ndarray:
        assert x[0] is not None
        axes = _axes(view, x[0].ndim)
        if not axes and "noop_with_empty_axes" in view.node.attributes and view.attr("noop_with_empty_axes"):
            raise NotImplementedError("no-op reduction")
        result = function(x[0], axis=axes or None, keepdims=bool(view.attr("keepdims")))
        return np.asarray(result, dtype=x[0].dtype)

    return evaluator


def _unary(function: Callable[..., np.ndarray]) -> Evaluator:
    return lambda view, x: function(x[0])


def _binary(function: Callable[..., np.ndarray]) -> Evaluator:
    def evaluator(view: View, x: Operands) -> np.ndarray:
        if view.opset < 7:
            raise NotImplementedError("broadcast attribute")
        return function(x[0], x[1])

    return evaluator


def _variadic(function: Callable[..., np.ndarray]) -> Evaluator:
    def evaluator(view: View, x: Operands) -> np.ndarray:
        result = x[0]
        assert result is not None
        for other in x[1:]:
            result = function(result, other)
        return result

    return evaluator


MOVES: dict[str, Evaluator] = {
    "Identity": lambda view, x: x[0],  # type: ignore[dict-item, return-value]
    "Shape": lambda view, x: np.asarray(x[0].shape[_shape_slice(view)], np.int64),  # type: ignore[union-attr]
    "Size": lambda view, x: np.asarray(x[0].size, np.int64),  # type: ignore[union-attr]
    "Gather": _gather,
    "Slice": _slice,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Expand": _expand,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Where": _where,
}


def _shape_slice(view: View) -> slice:
    if view.opset < 15:
        return slice(None)
    return slice(view.attr("start") or 0, view.attr("end"))


ARITHMETIC: dict[str, Evaluator] = {
    "Cast": _cast,
    "Add": _binary(np.add),
    "Sub": _binary(np.subtract),
    "Mul": _binary(np.multiply),
    "Div": _div,
    "Mod": _mod,
    "Neg": _unary(np.negative),
    "Abs": _unary(np.abs),
    "Min": _variadic(np.minimum),
    "Max": _variadic(np.maximum),
    "Equal": _binary(np.equal),
    "Less": _binary(np.less),
    "LessOrEqual": _binary(np.less_equal),
    "Greater": _binary(np.greater),
    "GreaterOrEqual": _binary(np.greater_equal),
    "And": _binary(np.logical_and),
    "Or": _binary(np.logical_or),
    "Xor": _binary(np.logical_xor),
    "Not": _unary(np.logical_not),
    "Range": _range,
    "ReduceSum": _reduce(np.sum),
    "ReduceProd": _reduce(np.prod),
    "ReduceMin": _reduce(np.min),
    "ReduceMax": _reduce(np.max),
}
