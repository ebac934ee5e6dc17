"""ai.onnx.ml: linear models and support vector machines, in float32."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.ops.ml_scores import post_transform
from pfvm.runtime.xla.registry import register

_DOMAIN = "ai.onnx.ml"


def _floats(ctx: Context, name: str) -> np.ndarray:
    return np.asarray(ctx.attr(name, None) or [], np.float32)


def _rows(x: Any) -> Any:
    return (x.reshape(1, -1) if x.ndim == 1 else x).astype(jnp.float32)


def _labels(ctx: Context) -> np.ndarray:
    labels = ctx.attr("classlabels_ints", None)
    if not labels:
        raise ctx.unsupported("string labels")
    return np.asarray(labels, np.int64)


def linear_regressor(ctx: Context, node: ir.Node, x: Any) -> Any:
    weights, offset = _floats(ctx, "coefficients").reshape(ctx.attr("targets"), -1), _floats(ctx, "intercepts")
    y = jnp.matmul(_rows(x), weights.T)
    return post_transform(ctx, y + offset if offset.size else y)


def linear_classifier(ctx: Context, node: ir.Node, x: Any) -> Any:
    """Labels and scores. One score for two classes is the second's; the first gets 1 - score, as on ONNX Runtime."""
    labels, offset = _labels(ctx), _floats(ctx, "intercepts")
    rows = _rows(x)
    scores = jnp.matmul(rows, _floats(ctx, "coefficients").reshape(-1, rows.shape[1]).T)
    scores = scores + offset if offset.size else scores
    if scores.shape[1] > 1:
        return jnp.asarray(labels)[jnp.argmax(scores, 1)], post_transform(ctx, scores)
    kind = ctx.attr("post_transform")
    if len(labels) != 2 or kind == "PROBIT":
        raise ctx.unsupported(f"one score for {len(labels)} classes with post_transform {kind}")
    chosen = jnp.asarray(labels)[(scores[:, 0] > 0).astype(jnp.int32)]
    if kind == "LOGISTIC":
        return chosen, jax.nn.sigmoid(jnp.concatenate([-scores, scores], 1))
    return chosen, jnp.concatenate([1 - scores, scores], 1)


def _kernel(ctx: Context, x: Any, vectors: Any) -> Any:
    """(rows, vectors): the kernel function of every pair."""
    gamma, offset, degree = (*_floats(ctx, "kernel_params"), 0.0, 0.0, 0.0)[:3]
    kind = ctx.attr("kernel_type")
    if kind == "RBF":
        difference = x[:, None, :] - vectors[None]
        return jnp.exp(-gamma * jnp.sum(difference * difference, -1))
    products = jnp.matmul(x, vectors.T)
    match kind:
        case "POLY":
            return (products * gamma + offset) ** degree
        case "SIGMOID":
            return jnp.tanh(products * gamma + offset)
    return products


def svm_regressor(ctx: Context, node: ir.Node, x: Any) -> Any:
    """one_class: 1 inside, -1 outside."""
    rows, weights, count = _rows(x), _floats(ctx, "coefficients"), ctx.attr("n_supports") or 0
    if count:
        vectors = _floats(ctx, "support_vectors").reshape(count, -1)
        y = jnp.matmul(_kernel(ctx, rows, vectors), weights)
    else:
        y = jnp.matmul(rows, weights)
    y = y + _floats(ctx, "rho")[0]
    y = jnp.where(y > 0, 1.0, -1.0).astype(jnp.float32) if ctx.attr("one_class", 0) else y
    return post_transform(ctx, y[:, None])


def svm_classifier(ctx: Context, node: ir.Node, x: Any) -> Any:
    """One vote for every pair of classes. Scores: those of the pairs, or with prob_a and prob_b of the classes."""
    labels, sizes = _labels(ctx), ctx.attr("vectors_per_class", None)
    if not sizes:
        raise ctx.unsupported("a linear machine without support vectors")
    total, count = sum(sizes), len(labels)
    kernels = _kernel(ctx, _rows(x), _floats(ctx, "support_vectors").reshape(total, -1))
    weights = _floats(ctx, "coefficients").reshape(-1, total)
    parts = [slice(end - size, end) for end, size in zip(np.cumsum(sizes), sizes)]
    rho = _floats(ctx, "rho")
    pairs = list(itertools.combinations(range(count), 2))
    scores = jnp.stack([
        kernels[:, parts[i]] @ weights[j - 1, parts[i]] + kernels[:, parts[j]] @ weights[i, parts[j]] + rho[n]
        for n, (i, j) in enumerate(pairs)
    ], 1)  # fmt: skip
    votes = sum(jax.nn.one_hot(jnp.where(scores[:, n] > 0, i, j), count) for n, (i, j) in enumerate(pairs))
    prob_a, prob_b = _floats(ctx, "prob_a"), _floats(ctx, "prob_b")
    chosen = jnp.argmax(jnp.asarray(votes), 1)
    if prob_a.size:
        return jnp.asarray(labels)[chosen], _probabilities(scores, pairs, prob_a, prob_b, count)
    if count == 2:
        if (_floats(ctx, "coefficients") >= 0).all():
            raise ctx.unsupported("two classes whose coefficients are all positive")
        scores = jnp.concatenate([-scores, scores], 1)
    return jnp.asarray(labels)[chosen], post_transform(ctx, scores)


def _probabilities(scores: Any, pairs: list[tuple[int, int]], a: np.ndarray, b: np.ndarray, count: int) -> Any:
    """Platt's sigmoid of each pair, coupled to one probability for each class (Wu, Lin and Weng 2004, method 2)."""
    of_pair = jnp.clip(1 - jax.nn.sigmoid(scores * a + b), 1e-7, 1 - 1e-7)
    table = jnp.zeros((scores.shape[0], count, count), scores.dtype)
    for n, (i, j) in enumerate(pairs):
        table = table.at[:, i, j].set(of_pair[:, n]).at[:, j, i].set(1 - of_pair[:, n])
    return jax.vmap(_coupled)(table)


def _coupled(table: Any) -> Any:
    """table[i, j]: how likely class i is, of i and j. Iterates until all classes agree within 0.005 / classes."""
    count = table.shape[0]
    q = -table.T * table
    q = q.at[jnp.arange(count), jnp.arange(count)].set(jnp.sum(table * table, 0))

    def products(p: Any) -> tuple[Any, Any]:
        of_class = q @ p
        return of_class, p @ of_class

    def unfinished(state: tuple[Any, Any]) -> Any:
        step, p = state
        of_class, mean = products(p)
        return (step < max(100, count)) & (jnp.max(jnp.abs(of_class - mean)) >= 0.005 / count)

    def improve(state: tuple[Any, Any]) -> tuple[Any, Any]:
        step, p = state
        of_class, mean = products(p)
        for t in range(count):
            change = (mean - of_class[t]) / q[t, t]
            p = p.at[t].add(change)
            mean = (mean + change * (change * q[t, t] + 2 * of_class[t])) / (1 + change) ** 2
            of_class = (of_class + change * q[t]) / (1 + change)
            p = p / (1 + change)
        return step + 1, p

    return lax.while_loop(unfinished, improve, (0, jnp.full(count, 1 / count, table.dtype)))[1]


register("LinearRegressor", domain=_DOMAIN)(linear_regressor)
register("LinearClassifier", domain=_DOMAIN)(linear_classifier)
register("SVMRegressor", domain=_DOMAIN)(svm_regressor)
register("SVMClassifier", domain=_DOMAIN)(svm_classifier)
