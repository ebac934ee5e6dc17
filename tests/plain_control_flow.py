"""torch.cond, while_loop and scan as Python says them: what torch's documentation promises, without its compiler."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
import torch.utils._pytree as pytree
from torch._higher_order_ops import utils

_SCAN = importlib.import_module("torch._higher_order_ops.scan")


def _call(fn: Any, args: Any, kwargs: Any = None) -> Any:
    first, second, carried, *_ = args
    if fn.__name__ == "_cond_op_wrapper":
        # Both run: torch gives the weights of the one that is not taken a gradient of zeros.
        return pytree.tree_map(lambda a, b: torch.where(first.reshape(()), a, b), second(*args[3]), carried(*args[3]))
    structure = None
    while first(*carried):
        carried, structure = pytree.tree_flatten(second(*carried))
    return tuple(carried) if structure is None else pytree.tree_unflatten(carried, structure)


def _scan(fn: Any, step: Any, init: Any, xs: Any) -> Any:
    carry, outputs = list(init), []
    for i in range(xs[0].shape[0]):
        result, output = step(*carry, *(x[i] for x in xs))
        carry, structure = pytree.tree_flatten(result)
        outputs.append(pytree.tree_flatten(output))
    stacked = [torch.stack(each) for each in zip(*(leaves for leaves, _ in outputs))]
    return pytree.tree_unflatten(carry, structure), pytree.tree_unflatten(stacked, outputs[0][1])


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Within the block, they run as Python. PyTorch's own way compiles each for seconds, and refuses some forms."""
    with (
        mock.patch.object(utils, "_hop_compile_and_call", _call),
        mock.patch.object(_SCAN, "_maybe_compile_and_run_fn", _scan),
    ):
        yield
