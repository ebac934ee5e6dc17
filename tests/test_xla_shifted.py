"""A depthwise convolution is one equation to jax, and whatever jax makes of a program, it can make of that."""

from __future__ import annotations

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="needs the extra xla")

from jax import lax  # noqa: E402
from pfvm.runtime.xla.ops.conv_shifted import shifted_convolution  # noqa: E402
from pfvm.runtime.xla.ops.windows import Window  # noqa: E402

WINDOW = Window((3, 5), (2, 1), (1, 2), ((1, 2), (4, 3)))
_rng = np.random.default_rng(0)
X = _rng.standard_normal((2, 9, 12, 6)).astype(np.float32)
W = _rng.standard_normal((3, 5, 1, 6)).astype(np.float32)


def written(x: np.ndarray, w: np.ndarray) -> jax.Array:
    return shifted_convolution(x, w, WINDOW, 6)


def plain(x: np.ndarray, w: np.ndarray) -> jax.Array:
    return lax.conv_general_dilated(
        x,
        w,
        WINDOW.strides,
        WINDOW.pads,
        rhs_dilation=WINDOW.dilations,
        feature_group_count=6,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )


def test_it_is_one_equation_after_the_padding() -> None:
    assert [eqn.primitive.name for eqn in jax.make_jaxpr(written)(X, W).eqns] == ["pad", "depthwise_convolution"]


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["called", "compiled"])
def test_it_computes_the_convolution(run: object) -> None:
    np.testing.assert_allclose(run(written)(X, W), plain(X, W), rtol=1e-5, atol=1e-5)  # type: ignore[operator]


def test_its_derivative_is_the_convolutions() -> None:
    def both(f: object) -> tuple[np.ndarray, np.ndarray]:
        return jax.jit(jax.grad(lambda x, w: (f(x, w) ** 2).sum(), (0, 1)))(X, W)  # type: ignore[operator]

    for ours, theirs in zip(both(written), both(plain)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-3)


def test_it_runs_over_a_batch_of_kernels() -> None:
    kernels = np.stack([W, -2 * W])
    ours = jax.vmap(written, (None, 0))(X, kernels)
    np.testing.assert_allclose(ours, np.stack([plain(X, w) for w in kernels]), rtol=1e-5, atol=1e-5)
