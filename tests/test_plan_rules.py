"""How each family of operators is laid out: dtypes, layouts, padding and the moves that a plan inserts."""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Callable

import onnx_ir as ir
import pytest
from growth import assert_linear, seconds
from pfvm.compiler.importer import read_model
from pfvm.compiler.plan import planner
from pfvm.compiler.plan.alternatives import choose_layouts, cycles
from pfvm.compiler.plan.cost import CostModel
from pfvm.compiler.plan.dtypes import assign_dtypes
from pfvm.compiler.plan.forms import Forms
from pfvm.compiler.plan.layouts import assign_layouts
from pfvm.compiler.plan.machine import load_machine
from pfvm.compiler.plan.mngraph import GATHERED, REUSES, values
from pfvm.compiler.plan.placement import Placement, placement_of
from pfvm.compiler.plan.planner import Plan, lay_out
from pfvm.compiler.plan.prepare import prepare
from pfvm.errors import OptionError
from plan_support import write_pond
from support import model

HEAD = '<ir_version: 10, opset_import: ["" : 20]> g '


def planned(text: str, **options: object) -> Plan:
    return lay_out(read_model(model(HEAD + text)), options)


def places(plan: Plan) -> dict[str, Placement]:
    found = {str(value.name): placement_of(value) for value in values(plan.model)}
    for placement in found.values():
        placement.layout.check({**plan.machine.index_levels, "W": plan.machine.lanes(placement.dtype)})
    return found


def kinds(plan: Plan) -> list[str]:
    return [node.op_type for node in plan.model.graph if node.op_type != "Constant"]


def node(plan: Plan, op: str) -> ir.Node:
    return next(node for node in plan.model.graph if node.op_type == op)


def test_an_operand_that_broadcasts_has_the_outputs_layout_and_copies_where_it_is_repeated() -> None:
    plan = planned(
        "(float[64,256] x, float[256,64] w, float[256] b) => (float[64,64] y) { a = Add(x, b) y = MatMul(a, w) }"
    )
    found = places(plan)
    assert str(found["a"].layout) == "(64,256)/((8_L2B:1, 8_L1B:1), (16_MAB:1, 4_W:1, 4_PE:1))"
    assert found["x"].layout == found["a"].layout
    assert kinds(plan)[-2:] == ["Add", "MatMul"]


def test_a_float_operand_has_each_element_in_the_same_cell_as_a_half_one() -> None:
    forms = Forms(load_machine())
    half = forms.matrix((125, 256), "Half")
    wide = forms.convert(half, "Half", "Float")
    assert str(wide) == "(125,256)/((8_L2B:1, 8_L1B:1, 2:1), (16_MAB:1, 2:2, 2_W:1, 4_PE:1))"
    assert forms.convert(wide, "Float", "Half") == half


def test_lanes_that_cannot_be_filled_hold_copies() -> None:
    forms = Forms(load_machine())
    assert str(forms.convert(forms.host((125,), "Int"), "Int", "Half")) == (
        "(125)/((8_L2B:1, 8_L1B:1, 1:1, 2_W:1); B@[PE,2_W:2,MAB])"
    )


@pytest.mark.parametrize(
    ("op", "pad"), [("ReduceSum", "Zero"), ("ReduceMax", "Lowest"), ("ReduceMin", "Highest"), ("ReduceProd", "One")]
)
def test_a_reduction_reads_padding_of_the_axis_that_it_reduces(op: str, pad: str) -> None:
    plan = planned(
        f"(float[60,10] x) => (float[60] y) <int64[1] axis = {{1}}> {{ a = Exp(x) y = {op}<keepdims = 0>(a, axis) }}"
    )
    assert node(plan, "MNCoreRefillPadding").attributes["pad"].as_string() == pad
    rows = planned(
        f"(float[60,16] x) => (float[60] y) <int64[1] axis = {{1}}> {{ a = Exp(x) y = {op}<keepdims = 0>(a, axis) }}"
    )
    assert "MNCoreRefillPadding" not in kinds(rows)  # only rows are padded, and they are not reduced


def test_padding_stays_zero_through_what_maps_zero_to_zero() -> None:
    text = "(float[60,10] x, float[10,16] w) => (float[60,16] y) {{ a = {}(x) y = MatMul(a, w) }}"
    assert "MNCoreRefillPadding" not in kinds(planned(text.format("Relu")))
    assert "MNCoreRefillPadding" in kinds(planned(text.format("Exp")))


