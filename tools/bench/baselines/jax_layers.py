"""What the yardstick nets in JAX share. Convolution nets are N, H, W, C; normalization after a convolution is folded
into one multiplication and addition per channel, which XLA fuses with the activation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

# XLA's own convolutions, products and reductions: the kernel library's are slower in convolution nets.
CONVOLUTION_FLAGS = {"xla_cpu_experimental_ynn_fusion_type": ""}
# XLA's own products, 1.15 times faster than the library's (weights inputs × outputs), but the library's reductions.
TRANSFORMER_FLAGS = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_REDUCE"}
Built = tuple[Callable[[Any, Any], Any], Any, Any]


class Random:
    """Random weights of the size that keeps activations at their scale, in the order in which they are asked for."""

    def __init__(self) -> None:
        self._generator = np.random.default_rng(0)

    def weight(self, *shape: int, gain: float = 1.0) -> jax.Array:
        fan_in = int(np.prod(shape[:-1]))
        return jnp.asarray(self._generator.standard_normal(shape, np.float32) * np.float32(np.sqrt(gain / fan_in)))

    def vector(self, size: int, value: float = 0.0) -> jax.Array:
        return jnp.full((size,), value, jnp.float32)

    def conv(self, inputs: int, outputs: int, kernel: int, groups: int = 1) -> tuple[jax.Array, jax.Array]:
        return self.weight(kernel, kernel, inputs // groups, outputs, gain=2.0), self.vector(outputs)

    def linear(self, inputs: int, outputs: int) -> tuple[jax.Array, jax.Array]:
        return self.weight(inputs, outputs), self.vector(outputs)


def built(net: Callable[..., Any], params: Any, x: Any, options: dict[str, Any] | None = None) -> Built:
    """(fn, params, inputs) with the net compiled ahead of time: inputs are numpy, as a caller has them."""
    params = jax.device_put(params)
    compiled = jax.jit(net).lower(params, x).compile(compiler_options=options)
    return lambda params, inputs: np.asarray(compiled(params, inputs)), params, x


def image() -> np.ndarray:
    """The model's input in the order that the ONNX files have, 1 × 3 × 224 × 224."""
    return np.random.default_rng(0).standard_normal((1, 3, 224, 224), np.float32)


def token_ids() -> np.ndarray:
    """1 × 128, int32."""
    return np.random.default_rng(0).integers(0, 30522, (1, 128), np.int32)


def cross_entropy(logits: Any, t: Any) -> Any:
    """The mean over rows. The sum with a one-hot mask has a gradient without a scatter."""
    rows = jax.nn.one_hot(t, logits.shape[-1], dtype=logits.dtype)
    return -jnp.mean(jnp.sum(jax.nn.log_softmax(logits) * rows, -1))


def conv(x: Any, parameters: Sequence[Any], stride: int = 1) -> Any:
    weight, bias = parameters
    pad = weight.shape[0] // 2
    y = lax.conv_general_dilated(
        x, weight, (stride, stride), [(pad, pad)] * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y + bias


def winograd_weights(parameters: Sequence[Any]) -> tuple[jax.Array, jax.Array]:
    """The 3 × 3 kernels of `conv` as the 16 matrices that `winograd` multiplies with."""
    transform = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)
    weight, bias = parameters
    tiles = np.einsum("ai,bj,ijck->abck", transform, transform, np.asarray(weight))
    return jnp.asarray(tiles.reshape(16, *weight.shape[2:])), bias


def winograd(x: Any, parameters: Sequence[Any]) -> Any:
    """A 3 × 3 convolution of one image of even size by Winograd's F(2 × 2, 3 × 3): 16 products for each 2 × 2 outputs
    instead of 36, with transforms that only add. As exact as the sum itself in float32."""
    weights, bias = parameters
    _, h, w, c = x.shape
    padded = jnp.pad(x[0], ((1, 1), (1, 1), (0, 0)))
    rows = _to_tiles([padded[i : i + h - 1 : 2] for i in range(4)])
    tiles = [tile for row in rows for tile in _to_tiles([row[:, j : j + w - 1 : 2] for j in range(4)])]
    products = jnp.einsum("tpc,tck->tpk", jnp.stack(tiles).reshape(16, h * w // 4, c), weights)
    rows = _from_tiles(products.reshape(4, 4, h // 2, w // 2, -1))
    y = jnp.stack([jnp.stack(_from_tiles(row), 2) for row in rows], 1)
    return y.reshape(1, h, w, -1) + bias


def _to_tiles(x: Sequence[Any]) -> list[Any]:
    return [x[0] - x[2], x[1] + x[2], x[2] - x[1], x[1] - x[3]]


def _from_tiles(x: Any) -> list[Any]:
    return [x[0] + x[1] + x[2], x[1] - x[2] - x[3]]


def depthwise(x: Any, parameters: Sequence[Any], stride: int = 1) -> Any:
    """A sum of shifted products: XLA's own is 10 times slower."""
    weight, bias = parameters
    kernel = weight.shape[0]
    pad = kernel // 2
    n, h, w, c = x.shape
    rows, columns = ((size - 1) // stride + 1 for size in (h, w))
    padded = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    total: Any = bias
    for i in range(kernel):
        for j in range(kernel):
            end = (n, i + (rows - 1) * stride + 1, j + (columns - 1) * stride + 1, c)
            total = total + lax.slice(padded, (0, i, j, 0), end, (1, stride, stride, 1)) * weight[i, j, 0]
    return total


def linear(x: Any, parameters: Sequence[Any]) -> Any:
    return x @ parameters[0] + parameters[1]


def layer_norm(x: Any, parameters: Sequence[Any]) -> Any:
    mean = x.mean(-1, keepdims=True)
    centred = x - mean
    return centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5) * parameters[0] + parameters[1]


def gelu(x: Any) -> Any:
    """With erf, as ONNX has it; jax.nn.gelu's erfc takes longer."""
    return 0.5 * x * (1 + lax.erf(x * np.float32(0.5**0.5)))


def attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Operands and result are sequence × heads × size. Both products are faster when the heads come first."""
    q, k, v = (jnp.swapaxes(each, 0, 1) for each in (q * np.float32(q.shape[-1] ** -0.5), k, v))
    scores = jnp.einsum("hqd,hkd->hqk", q, k)
    scores = scores if mask is None else scores + mask
    return jnp.swapaxes(jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(scores, -1), v), 0, 1)
