"""Tree ensembles: all samples go down all trees at once, one level per step of a loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.ops.ml_scores import post_transform
from pfvm.runtime.xla.registry import register

_DOMAIN = "ai.onnx.ml"
_MODES = ("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER")
_COMPARE: tuple[Callable[[Any, Any], Any], ...] = (
    jnp.less_equal, jnp.less, jnp.greater_equal, jnp.greater, jnp.equal, jnp.not_equal,
)  # fmt: skip


class Forest(NamedTuple):
    """Rows are nodes; a leaf leads to itself. `weights` and `scored` are (rows, targets)."""

    features: np.ndarray
    splits: np.ndarray
    modes: np.ndarray
    branches: tuple[np.ndarray, np.ndarray]  # (if false, if true)
    nan_is_true: np.ndarray
    members: np.ndarray  # (rows, longest set), padded with NaN
    roots: np.ndarray
    weights: np.ndarray
    scored: np.ndarray


def _leaves(forest: Forest, x: Any) -> Any:
    """(samples, trees): the leaf that each sample reaches in each tree."""
    rows = [
        jnp.asarray(a) for a in (forest.features, forest.splits, forest.modes, forest.nan_is_true, *forest.branches)
    ]
    features, splits, modes, nan_is_true, if_false, if_true = rows

    def descend(_: Any, index: Any) -> Any:
        value = jnp.take_along_axis(x, features[index], axis=1)
        mode = modes[index]
        taken = jnp.zeros(index.shape, bool)
        for code in np.unique(forest.modes):
            if code < len(_COMPARE):
                hit = _COMPARE[code](value, splits[index].astype(x.dtype))
            else:
                hit = (value[..., None] == jnp.asarray(forest.members)[index].astype(x.dtype)).any(-1)
            taken = jnp.where(mode == code, hit, taken)
        taken |= nan_is_true[index] & jnp.isnan(value)
        return jnp.where(taken, if_true[index], if_false[index])

    start = jnp.broadcast_to(jnp.asarray(forest.roots), (x.shape[0], len(forest.roots)))
    return lax.fori_loop(0, _depth(forest), descend, start)


def _depth(forest: Forest) -> int:
    """Steps from the roots to the deepest leaf."""
    level = np.unique(forest.roots)
    if_false, if_true = forest.branches
    for depth in range(len(forest.features) + 1):
        inner = level[if_true[level] != level]
        if not inner.size:
            return depth
        level = np.unique(np.concatenate([if_true[inner], if_false[inner]]))
    raise ValueError("the trees have a cycle")


def _aggregate(forest: Forest, leaves: Any, how: str) -> tuple[Any, Any]:
    """(samples, targets): the trees' weights put together, and whether any tree had one."""
    weights = jnp.asarray(forest.weights)[leaves]
    scored = jnp.asarray(forest.scored)[leaves]
    any_scored = scored.any(1)
    match how:
        case "SUM":
            return weights.sum(1), any_scored
        case "AVERAGE":
            return weights.sum(1) / np.asarray(len(forest.roots), forest.weights.dtype), any_scored
        case "MIN":
            extreme = jnp.where(scored, weights, np.inf).min(1)
        case _:
            extreme = jnp.where(scored, weights, -np.inf).max(1)
    return jnp.where(any_scored, extreme, 0), any_scored


def tree_ensemble(ctx: Context, node: ir.Node, x: Any) -> Any:
    """Opset 5 form: leaves in arrays of their own, which become rows behind the nodes."""
    modes = np.asarray(ctx.attr("nodes_modes"), np.int64)
    count, targets = len(modes), np.asarray(ctx.attr("leaf_targetids"), np.int64)
    leaves = np.arange(count, count + len(targets))
    branches = []
    for side in ("false", "true"):
        to = np.asarray(ctx.attr(f"nodes_{side}nodeids"), np.int64)
        is_leaf = np.asarray(ctx.attr(f"nodes_{side}leafs"), bool)
        branches.append(np.concatenate([to + is_leaf * count, leaves]))
    weights = np.zeros((count + len(targets), ctx.attr("n_targets")), x.dtype)
    weights[leaves, targets] = np.asarray(ctx.attr("leaf_weights"))
    scored = np.zeros(weights.shape, bool)
    scored[leaves, targets] = True
    forest = Forest(
        features=_extended(ctx.attr("nodes_featureids"), len(targets), np.int64),
        splits=_extended(ctx.attr("nodes_splits"), len(targets), x.dtype),
        modes=_extended(modes, len(targets), np.int64),
        branches=(branches[0], branches[1]),
        nan_is_true=_extended(ctx.attr("nodes_missing_value_tracks_true", None) or [0] * count, len(targets), np.bool_),
        members=_members(ctx, modes, count + len(targets)),
        roots=np.asarray(ctx.attr("tree_roots"), np.int64),
        weights=weights,
        scored=scored,
    )
    how = ("AVERAGE", "SUM", "MIN", "MAX")[ctx.attr("aggregate_function")]
    return post_transform(ctx, _aggregate(forest, _leaves(forest, x), how)[0]).astype(x.dtype)


def _extended(values: Any, leaves: int, dtype: Any) -> np.ndarray:
    return np.concatenate([np.asarray(values).astype(dtype), np.zeros(leaves, dtype)])


