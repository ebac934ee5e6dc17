"""Channels-last inside xla:cpu: nets equal ONNX Runtime, and transposes are left at the rim only."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

pytest.importorskip("jax")

from pfvm.errors import OptionError
from pfvm.runtime.ort import OrtExecutable
from pfvm.runtime.xla import XlaExecutable

CONV = "Conv<pads = [1, 1, 1, 1]>"
NORM = "BatchNormalization<epsilon = 0.001>"
# name → (weights and inputs by shape, body from x to y)
BLOCKS = {
    "resnet": (
        {"x": (2, 8, 9, 9), "w1": (8, 8, 3, 3), "w2": (8, 8, 1, 1), "s": (8,), "b": (8,), "m": (8,), "v": (8,)},
        f"""a = {CONV}(x, w1)  n = {NORM}(a, s, b, m, v)  r = Relu(n)  c = Conv(r, w2, b)
        d = {NORM}(c, s, b, m, v)  e = Add(d, x)  y = Relu(e)""",
    ),
    "mobilenet": (
        {"x": (1, 4, 11, 10), "w1": (12, 4, 1, 1), "w2": (12, 1, 3, 3), "w3": (4, 12, 1, 1), "lo": (), "hi": ()},
        """a = Conv(x, w1)  r = Clip(a, lo, hi)
        d = Conv<group = 12, pads = [1, 1, 1, 1], strides = [2, 2]>(r, w2)  h = HardSwish(d)  y = Conv(h, w3)""",
    ),
    "concat": (
        {"x": (2, 3, 8, 8), "w1": (5, 3, 3, 3), "w2": (4, 3, 1, 1)},
        f"""a = {CONV}(x, w1)  b = Conv(x, w2)  c = Concat<axis = 1>(a, x, b)  d = Concat<axis = -2>(c, c)
        p, q = Split<axis = 1, num_outputs = 2>(d)
        m = MaxPool<kernel_shape = [3, 3], ceil_mode = 1, strides = [2, 2]>(p)
        g = AveragePool<kernel_shape = [3, 3], pads = [1, 1, 1, 1], strides = [2, 2]>(q)
        s = Softmax<axis = 1>(g)  z = GlobalMaxPool(m)  y = Mul(s, z)""",
    ),
    "squeeze-excite": (
        {"x": (2, 6, 7, 5), "w1": (6, 6, 3, 3), "w2": (2, 6, 1, 1), "w3": (6, 2, 1, 1), "k": (6, 1, 1), "row": (5,)},
        f"""a = {CONV}(x, w1)  g = GlobalAveragePool(a)  q = Conv(g, w2)  r = Relu(q)  e = Conv(r, w3)
        f = Sigmoid(e)  h = Mul(a, f)  i = Add(h, k)  j = Mul(row, i)  y = PRelu(j, k)""",
    ),
    "grouped": (
        {"x": (2, 6, 8, 8), "w": (9, 2, 3, 3), "b": (9,)},
        "y = Conv<group = 3, strides = [2, 1], dilations = [1, 2], pads = [1, 2, 1, 2]>(x, w, b)",
    ),
    "depthwise, two outputs a channel": (
        {"x": (1, 3, 6, 6), "w": (6, 1, 3, 3)},
        "y = Conv<group = 3, auto_pad = \"VALID\">(x, w)",
    ),
    "patches": (
        {"x": (2, 3, 8, 12), "w": (5, 3, 4, 4), "b": (5,), "flat": [0, 5, -1]},
        """a = Conv<strides = [4, 4]>(x, w, b)  r = Reshape(a, flat)  y = Transpose<perm = [0, 2, 1]>(r)""",
    ),
    "1-D": (
        {"x": (2, 4, 20), "w": (6, 4, 5), "t": (6, 3, 4)},
        """a = Conv<strides = [2]>(x, w)  b = Relu(a)  c = ConvTranspose<strides = [2], output_padding = [1]>(b, t)
        y = Transpose<perm = [0, 2, 1]>(c)""",
    ),
    "3-D": ({"x": (1, 2, 5, 6, 7), "w": (4, 2, 2, 3, 3)}, "a = Conv(x, w)  b = Exp(a)  y = GlobalAveragePool(b)"),
    "reductions": (
        {"x": (2, 4, 6, 5), "w": (3, 4, 1, 1), "axes": [2, 3], "channel": [1], "row": [2]},
        """c = Conv(x, w)  a = ReduceMean<keepdims = 0>(c, axes)  b = ReduceMax(c, channel)
        d = ReduceSum(c, row)
        e = ArgMax<axis = 1, keepdims = 0>(c)  f = Cast<to = 1>(e)  g = ReduceSum(a)  h = ReduceSum(d)
        i = Add(g, h)   j = Add(b, i)  l = Unsqueeze(f, channel)  k = Add(j, l)  y = Add(k, c)""",
    ),
    "shapes": (
        {"x": (1, 4, 6, 4), "w": (4, 4, 3, 3), "flat": [0, 0, -1], "back": [1, 4, 8, -1], "start": [1], "end": [3],
         "axis": [1], "pads": [0, 1, 2, 0, 0, 0, 1, 3], "scales": (4,)},
        f"""c = {CONV}(x, w)  p = Pad(c, pads)  s = Slice(p, start, end, axis)  k = Concat<axis = 1>(s, s)
        f = Reshape(k, flat)  t = Relu(f)  dims = Shape(c)  o = Slice(k, zero, four, three)
        r = Resize<mode = "linear">(c, , twice)  u = Flatten(r)  v = ReduceSum(u)  w2 = ReduceSum(t)  z = Add(v, w2)
        y = Add(z, o)""",
    ),
}  # fmt: skip
BLOCKS["shapes"][0].pop("scales")
BLOCKS["shapes"][0].update({"zero": [0], "four": [4], "three": [3], "twice": np.float32([1, 1, 2, 1.5])})  # type: ignore[dict-item]


def model(name: str) -> tuple[ir.Model, dict[str, np.ndarray]]:
    return built_from(*BLOCKS[name])


def built_from(shapes: dict, body: str) -> tuple[ir.Model, dict[str, np.ndarray]]:
    random = np.random.default_rng(0)
    given = {}
    for key, shape in shapes.items():
        if isinstance(shape, tuple):
            given[key] = (
                np.abs(random.standard_normal(shape, np.float32))
                if key == "v"
                else random.standard_normal(shape, np.float32)
            )
        else:
            given[key] = np.asarray(shape, np.float32 if isinstance(shape, np.ndarray) else np.int64)
    if "lo" in given:
        given["lo"], given["hi"] = np.float32(0), np.float32(6)
    x = given.pop("x")
    dims = ", ".join(map(str, x.shape))
    text = f'<ir_version: 8, opset_import: ["" : 18]> g (float[{dims}] x) => (float y) {{ {body} }}'
    proto = onnx.parser.parse_model(text)
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), k) for k, a in given.items())
    return ir.serde.deserialize_model(proto), {"x": x}


@pytest.mark.parametrize("name", BLOCKS)
def test_block_equals_onnx_runtime(name):
    built, feeds = model(name)
    want = OrtExecutable(built.clone(), optimize=False)(feeds)["y"]
    got = XlaExecutable(built, fusion="no_convolution")(feeds)["y"]
    assert got.shape == want.shape and got.dtype == want.dtype
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def parameters(exe: XlaExecutable) -> list[str]:
    (hlo,) = exe.hlo()
    entry = hlo[hlo.index("ENTRY") :]
    return re.findall(r"= (\S+) parameter\(", entry)


def test_weights_are_laid_out_before_the_first_call():
    """The executable takes kernels as height, width, inputs, outputs, with the normalization folded in."""
    exe = XlaExecutable(model("resnet")[0], fusion="no_convolution")
    exe(model("resnet")[1])
    shapes = [p.split("{")[0] for p in parameters(exe)]
    assert shapes.count("f32[3,3,8,8]") == 1 and shapes.count("f32[1,1,8,8]") == 1
    assert shapes.count("f32[1,1,1,8]") == 2  # one shift for each convolution


def test_single_numbers_are_known_to_the_compiler():
    """A clip's bounds are no arguments: XLA makes one clamp of known ones."""
    exe = XlaExecutable(model("mobilenet")[0])
    exe(model("mobilenet")[1])
    assert not [p for p in parameters(exe) if p.startswith("f32[]")]


