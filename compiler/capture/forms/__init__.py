"""Functions of torch that have no form as a graph, written so that they have one: one family a file.

A form takes the arguments of the function and is differentiable by the ops that it is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import activation, batch_norm, create, embedding, index, loss, matrices, pool, sampling

FORMS: dict[Any, Callable[..., Any]] = {
    **activation.FORMS,
    **batch_norm.FORMS,
    **create.FORMS,
    **embedding.FORMS,
    **index.FORMS,
    **loss.FORMS,
    **matrices.FORMS,
    **pool.FORMS,
    **sampling.FORMS,
}
