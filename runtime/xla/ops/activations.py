"""Activation functions."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.ops.elementwise import unary_on_device
from pfvm.runtime.xla.platforms import traced_platform
from pfvm.runtime.xla.registry import register


def relu(x: Any) -> Any:
    return lax.max(x, np.zeros((), x.dtype))


def leaky_relu(ctx: Context, node: ir.Node, x: Any) -> Any:
    return jnp.where(x >= 0, x, _scalar(ctx.attr("alpha"), x) * x)


def prelu(ctx: Context, node: ir.Node, x: Any, slope: Any) -> Any:
    """Before opset 7 the slope is one number or one per channel (axis 1)."""
    if ctx.opset < 7 and slope.ndim == 1 and slope.shape[0] > 1 and x.ndim > 1:
        slope = slope.reshape((-1,) + (1,) * (x.ndim - 2))
    return jnp.where(x < 0, x * slope, x)


def elu(ctx: Context, node: ir.Node, x: Any) -> Any:
    return jnp.where(x > 0, x, _scalar(ctx.attr("alpha"), x) * jnp.expm1(jnp.minimum(x, 0)))


def selu(ctx: Context, node: ir.Node, x: Any) -> Any:
    alpha, gamma = _scalar(ctx.attr("alpha"), x), _scalar(ctx.attr("gamma"), x)
    return gamma * jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0)))


def celu(ctx: Context, node: ir.Node, x: Any) -> Any:
    alpha = _scalar(ctx.attr("alpha"), x)
    return jnp.maximum(x, 0) + jnp.minimum(alpha * jnp.expm1(jnp.minimum(x, 0) / alpha), 0)


def hard_sigmoid(ctx: Context, node: ir.Node, x: Any) -> Any:
    return _hard_sigmoid(x, ctx.attr("alpha"), ctx.attr("beta"))


def _hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    return jnp.clip(_scalar(alpha, x) * x + _scalar(beta, x), _scalar(0, x), _scalar(1, x))


def hard_swish(ctx: Context, node: ir.Node, x: Any) -> Any:
    return x * _hard_sigmoid(x, 1 / 6, 0.5)


def thresholded_relu(ctx: Context, node: ir.Node, x: Any) -> Any:
    return jnp.where(x > _scalar(ctx.attr("alpha"), x), x, _scalar(0, x))


def shrink(ctx: Context, node: ir.Node, x: Any) -> Any:
    bias, limit = _scalar(ctx.attr("bias"), x), _scalar(ctx.attr("lambd"), x)
    return jnp.where(x < -limit, x + bias, jnp.where(x > limit, x - bias, _scalar(0, x)))


def gelu(ctx: Context, node: ir.Node, x: Any) -> Any:
    if ctx.attr("approximate", "none") == "tanh":
        return gelu_tanh(x)
    return gelu_erf(x)


# Functions under jax.jit are traced and lowered once for each shape, not once for each node.
@jax.jit
def gelu_erf(x: Any) -> Any:
    return _scalar(0.5, x) * x * (_scalar(1, x) + jax.scipy.special.erf(x * _scalar(math.sqrt(0.5), x)))


@jax.jit
def gelu_tanh(x: Any) -> Any:
    inner = _scalar(math.sqrt(2 / math.pi), x) * (x + _scalar(0.044715, x) * x * x * x)
    return _scalar(0.5, x) * x * (_scalar(1, x) + jnp.tanh(inner))


def swish(ctx: Context, node: ir.Node, x: Any) -> Any:
    return x * jax.nn.sigmoid(_scalar(ctx.attr("alpha", 1.0), x) * x)


def softmax(ctx: Context, node: ir.Node, x: Any) -> Any:
    return _over_axis(ctx, x, softmax_along)


def softmax_along(x: Any, axis: int) -> Any:
    return _softmax(x, axis, _may_contract())


@functools.partial(jax.jit, static_argnums=(1, 2))
def _softmax(x: Any, axis: int, guarded: bool) -> Any:
    powers = jnp.exp(_below_maximum(x, axis, guarded))
    return powers / jnp.sum(powers, axis, keepdims=True)


def log_softmax(ctx: Context, node: ir.Node, x: Any) -> Any:
    return _over_axis(ctx, x, lambda v, axis: _log_softmax(v, axis, _may_contract()))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _log_softmax(x: Any, axis: int, guarded: bool) -> Any:
    below = _below_maximum(x, axis, guarded)
    return below - jnp.log(jnp.sum(jnp.exp(below), axis, keepdims=True))


def _may_contract() -> bool:
    """Whether the compiler makes one rounding of a product and a sum. On a TPU, which does not, `guarded` would be half
    of a softmax's cycles."""
    return traced_platform() != "tpu"


