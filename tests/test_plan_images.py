"""Promise: convolutions and pools run where their images lie, no window sees a neighbour, and the numbers stay."""

from __future__ import annotations

import pathlib

import numpy as np
import onnx_ir as ir
import pytest
from emulator_plans import emulated, feeds_for, schedule_from_dram
from pfvm.compiler.plan.bounds import lower_bound
from pfvm.compiler.plan.cost import CostModel
from pfvm.compiler.plan.dtypes import assign_dtypes
from pfvm.compiler.plan.layout import Layout
from pfvm.compiler.plan.layouts import assign_layouts
from pfvm.compiler.plan.machine import load_machine
from pfvm.compiler.plan.mngraph import GATHERED, values
from pfvm.compiler.plan.ops.convolve import MARKED
from pfvm.compiler.plan.ops.table import KIND
from pfvm.compiler.plan.placement import find_placement, move, placement_of
from pfvm.compiler.plan.plan_options import PlanOptions
from pfvm.compiler.plan.planner import Plan, plan
from pfvm.compiler.plan.prepare import prepare
from pfvm.runtime.emulator.errors import LocalityError
from pfvm.runtime.emulator.program import Program
from pfvm.runtime.emulator.reference import Reference
from plan_support import write_pond
from test_emulator_program import model_of

HEAD = '<ir_version: 10, opset_import: ["" : 21]>'
NETS = {
    "channels over matrix units": f"""{HEAD}
n (float[4,40,6,5] x) => (float[4,24,6,5] y) <float[24,40,3,3] w, float[24] b> {{
  y = Conv <pads=[1,1,1,1]> (x, w, b)
}}""",
    "stride, dilation, pads on one side": f"""{HEAD}
n (float[3,5,11,9] x) => (float[3,20,4,5] y) <float[20,5,3,2] w> {{
  y = Conv <pads=[0,2,1,0], strides=[2,2], dilations=[2,1]> (x, w)
}}""",
    "one channel, more images than cells": f"""{HEAD}
n (float[70,1,4] x) => (float[70,3,4] y) <float[3,1,3] w> {{ y = Conv <pads=[1,1]> (x, w) }}""",
    "each channel by itself": f"""{HEAD}
n (float[2,20,6,6] x) => (float[2,20,3,3] y) <float[20,1,3,3] w, float[20] b> {{
  a = Conv <group=20, auto_pad="SAME_UPPER"> (x, w, b)
  y = Conv <group=20, strides=[2,2], pads=[1,1,1,1]> (a, w)
}}""",
    "transposed": f"""{HEAD}
n (float[2,18,4,4] x) => (float[2,7,8,8] y) <float[18,7,3,3] w, float[7] b> {{
  y = ConvTranspose <strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]> (x, w, b)
}}""",
    "pools between": f"""{HEAD}
n (float[2,20,8,8] x) => (float[2,6] y) <float[20,20,3,3] w, float[6,20,1,1] v> {{
  a = MaxPool <kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]> (x)
  b = Conv <pads=[1,1,1,1]> (a, w)  c = Relu (b)  d = Add (a, c)
  e = AveragePool <kernel_shape=[2,2], pads=[0,0,1,1], strides=[2,2]> (d)
  f = Conv (e, v)  g = GlobalAveragePool (f)  y = Flatten (g)
}}""",
    "positions of maxima": f"""{HEAD}
n (float[3,20,8,8] x) => (float[3,20,4,4] y, int64[3,20,4,4] at) {{
  a = Relu (x)  y, at = MaxPool <kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]> (a)
}}""",
    "a computed weight": f"""{HEAD}
n (float[3,5,6,6] x, float[3,7,6,6] g) => (float[7,5,3,3] y) {{
  xt = Transpose <perm=[1,0,2,3]> (x)  gt = Transpose <perm=[1,0,2,3]> (g)
  yt = Conv <pads=[1,1,1,1]> (xt, gt)  y = Transpose <perm=[1,0,2,3]> (yt)
}}""",
}


