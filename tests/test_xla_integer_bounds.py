"""Integers that a check lets pass by their smallest and largest alone are integers that it finds nothing wrong with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from pfvm.runtime.xla.integer_bounds import sizes_without_finding  # noqa: E402
from pfvm.runtime.xla.integer_steps import in_numpy  # noqa: E402


def wrong(indices: Any, size: int, lowest: int, number: int = 1) -> Any:
    """As `RangeChecks.expect` has it."""
    low, high = jnp.min(indices), jnp.max(indices)
    found = jnp.where((low < lowest) | (high >= size), number, 0)
    return jnp.stack([found, jnp.where(high >= size, high, low)]).astype(jnp.int64)


def first(*findings: Any) -> Any:
    found = jnp.zeros(2, jnp.int64)
    for finding in findings:
        found = jnp.where(found[0] != 0, found, finding)
    return found


def ignoring(t: Any) -> Any:
    wide = t.astype(jnp.int64)
    return jnp.where(wide == -100, wide - wide, wide)


Check = tuple[Callable[..., Any], list[np.dtype], list[int] | None]
I32, I64, U8 = np.dtype(np.int32), np.dtype(np.int64), np.dtype(np.uint8)
CHECKS: dict[str, Check] = {
    "labels": (lambda t: first(wrong(ignoring(t), 6, -6)), [I64], [6]),
    "narrow labels": (lambda t: first(wrong(ignoring(t), 6, -6)), [I32], [6]),
    "bytes": (lambda t: first(wrong(t.astype(jnp.int64), 6, 0)), [U8], [6]),
    "tokens and labels": (lambda x, t: first(wrong(x, 9, 0), wrong(ignoring(t), 5, 0, 2)), [I64, I64], [9, 5]),
    "one for two tables": (lambda x: first(wrong(x, 9, 0), wrong(x, 5, 0, 2)), [I64], [5]),
    "a difference": (lambda x: first(wrong(x - 1, 5, 0)), [I64], None),
    "a sum": (lambda x: first(wrong(x + x, 5, 0)), [I64], None),
    "parts": (lambda x: first(wrong(jnp.stack([x[:2], x[1:]]).reshape(4), 5, 0)), [I64], [5]),
    "bounded": (lambda x: first(wrong(jnp.minimum(jnp.maximum(x, 0), 4), 5, 0)), [I64], [5]),
    "above": (lambda x: first(wrong(x, 5, 2)), [I64], None),
}


def programs(check: Check) -> tuple[Any, Any]:
    function, dtypes, _ = check
    with jax.enable_x64(True):
        closed = jax.make_jaxpr(function)(*(np.zeros(3, d) for d in dtypes))
        return in_numpy(closed), jax.jit(function)


@pytest.mark.parametrize("check", CHECKS.values(), ids=list(CHECKS))
def test_what_passes_has_no_finding(check: Check) -> None:
    program, exact = programs(check)
    sizes = sizes_without_finding(program.steps, program.values, program.result, program.arguments)
    assert sizes == check[2]
    random = np.random.default_rng(0)
    for _ in range(50):
        given = [random.integers(0, 11, 3).astype(d) for d in check[1]]
        with jax.enable_x64(True):
            found = np.asarray(exact(*given))
        np.testing.assert_array_equal(program(given), found)
        passes = sizes is not None and all(x.max() < n for x, n in zip(given, sizes))
        assert not (passes and found[0])
