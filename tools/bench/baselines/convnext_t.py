"""ConvNeXt-T by hand in JAX."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from pfvm.tools.bench.baselines.jax_layers import (
    TRANSFORMER_FLAGS,
    Built,
    Random,
    built,
    depthwise,
    gelu,
    image,
    layer_norm,
    linear,
)

_STAGES = [(3, 96), (3, 192), (9, 384), (3, 768)]


def build() -> Built:
    random, stages, inputs = Random(), [], 96
    stem = random.linear(4 * 4 * 3, 96), _norm(random, 96)
    for count, width in _STAGES:
        halve = None if width == inputs else (_norm(random, inputs), random.linear(2 * 2 * inputs, width))
        stages.append((halve, [_block(random, width) for _ in range(count)]))
        inputs = width
    params = {"stem": stem, "stages": stages, "norm": _norm(random, 768), "head": random.linear(768, 1000)}
    return built(_net, params, image(), TRANSFORMER_FLAGS)


def _norm(random: Random, width: int) -> tuple[Any, Any]:
    return random.vector(width, 1.0), random.vector(width)


def _block(random: Random, width: int) -> dict[str, Any]:
    """The layer's scale is part of `down`, as a compiler would fold it."""
    return {
        "spatial": random.conv(width, width, 7, width),
        "norm": _norm(random, width),
        "up": random.linear(width, 4 * width),
        "down": random.linear(4 * width, width),
    }


def _patches(x: Any, size: int) -> Any:
    """H × W × C cut into tiles of size × size, as rows of a product."""
    h, w, c = (x.shape[0] // size, x.shape[1] // size, x.shape[2])
    return x.reshape(h, size, w, size, c).transpose(0, 2, 1, 3, 4).reshape(h, w, size * size * c)


def _net(params: Any, x: Any) -> Any:
    weights, norm = params["stem"]
    x = layer_norm(linear(_patches(x[0].transpose(1, 2, 0), 4), weights), norm)
    for halve, blocks in params["stages"]:
        if halve is not None:
            x = linear(_patches(layer_norm(x, halve[0]), 2), halve[1])
        for each in blocks:
            y = layer_norm(depthwise(x[None], each["spatial"])[0], each["norm"])
            x = x + linear(gelu(linear(y, each["up"])), each["down"])
    return linear(layer_norm(jnp.mean(x, (0, 1))[None], params["norm"]), params["head"])
