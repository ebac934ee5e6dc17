"""Matrix products and contractions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.registry import register


def matmul(ctx: Context, node: ir.Node, a: Any, b: Any) -> Any:
    return jnp.matmul(a, b)


def gemm(ctx: Context, node: ir.Node, a: Any, b: Any, c: Any = None) -> Any:
    a = a.T if ctx.attr("transA") else a
    b = b.T if ctx.attr("transB") else b
    alpha, beta = ctx.attr("alpha"), ctx.attr("beta")
    y = jnp.matmul(a, b)
    y = y if alpha == 1.0 else y * _scale(alpha, y)
    if c is None or beta == 0.0:
        return y
    return y + (c if beta == 1.0 else c * _scale(beta, y))


def _scale(factor: float, like: Any) -> np.ndarray:
    return np.asarray(factor, like.dtype)


def einsum(ctx: Context, node: ir.Node, *operands: Any) -> Any:
    return jnp.einsum(ctx.attr("equation").replace(" ", ""), *operands)


def matmul_integer(ctx: Context, node: ir.Node, a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    """Zero points: a scalar, or one per row of `a` and per column of `b`."""
    a = a.astype(jnp.int32) - _per_row(a_zero)
    b = b.astype(jnp.int32) - (0 if b_zero is None else per_column(b_zero.astype(jnp.int32)))
    return jnp.matmul(a, b, preferred_element_type=jnp.int32)


def per_column(parameter: Any) -> Any:
    """A scale or zero point for each column, or one for all of them, as it broadcasts against the columns."""
    return parameter.reshape(()) if parameter.size == 1 else parameter


def _per_row(zero: Any) -> Any:
    if zero is None:
        return 0
    zero = zero.astype(jnp.int32)
    if zero.size == 1:
        return zero.reshape(())
    return zero[:, None] if zero.ndim == 1 else zero


def fused_matmul(ctx: Context, node: ir.Node, a: Any, b: Any) -> Any:
    """transBatch: the first axis is a row axis, the ones between first and last are the batch."""
    a, b = (jnp.moveaxis(x, 0, -2) if ctx.attr(f"transBatch{n}", 0) else x for x, n in ((a, "A"), (b, "B")))
    a = jnp.swapaxes(a, -1, -2) if ctx.attr("transA", 0) and a.ndim > 1 else a
    b = jnp.swapaxes(b, -1, -2) if ctx.attr("transB", 0) and b.ndim > 1 else b
    return jnp.matmul(a, b) * _scale(ctx.attr("alpha", 1.0), a)


def det(ctx: Context, node: ir.Node, x: Any) -> Any:
    return jnp.linalg.det(x)


register("MatMul")(matmul)
register("Gemm")(gemm)
register("Einsum")(einsum)
register("MatMulInteger")(matmul_integer)
register("Det")(det)
register("FusedMatMul", "TransposeMatMul", domain="com.microsoft")(fused_matmul)
