"""A training step of ResNet-18 on 8 images of 64 × 64: batch normalization of the batch, SGD with momentum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from pfvm.tools.bench.baselines.jax_layers import cross_entropy
from pfvm.tools.bench.baselines.train_steps import Arrays, Batch, JaxStep, TorchStep, step_of
from torch import nn

ROWS, SIZE, CLASSES = 8, 64, 1000
STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))
LR, MOMENTUM = 0.01, 0.9


class Basic(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(inputs, width, 1, stride, bias=False) if stride > 1 else None
        self.bn3 = nn.BatchNorm2d(width) if stride > 1 else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        same = x if self.conv3 is None or self.bn3 is None else self.bn3(self.conv3(x))
        return torch.relu(y + same)


class ResNet18(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        blocks, inputs = [], 64
        for width, stride in STAGES:
            blocks += [Basic(inputs, width, stride), Basic(width, width, 1)]
            inputs = width
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(512, CLASSES)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        x = nn.functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return nn.functional.cross_entropy(self.fc(self.blocks(x).mean((2, 3))), t)


def batch() -> Batch:
    random = np.random.default_rng(0)
    return {"x": random.standard_normal((ROWS, 3, SIZE, SIZE), np.float32), "t": random.integers(0, CLASSES, ROWS)}


def torch_step() -> TorchStep:
    """In PyTorch."""
    model = ResNet18()
    return model, step_of(model, torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM))


def jax_step(weights: Arrays) -> JaxStep:
    """By hand in JAX, N, H, W, C."""
    params = {n: jnp.asarray(_turned(w)) for n, w in weights.items() if n.rpartition(".")[2] in ("weight", "bias")}
    running = {n: jnp.asarray(w) for n, w in weights.items() if "running" in n}

    def step(state: Any, batch: Batch) -> tuple[Any, Any]:
        params, moving, running = state
        (value, running), gradients = jax.value_and_grad(_loss, has_aux=True)(params, running, batch)
        moving = jax.tree.map(lambda m, g: MOMENTUM * m + g, moving, gradients)
        return (jax.tree.map(lambda p, m: p - LR * m, params, moving), moving, running), value

    return step, (params, jax.tree.map(jnp.zeros_like, params), running)


def _turned(weight: np.ndarray) -> np.ndarray:
    """Convolutions in H, W, I, O order, the last layer inputs × outputs."""
    return weight.transpose(2, 3, 1, 0) if weight.ndim == 4 else weight.T if weight.ndim == 2 else weight


def _conv(x: Any, weight: Any, stride: int) -> Any:
    """Patches times the kernel: on a CPU the whole step takes a fifth of the time that it takes with lax's convolution,
    whose code for the gradients of strided ones, and for images smaller than the kernel, is slow."""
    size, _, inputs, outputs = weight.shape
    pad = size // 2
    if inputs < 8:
        pads = [(pad, pad)] * 2
        return lax.conv_general_dilated(x, weight, (stride, stride), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))
    padded = jnp.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    count = (x.shape[1] + 2 * pad - size) // stride + 1
    last = (count - 1) * stride + 1
    views = [padded[:, i : i + last : stride, j : j + last : stride] for i in range(size) for j in range(size)]
    return jnp.concatenate(views, -1) @ weight.reshape(-1, outputs)


def _loss(params: Any, running: Any, batch: Batch) -> Any:
    new: dict[str, Any] = {}

    def conv_bn(x: Any, conv: str, bn: str, stride: int = 1) -> Any:
        weight = params[f"{conv}.weight"]
        x = _conv(x, weight, stride)
        mean, count = x.mean((0, 1, 2)), x.size // x.shape[-1]
        variance = jnp.square(x - mean).mean((0, 1, 2))
        for name, value in (("mean", mean), ("var", variance * np.float32(count / (count - 1)))):
            key = f"{bn}.running_{name}"
            new[key] = 0.9 * running[key] + 0.1 * lax.stop_gradient(value)
        scale = lax.rsqrt(variance + 1e-5) * params[f"{bn}.weight"]
        return (x - mean) * scale + params[f"{bn}.bias"]

    x = jax.nn.relu(conv_bn(jnp.transpose(batch["x"], (0, 2, 3, 1)), "conv1", "bn1", 2))
    low = np.float32(-np.inf)
    x = lax.reduce_window(x, low, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), ((0, 0), (1, 1), (1, 1), (0, 0)))
    for number in range(2 * len(STAGES)):
        name, stride = f"blocks.{number}", STAGES[number // 2][1] if number % 2 == 0 else 1
        y = jax.nn.relu(conv_bn(x, f"{name}.conv1", f"{name}.bn1", stride))
        y = conv_bn(y, f"{name}.conv2", f"{name}.bn2")
        same = conv_bn(x, f"{name}.conv3", f"{name}.bn3", stride) if stride > 1 else x
        x = jax.nn.relu(y + same)
    logits = x.mean((1, 2)) @ params["fc.weight"] + params["fc.bias"]
    return cross_entropy(logits, batch["t"]), new
