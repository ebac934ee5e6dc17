"""Where several steps run in one program, each step's batch is split over the mesh, not only what comes from outside.

The rows that an epoch's step takes are computed inside, from data that is whole on every device: without a hint every
device would compute all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec
from pfvm.compiler.mesh import DATA

Hint = Callable[[Any], Any]
_hint: ContextVar[Hint | None] = ContextVar("hint for a step's batch", default=None)


@contextmanager
def hinting(mesh: jax.sharding.Mesh) -> Iterator[None]:
    """While a program of several steps is traced for a mesh."""
    size = mesh.shape.get(DATA, 1)
    sharding = NamedSharding(mesh, PartitionSpec(DATA)) if size > 1 else None

    def hint(x: Any) -> Any:
        fits = isinstance(x, jax.Array) and x.ndim and x.shape[0] % size == 0
        return jax.lax.with_sharding_constraint(x, sharding) if fits else x

    token = _hint.set(None if sharding is None else hint)
    try:
        yield
    finally:
        _hint.reset(token)


def as_batch(x: Any) -> Any:
    """What one step takes of a scanned input: split along its first dimension, where the program is one of steps."""
    hint = _hint.get()
    return x if hint is None else hint(x)
