"""Matrix products and contractions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.materialize import materialized
from pfvm.runtime.xla.registry import register

_WIDE = 4
_WORTH_A_COPY = 1 << 14


def matmul(ctx: Context, node: ir.Node, a: Any, b: Any) -> Any:
    return jnp.matmul(a, b)


def gemm(ctx: Context, node: ir.Node, a: Any, b: Any, c: Any = None) -> Any:
    b = b.T if ctx.attr("transB") else b
    a = _turned(a, b.shape[1]) if ctx.attr("transA") else a
    alpha, beta = ctx.attr("alpha"), ctx.attr("beta")
    y = jnp.matmul(a, b)
    y = y if alpha == 1.0 else y * _scale(alpha, y)
    if c is None or beta == 0.0:
        return y
    return y + (c if beta == 1.0 else c * _scale(beta, y))


def _turned(a: Any, columns: int) -> Any:
    """The transpose of the left factor of a product, as the gradient of a weight has it.

    XLA's CPU compiler reads it in place, a column at a time. A copy in row order is as fast where the product is wide,
    and up to 1.4 times faster elsewhere (512 rows: weights 1024 × 256 1.4, 256 × 256 1.2, 768 × 3072 0.95).
    """
    rows = a.shape[1]
    wide = columns >= _WIDE * rows
    return a.T if wide or a.size < _WORTH_A_COPY or a.dtype != jnp.float32 else materialized(a.T)


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
