"""Promise: programs for a TPU take the forms that its compiler is good at, and compute the same."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.extend.core as jex  # noqa: E402
from pfvm.compiler.importer import read_model  # noqa: E402
from pfvm.runtime.ort import OrtExecutable  # noqa: E402
from pfvm.runtime.xla import prepared  # noqa: E402
from pfvm.runtime.xla.executable import XlaExecutable  # noqa: E402
from pfvm.runtime.xla.ops import activations  # noqa: E402
from pfvm.runtime.xla.scales import scaled_first  # noqa: E402
from tpu_support import compiled, model  # noqa: E402

SCORES = {
    "divided": "s = Div(m, c)",
    "multiplied": "s = Mul(m, c)",
    "number first": "s = Mul(c, m)",
    "of one dimension": "s = Div(m, d)",
}
HEADS = """g (float[2,3,16,8] q, float[2,3,8,16] k, float[2,3,16,8] v) => (float[2,3,16,8] y)
<float c = {2.5}, float[1] d = {2.5}>
{ m = MatMul(q, k)  SCALED  p = Softmax<axis=-1>(s)  t = MatMul(p, v)  u = Add(t, b)  y = Mul(u, w) }"""
VECTORS = {"b": (1, 3, 1, 1), "w": (8,)}


def heads(scaled: str) -> Any:
    return model(HEADS.replace("SCALED", scaled), **VECTORS)


def text_for_a_tpu(proto: Any) -> str:
    """StableHLO."""
    return compiled(proto).lowered.exported.mlir_module()


@pytest.mark.parametrize("dtype", ["float", "double"])
def test_fourier_transforms_have_no_float64(dtype: str) -> None:
    """Which TPUs lack; elsewhere they are computed in it."""
    graph = f"""g ({dtype}[2,8,2] x) => ({dtype}[2,8,2] y) <{dtype} c = {{2}}, int64 a = {{1}}>
    {{ f = DFT(x, , a)  s = Mul(f, c)  y = DFT<inverse=1>(s, , a) }}"""
    text = text_for_a_tpu(model(graph))
    assert text.count("stablehlo.fft") == 2 and "complex<f32>" in text and "complex<f64>" not in text
    assert "f64" not in "".join(line for line in text.splitlines() if "stablehlo.multiply" in line or ".fft" in line)


@pytest.mark.parametrize("scaled", SCORES.values(), ids=SCORES)
def test_attention_scales_its_queries_and_not_its_scores(scaled: str) -> None:
    text = text_for_a_tpu(heads(scaled))
    (scale,) = re.findall(r"stablehlo\.(?:divide|multiply) .* : tensor<2x3x16x8xf32>", text.split("dot_general")[0])
    assert scale
    assert not re.search(r"stablehlo\.multiply .* tensor<2x3x16x16xf32>", text)


@pytest.mark.parametrize(
    "form",
    [
        lambda q, k: 2 / (q @ k),
        lambda q, k: (q @ k) * q[0, 0, 0],
        lambda q, k: ((q @ k) * 2, q @ k),
        lambda q, k: (lambda m: (m, m * 2))(q @ k),
        lambda q, k: (q[0] @ k[0]) * 2,
        lambda q, k: (k @ q) * 2,
        lambda q, k: jax.lax.div((9 * q).astype(np.int32) @ (9 * k).astype(np.int32), np.int32(7)),
    ],
    ids=["divisor", "no number", "another product", "read twice", "one matrix", "few results", "integers"],
)
def test_what_scales_no_scores_stays_or_computes_the_same(form: Any) -> None:
    random = np.random.default_rng(0)
    q, k = (random.standard_normal(shape).astype(np.float32) for shape in ((3, 16, 8), (3, 8, 16)))
    closed = jax.make_jaxpr(form)(q, k)
    results = [jex.jaxpr_as_fun(program)(q, k) for program in (scaled_first(closed), closed)]
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_weights_of_one_long_dimension_are_arguments_without_the_short_ones() -> None:
    """Each of the others would be copied by a step of its own."""
    rows = compiled(heads(SCORES["divided"])).arguments()
    assert sorted(row["shape"] for row in rows if row["kind"] == "weight") == [[3], [8]]


def test_softmax_subtracts_the_maximum_and_nothing_more() -> None:
    for op in ("Softmax", "LogSoftmax"):
        text = text_for_a_tpu(model(f"g (float[4,64] x) => (float[4,64] y) {{ y = {op}<axis=-1>(x) }}"))
        assert "stablehlo.maximum" in text and "is_finite" not in text and "stablehlo.select" not in text


@pytest.mark.parametrize("scaled", SCORES.values(), ids=SCORES)
def test_what_a_tpu_gets_computes_the_same(scaled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run on the CPU in the TPU's forms."""
    for module in (prepared, activations):
        monkeypatch.setattr(module, "traced_platform", lambda: "tpu")
    proto, random = heads(scaled), np.random.default_rng(0)
    shapes = {value.name: [d.dim_value for d in value.type.tensor_type.shape.dim] for value in proto.graph.input}
    feeds = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
    found = XlaExecutable(read_model(proto))(feeds)["y"]
    np.testing.assert_allclose(found, OrtExecutable(read_model(proto))(feeds)["y"], rtol=1e-5, atol=1e-5)
