"""Random numbers, by jax.random.

A node with a `seed` is a pure function of it: every call and every process gives the same numbers, other ones in
every iteration of a loop. A node without one draws anew in every call and iteration, from entropy that the call brings
along. The numbers are not those of other implementations: the standard leaves the generator open.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.bodies import data_dependent
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.random_keys import seeded_key
from pfvm.runtime.xla.registry import register


def random_key(ctx: Context) -> Any:
    """The key that the node's random numbers come from. Raises DataDependentShapeError where a shape follows from them.

    (Numbers that are the same in every call can be a shape.)
    """
    seed = ctx.attr("seed", None)
    key = ctx.random_key() if seed is None else seeded_key(seed, ctx.scope.iterations)
    if ctx.force_host and isinstance(key, jax.core.Tracer):
        raise data_dependent(ctx, "a shape follows from its random numbers")
    return key


def _element_type(ctx: Context, x: Any = None) -> np.dtype:
    kind = ctx.attr("dtype", None)
    if kind is None:
        return np.dtype(np.float32 if x is None else x.dtype)
    return np.dtype(ir.DataType(kind).numpy())


def _draw(distribution: Any, ctx: Context, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Half-precision numbers are rounded from single precision."""
    wide = np.dtype(np.float64) if dtype == np.float64 else np.dtype(np.float32)
    return distribution(random_key(ctx), shape, wide).astype(dtype)


def _normal(ctx: Context, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    mean, scale = (np.asarray(ctx.attr(name), dtype) for name in ("mean", "scale"))
    return mean + scale * _draw(jax.random.normal, ctx, shape, dtype)


def _uniform(ctx: Context, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    low, high = (np.asarray(ctx.attr(name), dtype) for name in ("low", "high"))
    return low + (high - low) * _draw(jax.random.uniform, ctx, shape, dtype)


def _of_shape(distribution: Any) -> Any:
    def rule(ctx: Context, node: ir.Node) -> Any:
        return distribution(ctx, tuple(ctx.attr("shape")), _element_type(ctx))

    return rule


def _like(distribution: Any) -> Any:
    def rule(ctx: Context, node: ir.Node, x: Any) -> Any:
        return distribution(ctx, x.shape, _element_type(ctx, x))

    return rule


def bernoulli(ctx: Context, node: ir.Node, x: Any) -> Any:
    """x: probabilities. Result: 1 where a uniform number is below."""
    return (_draw(jax.random.uniform, ctx, x.shape, np.dtype(x.dtype)) < x).astype(_element_type(ctx, x))


def multinomial(ctx: Context, node: ir.Node, x: Any) -> Any:
    """x: unnormalized log-probabilities (batch, classes). Result: class numbers (batch, sample_size)."""
    count = ctx.attr("sample_size")
    classes = jax.random.categorical(
        random_key(ctx), x.astype(jnp.promote_types(x.dtype, jnp.float32)), axis=1, shape=(count, x.shape[0])
    )
    return classes.T.astype(ir.DataType(ctx.attr("dtype")).numpy())


def dropout(ctx: Context, node: ir.Node, x: Any, ratio: Any = None, training_mode: Any = None) -> Any:
    """Inference: the identity, with an all-true mask. Training: what is not dropped grows to keep the sum.

    Whether it trains: an input from opset 12 on; `is_test` before 7; never between.
    """
    if ctx.opset >= 12:
        training = training_mode is not None and bool(ctx.concrete(training_mode).reshape(()))
    else:
        training = ctx.opset < 7 and not ctx.attr("is_test", 0)
    if not training:
        return x, ctx.xp.ones(x.shape, bool if ctx.opset >= 10 else x.dtype)
    drop = np.float32(ctx.attr("ratio", 0.5)) if ratio is None else ratio.reshape(()).astype(jnp.float32)
    kept = _draw(jax.random.uniform, ctx, x.shape, np.dtype(np.float32)) >= drop
    # ratio 1 drops everything; the factor is not used then.
    factor = (1 / jnp.where(drop < 1, 1 - drop, 1)).astype(x.dtype)
    return jnp.where(kept, x * factor, jnp.zeros((), x.dtype)), kept if ctx.opset >= 10 else kept.astype(x.dtype)


register("RandomNormal")(_of_shape(_normal))
register("RandomNormalLike")(_like(_normal))
register("RandomUniform")(_of_shape(_uniform))
register("RandomUniformLike")(_like(_uniform))
register("Bernoulli", since=15)(bernoulli)
register("Multinomial", since=7)(multinomial)
register("Dropout")(dropout)
