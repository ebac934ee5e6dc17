"""Stages 1 to 3 of a plan: the layouts, dtypes and padding that MLSDK's published dump shows, and their rules."""

from __future__ import annotations

import pytest
from pfvm.compiler.importer import read_model
from pfvm.compiler.plan.layout import Layout
from pfvm.compiler.plan.mngraph import REUSES, values
from pfvm.compiler.plan.ops.table import rule_of
from pfvm.compiler.plan.placement import Placement, placement_of
from pfvm.compiler.plan.planner import Plan, lay_out
from support import model

EVAL_STEP = """
<ir_version: 10, opset_import: ["" : 20, "pfvm" : 1]>
eval (float[125,1,32,32] x, int64[125] t, float[256,1024] w1, float[256] b1, float[10,256] w2, float[10] b2)
  => (int64 correct)
  <int64[2] shape = {125, 1024}, float[256,1024] w1, float[256] b1, float[10,256] w2, float[10] b2>
{
  view = Reshape(x, shape)
  addmm = Gemm<transB = 1>(view, w1, b1)
  relu = Relu(addmm)
  logits = Gemm<transB = 1>(relu, w2, b2)
  best = ArgMax<axis = 1, keepdims = 0>(logits)
  eq = Equal(best, t)
  correct = pfvm.ChainerCastReduceSum<to = 7, keepdims = 0, noop_with_empty_axes = 0>(eq)
}
<domain: "pfvm", opset_import: ["" : 20]>
ChainerCastReduceSum <to, keepdims, noop_with_empty_axes> (x) => (sum)
{
  wide = Cast<to: int = @to>(x)
  sum = ReduceSum<keepdims: int = @keepdims, noop_with_empty_axes: int = @noop_with_empty_axes>(wide)
}
"""

# Lines of MLSDK's published l3ir.txt: name here → layout, dtype, padding, num_lw.
SAMPLE = {
    "shape": ("(2)/((8_L1B:1); B@[PE,W,MAB,L2B])", "Int", None, 2),
    "t": ("(125)/((8_L2B:1, 8_L1B:1, 1:1, 2_W:1); B@[PE,MAB])", "Int", None, 2),
    "t_LayoutSwitch_0": ("(125)/((8_L2B:1, 8_L1B:1, 2:1); B@[PE,W,MAB])", "Int", "Dirty", 2),
    "x": (
        "(125,1,32,32)/((8_L2B:1, 8_L1B:1, 2:1), (), (16_MAB:1, 2:4), (2:2, 4_W:1, 4_PE:1))",
        "Half",
        "Zero",
        8,
    ),
    "view": ("(125,1024)/((8_L2B:1, 8_L1B:1, 2:1), (16_MAB:1, 4:2, 4_W:1, 4_PE:1))", "Half", "Zero", 8),
    "w1": ("(256,1024)/((16:64, 4_W:1, 4_PE:1), (16_MAB:1, 4:16, 4:1, 4:4); B@[L1B,L2B])", "Half", None, 1024),
    "b1": ("(256)/((16_MAB:1, 2:1, 2_W:1, 4_PE:1); B@[L1B,L2B])", "Float", None, 2),
    "addmm": ("(125,256)/((8_L2B:1, 8_L1B:1, 2:1), (16_MAB:1, 4_W:1, 4_PE:1))", "Half", "Dirty", 2),
}


def planned(text: str, **options: object) -> Plan:
    return lay_out(read_model(model(text)), options)


def placements(plan: Plan) -> dict[str, Placement]:
    found = {str(value.name): placement_of(value) for value in values(plan.model)}
    for placement in found.values():
        levels = {**plan.machine.index_levels, "W": plan.machine.lanes(placement.dtype)}
        placement.layout.check(levels)
    return found


@pytest.fixture(scope="module")
def eval_step() -> Plan:
    return planned(EVAL_STEP)


@pytest.mark.parametrize("name", SAMPLE)
def test_the_published_sample(eval_step: Plan, name: str) -> None:
    placement = placements(eval_step)[name]
    layout, dtype, pad, long_words = SAMPLE[name]
    assert (str(placement.layout), placement.dtype, placement.pad) == (layout, dtype, pad)
    assert placement.layout.num_lw() == long_words
    assert placement.layout.padded_shape == Layout.parse(layout).padded_shape


def test_a_reshape_of_the_sample_names_its_inputs_memory(eval_step: Plan) -> None:
    assert placements(eval_step)["view"].parent == "x"
    assert [node.op_type for node in eval_step.model.graph if REUSES in node.metadata_props] == ["Reshape"]


def test_padding_is_refilled_exactly_where_it_is_read(eval_step: Plan) -> None:
    refills = [node for node in eval_step.model.graph if node.op_type == "MNCoreRefillPadding"]
    found = [(node.inputs[0].name, node.attributes["pad"].as_string()) for node in refills]
    assert found == [("logits", "Lowest"), ("eq", "Zero")]  # best of 10 in 16, sum of 125 in 128


def test_flops_of_the_sample(eval_step: Plan) -> None:
    total = sum(rule_of(node).flops(node) for node in eval_step.model.graph)
    assert total == 66_242_875
    assert abs(total / 66_273_875 - 1) < 0.001
