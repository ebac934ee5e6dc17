"""A check's small program gives in numpy what it gives in XLA, or is left to XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
from pfvm.runtime.xla.integer_steps import in_numpy  # noqa: E402


def finding(labels: Any) -> Any:
    """As a loss with an ignored label and two rows of classes is checked."""
    rows = labels.astype(jnp.int64)[:, None]
    kept = jnp.where(rows == -100, rows - rows, rows)
    low, high = jnp.min(kept), jnp.max(kept)
    number = jnp.where((low < -4) | (high >= 4), 1, 0)
    found = jnp.stack([number, jnp.where(high >= 4, high, low)]).astype(jnp.int64)
    return jnp.where(jnp.zeros(2, jnp.int64)[0] != 0, jnp.zeros(2, jnp.int64), found)


PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "a finding": finding,
    "overflow": lambda x: x * x + x - 100,
    "narrow": lambda x: x.astype(jnp.int8) < x.astype(jnp.int8)[::2].max(),
    "parts": lambda x: jnp.concatenate([x[1:3], jnp.maximum(x, 2)[:2]]).reshape(2, 2).min(0),
    "spread": lambda x: jnp.broadcast_to(x[:, None], (5, 3)) >= jnp.minimum(x[0], 3),
    "rows": lambda x: jnp.stack([x, x * 2], 1)[:, 1],
}


@pytest.mark.parametrize("function", PROGRAMS.values(), ids=list(PROGRAMS))
@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8])
def test_numpy_gives_what_xla_gives(function: Callable[[Any], Any], dtype: Any) -> None:
    with jax.enable_x64(True):
        run = in_numpy(jax.make_jaxpr(function)(np.zeros(5, dtype)))
        assert run is not None
        for labels in ([0, 1, 2, 3, 0], [0, 7, 1, 2, 3], [156, 3, 200, 99, 0], [1, 2, 3, 4, 5]):
            given = np.array(labels, np.int64).astype(dtype)
            np.testing.assert_array_equal(run([given]), np.asarray(jax.jit(function)(given)))


def test_ignored_labels_and_negative_ones() -> None:
    with jax.enable_x64(True):
        run = in_numpy(jax.make_jaxpr(finding)(np.zeros(3, np.int64)))
    assert run is not None
    assert [list(run([np.array(x)])) for x in ([0, -100, 3], [-4, 1, 2], [-5, 1, 2], [0, 1, 4])] == [
        [0, 0],
        [0, -4],
        [1, -5],
        [1, 4],
    ]


@pytest.mark.parametrize(
    ("function", "shape"),
    [(lambda x: jnp.sin(x), (3,)), (lambda x: jnp.argmax(x), (3,)), (lambda x: x + 1, (1 << 14,)), (jnp.sum, ())],
    ids=["floats", "argmax", "large", "single numbers"],
)
def test_the_rest_is_left_to_xla(function: Callable[[Any], Any], shape: tuple[int, ...]) -> None:
    with jax.enable_x64(True):
        program = jax.make_jaxpr(lambda x: function(x) * 2)(np.zeros(shape, np.int64))
        assert in_numpy(program) is None