@functools.partial(jax.custom_jvp, nondiff_argnums=(1, 2))
def _below_maximum(x: Any, axis: int, guarded: bool) -> Any:
    """``x - max(x)``; guarded: exactly 0 at the maximum. For a derivative the maximum is a constant.

    The CPU compiler may compute x again for the difference, by a fused multiply-add that leaves the rounding error of
    the maximum: hundreds where x is about 1e10, and exp of that is infinite.
    """
    maximum = lax.stop_gradient(jnp.max(x, axis, keepdims=True))
    if not guarded:
        return x - maximum
    at_it = (x == maximum) & jnp.isfinite(maximum)  # infinities stay undefined, as in ONNX Runtime
    return jnp.where(at_it, jnp.zeros((), x.dtype), jnp.minimum(x - maximum, jnp.zeros((), x.dtype)))


@_below_maximum.defjvp
def _below_maximum_jvp(axis: int, guarded: bool, primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    return _below_maximum(*primals, axis, guarded), tangents[0]


def hardmax(ctx: Context, node: ir.Node, x: Any) -> Any:
    return _over_axis(
        ctx, x, lambda v, axis: jax.nn.one_hot(jnp.argmax(v, axis), v.shape[axis], dtype=v.dtype, axis=axis)
    )


def _over_axis(ctx: Context, x: Any, function: Any) -> Any:
    """Before opset 13 the operand is coerced to 2-D at `axis` and the function runs over all the trailing axes."""
    axis = ctx.attr("axis")
    if x.size == 0:
        return x
    if ctx.opset >= 13:
        return function(x, axis=axis)
    axis = axis + x.ndim if axis < 0 else axis
    rows = math.prod(x.shape[:axis])
    return function(x.reshape(rows, math.prod(x.shape[axis:])), axis=1).reshape(x.shape)


def _scalar(value: float, like: Any) -> np.ndarray:
    return np.asarray(value, like.dtype)


register("Relu")(unary_on_device(relu))
register("Tanh")(unary_on_device(jnp.tanh))
register("Sigmoid")(unary_on_device(jax.nn.sigmoid))
register("Softplus")(unary_on_device(lambda x: jnp.logaddexp(x, _scalar(0, x))))
register("Softsign")(unary_on_device(lambda x: x / (1 + jnp.abs(x))))
register("Mish")(unary_on_device(lambda x: x * jnp.tanh(jnp.logaddexp(x, _scalar(0, x)))))
register("LeakyRelu")(leaky_relu)
register("PRelu")(prelu)
register("Elu")(elu)
register("Selu")(selu)
register("Celu")(celu)
register("HardSigmoid")(hard_sigmoid)
register("HardSwish")(hard_swish)
register("ThresholdedRelu")(thresholded_relu)
register("Shrink")(shrink)
register("Gelu", since=20)(gelu)
register("Swish", since=24)(swish)
register("Softmax")(softmax)
register("LogSoftmax")(log_softmax)
register("Hardmax")(hardmax)
register("Gelu", domain="com.microsoft")(gelu)
register("FastGelu", domain="com.microsoft")(lambda ctx, node, x, bias=None: gelu_tanh(x if bias is None else x + bias))
register("BiasGelu", domain="com.microsoft")(lambda ctx, node, x, bias: gelu(ctx, node, x + bias))
register("QuickGelu", domain="com.microsoft")(
    lambda ctx, node, x: x * jax.nn.sigmoid(_scalar(ctx.attr("alpha", 1.702), x) * x)
)
