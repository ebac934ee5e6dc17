"""A window that does not fit the padded input is refused by name, but for a pool that ONNX Runtime rounds up to one."""

from __future__ import annotations

import numpy as np
import onnx
import pfvm
import pytest
from pfvm.errors import InputError, InvalidModelError

pytest.importorskip("jax")


def _pool(op: str, attributes: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 19]> g (float[1,1,1,4] x) => (float[a,b,c,d] y) {{
        y = {op} <kernel_shape = [2, 2], {attributes}> (x) }}"""
    )


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_a_window_larger_than_the_input(op: str) -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
    with pytest.raises(InvalidModelError, match="its window of 2 is larger than the input's 1"):
        pfvm.load(_pool(op, "strides = [1, 2]"), device="xla:cpu")({"x": x})


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
@pytest.mark.parametrize("attributes", ["", ", pads = [0, 0, 1, 0]", ", dilations = [2, 1]"])
def test_a_pool_whose_stride_is_larger_than_what_is_missing(op: str, attributes: str) -> None:
    """The last pool of a backbone over a small image: one window, of what is there."""
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
    pool = _pool(op, f"strides = [3, 2]{attributes}")
    expected = pfvm.load(pool, device="pfvm:cpu")({"x": x})["y"]
    assert expected.shape == (1, 1, 1, 2)
    np.testing.assert_allclose(pfvm.load(pool, device="xla:cpu")({"x": x})["y"], expected, rtol=1e-6)


# The kernel is 2 x 2, or 1 x 2 where it fits.
CONVOLUTIONS = {
    "Conv": "Conv<strides = [2, 2]>(x, w)",
    "Conv, depthwise": "Conv<group = 2>(x, d)",
    "Conv, dilated": "Conv<dilations = [3, 1], pads = [1, 0, 1, 0]>(x, w)",
    "ConvInteger": "ConvInteger(q, i)",
    "QLinearConv": "QLinearConv(q, one, zero, i, one, zero, one, zero)",
    "DeformConv": "DeformConv(x, w, o)",
}


@pytest.mark.parametrize("op", CONVOLUTIONS)
def test_a_kernel_larger_than_the_input(op: str) -> None:
    model = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 19]>
        g (float[1,2,1,4] x, float[1,2,a,2] w, float[2,1,a,2] d, uint8[1,2,1,4] q, uint8[1,2,a,2] i, float[b,c,e,f] o)
        => (z) <float one = {{1}}, uint8 zero = {{0}}> {{ z = {CONVOLUTIONS[op]} }}"""
    )
    exe = pfvm.load(model, device="xla:cpu")

    def call(rows: int) -> np.ndarray:
        w = np.ones((1, 2, rows, 2), np.float32)
        x = np.ones((1, 2, 1, 4), np.float32)
        o = np.zeros((1, 2 * rows * 2, 1, 3), np.float32)
        feeds = {"x": x, "w": w, "d": w.reshape(2, 1, rows, 2), "q": x.astype("u1"), "i": w.astype("u1"), "o": o}
        return exe(feeds)["z"]

    with pytest.raises(InputError, match=f"{op.split(',')[0]}.*: its window of 2 is larger than the input's 1"):
        call(2)
    assert call(1).shape[3] in (2, 3)