def _members(ctx: Context, modes: np.ndarray, rows: int) -> np.ndarray:
    """membership_values holds the set of each MEMBER node in turn, each closed by a NaN."""
    values = ctx.attr("membership_values", None)
    if values is None:
        return np.full((rows, 1), np.nan)
    ends = np.flatnonzero(np.isnan(values))
    sets = np.split(np.asarray(values), ends + 1)[: len(ends)]
    table = np.full((rows, max((len(s) for s in sets), default=1)), np.nan)
    for row, members in zip(np.flatnonzero(modes == _MODES.index("MEMBER")), sets):
        table[row, : len(members)] = members
    return table


def _keyed_forest(ctx: Context, x: Any, prefix: str, targets: int) -> Forest:
    """The older form: nodes by (tree, node id), and weights by the leaves' ids. `prefix`: target or class."""
    trees, ids = (np.asarray(ctx.attr(f"nodes_{name}"), np.int64) for name in ("treeids", "nodeids"))
    row_of = {key: row for row, key in enumerate(zip(trees.tolist(), ids.tolist()))}
    names = ctx.attr("nodes_modes")
    own = np.arange(len(trees))
    leaf = np.asarray([name == "LEAF" for name in names])
    branches = []
    for side in ("false", "true"):
        to = ctx.attr(f"nodes_{side}nodeids")
        branches.append(np.asarray([r if end else row_of[t, n] for r, end, t, n in zip(own, leaf, trees.tolist(), to)]))
    weights = np.zeros((len(trees), targets), _numbers(ctx, f"{prefix}_weights").dtype)
    scored = np.zeros(weights.shape, bool)
    owners = zip(ctx.attr(f"{prefix}_treeids"), ctx.attr(f"{prefix}_nodeids"))
    at = np.asarray([row_of[key] for key in owners], np.int64)
    targets_at = np.asarray(ctx.attr(f"{prefix}_ids"), np.int64)
    np.add.at(weights, (at, targets_at), _numbers(ctx, f"{prefix}_weights"))
    scored[at, targets_at] = True
    return Forest(
        features=np.asarray(ctx.attr("nodes_featureids"), np.int64),
        splits=_numbers(ctx, "nodes_values"),
        modes=np.asarray([0 if name == "LEAF" else _MODES.index(name.removeprefix("BRANCH_")) for name in names]),
        branches=(branches[0], branches[1]),
        nan_is_true=np.asarray(ctx.attr("nodes_missing_value_tracks_true", None) or np.zeros(len(trees)), bool),
        members=np.full((len(trees), 1), np.nan),
        roots=np.unique(trees, return_index=True)[1],
        weights=weights,
        scored=scored,
    )


def _numbers(ctx: Context, name: str) -> np.ndarray:
    """A list of floats, or from opset 3 on a tensor of the operand's type."""
    tensor = ctx.attr(f"{name}_as_tensor", None)
    return np.asarray(ctx.attr(name, None) or [], np.float32) if tensor is None else np.asarray(tensor)


def _rows(x: Any) -> Any:
    x = x.reshape(1, -1) if x.ndim == 1 else x
    return x if x.dtype == np.float64 else x.astype(jnp.float32)


def tree_ensemble_regressor(ctx: Context, node: ir.Node, x: Any) -> Any:
    forest = _keyed_forest(ctx, x, "target", ctx.attr("n_targets"))
    scores = _aggregate(forest, _leaves(forest, _rows(x)), ctx.attr("aggregate_function"))[0]
    base = _numbers(ctx, "base_values")
    return post_transform(ctx, scores + base if base.size else scores).astype(jnp.float32)


def tree_ensemble_classifier(ctx: Context, node: ir.Node, x: Any) -> Any:
    """Labels and scores."""
    labels = ctx.attr("classlabels_int64s", None)
    if not labels:
        raise ctx.unsupported("string labels")
    forest = _keyed_forest(ctx, x, "class", len(labels))
    scores = _aggregate(forest, _leaves(forest, _rows(x)), "SUM")[0]
    base = _numbers(ctx, "base_values")
    names = np.asarray(labels, np.int64)
    if len(labels) == 2:
        chosen, scores = _two_classes(ctx, forest, scores, base)
    else:
        scores = post_transform(ctx, scores + base if base.size else scores)
        chosen = jnp.argmax(scores, 1)
    return jnp.asarray(names)[chosen], scores.astype(jnp.float32)


def _two_classes(ctx: Context, forest: Forest, scores: Any, base: np.ndarray) -> tuple[Any, Any]:
    """One class has all the weights and decides alone: a probability where they are never negative, else a margin.

    Where both have weights, or base values contradict that, ONNX Runtime's answers depart from the standard's.
    """
    owner = np.flatnonzero(forest.scored.any(0)).tolist()
    kind = ctx.attr("post_transform", None) or "NONE"
    positive = bool((forest.weights >= 0).all())
    if owner == [1] and not base.size:
        single = scores[:, 1]
        both = post_transform(ctx, scores)
    elif owner == [0] and base.size <= 1 and kind != "PROBIT":
        single = scores[:, 0] + base[0] if base.size else scores[:, 0]
        other = 1 - single if positive and kind != "LOGISTIC" else -single
        pair = jnp.stack([other, single], 1)
        both = post_transform(ctx, pair) if kind == "LOGISTIC" else pair
    else:
        raise ctx.unsupported("two classes that both have weights or base values")
    return (single > (0.5 if positive else 0)).astype(jnp.int32), both


register("TreeEnsemble", since=5, domain=_DOMAIN)(tree_ensemble)
register("TreeEnsembleRegressor", domain=_DOMAIN)(tree_ensemble_regressor)
register("TreeEnsembleClassifier", domain=_DOMAIN)(tree_ensemble_classifier)
