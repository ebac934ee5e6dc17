"""Promise: what ONNX Runtime computes in float only runs in double, with the accuracy of double."""

from __future__ import annotations

import itertools
import math

import numpy as np
import onnx
import onnx.reference
import pytest
from pfvm.compiler.importer import read_model
from pfvm.errors import UnsupportedOpError
from pfvm.runtime.ort import OrtExecutable
from support import model

torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)


def run(text: str, opset: int = 17, **feeds: np.ndarray) -> np.ndarray:
    loaded = read_model(model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}'))
    with pytest.raises(UnsupportedOpError):
        OrtExecutable(loaded, expand=False)
    (result,) = OrtExecutable(loaded)(feeds).values()
    assert result.dtype == np.float64
    return result


def close(got: np.ndarray, want: torch.Tensor | np.ndarray) -> None:
    np.testing.assert_allclose(got, np.asarray(want), rtol=1e-12, atol=1e-13)


def ints(values: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, values))}]"


CONVS = list(
    itertools.product([(5,), (7, 6), (4, 5, 3)], [1, 2], [1, 2], [0, 1], [1, 2], [True, False])
)  # sizes, group, stride, pad, dilation, bias


@pytest.mark.parametrize(("sizes", "group", "stride", "pad", "dilation", "bias"), CONVS[::3])
def test_conv(sizes: tuple[int, ...], group: int, stride: int, pad: int, dilation: int, bias: bool) -> None:
    n = len(sizes)
    kernel = (2, 3, 2)[:n]
    x, w, b = RNG.random((2, 4, *sizes)), RNG.random((6, 4 // group, *kernel)), RNG.random(6)
    if any(s + 2 * pad <= dilation * (k - 1) for s, k in zip(sizes, kernel)):
        pytest.skip("the window does not fit")
    dims = ",".join("pqr"[:n])
    got = run(
        f"g (double[n,4,{dims}] x, double{list(w.shape)} w, double[6] b) => (double[a,c,{','.join('def'[:n])}] y)"
        f"{{ y = Conv <group = {group}, strides = {ints((stride,) * n)}, pads = {ints((pad,) * 2 * n)},"
        f" dilations = {ints((dilation,) * n)}> (x, w{', b' if bias else ''}) }}",
        x=x,
        w=w,
        b=b,
    )
    function = [torch.nn.functional.conv1d, torch.nn.functional.conv2d, torch.nn.functional.conv3d][n - 1]
    arrays = [torch.from_numpy(a) for a in (x, w, b)]
    close(got, function(*arrays[: 2 + bias], stride=stride, padding=pad, dilation=dilation, groups=group))


@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize("opset", [11, 22])
def test_automatic_padding(mode: str, opset: int) -> None:
    text = f"""g (double[1,2,5,7] x, double[3,2,2,3] w) => (double[a,b,c,d] y)
        {{ y = Conv <auto_pad = "{mode}", strides = [2, 2]> (x, w) }}"""
    feeds = {"x": RNG.random((1, 2, 5, 7)), "w": RNG.random((3, 2, 2, 3))}
    reference = onnx.reference.ReferenceEvaluator(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    )
    close(run(text, opset, **feeds), reference.run(None, feeds)[0])


@pytest.mark.parametrize(
    ("group", "stride", "pad", "extra", "dilation"),
    [(1, 1, 0, 0, 1), (2, 2, 1, 1, 1), (1, 3, 0, 2, 2), (2, 2, 2, 0, 1), (4, 1, 1, 0, 2)],
)
def test_conv_transpose(group: int, stride: int, pad: int, extra: int, dilation: int) -> None:
    x, w, b = RNG.random((2, 4, 5, 4)), RNG.random((4, 3, 3, 2)), RNG.random(3 * group)
    got = run(
        f"g (double[n,4,p,q] x, double[4,3,3,2] w, double[{3 * group}] b) => (double[a,c,d,e] y)"
        f"{{ y = ConvTranspose <group = {group}, strides = [{stride}, {stride}], pads = {ints((pad,) * 4)},"
        f" output_padding = [{extra}, {extra}], dilations = [{dilation}, {dilation}]> (x, w, b) }}",
        x=x,
        w=w,
        b=b,
    )
    arrays = [torch.from_numpy(a) for a in (x, w, b)]
    close(got, torch.nn.functional.conv_transpose2d(*arrays, stride, pad, extra, group, dilation))


@pytest.mark.parametrize("pad", [0, 1])
@pytest.mark.parametrize("include", [0, 1])
def test_average_pool(pad: int, include: int) -> None:
    x = RNG.random((2, 3, 6, 5))
    got = run(
        f"g (double[n,3,p,q] x) => (double[a,b,c,d] y) {{ y = AveragePool <kernel_shape = [3, 2], strides = [2, 1],"
        f" pads = {ints((pad,) * 4)}, count_include_pad = {include}> (x) }}",
        x=x,
    )
    close(got, torch.nn.functional.avg_pool2d(torch.from_numpy(x), (3, 2), (2, 1), pad, False, bool(include)))


@pytest.mark.parametrize("opset", [13, 22])
def test_global_pools(opset: int) -> None:
    x = RNG.standard_normal((2, 3, 4, 5))
    text = "g (double[2,3,p,q] x) => (double[2,3,1,1] y) { y = OP (x) }"
    close(run(text.replace("OP", "GlobalAveragePool"), opset, x=x), x.mean((2, 3), keepdims=True))
    close(run(text.replace("OP", "GlobalMaxPool"), opset, x=x), x.max((2, 3), keepdims=True))


def test_erf_to_the_last_digits() -> None:
    x = np.concatenate([np.linspace(-7, 7, 4001), [0.46875, -0.46875, 1e-300, -0.0, np.inf, -np.inf, np.nan]])
    got = run("g (double[n] x) => (double[n] y) { y = Erf (x) }", x=x)
    np.testing.assert_allclose(got, [math.erf(v) for v in x], rtol=1e-15, atol=0)


def test_gelu_is_made_of_it() -> None:
    x = np.linspace(-4, 4, 33)
    got = run("g (double[n] x) => (double[n] y) { y = Gelu (x) }", 20, x=x)
    close(got, torch.nn.functional.gelu(torch.from_numpy(x)))


@pytest.mark.parametrize("op", ["Softplus", "Elu", "Selu", "LeakyRelu", "HardSigmoid", "Softsign", "Tan"])
def test_elementwise(op: str) -> None:
    x = np.linspace(-3, 3, 31)
    text = f"g (double[n] x) => (double[n] y) {{ y = {op} (x) }}"
    reference = onnx.reference.ReferenceEvaluator(
        onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 22]> {text}')
    )
    close(run(text, 22, x=x), reference.run(None, {"x": x})[0])


def test_mean_and_instance_normalization() -> None:
    x, s, b = RNG.standard_normal((2, 3, 4, 5)), RNG.random(3), RNG.random(3)
    close(run("g (double[3] s, double[3] b) => (double[3] y) { y = Mean (s, b, s) }", s=s, b=b), (2 * s + b) / 3)
    text = (
        "g (double[n,3,p,q] x, double[3] s, double[3] b) => (double[n,3,p,q] y) { y = InstanceNormalization (x, s, b) }"
    )
    arrays = [torch.from_numpy(a) for a in (x, s, b)]
    want = torch.nn.functional.instance_norm(arrays[0], weight=arrays[1], bias=arrays[2], eps=float(np.float32(1e-5)))
    close(run(text, x=x, s=s, b=b), want)


def test_what_would_need_float_is_refused() -> None:
    loaded = read_model(model("g (double[1,4,3,3] x) => (double[1,4,3,3] y) { [n1] y = LRN <size = 3> (x) }"))
    with pytest.raises(UnsupportedOpError, match="no kernel for LRN 'n1'"):
        OrtExecutable(loaded)
