"""The schedule in the graph: the published sample's order and addresses, every scheduler's plan valid."""

from __future__ import annotations

import pathlib

import onnx
import onnx_ir as ir
import pytest
from pfvm.compiler.importer import read_model
from pfvm.compiler.plan.bounds import lower_bound, totals
from pfvm.compiler.plan.cost import CostModel
from pfvm.compiler.plan.mngraph import values
from pfvm.compiler.plan.placement import placement_of
from pfvm.compiler.plan.planner import Plan, lay_out
from pfvm.compiler.plan.schedule import Schedule, schedule
from pfvm.compiler.plan.state import STATE
from pfvm.errors import OptionError, UnsupportedOpError
from plan_support import write_pond
from schedule_support import check_scheduled
from support import model
from test_plan_layouts import EVAL_STEP

SCHEDULERS = ("always_from_dram", "reuse_consecutive", "spill_opt", "auto_recompute_sa")
WEIGHTS = ("w1", "b1", "w2", "b2")

# A value with two readers far apart, a residual sum, an output that is read again, and a view as an output.
BLOCK = """
<ir_version: 10, opset_import: ["" : 20]>
block (float[64,256] x, float[64,256] z) => (float[64,256] y, float[64,256] h2, float[256,64] back)
  <int64[2] shape = {256, 64}>
{
  h1 = Relu(x)
  h2 = Exp(h1)
  h3 = Mul(h2, z)
  h4 = Tanh(h3)
  h5 = Add(h4, h1)
  y = Sub(h5, h2)
  back = Reshape(y, shape)
}
"""

STEP = """
<ir_version: 10, opset_import: ["" : 20]>
step (float[64,256] x, float[64,256] w, float[64,256] m)
  => (float[64,256] w_new, float[64,256] m_new, float[64,256] seen)
{
  g = Mul(x, w)
  m_new = Add(m, g)
  w_new = Sub(w, m_new)
  seen = Mul(m_new, m)
}
"""


def laid(text: str, weights: tuple[str, ...] = (), **options: object) -> Plan:
    plan = lay_out(read_model(model(text)), options)
    for value in list(plan.model.graph.inputs):  # a captured weight is an initializer that a caller may override
        if value.name in weights:
            value.const_value = ir.LazyTensor(lambda: None, dtype=value.dtype, shape=value.shape, name=value.name)
            plan.model.graph.initializers.add(value)
    return plan


def scheduled(text: str, scheduler: str = "reuse_consecutive", weights: tuple[str, ...] = (), **options: object):
    machine = options.pop("machine", "mncore2")
    plan = laid(text, weights, machine=machine)
    found = schedule(plan.model, plan.machine, scheduler, **options)
    check_scheduled(plan.model, plan.machine)
    return plan, found


def places(plan: Plan) -> dict[str, tuple[str | None, int | None]]:
    return {str(v.name): (placement_of(v).location, placement_of(v).address) for v in values(plan.model)}


def test_the_published_sample_to_the_address() -> None:
    plan, _ = scheduled(EVAL_STEP, weights=WEIGHTS)
    nodes = [(node.op_type, node.outputs[0].name) for node in plan.model.graph]
    assert nodes[:7] == [
        ("Constant", "shape"),
        ("MNCoreDownload", "t_Download_1"),
        ("MNCoreLayoutSwitch", "t_LayoutSwitch_0"),
        ("MNCoreUpload", "t_LayoutSwitch_0_Upload_0"),
        ("MNCoreDownload", "x_Download_0"),
        ("Reshape", "view"),
        ("Gemm", "addmm"),
    ]
    found = places(plan)
    assert found["t"] == ("DRAM", 0) and found["x"] == ("DRAM", 1024)
    assert found["w1"] == ("DRAM", 9216) and found["b1"] == ("DRAM", 25600)
    assert found["t_Download_1"] == ("LM0", 0) and found["t_LayoutSwitch_0"] == ("LM0", 4)
    assert found["t_LayoutSwitch_0_Upload_0"] == ("DRAM", 526869888)
    assert found["x_Download_0"] == found["view"] == ("LM0", 0) and found["addmm"] == ("LM1", 0)
    view = next(v for v in values(plan.model) if v.name == "view")
    assert placement_of(view).parent == "x_Download_0"


