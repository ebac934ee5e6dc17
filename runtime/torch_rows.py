"""Data of an epoch: nested tensors whose first axis counts rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from pfvm.compiler.capture.export import Exported
from pfvm.compiler.capture.random import seed_state
from pfvm.compiler.capture.structure import arguments
from pfvm.errors import InputError

from .torch_state import as_array


def first_rows(data: Any, count: int) -> tuple[Any, int]:
    """The first `count` rows as a batch, and the number of all rows. Raises InputError."""
    sizes: dict[str, int] = {}
    for path, leaf in pytree.tree_flatten_with_path(data)[0]:
        if _has_rows(leaf):
            name = pytree.keystr(path) or "data"
            if leaf.ndim == 0:
                raise InputError(f"data {name} is a single number; its first axis should count the rows")
            sizes[name] = len(leaf)
    if not sizes:
        raise InputError("the data of an epoch holds no tensor")
    (first, rows), *others = sizes.items()
    for name, size in others:
        if size != rows:
            raise InputError(f"data {name} has {size} rows, and {first} has {rows}; they belong together row by row")
    if rows < count:
        raise InputError(f"the data has {rows} rows, fewer than one batch of {count}")
    return pytree.tree_map(lambda leaf: leaf[:count] if _has_rows(leaf) else leaf, data), rows


def all_rows(step: Exported, data: Any) -> dict[str, np.ndarray[Any, Any]]:
    """All rows by the names of the step's inputs."""
    leaves = step.inputs.unpack(arguments(data), step.argument_names)
    return {name: np.asarray(as_array(name, leaf)) for name, leaf in leaves.items()}


def new_seed() -> torch.Tensor:
    """As a step with dropout draws its own, from torch's default generator."""
    place = seed_state().place
    assert place is not None
    seed: torch.Tensor = place.get()
    return seed


def _has_rows(leaf: Any) -> bool:
    return isinstance(leaf, (torch.Tensor, np.ndarray))
