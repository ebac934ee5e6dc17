"""Where random numbers come from: a seed, or entropy that is a hidden argument of the program.

So no program calls back into Python for its numbers: it can be kept on disk, and runs on any platform.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

# Named, so that a seed's numbers do not depend on the configuration of the user's jax.
_GENERATOR = "threefry2x32"
_WORDS = 2

ENTROPY = jax.ShapeDtypeStruct((_WORDS,), np.uint32)


def fresh_entropy() -> np.ndarray:
    """New entropy from the operating system, uint32[2]: one for each call of a program."""
    return np.frombuffer(os.urandom(4 * _WORDS), np.uint32)


def seeded_key(seed: float, iterations: Sequence[Any]) -> jax.Array:
    """The key of a node with a `seed` attribute: every call and every process gives the same numbers.

    The standard's seed is that of a generator, which a loop does not start anew: every iteration draws other numbers,
    as in ONNX Runtime. `iterations`: the numbers of the iterations that the node is in, traced or not.
    """
    return _folded(jax.random.key(int(np.float32(seed).view(np.uint32)), impl=_GENERATOR), iterations)


def _folded(key: jax.Array, numbers: Iterable[Any]) -> jax.Array:
    for number in numbers:
        key = jax.random.fold_in(key, number)
    return key


class Keys:
    """The keys of one trace: another one for every node that is evaluated, and for every iteration around it."""

    def __init__(self, entropy: Any) -> None:
        """entropy: the traced argument, uint32[2]."""
        self._entropy = entropy
        self._count = itertools.count()

    def next(self, iterations: Sequence[Any]) -> jax.Array:
        """A key for one evaluation. `iterations`: the numbers of the iterations that it is in, traced or not."""
        key = jax.random.wrap_key_data(self._entropy, impl=_GENERATOR)
        return _folded(key, (next(self._count), *iterations))