def test_spill_opt_keeps_what_the_default_spills() -> None:
    _, default = scheduled(EVAL_STEP, weights=WEIGHTS)
    plan, better = scheduled(EVAL_STEP, "spill_opt", weights=WEIGHTS)
    names = [str(v.name) for v in values(plan.model)]
    assert not [name for name in names if "_Upload_" in name]
    assert len([name for name in names if name.startswith("t_") and "_Download_" in name]) == 1
    assert better.cycles < default.cycles


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_prefetch_hides_transfers_but_no_compute(scheduler: str) -> None:
    plan, serial = scheduled(BLOCK, scheduler)
    again, found = scheduled(BLOCK, scheduler, prefetch=True)
    assert places(plan) == places(again) and found.prefetch and not serial.prefetch
    assert found.cycles <= found.serial_cycles == serial.cycles == serial.serial_cycles
    assert found.cycles < found.serial_cycles or scheduler == "always_from_dram"  # where each waits for its memory
    assert found.cycles >= lower_bound(again.model, CostModel(again.machine)).cycles


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("machine", ["mncore2", "pond"])
@pytest.mark.parametrize("text", [EVAL_STEP, BLOCK, STEP], ids=["eval", "block", "step"])
def test_every_plan_is_valid(scheduler: str, machine: str, text: str, tmp_path: pathlib.Path) -> None:
    where = str(write_pond(tmp_path)) if machine == "pond" else machine
    before = laid(text, machine=where).model.graph
    plan, found = scheduled(text, scheduler, machine=where, search_steps=100)
    graph = plan.model.graph
    assert [v.name for v in graph.outputs] == [v.name for v in before.outputs]
    assert [v.name for v in graph.inputs] == [v.name for v in before.inputs]
    names = [v.name for v in values(plan.model)]
    assert len(set(names)) == len(names)
    onnx.checker.check_model(ir.to_proto(plan.model))
    costs = CostModel(plan.machine)
    assert totals(plan.model, costs).cycles == found.cycles
    assert found.cycles >= found.compulsory_cycles >= lower_bound(plan.model, costs).cycles


@pytest.mark.parametrize("text", [EVAL_STEP, BLOCK, STEP], ids=["eval", "block", "step"])
def test_schedulers_are_no_worse_than_the_one_before(text: str) -> None:
    cycles = [scheduled(text, scheduler, search_steps=100)[1].cycles for scheduler in SCHEDULERS]
    assert cycles == sorted(cycles, reverse=True)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_budget_holds(scheduler: str) -> None:
    _, free = scheduled(BLOCK, "spill_opt")
    budget = max(free.peak.values()) // 3 * 2
    _, found = scheduled(BLOCK, scheduler, sram_budget=budget, search_steps=100)
    assert max(found.peak.values()) <= budget < max(free.peak.values())


def test_the_same_input_gives_the_same_plan() -> None:
    once, again = (scheduled(BLOCK, "auto_recompute_sa", sram_budget=12, search_steps=200) for _ in range(2))
    assert places(once[0]) == places(again[0])
    assert once[1].stopped_by == "steps"


def test_time_cuts_a_search() -> None:
    _, found = scheduled(BLOCK, "auto_recompute_sa", sram_budget=12, search_steps=10**9, time_budget=0.05)
    assert found.stopped_by == "time" or found.cycles == found.compulsory_cycles


def with_state(plan: Plan, pairs: dict[str, str]) -> Plan:
    for out in plan.model.graph.outputs:
        if out.name in pairs:
            out.metadata_props[STATE] = pairs[out.name]
    return plan


def test_state_is_updated_in_place_unless_the_old_value_is_read_later() -> None:
    plan = with_state(laid(STEP), {"w_new": "w", "m_new": "m"})
    schedule(plan.model, plan.machine, "always_from_dram")
    check_scheduled(plan.model, plan.machine)
    found = places(plan)
    assert found["w_new"] == found["w"]
    assert found["m_new"] != found["m"]  # `seen` reads the old m from DRAM once m_new is stored
    plan = with_state(laid(STEP), {"w_new": "w", "m_new": "m"})
    schedule(plan.model, plan.machine, "spill_opt")
    check_scheduled(plan.model, plan.machine)
    found = places(plan)
    assert found["w_new"] == found["w"] and found["m_new"] == found["m"]
    assert [out.metadata_props.get(STATE) for out in plan.model.graph.outputs] == ["w", "m", None]


def test_errors_name_what_would_help() -> None:
    plan = laid(BLOCK)
    with pytest.raises(OptionError, match="did you mean 'spill_opt'"):
        schedule(plan.model, plan.machine, "spil_opt")
    with pytest.raises(OptionError, match="--sram-budget"):
        schedule(plan.model, plan.machine, sram_budget=0)
    with pytest.raises(UnsupportedOpError, match=r"Mul.*does not fit.*the budget leaves.*'h2'"):
        schedule(plan.model, plan.machine, sram_budget=2)


def test_a_schedule_says_what_it_is() -> None:
    _, found = scheduled(BLOCK)
    assert isinstance(found, Schedule)
    assert found.moves["download"] >= 2 and found.moves["upload"] >= 2 and found.candidates == 1
