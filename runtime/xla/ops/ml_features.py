"""ai.onnx.ml: preparing feature columns. Numbers only: strings and maps have no XLA type."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.registry import register

_DOMAIN = "ai.onnx.ml"


def scaler(ctx: Context, node: ir.Node, x: Any) -> Any:
    """(x - offset) · scale in float32; one number for all columns, or one per column."""
    offset, scale = (np.asarray(ctx.attr(name, None) or [default], np.float32)
                     for name, default in (("offset", 0.0), ("scale", 1.0)))  # fmt: skip
    return (x.astype(jnp.float32) - offset) * scale


def normalizer(ctx: Context, node: ir.Node, x: Any) -> Any:
    """Rows divided by their largest value (as on ONNX Runtime, with its sign), sum of sizes or length."""
    rows = x.astype(jnp.float32)
    match ctx.attr("norm"):
        case "L1":
            norm = jnp.sum(jnp.abs(rows), -1, keepdims=True)
        case "L2":
            norm = jnp.sqrt(jnp.sum(rows * rows, -1, keepdims=True))
        case _:
            norm = jnp.max(rows, -1, keepdims=True)
    return jnp.where(norm == 0, rows, rows / jnp.where(norm == 0, 1, norm))


def binarizer(ctx: Context, node: ir.Node, x: Any) -> Any:
    return (x > np.asarray(ctx.attr("threshold", 0.0), x.dtype)).astype(x.dtype)


def imputer(ctx: Context, node: ir.Node, x: Any) -> Any:
    """Replaces one value (NaN too) by a number for all columns, or one per column."""
    if jnp.issubdtype(x.dtype, jnp.floating):
        values, replaced = ctx.attr("imputed_value_floats", None), ctx.attr("replaced_value_float", 0.0)
    else:
        values, replaced = ctx.attr("imputed_value_int64s", None), ctx.attr("replaced_value_int64", 0)
    if not values:
        raise ctx.unsupported("no imputed values of the operand's type")
    missing = jnp.isnan(x) if replaced != replaced else x == np.asarray(replaced, x.dtype)
    return jnp.where(missing, np.asarray(values, x.dtype), x)


def array_feature_extractor(ctx: Context, node: ir.Node, x: Any, indices: Any) -> Any:
    """Columns by number. A vector counts as one row."""
    ctx.expect_indices(indices, x.shape, -1)
    y = jnp.take(x, indices.reshape(-1), axis=-1, mode="clip")
    return y.reshape(1, -1) if x.ndim == 1 else y


def feature_vectorizer(ctx: Context, node: ir.Node, *operands: Any) -> Any:
    """Columns side by side as float32; each operand cut or padded with zeros to its entry of inputdimensions."""
    widths = ctx.attr("inputdimensions", None) or [x.shape[-1] for x in operands]
    parts = []
    for x, width in zip(operands, widths):
        rows = x.reshape(1, -1) if x.ndim == 1 else x
        kept = rows[:, :width].astype(jnp.float32)
        parts.append(jnp.pad(kept, ((0, 0), (0, width - kept.shape[1]))))
    return jnp.concatenate(parts, axis=1)


def one_hot_encoder(ctx: Context, node: ir.Node, x: Any) -> Any:
    """zeros=1: an unknown category is a row of zeros (0 would have to raise, which an XLA program cannot)."""
    categories = ctx.attr("cats_int64s", None)
    if not categories:
        raise ctx.unsupported("string categories")
    if not ctx.attr("zeros"):
        raise ctx.unsupported("zeros=0 (an error for unknown categories)")
    return (x[..., None].astype(jnp.int64) == np.asarray(categories, np.int64)).astype(jnp.float32)


def label_encoder(ctx: Context, node: ir.Node, x: Any) -> Any:
    keys, values, default = _labels(ctx)
    order = np.argsort(keys, kind="stable")  # of equal keys the first counts
    ordered = jnp.asarray(keys[order].astype(x.dtype))
    index = jnp.clip(jnp.searchsorted(ordered, x), 0, len(keys) - 1)
    found = ordered[index] == x
    if keys.dtype.kind == "f" and ctx.opset >= 4:  # before that NaN equals nothing
        found |= jnp.isnan(ordered[index]) & jnp.isnan(x)
    return jnp.where(found, jnp.asarray(values[order])[index], default)


def _labels(ctx: Context) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys, values and the default, as numpy arrays."""
    tables: dict[str, np.ndarray] = {}
    for name in ("keys", "values"):
        tensor, floats, integers = (ctx.attr(f"{name}_{kind}", None) for kind in ("tensor", "floats", "int64s"))
        if tensor is not None:
            tables[name] = np.asarray(tensor)
        elif floats:
            tables[name] = np.asarray(floats, np.float32)
        elif integers:
            tables[name] = np.asarray(integers, np.int64)
        if name not in tables or tables[name].dtype.kind not in "fiu":
            raise ctx.unsupported(f"string {name}")
    values = tables["values"]
    default = ctx.attr("default_tensor", None)
    if default is None:
        default = ctx.attr("default_float", -0.0) if values.dtype.kind == "f" else ctx.attr("default_int64", -1)
    return tables["keys"], values, np.asarray(default, values.dtype).reshape(())


register("Scaler", domain=_DOMAIN)(scaler)
register("Normalizer", domain=_DOMAIN)(normalizer)
register("Binarizer", domain=_DOMAIN)(binarizer)
register("Imputer", domain=_DOMAIN)(imputer)
register("ArrayFeatureExtractor", domain=_DOMAIN)(array_feature_extractor)
register("FeatureVectorizer", domain=_DOMAIN)(feature_vectorizer)
register("OneHotEncoder", domain=_DOMAIN)(one_hot_encoder)
register("LabelEncoder", since=2, domain=_DOMAIN)(label_encoder)
