"""One table says what is pure."""

from __future__ import annotations

import onnx_ir as ir
import pytest
from pfvm.compiler.importer import read_model
from pfvm.passes.effects import Effect
from pfvm.passes.rewriter import Rewriter
from support import model


def _effect(text: str) -> Effect:
    rw = Rewriter(read_model(model(text)))
    return rw.effect(next(node for node in rw.model.graph if node.op_type != "Constant"))


@pytest.mark.parametrize(
    ("opset", "line", "expected"),
    [
        (17, "y = Relu(x)", Effect.PURE),
        (17, "y = RandomNormalLike(x)", Effect.RANDOM),
        (17, "y = Bernoulli(x)", Effect.RANDOM),
        (17, "y = Dropout(x)", Effect.PURE),
        (
            17,
            "r = Constant <value_float = 0.5> () t = Constant <value = bool {1}> () y = Dropout(x, r, t)",
            Effect.RANDOM,
        ),
        (
            17,
            "r = Constant <value_float = 0.5> () t = Constant <value = bool {0}> () y = Dropout(x, r, t)",
            Effect.PURE,
        ),
        (9, "y = Dropout(x)", Effect.PURE),
        (6, "y = Dropout(x)", Effect.RANDOM),
        (6, "y = Dropout <is_test = 1> (x)", Effect.PURE),
        (17, "y = BatchNormalization(x, x, x, x, x)", Effect.PURE),
        (17, "y, m, v = BatchNormalization <training_mode = 1> (x, x, x, x, x)", Effect.RANDOM),
        (9, "y, m, v, a, b = BatchNormalization(x, x, x, x, x)", Effect.PURE),  # nobody reads the statistics
        (17, "y = theirs.Op(x)", Effect.OPAQUE),
        (17, "y = com.microsoft.Gelu(x)", Effect.PURE),
        (17, "y = com.microsoft.BitmaskDropout(x)", Effect.OPAQUE),
    ],
)
def test_effect_of_an_operator(opset: int, line: str, expected: Effect) -> None:
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "theirs" : 1, "com.microsoft" : 1]>'
    assert _effect(f"{header} agraph (float[3] x) => (float[3] y) {{ {line} }}") is expected


@pytest.mark.parametrize(("inner", "expected"), [("Relu", Effect.PURE), ("RandomNormalLike", Effect.RANDOM)])
def test_bodies_and_functions_are_as_pure_as_their_nodes(inner: str, expected: Effect) -> None:
    body = f"""agraph (bool c, float[3] x) => (float[3] y) {{
        y = If (c) <then_branch = t () => (float[3] p) {{ p = {inner}(x) }},
                    else_branch = e () => (float[3] q) {{ q = Neg(x) }}> }}"""
    assert _effect(body) is expected
    function = f"""<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
        agraph (float[3] x) => (float[3] y) {{ y = my.F(x) }}
        <domain: "my", opset_import: ["" : 17]> F (a) => (b) {{ c = Neg(a) b = {inner}(c) }}"""
    assert _effect(function) is expected


def test_dropout_whose_training_flag_is_an_input() -> None:
    text = "agraph (float[3] x, bool t) => (float[3] y) { r = Constant <value_float = 0.5> () y = Dropout(x, r, t) }"
    assert _effect(text) is Effect.RANDOM
    assert isinstance(read_model(model(text)), ir.Model)
