"""What the CPU compiler's fusions would get wrong comes out right."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx
import pfvm
import pytest
from onnx import numpy_helper
from onnx.backend.test.runner import Runner

pytest.importorskip("jax")

import jax
import jax.numpy as jnp
from jax import lax
from pfvm.runtime.xla import fusion


def test_softmax_of_large_equal_averages() -> None:
    """SqueezeNet's end: the difference to the maximum is 0, not the rounding error of the maximum."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (float[1,512,13,13] x) => (float[1,9,1,1] y) {
        c = Conv(x, w) r = Relu(c) a = GlobalAveragePool(r) y = Softmax <axis = 1> (a) }"""
    )
    model.graph.initializer.append(numpy_helper.from_array(np.full((9, 512, 1, 1), 0.02, np.float32), "w"))
    x = np.full((1, 512, 13, 13), 2e9, np.float32)
    np.testing.assert_allclose(pfvm.load(model, device="xla:cpu")({"x": x})["y"], 1 / 9, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("setting", ["auto", "default", "no_convolution"])
def test_windowed_sums_behind_convolutions(setting: str) -> None:
    """DenseNet-121 of ONNX's own tests: its average pools, fused with what stands before them, gave garbage."""
    folder = pathlib.Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    model = onnx.load(folder / "light_densenet121.onnx")
    given = {tensor.name for tensor in model.graph.initializer}
    (image,) = [v for v in model.graph.input if v.name not in given]
    data = np.asarray(Runner.generate_dummy_data(image, seed=0, name="densenet121", random=False))
    expected = onnx.TensorProto.FromString((folder / "light_densenet121_output_0.pb").read_bytes())
    (result,) = pfvm.load(model, device="xla:cpu", fusion=setting)({image.name: data}).values()
    np.testing.assert_allclose(result, numpy_helper.to_array(expected), rtol=1e-3)


def test_the_library_multiplies_bytes_and_reduces() -> None:
    """XLA's own float32 products are faster, and in programs with windows the library's reductions are wrong."""
    traced = {
        "REDUCE": lambda x: jax.nn.softmax(x @ x),
        "INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_REDUCE": lambda x: jnp.matmul(x.astype(jnp.int8), x.astype(jnp.int8)),
        "": lambda x: lax.reduce_window(x @ x, -jnp.inf, lax.max, (2, 2), (2, 2), "VALID"),
    }
    for kinds, function in traced.items():
        jaxpr = jax.make_jaxpr(function)(jnp.ones((8, 8))).jaxpr
        (setting,) = fusion._setting(jaxpr, "auto").values()
        assert setting == (f"LIBRARY_FUSION_TYPE_{kinds}" if kinds else "")


def test_the_library_multiplies_in_training_steps() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(256, 256)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.ones(64, 256)
    for function, products in ((step, True), (lambda x: model(x), False)):
        compiled = pfvm.compile(function, x, device="xla:cpu")
        compiled(x)
        lines = compiled.executable.hlo()[0].splitlines()
        assert any("__ynn_fusion" in line and "dot_general" in line for line in lines) == products
