"""Promise: a product that contracts a batch may leave its rows where they are; a tree adds up the partial sums."""

from __future__ import annotations

import pathlib

import pytest
from emulator_plans import schedule_from_dram
from pfvm.compiler.plan.cost import CostModel
from pfvm.compiler.plan.dtypes import assign_dtypes
from pfvm.compiler.plan.layouts import assign_layouts
from pfvm.compiler.plan.machine import load_machine
from pfvm.compiler.plan.mngraph import GATHERED, LAYOUT_SWITCH, OVER_ROWS
from pfvm.compiler.plan.placement import placement_of
from pfvm.compiler.plan.plan_options import PlanOptions
from pfvm.compiler.plan.planner import Plan, plan
from pfvm.compiler.plan.prepare import prepare
from test_emulator_program import model_of
from test_plan_images import HEAD, NETS, machine_file, ran

PRODUCTS = {
    "of matrices": f"""{HEAD}
n (float[125,40] x, float[125,24] g) => (float[24,40] y) {{
  a = Relu (x)  b = Relu (g)  y = Gemm <transA=1> (b, a)
}}""",
    "few rows": f"""{HEAD}
n (float[6,20] x, float[6,90] g) => (float[20,90] y) {{
  a = Relu (x)  b = Relu (g)  at = Transpose (a)  y = MatMul (at, b)
}}""",
    "of images": NETS["a computed weight"],
    "of images, stride and dilation": f"""{HEAD}
n (float[70,5,9,6] x, float[70,20,4,6] g) => (float[5,20,3,3] y) {{
  xt = Transpose <perm=[1,0,2,3]> (x)  gt = Transpose <perm=[1,0,2,3]> (g)
  y = Conv <pads=[1,1,1,1], dilations=[2,1]> (xt, gt)
}}""".replace("[5,20,3,3]", "[5,20,5,3]"),
}


def over_rows(text: str, machine: str, dtype: str) -> Plan:
    described = load_machine(machine)
    model = prepare(model_of(text), {}, None)
    assign_dtypes(model, described, dtype)
    names = {str(node.outputs[0].name) for node in model.graph}
    laid = assign_layouts(model, described, in_cells=names, over_rows=names)
    return Plan(laid, described, PlanOptions(machine=machine))


@pytest.mark.parametrize("machine", ["mncore2", "pond"])
@pytest.mark.parametrize("net", PRODUCTS)
def test_the_numbers_are_those_of_the_plan_without_layouts(net: str, machine: str, tmp_path: pathlib.Path) -> None:
    for dtype in ("mixed", "float"):
        planned = over_rows(PRODUCTS[net], machine_file(machine, tmp_path), dtype)
        assert not any(GATHERED in node.metadata_props for node in planned.model.graph)
        assert any(OVER_ROWS in node.metadata_props for node in planned.model.graph)
        schedule_from_dram(planned.model, planned.machine)
        ran(planned)


def test_rows_stay_where_they_are() -> None:
    planned = over_rows(PRODUCTS["of matrices"], "mncore2", "mixed")
    product = next(node for node in planned.model.graph if OVER_ROWS in node.metadata_props)
    data, weight = (str(placement_of(value).layout) for value in product.inputs)  # type: ignore[arg-type]
    assert product.metadata_props[OVER_ROWS] == "2"
    assert "(8_L2B:1, 8_L1B:1, 2:1)" in data
    assert "(8_L2B:1, 8_L1B:1, 2:1)" in weight
    busy = CostModel(planned.machine).node(product).busy
    assert busy["PE→L1BM"] and busy["L1BM→L2BM"] and busy["L2BM→DRAM"], "partial sums go up to where all meet"


def test_it_is_chosen_where_turning_the_operands_costs_more() -> None:
    text = f"""{HEAD}
n (float[128,16,16,16] x, float[128,16,16,16] g) => (float[16,16,3,3] y) {{
  a = Relu (x)  b = Relu (g)
  xt = Transpose <perm=[1,0,2,3]> (a)  gt = Transpose <perm=[1,0,2,3]> (b)  y = Conv <pads=[1,1,1,1]> (xt, gt)
}}"""
    planned = plan(model_of(text))
    assert any(OVER_ROWS in node.metadata_props for node in planned.model.graph)
    switches = [node for node in planned.model.graph if node.op_type == LAYOUT_SWITCH]
    crossed = {CostModel(planned.machine).node(node).busy.get("DRAM→L2BM", 0) for node in switches}
    assert crossed <= {0}, "no image leaves its cells"
