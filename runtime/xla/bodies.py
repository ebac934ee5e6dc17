"""What the rules of If, Loop and Scan share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.errors import InvalidModelError

from .context import Context, DataDependentShapeError

# Loops are written out in full where something in them must be known at compile time, up to this many iterations, or
# more while the nodes of all iterations together stay below the second bound (tracing takes about 0.2 ms a node).
_UNROLLED_ITERATIONS = 64
_UNROLLED_NODES = 4096


CANNOT_EXPRESS = "cannot be expressed in XLA, data-dependent shape: "


class ShapeChanges(Exception):
    """A carried value has another shape after an iteration than before: no lax loop can carry it."""

    def __init__(self, name: str | None, before: Sequence[int], after: Sequence[int]) -> None:
        super().__init__(name)
        self.why = f"carried value {name!r} is {list(before)} before an iteration and {list(after)} after it"


def arrays(values: Sequence[Any]) -> list[jax.Array]:
    """Values as jax arrays of the same dtypes: what lax control flow carries and returns."""
    return [jnp.asarray(value) for value in values]


def data_dependent(ctx: Context, why: str) -> DataDependentShapeError:
    """The error for what has no fixed shape."""
    message = f"{ctx.where} {CANNOT_EXPRESS}{why}; use pfvm:cpu"
    return DataDependentShapeError(message, ctx.node)


def check_dtypes(ctx: Context, names: Sequence[ir.Value], before: Sequence[Any], after: Sequence[Any]) -> None:
    """Raises InvalidModelError where a carried value has another dtype after an iteration."""
    for value, old, new in zip(names, before, after, strict=True):
        if old.dtype != new.dtype:
            raise InvalidModelError(
                f"{ctx.where}: carried value {value.name!r} is {old.dtype} before an iteration and {new.dtype} after it"
            )


def check_types(ctx: Context, names: Sequence[ir.Value], before: Sequence[Any], after: Sequence[Any]) -> None:
    """`check_dtypes`, and raises ShapeChanges where a carried value has another shape."""
    check_dtypes(ctx, names, before, after)
    for value, old, new in zip(names, before, after, strict=True):
        if old.shape != new.shape:
            raise ShapeChanges(value.name, old.shape, new.shape)


def check_counts(ctx: Context, body: ir.Graph, given: int, needed_outputs: int) -> None:
    """Raises InvalidModelError where the body's interface does not fit the node."""
    if len(body.inputs) != given or len(body.outputs) < needed_outputs:
        raise InvalidModelError(
            f"{ctx.where}: its body has {len(body.inputs)} inputs and {len(body.outputs)} outputs, "
            f"the node gives it {given} and needs at least {needed_outputs}"
        )


def may_unroll(body: ir.Graph, iterations: int) -> bool:
    return iterations <= _UNROLLED_ITERATIONS or iterations * sum(1 for _ in body.all_nodes()) <= _UNROLLED_NODES


def stack(ctx: Context, name: str | None, items: Sequence[Any]) -> Any:
    """The values of one scan output, one an iteration (at least one), stacked along a new axis 0."""
    shapes = {item.shape for item in items}
    if len(shapes) > 1:
        raise InvalidModelError(
            f"{ctx.where}: scan output {name!r} has shape {list(items[0].shape)} in one iteration "
            f"and {list(next(s for s in shapes if s != items[0].shape))} in another"
        )
    if all(isinstance(item, np.ndarray) for item in items):
        return np.stack(items)
    return jnp.stack(items)
