"""Convolutions that xla:cpu computes as matrix products are as exact as sums in float32."""

from __future__ import annotations

import json
import re

import numpy as np
import onnx
import onnx_ir as ir
import pytest

pytest.importorskip("jax")

from pfvm.runtime.ort import OrtExecutable
from pfvm.runtime.xla import XlaExecutable

# name → (x, w, attributes, an argument of the program that shows the form)
FORMS = {
    "winograd": ((1, 32, 8, 8), (48, 32, 3, 3), "pads = [1, 1, 1, 1]", "f32[16,32,48]"),
    "winograd, odd": ((3, 32, 9, 7), (32, 32, 3, 3), "pads = [0, 1, 2, 0]", "f32[16,32,32]"),
    "strided": ((1, 32, 8, 8), (32, 32, 3, 3), "strides = [2, 2]", "f32[3,3,32,32]"),
    "few channels": ((2, 3, 11, 9), (8, 3, 3, 3), "pads = [1, 0, 1, 2], strides = [2, 1]", "f32[27,8]"),
    "steps of 3": ((1, 2, 10, 11), (4, 2, 3, 5), "pads = [0, 1, 0, 2], strides = [1, 3]", "f32[30,4]"),
    "dilated, few channels": ((1, 2, 12, 12), (4, 2, 3, 3), "dilations = [2, 3]", "f32[18,4]"),
}


def convolution(x_shape: tuple, w_shape: tuple, attributes: str, constant: bool = True):
    random = np.random.default_rng(0)
    x, w = random.standard_normal(x_shape, np.float32), random.standard_normal(w_shape, np.float32)
    inputs = f"float{list(x_shape)} x" + ("" if constant else f", float{list(w_shape)} w")
    graph = f"g ({inputs}) => (float[N, M, H, W] y) {{ y = Conv<{attributes}>(x, w) }}"
    text = f'<ir_version: 8, opset_import: ["" : 18]> {graph}'
    proto = onnx.parser.parse_model(text)
    if constant:
        proto.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    return ir.serde.deserialize_model(proto), {"x": x} if constant else {"x": x, "w": w}


def exact(x: np.ndarray, w: np.ndarray, attributes: str) -> np.ndarray:
    """The sum in float64."""
    torch = pytest.importorskip("torch")
    given = {k: json.loads(v) for k, v in re.findall(r"(\w+) = (\[.*?\])", attributes)}
    top, left, bottom, right = given.get("pads", [0] * 4)
    padded = torch.nn.functional.pad(torch.tensor(x).double(), (left, right, top, bottom))
    options = {"stride": given.get("strides", 1), "dilation": given.get("dilations", 1)}
    return torch.nn.functional.conv2d(padded, torch.tensor(w).double(), **options).numpy()


@pytest.mark.parametrize("name", FORMS)
def test_forms_are_exact_and_their_weights_prepared(name: str) -> None:
    x_shape, w_shape, attributes, argument = FORMS[name]
    model, feeds = convolution(x_shape, w_shape, attributes)
    executable = XlaExecutable(model)
    got = executable(feeds)["y"]
    want = exact(feeds["x"], model.graph.initializers["w"].const_value.numpy(), attributes)
    assert got.shape == want.shape
    assert np.abs(got - want).max() < 2e-6 * np.abs(want).max()
    (hlo,) = executable.hlo()
    assert argument in hlo[hlo.index("ENTRY") :]


def test_a_kernel_that_is_an_input_is_not_transformed_in_every_call() -> None:
    model, feeds = convolution(*FORMS["winograd"][:3], constant=False)
    executable = XlaExecutable(model)
    want = OrtExecutable(model.clone())(feeds)["y"]
    np.testing.assert_allclose(executable(feeds)["y"], want, rtol=1e-4, atol=1e-4)
    assert "convolution(" in executable.hlo()[0]


def test_whole_numbers_stay_whole() -> None:
    """Halves and quarters of small whole numbers are exact."""
    model, feeds = convolution(*FORMS["winograd"][:3])
    kernel = model.graph.initializers["w"]
    kernel.const_value = ir.tensor(np.sign(kernel.const_value.numpy()))
    x = {"x": np.round(4 * feeds["x"])}
    np.testing.assert_array_equal(XlaExecutable(model.clone())(x)["y"], OrtExecutable(model)(x)["y"])


def test_a_value_that_is_no_number_stays_in_its_windows() -> None:
    model, feeds = convolution(*FORMS["winograd"][:3])
    feeds["x"][0, 5, 3, 4], feeds["x"][0, 7, 7, 0] = np.nan, np.inf
    want = OrtExecutable(model.clone())(feeds)["y"]
    np.testing.assert_array_equal(np.isfinite(XlaExecutable(model)(feeds)["y"]), np.isfinite(want))