def test_a_result_of_a_reduction_has_copies_where_the_axis_was() -> None:
    found = places(planned("(float[125,10] x) => (float[125,1] y) <int64[1] axis = {1}> { y = ReduceMax(x, axis) }"))
    assert str(found["y"].layout) == "(125,1)/((8_L2B:1, 8_L1B:1, 2:1), (); B@[PE,W,MAB])"


def test_statistics_and_losses_are_float_activations_half() -> None:
    text = (
        "(float[64,64] x, float[64,64] w) => (float[64,64] y, float[64,1] s) <int64[1] axis = {1}>"
        "{ h = MatMul(x, w) y = LogSoftmax(h) s = ReduceSum(h, axis) }"
    )
    assert {name: placement.dtype for name, placement in places(planned(text)).items()} == {
        "x": "Half", "w": "Half", "h": "Half", "y": "Float", "s": "Float", "axis": "Int",
    }  # fmt: skip
    assert {p.dtype for name, p in places(planned(text, float_dtype="float")).items() if name != "axis"} == {"Float"}
    assert {p.dtype for name, p in places(planned(text, float_dtype="half")).items() if name != "axis"} == {"Half"}


def test_a_dtype_for_one_node() -> None:
    text = "(float[64,64] x, float[64,64] w) => (float[64,64] y) { [n] h = MatMul(x, w) y = Relu(h) }"
    for name in ("n", "h"):  # the node, or what it computes
        assert places(planned(text, dtypes={name: "Float"}))["h"].dtype == "Float"
    with pytest.raises(OptionError, match="no node of the graph is called or computes; did you mean 'n'"):
        planned(text, dtypes={"nn": "Float"})
    with pytest.raises(OptionError, match="can be chosen, not Int"):
        planned(text, dtypes={"n": "Int"})


def test_a_reshape_where_it_lies_and_one_that_needs_a_switch() -> None:
    free = planned(
        "(float[64,1024] x) => (float[64,32,32] y) <int64[3] s = {64, 32, 32}> { a = Relu(x) y = Reshape(a, s) }"
    )
    assert REUSES in node(free, "Reshape").metadata_props and places(free)["y"].parent == "a"
    text = "(float[6,50,64] x) => (float[300,64] y) <int64[2] s = {300, 64}> { a = Relu(x) y = Reshape(a, s) }"
    assert GATHERED in node(planned(text), "Reshape").metadata_props or "MNCoreLayoutSwitch" in kinds(planned(text))


def test_two_readers_of_one_layout_share_a_switch() -> None:
    text = "(float[64,64] x) => (float[64,64] y) { a = Relu(x) p = MatMul(x, a) q = MatMul(p, a) y = Add(p, q) }"
    plan = planned(text)
    switched = [node.inputs[0].name for node in plan.model.graph if node.op_type == "MNCoreLayoutSwitch"]
    assert switched.count("a") == 1


def test_a_constant_in_two_layouts_stands_in_dram_twice() -> None:
    text = "(float[64,64] x) => (float[64,64] y) <float[64,64] w = {0}> { a = MatMul(x, w) y = Gemm<transB = 1>(a, w) }"
    proto = model(HEAD + text.replace("<float[64,64] w = {0}>", "<float[64,64] w>"))
    import numpy as np
    from onnx import numpy_helper

    del proto.graph.initializer[:]
    proto.graph.initializer.append(numpy_helper.from_array(np.eye(64, dtype=np.float32), "w"))
    plan = lay_out(read_model(proto))
    assert kinds(plan) == ["MatMul", "Gemm"]
    weights = [each.inputs[1] for each in plan.model.graph if each.op_type in ("MatMul", "Gemm")]
    assert {placement_of(value).location for value in weights} == {"DRAM"}
    assert len({str(placement_of(value).layout) for value in weights}) == 2


def test_what_has_no_rule_runs_gathered() -> None:
    plan = planned("(float[64,64] x) => (float[64,64] y) <int64[1] k = {1}> { a = Relu(x) y = CumSum(a, k) }")
    assert GATHERED in node(plan, "CumSum").metadata_props


