"""What README calls a limit is one still: where a test here fails, the sentence is out of date. Others are proved where
their subject is: refused files in test_importer.py, refused functions in sweep_functions.py, `--target ort` and
DynamicQuantizeLSTM beside their tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pfvm
import pytest
from pfvm.errors import CaptureError, InputError


def test_adding_zero_keeps_the_sign_of_zero() -> None:
    text = '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x) => (float[2] y) <float z = {0}> { y = Add(x, z) }'
    model = onnx.parser.parse_model(text)
    negative = {"x": np.array([-0.0, 1], np.float32)}
    assert not np.signbit(pfvm.load(model)(negative)["y"]).any()
    assert np.signbit(pfvm.load(pfvm.optimize(model))(negative)["y"]).tolist() == [True, False]


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4)])
def test_onnx_runtime_refuses_attention_of_nothing(shape: tuple[int, ...]) -> None:
    """While it computes the steps."""
    text = """<ir_version: 10, opset_import: ["" : 23]>
    g (float[B,2,S,4] q, float[B,2,S,4] k, float[B,2,S,4] v) => (float[B,2,S,4] y) <float half = {0.5}> {
      t = Transpose<perm = [0,1,3,2]>(k)  m = MatMul(q, t)  s = Mul(m, half)  p = Softmax(s)  y = MatMul(p, v) }"""
    model = onnx.parser.parse_model(text)
    feeds = dict.fromkeys("qkv", np.zeros(shape, np.float32))
    fused = pfvm.optimize(model)
    assert "Attention" in [node.op_type for node in fused.graph.node]
    with pytest.raises(InputError, match="Attention"):
        pfvm.load(fused)(feeds)
    steps = pfvm.optimize(model, disable="fuse-attention")
    assert pfvm.load(steps)(feeds)["y"].shape == shape


def test_convolutions_in_tiles_spread_an_infinity() -> None:
    pytest.importorskip("jax")
    head = '<ir_version: 10, opset_import: ["" : 21]> g (float[1,32,32,32] x, float[32,32,3,3] w)'
    model = onnx.parser.parse_model(head + " => (float[1,32,30,30] y) { y = Conv(x, w) }")
    random = np.random.default_rng(0)
    feeds = {"x": random.standard_normal((1, 32, 32, 32)), "w": random.uniform(0.1, 1, (32, 32, 3, 3))}
    feeds["x"][0, 0, 3, 3] = np.inf
    feeds = {name: value.astype(np.float32) for name, value in feeds.items()}
    exact, tiles = pfvm.load(model)(feeds)["y"], pfvm.load(model, "xla:cpu")(feeds)["y"]
    assert not np.isnan(exact).any() and np.isnan(tiles).any()
    np.testing.assert_allclose(tiles[..., 8:, 8:], exact[..., 8:, 8:], rtol=1e-3, atol=1e-3)


def solved(x: Any) -> Any:
    import torch

    return torch.linalg.solve(torch.eye(65) * 2 + x.sum(), torch.ones(65, 1))


def factored(x: Any) -> Any:
    import torch

    return torch.linalg.cholesky(torch.eye(65) + x.sum() * 0)


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "65 rows, solved": (solved, "65×65 matrix .* up to 64 rows"),
    "65 rows, factored": (factored, "65×65 matrix .* up to 64 rows"),
    "gamma": (lambda x: _distributions().Gamma(x.abs() + 1, 1.0).sample(), "_standard_gamma"),
    "beta": (lambda x: _distributions().Beta(x.abs() + 1, x.abs() + 1).sample(), "_sample_dirichlet"),
    "Poisson": (lambda x: _distributions().Poisson(x.abs()).sample(), "poisson"),
    "binomial": (lambda x: _distributions().Binomial(5, x.sigmoid()).sample(), "binomial"),
}


def _distributions() -> Any:
    import torch.distributions

    return torch.distributions


@pytest.mark.parametrize("name", REFUSED)
def test_what_capture_refuses(name: str) -> None:
    torch = pytest.importorskip("torch")
    function, message = REFUSED[name]
    with pytest.raises(CaptureError, match=rf"test_limits\.py:\d+: .*{message}"):
        pfvm.compile(function, torch.randn(4, 4))


def test_python_takes_a_symbolic_dimension_for_two_or_more() -> None:
    torch = pytest.importorskip("torch")

    def step(inputs: dict[str, Any]) -> dict[str, Any]:
        return {"y": inputs["x"] * (100 if inputs["x"].shape[0] == 1 else 3)}

    compiled = pfvm.compile(step, {"x": torch.ones(4, 2)}, dynamic={"x": {0: "batch"}})
    assert compiled({"x": torch.ones(1, 2)})["y"].tolist() == [[3, 3]]
