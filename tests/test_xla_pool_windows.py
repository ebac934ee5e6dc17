"""A pool whose window does not fit is refused by name; ONNX's formula and ONNX Runtime disagree on it."""

from __future__ import annotations

import numpy as np
import onnx
import pfvm
import pytest
from pfvm.errors import UnsupportedOpError

pytest.importorskip("jax")


def _pool(op: str, attributes: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]> g (float[1,1,1,4] x) => (float[a,b,c,d] y) {{
        y = {op} <kernel_shape = [2, 2], strides = [2, 2]{attributes}> (x) }}"""
    )


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool", "LpPool"])
def test_a_window_larger_than_the_input(op: str) -> None:
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
    with pytest.raises(UnsupportedOpError, match="its window of 2 is larger than the input's 1"):
        pfvm.load(_pool(op, ""), device="xla:cpu")({"x": x})
    padded = pfvm.load(_pool(op, ", pads = [0, 0, 1, 0]"), device="xla:cpu")({"x": x})["y"]
    assert padded.shape == (1, 1, 1, 2)
