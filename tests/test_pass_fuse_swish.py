"""fuse-swish: x times the sigmoid of a multiple of it; only where it is asked for."""

from __future__ import annotations

import pathlib

import onnx
import onnxruntime
import pytest
from pass_settings import assert_rewritten
from pfvm.passes import pipeline
from support import assert_stays, model, ops, run_passes

PASS = "fuse-swish"
HEAD = """<ir_version: 11, opset_import: ["" : {opset}]>
agraph (float[N,3] x, float[N,3] z) => (float[N,3] y)
<float alpha = {{1.702}}, float below = {{-0.5}}, float[3] row = {{1, 2, 3}}> {{ {lines} }}"""
PLAIN = "s = Sigmoid(x) y = Mul(x, s)"
SCALED = "t = Mul(x, alpha) s = Sigmoid(t) y = Mul(s, x)"


def graph(lines: str, opset: int = 24) -> str:
    return HEAD.format(opset=opset, lines=lines)


@pytest.mark.parametrize(
    ("lines", "alpha"),
    [
        (PLAIN, None),
        ("s = Sigmoid(x) y = Mul(s, x)", None),
        (SCALED, 1.702),
        ("t = Mul(alpha, x) s = Sigmoid(t) y = Mul(x, s)", 1.702),
        ("t = Mul(below, x) s = Sigmoid(t) y = Mul(x, s)", -0.5),
    ],
)
def test_swish(lines: str, alpha: float | None) -> None:
    (node,) = assert_rewritten(graph(lines), ["Swish"], PASS).graph.node
    assert [round(onnx.helper.get_attribute_value(a), 6) for a in node.attribute] == ([alpha] if alpha else [])


@pytest.mark.parametrize(
    "lines",
    [
        "s = Sigmoid(x) y = Mul(z, s)",
        "s = Sigmoid(x) y = Mul(s, s)",
        "s = Sigmoid(x) y = Add(x, s)",
        "s = Tanh(x) y = Mul(x, s)",
        "t = Mul(x, row) s = Sigmoid(t) y = Mul(x, s)",
        "t = Mul(x, z) s = Sigmoid(t) y = Mul(x, s)",
        "t = Mul(z, alpha) s = Sigmoid(t) y = Mul(x, s)",
        "t = Div(x, alpha) s = Sigmoid(t) y = Mul(x, s)",
    ],
)
def test_other_products_stay(lines: str) -> None:
    assert_stays(graph(lines), PASS)


@pytest.mark.parametrize("lines", [PLAIN, SCALED])
def test_onnx_runtime_makes_one_node_of_the_steps_and_several_of_swish(lines: str, tmp_path: pathlib.Path) -> None:
    """Why it runs only where it is named. Where this fails, ONNX Runtime has a kernel."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    left = []
    for proto in (model(graph(lines)), run_passes(graph(lines), PASS)):
        onnxruntime.InferenceSession(proto.SerializeToString(), options)
        left.append(ops(onnx.load(tmp_path / "optimized.onnx")))
    assert left[0] == ["QuickGelu"] and "Swish" not in left[1] and len(left[1]) >= 3


def test_the_operator_must_exist() -> None:
    assert_stays(graph(PLAIN, 23), PASS)


def test_a_constant_that_gives_the_result_more_dims_stays() -> None:
    text = graph(SCALED).replace("(float[N,3] y)", "(float[1,N,3] y)")
    assert_stays(text.replace("float alpha =", "float[1,1,1] alpha ="), PASS)


def test_half_precision_stays() -> None:
    assert_stays(graph(PLAIN).replace("float[N,3]", "float16[N,3]"), PASS)


def test_no_level_makes_it_by_itself() -> None:
    assert PASS in pipeline.ASKED and not any(PASS in names for names in pipeline.LEVELS.values())
    assert ops(run_passes(model(graph(PLAIN)))) == ["Sigmoid", "Mul"]
