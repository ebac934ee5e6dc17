"""The compiler's library fusions that give wrong results are off."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pfvm
import pytest
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

pytest.importorskip("jax")


@pytest.mark.slow
@pytest.mark.parametrize("fusion", ["auto", "default", "no_convolution"])
def test_windowed_sums_behind_convolutions(fusion: str) -> None:
    """DenseNet-121 of ONNX's own tests: its average pools, fused with what stands before them, gave garbage."""
    folder = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = onnx.load(folder / "light_densenet121.onnx")
    given = {tensor.name for tensor in model.graph.initializer}
    (image,) = [v for v in model.graph.input if v.name not in given]
    data = np.asarray(Runner.generate_dummy_data(image, seed=0, name="densenet121", random=False))
    expected = onnx.TensorProto.FromString((folder / "light_densenet121_output_0.pb").read_bytes())
    (result,) = pfvm.load(model, device="xla:cpu", fusion=fusion)({image.name: data}).values()
    np.testing.assert_allclose(result, numpy_helper.to_array(expected), rtol=1e-3)
