"""The yardstick nets in JAX compute what the PyTorch modules beside them compute, given the same weights."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
jnp = pytest.importorskip("jax.numpy")

from pfvm.tools.bench.baselines import jax_layers, torch_nets  # noqa: E402

Arrays = Iterator[np.ndarray]


def conv(layers: Any) -> Arrays:
    """The kernel in H, W, I, O order and the bias, normalization folded in."""
    convolution, norm = layers[0], layers[1]
    factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    yield (convolution.weight * factor.reshape(-1, 1, 1, 1)).permute(2, 3, 1, 0).numpy()
    yield (norm.bias - norm.running_mean * factor).numpy()


def linear(*layers: Any) -> Arrays:
    """The weights side by side, then the biases, where there are any."""
    yield np.concatenate([layer.weight.numpy().T for layer in layers], 1)
    if layers[0].bias is not None:
        yield np.concatenate([layer.bias.numpy() for layer in layers])


def norm(layer: Any) -> Arrays:
    yield from (parameter.numpy() for parameter in layer.parameters())


def resnet50(net: Any) -> Arrays:
    yield from conv(net[0])
    for block in net[2:-3]:
        if len(list(block.shortcut.children())):
            yield from conv(block.shortcut)
        for each in block.body:
            yield from conv(each)
    yield from linear(net[-1])


def mobilenet_v2(net: Any) -> Arrays:
    yield from conv(net[0])
    for block in net[1:-4]:
        for each in block.body:
            yield from conv(each)
    yield from conv(net[-4])
    yield from linear(net[-1])


def block(block: torch_nets.Block) -> Arrays:
    attention = block.attention
    yield from linear(attention.q, attention.k, attention.v)
    for each in (attention.o, block.up, block.down):
        yield from linear(each)
    yield from norm(block.norm1)
    yield from norm(block.norm2)


def bert(net: torch_nets.Bert) -> Arrays:
    yield from (net.words.weight.numpy(), net.positions.numpy())
    yield from norm(net.norm)
    for each in net.blocks:
        yield from block(each)


def vit(net: torch_nets.ViT) -> Arrays:
    yield net.patches.weight.reshape(torch_nets.WIDTH, -1).T.numpy()
    yield from (net.patches.bias.numpy(), net.token[0].numpy(), net.positions[0].numpy())
    for each in net.blocks:
        yield from block(each)
    yield from norm(net.norm)
    yield from linear(net.head)


def llama6(net: torch_nets.Llama) -> Arrays:
    for each in net.blocks:
        attention = each.attention
        yield from linear(attention.q, attention.k, attention.v)
        yield from linear(attention.o)
        yield from linear(each.gate, each.up)
        yield from linear(each.down)
        yield from norm(each.norm1)
        yield from norm(each.norm2)
    yield net.words.weight.numpy()
    yield from norm(net.norm)


def patches(layer: Any) -> Arrays:
    """A convolution of tiles as the matrix of a product of patches."""
    yield layer.weight.permute(2, 3, 1, 0).reshape(-1, layer.out_channels).numpy()
    yield layer.bias.numpy()


def convnext_t(net: Any) -> Arrays:
    yield from patches(net[0])
    yield from norm(net[1])
    for each in net[2:-4]:
        if isinstance(each, torch.nn.Conv2d):
            yield from patches(each)
        elif isinstance(each, torch_nets.ChannelNorm):
            yield from norm(each)
        else:
            yield from (each.spatial.weight.permute(2, 3, 1, 0).numpy(), each.spatial.bias.numpy())
            yield from norm(each.norm)
            yield from linear(each.up)
            yield from (array * each.scale.numpy() for array in linear(each.down))
    yield from norm(net[-3])
    yield from linear(net[-1])


WEIGHTS = {
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "bert": bert,
    "vit": vit,
    "llama6": llama6,
    "convnext_t": convnext_t,
}


class Given(jax_layers.Random):
    """Hands out given weights in the order in which the net asks for them."""

    def __init__(self, arrays: Arrays) -> None:
        self._arrays = arrays

    def weight(self, *shape: int, gain: float = 1.0) -> Any:
        array = next(self._arrays)
        assert array.shape == shape
        return jnp.asarray(array)

    def vector(self, size: int, value: float = 0.0) -> Any:
        return self.weight(size)


@pytest.mark.slow
@pytest.mark.parametrize("name", WEIGHTS)
def test_the_net_in_jax_equals_the_module(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = torch_nets.make(name)
    with torch.no_grad():
        arrays = WEIGHTS[name](module)
        baseline = importlib.import_module(f"pfvm.tools.bench.baselines.{name}")
        monkeypatch.setattr(baseline, "Random", lambda: Given(arrays))
        fn, params, example = baseline.build()
        assert next(arrays, None) is None
        expected = module(x).numpy()
    actual = fn(params, x.numpy().astype(example.dtype))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
