"""Forms that ONNX Runtime computes faster: the same numbers over a sweep of shapes, and taken where they pay off."""

from __future__ import annotations

import collections
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
import pytest
from pfvm.compiler.importer import read_model
from pfvm.runtime.ort import OrtExecutable, evaluate
from pfvm.runtime.ort_forms.apply import with_fast_forms
from support import inputs, model, run_passes

OPSET = 18
# Sizes of the image, of the window, and strides, dilations, pads; windows that leave rows out, that overlap, that do
# not; one to three spatial axes.
WINDOWS = [
    ([4, 4], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
    ([2, 2], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]),
    ([5, 4], [3, 3], [2, 2], [1, 1], [1, 1, 1, 1]),
    ([6, 6], [3, 3], [2, 2], [1, 1], [1, 1, 1, 1]),
    ([4, 6], [1, 1], [2, 2], [1, 1], [0, 0, 0, 0]),
    ([4, 4], [1, 1], [1, 1], [1, 1], [0, 0, 0, 0]),
    ([7, 6], [2, 3], [1, 2], [2, 1], [1, 0, 2, 1]),
    ([9, 7], [5, 2], [3, 1], [1, 3], [2, 3, 0, 1]),
    ([11], [4], [2], [2], [3, 1]),
    ([6], [1], [1], [1], [0, 0]),
    ([4, 3, 4], [2, 3, 1], [2, 1, 1], [1, 1, 1], [1, 1, 0, 0, 1, 0]),
]


def forms(text: str) -> collections.Counter[str]:
    """Operators of the main graph that ONNX Runtime is given."""
    return collections.Counter(node.op_type for node in with_fast_forms(read_model(model(text))).graph)


def assert_same(text: str) -> None:
    """float32 results agree with the graph as written to rounding."""
    proto = model(text)
    feeds = inputs(proto, 0)
    expected, got = evaluate(ir.from_proto(proto), feeds), OrtExecutable(read_model(proto))(feeds)
    for name, value in expected.items():
        assert got[name].shape == value.shape
        np.testing.assert_allclose(got[name], value, rtol=2e-5, atol=1e-5 * float(np.abs(value).max()))


def graph(x: Sequence[int], w: Sequence[int], lines: str, inputs: str = "", opset: int = OPSET) -> str:
    """x and w in, y of x's rank out."""
    y = ",".join("abcdefg"[: len(x)])
    header = f'<ir_version: 8, opset_import: ["" : {opset}]>'
    return f"{header} agraph (float{list(x)} x, float{list(w)} w{inputs}) => (float[{y}] y) {{ {lines} }}"


def attributes(strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int], more: str = "") -> str:
    return f"<strides = {list(strides)}, dilations = {list(dilations)}, pads = {list(pads)}{more}>"


@pytest.mark.parametrize(("sizes", "kernel", "strides", "dilations", "pads"), WINDOWS)
@pytest.mark.parametrize("bias", [False, True])
def test_convolution_of_a_batch(sizes, kernel, strides, dilations, pads, bias) -> None:
    call = f"y = Conv {attributes(strides, dilations, pads)} (x, w{', b' if bias else ''})"
    text = graph([3, 256, *sizes], [257, 256, *kernel], call, ", float[257] b" if bias else "")
    assert forms(text)["Conv"] == 0
    assert_same(text)


def weight_gradient(n: int, c: int, m: int, window, cut: bool = True) -> str:
    """As autograd writes it: batch and channels swapped, stride and dilation exchanged, surplus outputs cut off."""
    sizes, kernel, strides, dilations, pads = window
    rank = len(sizes)
    out = [
        (s + pads[i] + pads[rank + i] - dilations[i] * (kernel[i] - 1) - 1) // strides[i] + 1
        for i, s in enumerate(sizes)
    ]
    swap = [1, 0, *range(2, 2 + rank)]
    lines = f"""s = Transpose <perm = {swap}> (x) t = Transpose <perm = {swap}> (w)
        v0 = Conv {attributes(dilations, strides, pads)} (s, t) start = Constant <value = int64[1] {{0}}> ()"""
    for i, k in enumerate(kernel if cut else []):
        lines += f""" e{i} = Constant <value = int64[1] {{{k}}}> () a{i} = Constant <value = int64[1] {{{i + 2}}}> ()
            v{i + 1} = Slice (v{i}, start, e{i}, a{i})"""
    lines += f" y = Transpose <perm = {swap}> (v{len(kernel) if cut else 0})"
    return graph([n, c, *sizes], [n, m, *out], lines)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("n", [2, 3])
def test_gradient_of_a_weight(window, n) -> None:
    text = weight_gradient(n, 17, 16, window)
    found = forms(text)
    assert found["Conv"] == 0
    assert_same(text)
    assert_same(weight_gradient(n, 16, 17, window, cut=False))


