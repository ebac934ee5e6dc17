"""The gradients of convolutions and max pools on xla:cpu are what PyTorch computes, whatever the geometry."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

pytest.importorskip("jax", reason="needs the extra xla")
torch = pytest.importorskip("torch", reason="PyTorch computes what is expected")

from pfvm.runtime.xla import XlaExecutable  # noqa: E402

TOLERANCE = {"float": 3e-6, "double": 1e-13}


def executable(body: str, inputs: str, outputs: str) -> XlaExecutable:
    text = f'<ir_version: 10, opset_import: ["" : 20]> g ({inputs}) => ({outputs}) {{ {body} }}'
    return XlaExecutable(ir.serde.deserialize_model(onnx.parser.parse_model(text)))


def close(got: np.ndarray, want: torch.Tensor, dtype: str) -> None:
    expected = want.detach().numpy()
    assert got.shape == expected.shape
    assert np.abs(got - expected).max(initial=0) <= TOLERANCE[dtype] * max(1.0, np.abs(expected).max(initial=0))


def attributes(**given: Any) -> str:
    return ", ".join(f"{name} = {[*map(int, v)] if np.iterable(v) else int(v)}" for name, v in given.items())


def transposed_cases() -> list[tuple]:
    """(rank, kernel, stride, pad, dilation, extra, group, channels, results per group, size): some of everything."""
    random, cases = np.random.default_rng(1), []
    for _ in range(26):
        rank = int(random.choice([1, 2, 2, 2, 3]))
        kernel, size = random.integers(1, 5, rank), random.integers(1, 6, rank)
        stride, dilation = random.integers(1, 4, rank), random.integers(1, 3, rank)
        extra = [int(random.integers(0, max(s, d))) for s, d in zip(stride, dilation)]
        full = (size - 1) * stride + (kernel - 1) * dilation + 1 + extra
        pad = [int(random.integers(0, max(1, min((f - 1) // 2, 3) + 1))) for f in full]
        group = int(random.choice([1, 1, 1, 2, 3]))
        channels = group * int(random.integers(1, 4))
        cases.append((kernel, stride, pad, dilation, extra, group, channels, int(random.integers(1, 4)), size))
    wide = np.array([3, 3]), np.array([1, 1]), [1, 1], np.array([1, 1]), [0, 0], 1
    return [*cases, (*wide, 40, 32, np.array([16, 15])), (*wide, 64, 64, np.array([2, 2]))]


@pytest.mark.parametrize("index", range(28))
def test_transposed_convolutions(index: int) -> None:
    dtype = "double" if index % 3 == 0 else "float"
    kernel, stride, pad, dilation, extra, group, channels, results, size = transposed_cases()[index]
    random = np.random.default_rng(index)
    x = random.standard_normal((3, channels, *size)).astype(np.float32 if dtype == "float" else np.float64)
    w = random.standard_normal((channels, results, *kernel)).astype(x.dtype)
    given = attributes(
        strides=stride, pads=[*pad, *pad], dilations=dilation, output_padding=extra, group=group, kernel_shape=kernel
    )
    ones = ", ".join("ABCD"[: len(kernel)])
    run = executable(
        f"y = ConvTranspose<{given}>(x, w)",
        f"{dtype}{list(x.shape)} x, {dtype}{list(w.shape)} w",
        f"{dtype}[N, M, {ones}] y",
    )
    function = getattr(torch.nn.functional, f"conv_transpose{len(kernel)}d")
    exact = [torch.tensor(x).double(), torch.tensor(w).double()]
    sizes = [tuple(map(int, v)) for v in (stride, pad, extra)]
    want = function(*exact, None, *sizes, group, tuple(map(int, dilation)))
    close(run({"x": x, "w": w})["y"], want, dtype)


# batch, channels, results, size, kernel, stride, pad, dilation
KERNELS = {
    "strided": (3, 5, 7, (9, 8), (3, 3), (2, 2), (1, 1), (1, 1)),
    "one tap, strided": (2, 8, 4, (8, 7), (1, 1), (2, 2), (0, 0), (1, 1)),
    "uneven": (2, 3, 4, (10, 7), (3, 5), (3, 1), (2, 0), (1, 1)),
    "dilated": (2, 3, 4, (12, 11), (3, 2), (1, 2), (2, 1), (3, 2)),
    "winograd": (8, 32, 48, (16, 13), (3, 3), (1, 1), (1, 1), (1, 1)),
    "winograd, no pads": (9, 40, 32, (9, 14), (3, 3), (1, 1), (0, 0), (1, 1)),
    "one pixel": (4, 6, 5, (1, 1), (3, 3), (1, 1), (1, 1), (1, 1)),
    "small image": (4, 32, 32, (2, 2), (3, 3), (1, 1), (1, 1), (1, 1)),
    "fewer rows than results": (2, 12, 40, (4, 4), (3, 3), (2, 2), (1, 1), (1, 1)),
    "many taps": (2, 3, 4, (12, 12), (9, 9), (1, 1), (4, 4), (1, 1)),
    "one dimension": (3, 4, 5, (20,), (4,), (3,), (2,), (2,)),
    "three dimensions": (2, 3, 4, (6, 5, 7), (3, 2, 3), (2, 1, 2), (1, 0, 1), (1, 2, 1)),
}


@pytest.mark.parametrize(
    ("name", "dtype"), [*((name, "float") for name in KERNELS), *((n, "double") for n in ("uneven", "small image"))]
)
def test_gradients_of_kernels(name: str, dtype: str) -> None:
    """Stride and dilation have changed places there; what a stride left over is cut off after it."""
    n, channels, results, size, kernel, stride, pad, dilation = KERNELS[name]
    random = np.random.default_rng(0)
    x = random.standard_normal((n, channels, *size)).astype(np.float32 if dtype == "float" else np.float64)
    w = torch.zeros((results, channels, *kernel), dtype=torch.float64, requires_grad=True)
    convolution = getattr(torch.nn.functional, f"conv{len(kernel)}d")
    y = convolution(torch.tensor(x).double(), w, None, stride, pad, dilation)
    dy = random.standard_normal(tuple(y.shape)).astype(x.dtype)
    y.backward(torch.tensor(dy).double())
    turn = attributes(perm=[1, 0, *range(2, x.ndim)])
    given = attributes(strides=dilation, dilations=stride, pads=[*pad, *pad])
    body = f"a = Transpose<{turn}>(x) b = Transpose<{turn}>(dy) zero = Constant<value_ints = [0]>() "
    body += f"c0 = Conv<{given}>(a, b) "
    for i, k in enumerate(kernel):
        constants = f"k{i} = Constant<value_ints = [{k}]>() axis{i} = Constant<value_ints = [{i + 2}]>()"
        body += f"{constants} c{i + 1} = Slice(c{i}, zero, k{i}, axis{i}) "
    body += f"d = Transpose<{turn}>(c{len(kernel)})"
    ones = ", ".join("ABC"[: len(kernel)])
    run = executable(body, f"{dtype}{list(x.shape)} x, {dtype}{list(dy.shape)} dy", f"{dtype}[O, I, {ones}] d")
    got = run({"x": x, "dy": dy})["d"]
    close(got, w.grad, dtype)


# size, kernel, stride, pad, dilation, ceil_mode
POOLS = {
    "resnet": ((9, 8), (3, 3), (2, 2), (1, 1), (1, 1), False),
    "tiles": ((8, 8), (2, 2), (2, 2), (0, 0), (1, 1), False),
    "gaps": ((11, 10), (2, 1), (3, 2), (0, 0), (1, 1), False),
    "dilated": ((9, 12), (2, 3), (1, 2), (1, 1), (3, 2), False),
    "ceil": ((8, 9), (3, 2), (2, 2), (1, 0), (1, 1), True),
    "three dimensions": ((5, 6, 4), (2, 3, 2), (2, 1, 2), (1, 1, 0), (1, 1, 1), False),
}


@pytest.mark.parametrize("name", POOLS)
@pytest.mark.parametrize("kind", ["numbers", "few values", "lowest"])
def test_gradients_of_max_pools(name: str, kind: str) -> None:
    """They need neither a scatter nor a check of its indices. Of equal numbers the first has the gradient."""
    size, kernel, stride, pad, dilation, ceil = POOLS[name]
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 3, *size)).astype(np.float32)
    x = {"numbers": x, "few values": np.round(x), "lowest": np.where(x > 0.5, x, -np.inf).astype(np.float32)}[kind]
    source = torch.tensor(x, requires_grad=True)
    y = getattr(torch.nn.functional, f"max_pool{len(kernel)}d")(source, kernel, stride, pad, dilation, ceil)
    dy = random.standard_normal(tuple(y.shape)).astype(np.float32)
    y.backward(torch.tensor(dy))
    plane, places = int(np.prod(size)), int(np.prod(y.shape[2:]))
    given = attributes(kernel_shape=kernel, strides=stride, pads=[*pad, *pad], dilations=dilation, ceil_mode=int(ceil))
    body = f"""
        plane = Constant<value = int64 {{{plane}}}>() zero = Constant<value = float[1] {{0.0}}>()
        flat = Constant<value = int64[3] {{2, 3, {places}}}>() whole = Constant<value = int64[3] {{2, 3, {plane}}}>()
        back = Constant<value = int64[{len(size) + 2}] {{2, 3, {", ".join(map(str, size))}}}>()
        copy = Identity(x) y, i = MaxPool<{given}>(copy) j = Mod(i, plane) k = Reshape(j, flat)
        g = Reshape(dy, flat) z = Expand(zero, whole) s = ScatterElements<axis = 2, reduction = "add">(z, k, g)
        dx = Reshape(s, back)
    """
    ones = ", ".join("ABC"[: len(kernel)])
    run = executable(
        body, f"float{list(x.shape)} x, float{list(dy.shape)} dy", f"float[N, C, {ones}] dx, float[N, C, {ones}] y"
    )
    close(run({"x": x, "dy": dy})["dx"], source.grad, "float")
    assert " scatter(" not in run.hlo()[0]
