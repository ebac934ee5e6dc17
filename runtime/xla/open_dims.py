"""Dimensions that stay open in an exported program: jax's symbols, as elements of arrays that hold shapes.

Such an array is a numpy array of Python objects. What only hands sizes on (Gather, Concat, Mul, …) computes with it as
with any other, and where a tensor of numbers is needed, the program computes the sizes when it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

OPEN = "any platform"
"""What rules write for (see `platforms.lowering_for`) where they cannot choose by sizes, which are not known."""


def sizes(shape: Sequence[Any]) -> np.ndarray:
    """A shape as int64, or as objects where a dimension is open."""
    fixed = all(isinstance(dim, (int, np.integer)) for dim in shape)
    return np.asarray(shape, np.int64 if fixed else object)


def is_open(operand: Any) -> bool:
    """Is this an array of sizes of which some are open?"""
    return isinstance(operand, np.ndarray) and operand.dtype == object


def traced(operand: Any) -> Any:
    """An array of sizes as int64 that the program computes."""
    if not is_open(operand):
        return operand
    elements = [jnp.asarray(dim).astype(jnp.int64) for dim in operand.reshape(-1)]
    return jnp.stack(elements).reshape(operand.shape) if elements else jnp.zeros(operand.shape, jnp.int64)
