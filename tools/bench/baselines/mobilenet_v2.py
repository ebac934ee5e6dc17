"""MobileNetV2 by hand in JAX."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from pfvm.tools.bench.baselines.jax_layers import (
    CONVOLUTION_FLAGS,
    Built,
    Random,
    built,
    conv,
    depthwise,
    image,
    linear,
)

# expansion, output channels, blocks, stride of the first
_STAGES = [(1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1)]


def build() -> Built:
    random, blocks, inputs = Random(), [], 32
    stem = random.conv(3, 32, 3)
    for expand, outputs, count, _ in _STAGES:
        for _ in range(count):
            hidden = inputs * expand
            widen = random.conv(inputs, hidden, 1) if expand > 1 else None
            blocks.append((widen, random.conv(hidden, hidden, 3, hidden), random.conv(hidden, outputs, 1)))
            inputs = outputs
    params = {"stem": stem, "blocks": blocks, "last": random.conv(320, 1280, 1), "head": random.linear(1280, 1000)}
    return built(_net, params, image(), CONVOLUTION_FLAGS)


def _relu6(x: Any) -> Any:
    return jnp.clip(x, 0, 6)


def _net(params: Any, x: Any) -> Any:
    x = _relu6(conv(jnp.transpose(x, (0, 2, 3, 1)), params["stem"], 2))
    strides = [stride if i == 0 else 1 for _, _, count, stride in _STAGES for i in range(count)]
    for stride, (widen, spatial, narrow) in zip(strides, params["blocks"]):
        y = x if widen is None else _relu6(conv(x, widen))
        y = conv(_relu6(depthwise(y, spatial, stride)), narrow)
        x = x + y if y.shape == x.shape else y
    return linear(_relu6(conv(x, params["last"])).mean((1, 2)), params["head"])
