"""A program lowered by our own hand is the text that jax writes, and what we do not cover, jax lowers."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs the extra xla")

import jax.numpy as jnp  # noqa: E402
from jax import lax  # noqa: E402
from pfvm.runtime.xla.straight import straight, traced_once  # noqa: E402

X = np.linspace(0.1, 1, 24, dtype=np.float32).reshape(2, 3, 4)
IMAGE = np.linspace(-1, 1, 2 * 6 * 6 * 4, dtype=np.float32).reshape(2, 6, 6, 4)
KERNEL = np.linspace(-1, 1, 3 * 3 * 2 * 8, dtype=np.float32).reshape(3, 3, 2, 8)
CONVOLVED = {"window_strides": (2, 1), "padding": ((1, 0), (1, 1)), "feature_group_count": 2}
PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "arithmetic": (lambda x, y: (x + y, x - y, x * y, x / y, lax.max(x, y), lax.min(x, y)), (X, X[::-1].copy())),
    "functions": (lambda x: (-x, jnp.exp(x), jnp.tanh(x), lax.sqrt(x), lax.rsqrt(x), lax.erf(x)), (X,)),
    "integers": (lambda x: (x + 1, lax.max(x, 3), lax.div(x, 2)), (np.arange(6, dtype=np.int64),)),
    "a literal": (lambda x: lax.max(x, np.float32(0.5)) * 2, (X,)),
    "layouts": (lambda x: lax.broadcast_in_dim(x.reshape(6, 4).T, (5, 4, 6), (1, 2)), (X,)),
    "parts": (lambda x: lax.concatenate([x[:, 1:2], x[:, ::2]], 1), (X,)),
    "squeezed": (lambda x: lax.squeeze(x[:, 1:2], (1,)), (X,)),
    "padded": (lambda x: lax.pad(x, np.float32(2), ((0, 0, 0), (1, -1, 0), (0, 2, 1))), (X,)),
    "product": (lambda x, y: jnp.einsum("bij,bkj->bik", x, y), (X, X + 1)),
    "convolution": (
        lambda x, w: lax.conv_general_dilated(x, w, dimension_numbers=("NHWC", "HWIO", "NHWC"), **CONVOLVED),
        (IMAGE, KERNEL),
    ),
    "left to jax": (lambda x: (jnp.cumsum(x, 1), jnp.sort(x), jnp.where(x > 0.5, x, 0)), (X,)),
    "complex numbers": (lambda x: lax.complex(x, x) * lax.complex(x, -x), (X,)),
    "random keys": (
        lambda x: jax.random.uniform(jax.random.split(jax.random.key(3), 4)[1:2].reshape(()), (3,)) + x,
        (1.0,),
    ),
    "a constant": (lambda x: x + np.arange(4, dtype=np.float32), (X,)),
    "a result that is an operand": (lambda x, y: (y, x, x, 1.5), (X, X + 1)),
    "a loop": (lambda x: lax.fori_loop(0, 3, lambda i, v: v * 2 + i, x), (X,)),
}


def text(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    return re.sub(r"module @\S+", "module", jax.jit(function).lower(*arguments).as_text())


def by_hand(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[..., Any]:
    closed = jax.make_jaxpr(function)(*arguments)
    return lambda *operands: straight(closed, operands)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_text_is_jaxs(name: str) -> None:
    function, arguments = PROGRAMS[name]
    with jax.enable_x64(True):
        ours, theirs = text(by_hand(function, arguments), arguments), text(function, arguments)
    assert re.sub(r" \{jax.result_info = [^}]*\}", "", ours) == re.sub(r" \{jax.result_info = [^}]*\}", "", theirs)


def test_a_function_traced_once_is_one_equation() -> None:
    traces = []

    @traced_once
    def scaled(x: Any, shift: Any, *, factor: float) -> list[Any]:
        traces.append(factor)
        return [x * factor if shift is None else x * factor + shift]

    def twice(x: Any) -> Any:
        (once,) = scaled(x, None, factor=2.0)
        (again,) = scaled(once, None, factor=2.0)
        return scaled(again, x, factor=3.0)[0]

    assert [eqn.primitive.name for eqn in jax.make_jaxpr(twice)(X).eqns] == ["straight"] * 3
    np.testing.assert_allclose(jax.jit(twice)(X), X * 12 + X, rtol=1e-6)
    assert traces == [2.0, 3.0]
