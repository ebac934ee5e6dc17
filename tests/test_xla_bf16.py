"""--bf16: bfloat16 where that is customary, behind the same interface; what has to stay exact stays float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

pytest.importorskip("jax")

from pfvm.compiler.importer import read_model
from pfvm.errors import OptionError
from pfvm.runtime.device import load_executable
from pfvm.runtime.xla.executable import XlaExecutable
from tpu_support import cnn, mlp, model

RNG = np.random.default_rng(0)


def program(proto: onnx.ModelProto, **feeds: np.ndarray) -> str:
    """The lowered program."""
    (exported,) = XlaExecutable(read_model(proto), bf16=True).export(feeds, "cpu")
    return exported.mlir_module()


def both(proto: onnx.ModelProto, **feeds: np.ndarray) -> tuple[Any, Any]:
    """The results y in float32 and in bfloat16."""
    plain, short = (load_executable(read_model(proto), "xla:cpu", bf16=flag)(feeds)["y"] for flag in (False, True))
    return plain, short


@pytest.mark.parametrize(("proto", "shape"), [(mlp(), (128, 256)), (cnn(), (4, 3, 32, 32))], ids=["mlp", "cnn"])
def test_results_are_float32_and_as_close_as_bfloat16_is(proto: onnx.ModelProto, shape: tuple[int, ...]) -> None:
    plain, short = both(proto, x=RNG.standard_normal(shape).astype(np.float32))
    assert short.dtype == np.float32
    error = np.abs(plain - short).max() / np.abs(plain).max()
    assert 0 < error < 0.02


def test_products_are_bfloat16_and_sums_float32() -> None:
    text = program(
        model(
            "g (float[4,64] x) => (float[4,64] y) { h = MatMul(x, a)  s = Softmax(h)  y = MatMul(s, a) }", a=(64, 64)
        ),
        x=np.zeros((4, 64), np.float32),
    )
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert len(products) == 2 and all("xbf16>" in line and "xf32>" not in line for line in products)
    sums = [line for line in text.splitlines() if "stablehlo.exponential" in line or "stablehlo.add across" in line]
    assert sums and all("f32" in line and "bf16" not in line for line in sums)


def test_a_loop_and_a_branch_keep_the_types_of_their_state() -> None:
    text = """g (float[8,64] x, bool p) => (float[8,64] y) <int64 n = {3}, bool go = {1}>
{ h = Loop<body = b (int64 i, bool c, float[8,64] s) => (bool k, float[8,64] t)
  { k = Identity(c)  m = MatMul(s, a)  t = Tanh(m) }>(n, go, x)
  y = If<then_branch = t () => (float[8,64] u) { u = MatMul(h, a) },
         else_branch = e () => (float[8,64] v) { v = Relu(h) }>(p) }"""
    feeds = {"x": RNG.standard_normal((8, 64)).astype(np.float32), "p": np.array(True)}
    plain, short = both(model(text, a=(64, 64)), **feeds)
    assert 0 < np.abs(plain - short).max() < 0.02 * np.abs(plain).max()


def test_a_sum_of_many_keeps_its_small_terms() -> None:
    """In bfloat16 1 + 0.001 is 1."""
    proto = model("g (float[1,1000] x) => (float[1,1] y) { h = Mul(x, x)  y = ReduceSum<keepdims=1>(h) }")
    plain, short = both(proto, x=np.full((1, 1000), 0.1, np.float32))
    assert short[0, 0] == pytest.approx(plain[0, 0], rel=5e-3)


def test_only_xla_devices_have_it() -> None:
    with pytest.raises(OptionError, match="device pfvm:cpu has no option 'bf16'"):
        load_executable(read_model(mlp()), "pfvm:cpu", bf16=True)


def test_weights_of_a_step_are_updated_in_float32() -> None:
    """Steps too small for bfloat16 still move the weights."""
    torch = pytest.importorskip("torch")
    import pfvm

    torch.manual_seed(0)
    layer = torch.nn.Linear(16, 4)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-5)

    def step(inp: Any) -> Any:
        optimizer.zero_grad()
        loss = (layer(inp["x"]) ** 2).mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    before = layer.weight.detach().clone()
    sample = {"x": torch.randn(8, 16)}
    compiled = pfvm.compile(step, sample, device="xla:cpu", device_options={"bf16": True})
    compiled(sample)
    change = (layer.weight.detach() - before).abs()
    assert layer.weight.dtype == torch.float32
    assert (change > 0).float().mean() > 0.9 and change.max() < 1e-4
