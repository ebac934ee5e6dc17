"""Channels-last values: convolution nets run in N, spatial, C inside, and rules that know nothing of it still apply.

XLA's CPU convolutions, and vectorized code in general, want channels innermost. A convolution therefore returns its
result as a `ChannelsLast`; operators with an adapter here (elementwise ones, pools, reductions, concatenation …) keep
that order, and every other reader gets the plain array, by a transpose that XLA merges with its neighbours.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax

from .context import Context
from .materialize import materialized

Adapter = Callable[[Context, Callable[..., Any], Sequence[Any]], Any]

_ADAPTERS: dict[tuple[str, str], Adapter] = {}


@dataclasses.dataclass(frozen=True, eq=False)
class ChannelsLast:
    """A traced tensor of rank 3 or more that is held as N, spatial, C. `shape` is the model's N, C, spatial.

    long: it is a sum of many elementwise terms, which what reads it must not compute again (see `materialize`).
    """

    data: Any
    long: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        n, *spatial, c = self.data.shape
        return (n, c, *spatial)

    @property
    def ndim(self) -> int:
        return self.data.ndim

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def size(self) -> int:
        return self.data.size

    def plain(self) -> Any:
        """The tensor in the model's order."""
        return jnp.moveaxis(self.settled().data, -1, 1)

    def settled(self) -> ChannelsLast:
        """The same, in memory where it is long."""
        return ChannelsLast(materialized(self.data)) if self.long else self


class Postponed(ChannelsLast):
    """The result of a convolution that only a normalization reads, traced where that does not fold it.

    normalized: from scale, bias, mean, variance and epsilon, the data with the normalization in the weights.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        ndim: int,
        dtype: Any,
        normalized: Callable[[Sequence[Any], float], Any],
        long: bool,
    ) -> None:
        for name, value in (("make", make), ("_type", (ndim, dtype)), ("normalized", normalized), ("long", long)):
            object.__setattr__(self, name, value)

    make: Callable[[], Any]
    normalized: Callable[[Sequence[Any], float], Any]
    _type: tuple[int, Any]

    @functools.cached_property
    def data(self) -> Any:
        return self.make()

    @property
    def ndim(self) -> int:
        return self._type[0]

    @property
    def dtype(self) -> Any:
        return self._type[1]


def plus_channels(data: Any, shift: Any) -> Any:
    """Channels-last data plus one number per channel, or what `over_channels` made of those."""
    if shift.shape[-1:] != data.shape[-1:] or shift.ndim not in (1, data.ndim) or shift.dtype != data.dtype:
        return data + shift
    return lax.add(data, shift if shift.ndim == data.ndim else over_channels(shift, data.ndim))


def over_channels(shift: Any, rank: int) -> Any:
    """One number per channel as it broadcasts against channels-last data of `rank`."""
    return lax.broadcast_in_dim(shift, (1,) * (rank - 1) + shift.shape, (rank - 1,))


def settled(value: ir.Value, result: Any) -> Any:
    """A result as its readers should have it: in memory where it is long and they do not become one loop."""
    if not isinstance(result, ChannelsLast) or not result.long or len(value.uses()) < 2:
        return result
    readers = {node for node, _ in value.uses()}
    return result if all(adapter_of(n.domain, n.op_type) is elementwise for n in readers) else result.settled()


def plain(operand: Any) -> Any:
    """An operand in the model's order."""
    return operand.plain() if isinstance(operand, ChannelsLast) else operand


def channels_last(operand: Any) -> Any:
    """The data of an operand of rank 3 or more as N, spatial, C."""
    return operand.data if isinstance(operand, ChannelsLast) else jnp.moveaxis(operand, 1, -1)


def is_channels_last(operands: Sequence[Any]) -> bool:
    return any(isinstance(operand, ChannelsLast) for operand in operands)