def test_gradient_of_a_weight_over_large_images_stores_no_window_twice() -> None:
    text = weight_gradient(4, 16, 16, ([60, 62], [3, 3], [1, 1], [1, 1], [1, 1, 1, 1]))
    assert forms(text)["Gemm"] == 9
    assert_same(text)


@pytest.mark.parametrize(("sizes", "kernel", "strides", "dilations", "pads"), WINDOWS)
@pytest.mark.parametrize("extra", [0, 1])
def test_gradient_of_an_input(sizes, kernel, strides, dilations, pads, extra) -> None:
    """The transposed convolution from any image, with the output padding that a stride allows."""
    padding = [min(extra, s - 1) for s in strides]
    call = f"y = ConvTranspose {attributes(strides, dilations, pads, f', output_padding = {padding}')} (x, w)"
    text = graph([3, 256, *sizes], [256, 257, *kernel], call)
    is_wrong = len(sizes) != 2 and any(d != 1 for d in dilations)  # ONNX Runtime's Col2Im leaves dilations out there
    assert forms(text)["ConvTranspose"] == is_wrong
    assert_same(text)


@pytest.mark.parametrize(
    "text",
    [
        graph([1, 16, 4, 4], [16, 16, 3, 3], "y = Conv (x, w)"),  # one image is one product already
        graph([2, 16, 32, 32], [16, 16, 3, 3], "y = Conv (x, w)"),
        graph([2, 16, 10, 10], [16, 16, 3, 3], "y = Conv (x, w)"),  # few weights, many places
        graph([2, 16, 8, 8], [16, 16, 3, 3], "y = ConvTranspose (x, w)"),
        graph([2, 16, 4, 4], [16, 8, 3, 3], "y = Conv <group = 2> (x, w)"),
        graph([2, 16, 4, 4], [16, 16, 3, 3], 'y = Conv <auto_pad = "SAME_UPPER"> (x, w)'),
        graph([2, 16, 4, 4], [16, 16, 3, 3], "y = ConvTranspose (x, w)", opset=13),  # no Col2Im
        graph([2, 16, 4, 4], [16, 16, 3, 3], "y = ConvTranspose <output_shape = [6, 6]> (x, w)"),
        graph([2, 16, 4, 4], [16, 16, 3, 3], "y = Conv (x, w)", opset=11),
        graph([2, 16, 4, 4], [16, 16, 3, 3], "k = Identity (w) y = Conv (x, k)").replace("float[2,", "float[n,"),
    ],
)
def test_others_stay(text: str) -> None:
    source = read_model(model(text))
    assert with_fast_forms(source) is source


def test_constant_weights_stay_for_they_are_packed() -> None:
    text = graph([2, 1, 4, 4], [1], "k = ConstantOfShape (shape) y = Conv (x, k)")
    constant = text.replace("=> ", "=> ").replace("k = ConstantOfShape (shape)", _constant([16, 1, 3, 3]))
    source = read_model(model(constant))
    assert with_fast_forms(source) is source


def _constant(shape: list[int]) -> str:
    values = ", ".join(["0.5"] * int(np.prod(shape)))
    return f"k = Constant <value = float{shape} {{{values}}}> ()"


def relu_gradient(rows: int) -> ir.Model:
    """The compiled graph: one call of pfvm::ReluGrad."""
    text = f"""agraph (float[{rows},128] y, float[{rows},128] g) => (float[{rows},128] d) {{
        z = Constant <value = float {{0}}> () off = LessOrEqual (y, z) d = Where (off, z, g) }}"""
    return read_model(run_passes(text, "fuse-relu-gradient"))


