"""ResNet-50, BERT and VGG-19 by hand in JAX as programs for a TPU: arguments are types, there are no weights.

Each net has forms that compute the same, what its author might choose between; the yardstick is the one of fewest
cycles. Batch normalization is folded into weights and bias. In bfloat16 everything is, arguments and results too, but
normalizations, softmax and losses, which are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax import lax
from pfvm.runtime.xla.compiled import Lowered
from pfvm.tools.bench.baselines.jax_layers import Random, cross_entropy, linear
from pfvm.tools.bench.baselines.transformer import HEADS, LAYERS, VOCABULARY, WIDTH, layer, norm

LENGTH, SIZE = 128, 224  # of a text, of an image
_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
_VGG = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0)
_ORDERS = {"NHWC": ("NHWC", "HWIO", "NHWC"), "NCHW": ("NCHW", "OIHW", "NCHW")}
Form = tuple[Callable[..., Any], tuple[Any, ...]]  # the function, and its arguments' types


class Types(Random):
    """The types of weights, in place of random ones."""

    def __init__(self, dtype: Any) -> None:
        self.dtype = dtype

    def weight(self, *shape: int, gain: float = 1.0) -> Any:
        return jax.ShapeDtypeStruct(shape, self.dtype)

    def vector(self, size: int, value: float = 0.0) -> Any:
        return self.weight(size)


def lowered(form: Form) -> Lowered:
    """A form as `tpu_compiler.compile_for` takes it."""
    function, arguments = form
    leaves, tree = jax.tree.flatten(arguments)

    def flat(*given: Any) -> Any:
        return function(*jax.tree.unflatten(tree, given))

    exported = jax.export.export(jax.jit(flat), platforms=("tpu",))(*leaves)
    return Lowered(exported, (), (), (), False, None)


def training(form: Form) -> Form:
    """(parameters, x, t: classes) → the mean cross-entropy of the scores, and its gradients to all parameters."""
    net, (params, x) = form

    def loss(params: Any, x: Any, t: Any) -> Any:
        return cross_entropy(net(params, x).astype(jnp.float32), t)

    return jax.value_and_grad(loss), (params, x, jax.ShapeDtypeStruct(x.shape[:1], np.int32))


class Images:
    """Convolutions and pools in one order of the axes, "NHWC" or "NCHW"."""

    def __init__(self, order: str, types: Types) -> None:
        self.order = order
        self.types = types

    def weights(self, inputs: int, outputs: int, kernel: int) -> tuple[Any, Any]:
        """Of a convolution, and its bias."""
        shape = (kernel, kernel, inputs, outputs) if self.order == "NHWC" else (outputs, inputs, kernel, kernel)
        return self.types.weight(*shape), self.types.vector(outputs)

    def input(self, batch: int) -> Any:
        """The type of the images."""
        shape = (batch, SIZE, SIZE, 3) if self.order == "NHWC" else (batch, 3, SIZE, SIZE)
        return self.types.weight(*shape)

    def conv(self, x: Any, parameters: Any, stride: int = 1) -> Any:
        """Padded by half of the kernel."""
        weight, bias = parameters
        pad = weight.shape[_ORDERS[self.order][1].index("H")] // 2
        y = lax.conv_general_dilated(
            x, weight, (stride, stride), [(pad, pad)] * 2, dimension_numbers=_ORDERS[self.order]
        )
        return y + (bias if self.order == "NHWC" else bias[:, None, None])

    def max_pool(self, x: Any, window: int, pad: int) -> Any:
        """Of stride 2."""
        low, spatial = np.array(-np.inf, x.dtype), [axis in "HW" for axis in self.order]
        sizes, strides = ([n if inside else 1 for inside in spatial] for n in (window, 2))
        pads = [(pad, pad) if inside else (0, 0) for inside in spatial]
        return lax.reduce_window(x, low, lax.max, sizes, strides, pads)

    def mean(self, x: Any) -> Any:
        """N, C."""
        return x.mean((1, 2) if self.order == "NHWC" else (2, 3))


def resnet50(batch: int, dtype: Any) -> dict[str, Form]:
    """By the order of the axes."""
    return {order: _resnet50(Images(order, Types(dtype)), batch) for order in _ORDERS}


def _resnet50(images: Images, batch: int) -> Form:
    stem = images.weights(3, 64, 7)
    blocks, strides, inputs = [], [], 64
    for stage, (count, width) in enumerate(_STAGES):
        for i in range(count):
            shortcut = images.weights(inputs, 4 * width, 1) if i == 0 else None
            sizes = ((inputs, width, 1), (width, width, 3), (width, 4 * width, 1))
            blocks.append(([images.weights(*size) for size in sizes], shortcut))
            strides.append(2 if stage > 0 and i == 0 else 1)
            inputs = 4 * width

    def net(params: Any, x: Any) -> Any:
        conv, relu = images.conv, jax.nn.relu
        x = images.max_pool(relu(conv(x, params["stem"], 2)), 3, 1)
        for stride, ((reduce, spatial, expand), shortcut) in zip(strides, params["blocks"]):
            y = conv(relu(conv(relu(conv(x, reduce)), spatial, stride)), expand)
            x = relu(y + (x if shortcut is None else conv(x, shortcut, stride)))
        return linear(images.mean(x), params["head"])

    params = {"stem": stem, "blocks": blocks, "head": images.types.linear(2048, 1000)}
    return net, (params, images.input(batch))


def vgg19(batch: int, dtype: Any) -> dict[str, Form]:
    """By the order of the axes."""
    return {order: _vgg19(Images(order, Types(dtype)), batch) for order in _ORDERS}


def _vgg19(images: Images, batch: int) -> Form:
    convs, channels = [], 3
    for outputs in filter(None, _VGG):
        convs.append(images.weights(channels, outputs, 3))
        channels = outputs
    sizes = ((channels * (SIZE // 32) ** 2, 4096), (4096, 4096), (4096, 1000))

    def net(params: Any, x: Any) -> Any:
        convs, (*hidden, last) = params
        each = iter(convs)
        for outputs in _VGG:
            x = jax.nn.relu(images.conv(x, next(each))) if outputs else images.max_pool(x, 2, 0)
        x = x.reshape(x.shape[0], -1)
        for parameters in hidden:
            x = jax.nn.relu(linear(x, parameters))
        return linear(x, last)

    return net, ((convs, [images.types.linear(*size) for size in sizes]), images.input(batch))


def bert(batch: int, dtype: Any) -> dict[str, Form]:
    """Six layers; the projections to queries, keys and values in one product or three."""
    types = Types(dtype)
    params = {
        "words": types.weight(VOCABULARY, WIDTH),
        "positions": types.weight(LENGTH, WIDTH),
        "norm": norm(types),
        "layers": [layer(types) for _ in range(LAYERS)],
    }
    apart = [{**each, "qkv": [types.linear(WIDTH, WIDTH) for _ in range(3)]} for each in params["layers"]]
    ids = jax.ShapeDtypeStruct((batch, LENGTH), np.int32)
    return {"one product": (_bert, (params, ids)), "three products": (_bert, ({**params, "layers": apart}, ids))}


def _bert(params: Any, ids: Any) -> Any:
    x = _layer_norm(params["words"][ids] + params["positions"], params["norm"])
    for each in params["layers"]:
        x = _layer_norm(x + _attention(x, each), each["norms"][0])
        x = _layer_norm(x + linear(_gelu(linear(x, each["up"])), each["down"]), each["norms"][1])
    return x


def _attention(x: Any, params: Any) -> Any:
    heads = (*x.shape[:2], HEADS, WIDTH // HEADS)
    qkv = params["qkv"]
    parts = jnp.split(linear(x, qkv), 3, -1) if isinstance(qkv, tuple) else [linear(x, each) for each in qkv]
    q, k, v = (part.reshape(heads) for part in parts)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q * np.asarray(heads[-1] ** -0.5, x.dtype), k)
    weights = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(x.dtype)
    return linear(jnp.einsum("bhqk,bkhd->bqhd", weights, v).reshape(x.shape), params["out"])


def _gelu(x: Any) -> Any:
    return 0.5 * x * (1 + lax.erf(x * 0.5**0.5))


def _layer_norm(x: Any, parameters: Any) -> Any:
    wide = x.astype(jnp.float32)
    centred = wide - wide.mean(-1, keepdims=True)
    y = centred * lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return y.astype(x.dtype) * parameters[0] + parameters[1]


NETS: Mapping[str, Callable[[int, Any], dict[str, Form]]] = {"resnet50": resnet50, "bert": bert, "vgg19": vgg19}
"""By name: (batch, dtype) → the forms by name."""