def accepting(ctx: Context, rule: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """The adapter of rules that take operands in either order."""
    return call(ctx, rule, operands)


def adapter_of(domain: str, op_type: str) -> Adapter | None:
    return _ADAPTERS.get((domain, op_type))


def adapts(*op_types: str, domain: str = "") -> Callable[[Adapter], Adapter]:
    """Enters a function ``(ctx, rule, operands) -> results`` for operators that keep the order of a channels-last
    operand. It returns None where this node cannot: then the rule runs on plain arrays."""

    def enter(adapter: Adapter) -> Adapter:
        for op_type in op_types:
            _ADAPTERS[domain, op_type] = adapter
        return adapter

    return enter


def call(ctx: Context, rule: Callable[..., Any], operands: Sequence[Any], **overrides: Any) -> Any:
    """The rule on other operands, and with other values of some attributes, than the node's."""
    return rule(dataclasses.replace(ctx, operands=operands, overrides=overrides), ctx.node, *operands)


def position(axis: int, rank: int) -> int:
    """Where an axis of the model lies in the channels-last data."""
    axis = axis + rank if axis < 0 else axis
    return 0 if axis == 0 else rank - 1 if axis == 1 else axis - 1


def wrapped(results: Any, long: bool = False) -> Any:
    """Results that a rule computed in channels-last order."""
    if isinstance(results, (tuple, list)):
        return tuple(None if r is None else ChannelsLast(r, long=long) for r in results)
    return ChannelsLast(results, long=long)


def broadcast_data(operand: Any, rank: int) -> Any:
    """An operand as it broadcasts against channels-last data of `rank`; None where its own rank is higher."""
    if isinstance(operand, ChannelsLast):
        return operand.data if operand.ndim == rank else None
    if operand is None or operand.ndim == 0:
        return operand
    if operand.ndim > rank:
        return None
    shape = (1,) * (rank - operand.ndim) + tuple(operand.shape)
    if sum(n != 1 for n in shape[1:]) <= 1:  # at most one axis to move: no transpose
        return operand.reshape((shape[0], *shape[2:], shape[1]))
    xp = np if isinstance(operand, np.ndarray) else jnp
    return xp.moveaxis(operand.reshape(shape), 1, -1)


def elementwise(ctx: Context, rule: Callable[..., Any], operands: Sequence[Any]) -> Any:
    if ctx.node.domain == "" and ctx.opset < 7 and len(operands) > 1:
        return None  # broadcasts along an attribute's axis
    rank = next(o.ndim for o in operands if isinstance(o, ChannelsLast))
    data = [broadcast_data(o, rank) for o in operands]
    if any(d is None and o is not None for d, o in zip(data, operands)):
        return None
    long = any(isinstance(o, ChannelsLast) and o.long for o in operands)
    return wrapped(call(ctx, rule, data), long)


def along_axis(ctx: Context, rule: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Operators that work along the attribute `axis` and keep the rank; all operands of rank > 1 have one shape."""
    rank = max(o.ndim for o in operands if o is not None)
    data = [o if o is None or o.ndim < 2 else channels_last(o) if o.ndim == rank else None for o in operands]
    if any(d is None and o is not None for d, o in zip(data, operands)):
        return None
    axis = ctx.attr("axis")
    default = 1 if ctx.node.op_type == "Concat" else 0
    return wrapped(call(ctx, rule, data, axis=position(default if axis is None else axis, rank)))


@adapts("Softmax", "LogSoftmax", "Hardmax")
def _softmax(ctx: Context, rule: Callable[..., Any], operands: Sequence[Any]) -> Any:
    return along_axis(ctx, rule, operands) if ctx.opset >= 13 else None


def _ordered(removed: set[int], rank: int) -> bool:
    """Is the order of the axes that remain the same in both layouts?"""
    return 1 in removed or removed >= set(range(2, rank))


@adapts("ArgMax", "ArgMin")
def _arg(ctx: Context, rule: Callable[..., Any], operands: Sequence[Any]) -> Any:
    (x,) = operands
    axis = ctx.attr("axis") % x.ndim
    if not ctx.attr("keepdims") and not _ordered({axis}, x.ndim):
        return None
    result = call(ctx, rule, [x.data], axis=position(axis, x.ndim))
    return wrapped(result) if ctx.attr("keepdims") else result


def reduction(ctx: Context, rule: Callable[..., Any], operands: Sequence[Any]) -> Any:
    x, axes = operands[0], (operands[1] if len(operands) > 1 else None)
    given = ctx.int_param("axes", axes)
    if not given:
        return None
    over = [axis % x.ndim for axis in given]
    keep = bool(ctx.attr("keepdims"))
    if not keep and not _ordered(set(over), x.ndim):
        return None
    positions = [position(axis, x.ndim) for axis in over]
    data = [x.data] if axes is None else [x.data, np.asarray(positions, np.int64)]
    result = call(ctx, rule, data, axes=positions)
    return wrapped(result) if keep else result


@adapts("BatchNormalization")
def _batch_normalization(ctx: Context, rule: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """As that of a matrix, whose axis 1 is the channels'."""
    x = operands[0]
    per_element = ctx.opset < 9 and not ctx.attr("spatial", 1)
    if not isinstance(x, ChannelsLast) or per_element:
        return None
    folded = _folded(ctx, x, *operands[1:])
    if folded is not None:
        return folded
    y, *statistics = _items(call(ctx, rule, [x.data.reshape(-1, x.data.shape[-1]), *map(plain, operands[1:])]))
    return (ChannelsLast(y.reshape(x.data.shape), long=x.long), *statistics)


def _folded(ctx: Context, x: ChannelsLast, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    """The convolution before it with other weights, where nothing else reads its result."""
    training = ctx.attr("training_mode", 0) if ctx.opset >= 14 else len(ctx.node.outputs) > 1
    source = ctx.node.inputs[0]
    single = source is not None and len(source.uses()) == 1 and not source.is_graph_output()
    alike = all(v.dtype == x.dtype for v in (scale, bias, mean, var))
    if not isinstance(x, Postponed) or training or not single or not alike or ctx.opset < 7:
        return None
    return ChannelsLast(x.normalized((scale, bias, mean, var), ctx.attr("epsilon")), long=x.long)


def _items(results: Any) -> Sequence[Any]:
    return results if isinstance(results, (tuple, list)) else (results,)


@adapts("Transpose")
def _transpose(ctx: Context, rule: Callable[..., Any], operands: Sequence[Any]) -> Any:
    (x,) = operands
    order = ctx.attr("perm") or range(x.ndim)[::-1]
    return jnp.transpose(x.settled().data, [position(axis, x.ndim) for axis in order])


@adapts("Reshape", "Flatten")
def _reshape(ctx: Context, rule: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Batch and channels stay, or nothing spatial is left; else the order of the elements matters."""
    x = operands[0]
    if not isinstance(x, ChannelsLast):
        return None
    n, c, *spatial = x.shape
    if math.prod(spatial) == 1:
        return call(ctx, rule, [x.data.reshape(x.shape), *operands[1:]])
    if ctx.node.op_type == "Flatten":
        return None
    dims = ctx.attr("shape") if len(operands) < 2 else ctx.ints(operands[1])
    if len(dims) < 3 or (ctx.attr("allowzero", 0) and 0 in dims) or x.size == 0:
        return None
    dims = [x.shape[i] if d == 0 else d for i, d in enumerate(dims)]
    if -1 in dims:
        dims[dims.index(-1)] = x.size // -math.prod(dims)
    if dims[:2] != [n, c] or math.prod(dims) != x.size:
        return None
    return ChannelsLast(x.data.reshape(n, *dims[2:], c))


@adapts("Pad")
def _pad(ctx: Context, rule: Callable[..., Any], operands: Sequence[Any]) -> Any:
    x, pads, value, axes = (*operands, None, None, None)[:4]
    if not isinstance(x, ChannelsLast):
        return None
    amounts = ctx.int_param("paddings" if ctx.opset < 2 else "pads", pads) or []
    over = ctx.ints(axes) if axes is not None else list(range(x.ndim))
    widths = np.zeros((2, x.ndim), np.int64)
    for i, axis in enumerate(over):
        widths[:, position(axis, x.ndim)] = amounts[i], amounts[i + len(over)]
    return wrapped(call(ctx, rule, [x.data, widths.reshape(-1), value]))


@adapts("Slice")
def _slice(ctx: Context, rule: Callable[..., Any], operands: Sequence[Any]) -> Any:
    x, starts, ends, axes, steps = (*operands, None, None, None, None)[:5]
    over = ctx.int_param("axes", axes)
    count = len(ctx.int_param("starts", starts) or [])
    positions = [position(axis, x.ndim) for axis in (range(count) if over is None else over)]
    known = [None if o is None else ctx.concrete(o) for o in (starts, ends)]
    data = [x.data, *known, None if starts is None else np.asarray(positions, np.int64)]
    return wrapped(call(ctx, rule, [*data, None if steps is None else ctx.concrete(steps)], axes=positions))


@adapts("Resize")
def _resize(ctx: Context, rule: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """`axes` says which axis each scale or size belongs to."""
    x = operands[0]
    if not isinstance(x, ChannelsLast):
        return None
    axes = [position(axis, x.ndim) for axis in ctx.attr("axes", None) or range(x.ndim)]
    return wrapped(call(ctx, rule, [x.data, *operands[1:]], axes=axes))


@adapts("Upsample")
def _upsample(ctx: Context, rule: Callable[..., Any], operands: Sequence[Any]) -> Any:
    x = operands[0]
    scales = ctx.concrete(operands[1]) if len(operands) > 1 else ctx.attr("scales", None)
    if not isinstance(x, ChannelsLast) or scales is None:
        return None
    n, c, *spatial = scales
    return wrapped(call(ctx, rule, [x.data, np.asarray([n, *spatial, c], np.float32)]))


_UNARY = (
    "Identity Cast CastLike Abs Neg Sign Floor Ceil Round Sqrt Exp Log Sin Cos Tan Asin Acos Atan Sinh Cosh Asinh "
    "Acosh Atanh Erf IsNaN IsInf Reciprocal Not BitwiseNot Relu Tanh Sigmoid Softplus Softsign Mish LeakyRelu Elu Selu "
    "Celu HardSigmoid HardSwish ThresholdedRelu Shrink Gelu Swish Clip"
)
_BROADCASTING = (
    "Add Sub Mul Div Mod Pow Max Min Sum Mean PRelu Where Equal Greater GreaterOrEqual Less LessOrEqual And Or Xor "
    "BitwiseAnd BitwiseOr BitwiseXor BitShift"
)
_REDUCTIONS = "Sum Prod Max Min Mean L1 L2 SumSquare LogSum LogSumExp"
adapts(*_UNARY.split(), *_BROADCASTING.split())(elementwise)
adapts("Gelu", "QuickGelu", "FastGelu", "BiasGelu", domain="com.microsoft")(elementwise)
adapts("Concat", "Split")(along_axis)
adapts(*(f"Reduce{name}" for name in _REDUCTIONS.split()))(reduction)
