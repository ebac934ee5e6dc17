"""ResNet-50 by hand in JAX."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from pfvm.tools.bench.baselines.jax_layers import CONVOLUTION_FLAGS, Built, Random, built, conv, image, linear

_STAGES = [(3, 64), (4, 128), (6, 256), (3, 512)]


def build() -> Built:
    random, blocks, inputs = Random(), [], 64
    stem = random.conv(3, 64, 7)
    for count, width in _STAGES:
        for i in range(count):
            shortcut = random.conv(inputs, 4 * width, 1) if i == 0 else None
            body = random.conv(inputs, width, 1), random.conv(width, width, 3), random.conv(width, 4 * width, 1)
            blocks.append((body, shortcut))
            inputs = 4 * width
    params = {"stem": stem, "blocks": blocks, "head": random.linear(2048, 1000)}
    return built(_net, params, image(), CONVOLUTION_FLAGS)


def _net(params: Any, x: Any) -> Any:
    x = jax.nn.relu(conv(jnp.transpose(x, (0, 2, 3, 1)), params["stem"], 2))
    pads = ((0, 0), (1, 1), (1, 1), (0, 0))
    x = lax.reduce_window(x, np.float32(-np.inf), lax.max, (1, 3, 3, 1), (1, 2, 2, 1), pads)
    for i, ((reduce, spatial, expand), shortcut) in enumerate(params["blocks"]):
        stride = 2 if i in (3, 7, 13) else 1
        y = jax.nn.relu(conv(x, reduce))
        y = conv(jax.nn.relu(conv(y, spatial, stride)), expand)
        x = jax.nn.relu(y + (x if shortcut is None else conv(x, shortcut, stride)))
    return linear(x.mean((1, 2)), params["head"])