@pytest.mark.parametrize("bad", [None, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("on", [False, True])
def test_gradient_of_relu_is_exact(bad: float | None, on: bool) -> None:
    """What is not finite, where the unit is on or off, and a unit that is not a number."""
    source = relu_gradient(512)
    assert any(node.op_type == "If" for node in with_fast_forms(source).graph)
    random = np.random.default_rng(0)
    y = np.maximum(random.standard_normal((512, 128)), 0).astype(np.float32)
    g = random.standard_normal((512, 128)).astype(np.float32)
    y[3, 4], y[5, 6] = (1 if on else 0), np.nan
    g[3, 4] = g[3, 4] if bad is None else bad
    got = OrtExecutable(source)({"y": y, "g": g})["d"]
    np.testing.assert_array_equal(got, np.where(y <= 0, np.float32(0), g))


def test_small_gradients_of_relu_stay() -> None:
    source = relu_gradient(4)
    assert with_fast_forms(source) is source


UPDATE = """<ir_version: 8, opset_import: ["" : 18, "pfvm" : 1]> agraph (
        float{shape} w, float{shape} g, float{shape} m, float mu, float lr) => (float{shape} v, float{shape} n) {{
    v, n = pfvm.MomentumUpdate2 (w, g, m, mu, lr) }}
    <domain: "pfvm", opset_import: ["" : 18]> MomentumUpdate2 (w, g, m, mu, lr) => (v, n) {{
        half = Constant <value = float {{0.5}}> () h = Mul (g, half) a = Mul (m, mu) n = Add (a, h)
        b = Mul (lr, n) v = {end} }}"""


@pytest.mark.parametrize(
    ("shape", "end", "gated"),
    [
        ([512, 128], "Add (w, b)", 2),
        ([4, 128, 128], "Add (b, w)", 2),
        ([512, 128], "Sub (w, b)", 1),
        ([64, 64], "Add (w, b)", 0),
        ([65536], "Add (w, b)", 0),
        ([256, 256, 3], "Add (w, b)", 2),  # as matrices: short rows
        ([256, 16, 2, 16], "Sub (w, b)", 1),
    ],
)
def test_updates_of_large_parameters_are_bit_equal(shape: list[int], end: str, gated: int) -> None:
    text = UPDATE.format(shape=shape, end=end)
    assert forms(text)["GatedAdd"] == gated
    feeds = inputs(model(text), 0)
    expected, got = evaluate(read_model(model(text)), feeds), OrtExecutable(read_model(model(text)))(feeds)
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value)
        assert got[name].shape == value.shape


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("s = Where (c, x, w) y = Add (z, s)", ["If"]),
        ("s = Where (c, x, w) y = Sub (s, z)", ["If"]),
        ("s = Where (c, x, w) y = Mul (s, s)", ["If", "Mul"]),
        ("s = Where (c, x, w) y = Exp (s)", ["Exp", "If"]),
        ("y = Where (c, x, w)", ["If"]),
        ("one = Constant <value = float[1] {1}> () s = Where (c, x, one) y = Add (z, s)", ["Add", "Where"]),
        ("d = Less (x, w) s = Where (d, x, w) y = Add (z, s)", ["Add", "Less", "Where"]),
    ],
)
def test_selection_by_a_number(lines: str, found: list[str]) -> None:
    shape = "[256, 256]"
    text = f"""<ir_version: 8, opset_import: ["" : 18]> agraph (
        bool c, float{shape} x, float{shape} w, float{shape} z, float[2,16,2,2] i, float[16,16,1,1] k)
        => (float{shape} y, float[2,16,2,2] o) {{ {lines} o = ConvTranspose (i, k) }}"""
    of_model = with_fast_forms(read_model(model(text))).graph
    kinds = {"If", "Where", "Add", "Sub", "Mul", "Exp", "Less"}
    assert sorted(node.op_type for node in of_model if node.op_type in kinds) == found
    for condition in (False, True):
        feeds = inputs(model(text), 0) | {"c": np.array(condition)}
        expected, got = evaluate(read_model(model(text)), feeds), OrtExecutable(read_model(model(text)))(feeds)
        np.testing.assert_array_equal(got["y"], expected["y"])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("ignored", [None, -100, 2])
def test_loss_of_classifiers(reduction: str, ignored: int | None) -> None:
    more = "" if ignored is None else f", ignore_index = {ignored}"
    size = "5" if reduction == "none" else ""
    text = f"""<ir_version: 8, opset_import: ["" : 18]> agraph (float[n,4] s, int64[n] t) => (float[{size}] y) {{
        y = NegativeLogLikelihoodLoss <reduction = "{reduction}"{more}> (s, t) }}"""
    assert forms(text)["NegativeLogLikelihoodLoss"] == 0
    scores = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    scores[1, 0], scores[2, 3] = -np.inf, np.nan
    labels = np.array([3, 2, 0, 1, 2] if ignored != -100 else [3, -100, 0, 1, -100])
    for t in (labels, np.full(5, labels[1])):  # the second: perhaps all of them ignored
        feeds = {"s": scores, "t": t}
        expected, got = evaluate(read_model(model(text)), feeds), OrtExecutable(read_model(model(text)))(feeds)
        np.testing.assert_array_equal(got["y"], expected["y"])


def test_class_weights_and_images_of_labels_stay() -> None:
    for inputs_, call in (
        ("float[2,4] s, int64[2] t, float[4] w", "s, t, w"),
        ("float[2,4,3] s, int64[2,3] t", "s, t"),
    ):
        text = f"agraph ({inputs_}) => (float y) {{ y = NegativeLogLikelihoodLoss ({call}) }}"
        source = read_model(model(text))
        assert with_fast_forms(source) is source


def test_a_product_that_is_needed_elsewhere_stays() -> None:
    text = UPDATE.format(shape=[512, 128], end="Sub (b, b)")
    assert forms(text)["GatedAdd"] == 1


def test_the_model_that_was_given_stays() -> None:
    source = read_model(model(graph([3, 5, 4, 4], [16, 5, 3, 3], "y = Conv (x, w)")))
    before = [(node.name, node.op_type) for node in source.graph]
    OrtExecutable(source)
    assert [(node.name, node.op_type) for node in source.graph] == before