def test_a_depthwise_convolution_is_computed_once():
    """A normalization reads it three times, a squeeze-and-excitation block twice; a clip is part of its loop."""
    depthwise = "Conv<group = 8, pads = [3, 3, 3, 3]>(x, w)"
    given = {"x": (1, 8, 9, 9), "w": (8, 1, 7, 7), "v": (8, 8, 1, 1), "s": (8,)}
    squeeze = f"a = {depthwise}  g = Sigmoid(a)  c = Mul(a, g)  p = GlobalAveragePool(c)  y = Mul(c, p)"
    norm = f"a = {depthwise}  t = Transpose<perm = [0, 2, 3, 1]>(a)  y = LayerNormalization(t, s)"
    clip = f"a = {depthwise}  r = Relu(a)  b = Conv(r, v)  y = Flatten(b)"
    for body, calls in ((squeeze, 1), (norm, 1), (clip, 0)):
        built, feeds = built_from(given, body)
        exe = XlaExecutable(built)
        np.testing.assert_allclose(exe(feeds)["y"], OrtExecutable(built.clone())(feeds)["y"], rtol=1e-4, atol=1e-4)
        (hlo,) = exe.hlo()
        assert len(re.findall(r" call\(.*to_apply=%_identity", hlo)) == calls, body


def test_both_fusions_are_equal_and_others_are_refused():
    results = [XlaExecutable(model("mobilenet")[0], fusion=f)(model("mobilenet")[1])["y"] for f in ("auto", "default")]
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)
    with pytest.raises(OptionError, match="no_convolution"):
        XlaExecutable(model("mobilenet")[0], fusion="fastest")


def test_a_second_shape_reuses_prepared_weights():
    text = (
        '<ir_version: 8, opset_import: ["" : 18]> g (float[N, 3, H, 8] x) => (float[N, 4, M, 6] y) { y = Conv(x, w) }'
    )
    proto = onnx.parser.parse_model(text)
    weight = np.random.default_rng(0).standard_normal((4, 3, 3, 3), np.float32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    exe = XlaExecutable(ir.serde.deserialize_model(proto), fusion="default")
    for size in (8, 9):
        assert exe({"x": np.ones((1, 3, size, 8), np.float32)})["y"].shape == (1, 4, size - 2, 6)
    (runner,) = exe._plan.device_runners
    first, second = (compiled.weights for compiled in runner._executables.values())
    assert [a is b for a, b in zip(first, second)] == [True]