def test_batched_products_share_the_levels_of_their_batches() -> None:
    text = "(float[8,4,64,32] q, float[8,4,32,64] k) => (float[8,4,64,64] y) { y = MatMul(q, k) }"
    found = places(planned(text))
    assert str(found["q"].layout) == (
        "(8,4,64,32)/((8_L2B:1), (4_L1B:2), (2_L1B:1, 32:1), (2_MAB:1, 4_W:1, 4_PE:1); B@[8_MAB:2])"
    )
    assert str(found["k"].layout) == (
        "(8,4,32,64)/((8_L2B:1), (4_L1B:2), (2_MAB:1, 4:1, 4:4), (4:16, 4_W:1, 4_PE:1); B@[8_MAB:2,2_L1B:1])"
    )


def test_images_have_their_channels_in_the_columns() -> None:
    text = "(float[64,32,8,8] x, float[64,32,3,3] w) => (float[64,64,6,6] y) { y = Conv(x, w) }"
    found = places(planned(text))
    assert [str(sub) for sub in found["x"].layout.axes[1]] == ["2_MAB:1", "4_W:1", "4_PE:1"]
    assert [str(sub) for sub in found["y"].layout.axes[1]] == ["4_MAB:1", "4_W:1", "4_PE:1"]


def test_another_machine_has_other_levels(tmp_path: pathlib.Path) -> None:
    pond = str(write_pond(tmp_path))
    text = "(float[12,64] x, float[64,64] w) => (float[12,64] y) { h = MatMul(x, w) y = Relu(h) }"
    found = places(planned(text, machine=pond))
    assert str(found["x"].layout) == "(12,64)/((6_Tile:1, 2:1), (4_Core:1, 2:2, 8_W:1))"
    assert str(found["w"].layout) == "(64,64)/((4_Core:1, 2:8, 8:1), (8:16, 8_W:1); B@[Tile])"
    assert found["y"].layout == found["h"].layout


def long_model(count: int) -> ir.Model:
    ops = itertools.cycle(("MatMul(v{}, w)", "Relu(v{})", "Transpose(v{})", "Softmax(v{})"))
    steps = " ".join(f"v{i + 1} = {op.format(i)}" for i, op in zip(range(count), ops))
    return read_model(model(HEAD + f"(float[64,64] v0, float[64,64] w) => (float[64,64] v{count}) {{ {steps} }}"))


@pytest.mark.slow
@pytest.mark.parametrize("stage", [lay_out, planner.plan])
def test_time_grows_with_the_nodes(stage: Callable[[ir.Model], Plan]) -> None:
    def planning(count: int) -> Callable[[], Plan]:
        source = long_model(count)
        return lambda: stage(source)

    assert_linear(planning, 1000, limit=5)
    assert seconds(planning(2000)) < 60


def test_the_smaller_operand_of_a_product_of_computed_values_is_the_one_with_copies() -> None:
    text = (
        "(float[64,16] g, float[64,256] x) => (float[16,256] y) { a = Relu(g) b = Relu(x) y = Gemm<transA = 1>(a, b) }"
    )
    plan = planned(text)
    product = node(plan, "Gemm")
    assert [value.shape for value in product.inputs] == [[64, 256], [64, 16]]
    found = places(plan)
    assert [str(copies) for copies in found[str(product.inputs[1].name)].layout.copies] == ["4_MAB:4", "L1B", "L2B"]
    assert found["y"].layout == found[str(product.outputs[0].name)].layout.transposed([1, 0])
    assert REUSES in node(plan, "Transpose").metadata_props


def test_a_larger_weight_that_comes_from_dram_is_streamed() -> None:
    text = "(float[8,64] x, float[256,64] w) => (float[8,256] y) { y = Gemm<transB = 1>(x, w) }"
    assert kinds(planned(text)) == ["Gemm"]
    turned = planned(text, turn_weights=True)
    assert [value.name for value in node(turned, "Gemm").inputs] == ["w", "x"]


def test_turning_a_product_is_kept_only_where_the_plan_gets_cheaper() -> None:
    text = "(float[64,64] x, float[64,64] w) => (float[64,64] y)"
    text += "{ a = Relu(x) b = Relu(w) p = MatMul(a, b) y = MatMul(b, p) }"
    source, machine = read_model(model(HEAD + text)), load_machine()
    prepared = assign_dtypes(prepare(source, {}), machine)
    costs = CostModel(machine)
    assert cycles(choose_layouts(prepared, machine), costs) <= cycles(assign_layouts(prepared.clone(), machine), costs)