def laid_out(text: str, machine: str, dtype: str = "mixed") -> Plan:
    """With every convolution and pool where its images lie, whatever that costs."""
    described = load_machine(machine)
    model = prepare(model_of(text), {}, None)
    assign_dtypes(model, described, dtype)
    names = {str(node.outputs[0].name) for node in model.graph}
    return Plan(assign_layouts(model, described, in_cells=names), described, PlanOptions(machine=machine))


def machine_file(name: str, folder: pathlib.Path) -> str:
    return "mncore2" if name == "mncore2" else str(write_pond(folder))


def runs_where_it_lies(node: ir.Node) -> bool:
    return node.metadata_props.get(KIND) in MARKED


def ran(planned: Plan) -> None:
    feeds = feeds_for(planned.model)
    for exact in (False, True):
        expected = Reference(planned.model, planned.machine, exact)(feeds)
        got = emulated(planned, feeds, exact)
        for name, array in expected.items():
            np.testing.assert_array_equal(got[name], array, err_msg=name)


@pytest.mark.parametrize("machine", ["mncore2", "pond"])
@pytest.mark.parametrize("net", NETS)
def test_the_numbers_are_those_of_the_plan_without_layouts(net: str, machine: str, tmp_path: pathlib.Path) -> None:
    for dtype in ("mixed", "float"):
        planned = laid_out(NETS[net], machine_file(machine, tmp_path), dtype)
        assert not any(GATHERED in node.metadata_props for node in planned.model.graph)
        assert any(runs_where_it_lies(node) for node in planned.model.graph)
        schedule_from_dram(planned.model, planned.machine)
        ran(planned)


def test_batch_rows_channels_columns_and_result_channels_where_there_are_copies() -> None:
    planned = laid_out(NETS["channels over matrix units"], "mncore2")
    layouts = {value.name: str(placement_of(value).layout) for value in values(planned.model)}
    assert layouts["x"].startswith("(4,40,6,5)/((4_L2B:1), (4_MAB:1, 4_W:1, 4_PE:1), (6:5), (5:1); B@[4_MAB:4")
    assert layouts["w"].startswith("(24,40,3,3)/((2_MAB:4, 4_W:1, 4_PE:1), (4_MAB:1, 4:1, 4:4), (3:48), (3:16)")


def test_a_window_over_several_cells_is_named() -> None:
    planned = laid_out(NETS["pools between"], "mncore2")
    schedule_from_dram(planned.model, planned.machine)
    pool = next(node for node in planned.model.graph if node.op_type == "MaxPool")
    spread = Layout.parse("(2,20,8,8)/((2_L2B:1), (2_MAB:1, 4_W:1, 4_PE:1), (8_L1B:1), (8:1); B@[8_MAB:2,4_L2B:2])")
    for value in values(planned.model):
        if find_placement(value) is not None and placement_of(value).layout.shape == (2, 20, 8, 8):
            move(value, layout=spread)
    assert pool.inputs[0] is not None
    with pytest.raises(LocalityError, match=r"MaxPool.*slides over axis 2.*L1B"):
        Program(planned.model, planned.machine)


def test_it_is_chosen_by_cost_and_by_what_fits() -> None:
    net = NETS["channels over matrix units"]
    small = plan(model_of(net.replace("[4,", "[64,")))
    large = plan(model_of(net.replace("[4,", "[1,").replace("6,5", "64,64")))
    assert any(runs_where_it_lies(node) for node in small.model.graph)
    assert not any(runs_where_it_lies(node) for node in large.model.graph), "4,096 positions in 2,048 long words"
    costs = CostModel(small.machine)
    assert 0 < lower_bound(small.model, costs).cycles <= sum(costs.node(node).cycles for node in small.model.graph)


def test_a_large_batch_is_sliced_in_time() -> None:
    text = NETS["channels over matrix units"].replace("[4,", "[1000,")
    planned = plan(model_of(text.replace("6,5", "12,12")))
    assert [node.op_type for node in planned.model.graph].count("Conv") > 1
    ran(planned)
