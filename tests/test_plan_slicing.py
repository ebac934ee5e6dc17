"""Time slices: what does not fit a local memory runs in parts, means the same, and every element keeps its place."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pfvm.compiler.importer import read_model
from pfvm.compiler.plan.layout import ADDRESS, TIME, Layout
from pfvm.compiler.plan.machine import load_machine
from pfvm.compiler.plan.mngraph import INPUT_SPLIT, OUTPUT_CONCAT, declare_moves, values
from pfvm.compiler.plan.ops.table import rule_of
from pfvm.compiler.plan.placement import placement_of
from pfvm.compiler.plan.schedule import schedule
from pfvm.compiler.plan.schedule.cuts import cuts, slice_layout, timed_layout
from pfvm.errors import UnsupportedOpError
from pfvm.runtime.emulator.executable import EmulatorExecutable
from pfvm.runtime.ort import OrtExecutable
from plan_support import MACHINES, layouts
from schedule_support import check_scheduled
from support import model as parse
from test_plan_layouts import EVAL_STEP
from test_plan_schedule import laid

ROWS = """
<ir_version: 10, opset_import: ["" : 20]>
rows (float[1000,200] x, float[200] b, float[64,200] w) => (float[1000] y, float[1000,200] h)
  <int64[1] axes = {1}>
{
  h = Add(x, b)
  e = Exp(h)
  p = Gemm<transB = 1>(e, w)
  y = ReduceSum<keepdims = 0>(p, axes)
}
"""


@given(st.data(), st.sampled_from(sorted(MACHINES)))
def test_elements_keep_cell_and_lane(data: st.DataObject, machine: str) -> None:
    layout: Layout = data.draw(layouts(*MACHINES[machine]))
    found = [cut for axis in range(len(layout.shape)) for cut in cuts(layout, axis)]
    if not found:
        return
    cut = data.draw(st.sampled_from(found))
    whole = timed_layout(layout, cut)
    if whole is None:
        return
    assert whole.padded_shape == layout.padded_shape
    for number in range(cut.count):
        part = slice_layout(layout, cut, number)
        if part is None:
            continue
        assert part.extent(ADDRESS) <= layout.extent(ADDRESS)
        index = tuple(data.draw(st.integers(0, size - 1)) for size in part.shape)
        position = cut.positions(layout.shape[cut.axis], number)[index[cut.axis]]
        original = tuple(position if i == cut.axis else p for i, p in enumerate(index))
        here, there, before = part.locate(index), whole.locate(original), layout.locate(original)
        assert there.pop(TIME) == number
        assert {k: v for k, v in there.items() if v} == {k: v for k, v in here.items() if v}
        assert {k: v for k, v in there.items() if v and k != ADDRESS} == {
            k: v for k, v in before.items() if v and k != ADDRESS
        }


def run(model: ir.Model, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feeds)


@pytest.mark.parametrize("scheduler", ["always_from_dram", "reuse_consecutive", "spill_opt", "auto_recompute_sa"])
def test_a_sliced_plan_is_valid_and_means_the_same(scheduler: str) -> None:
    plan = laid(ROWS)
    whole = ir.from_proto(ir.to_proto(plan.model))
    declare_moves(whole)
    found = schedule(plan.model, plan.machine, scheduler, sram_budget=12, search_steps=50)
    check_scheduled(plan.model, plan.machine)
    assert found.sliced >= 3 and max(found.peak.values()) <= 12
    kinds = [node.op_type for node in plan.model.graph]
    assert INPUT_SPLIT in kinds and OUTPUT_CONCAT in kinds
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.normal(size=v.shape.numpy()).astype(np.float32) for v in plan.model.graph.inputs}
    for a, b in zip(run(whole, feeds), run(plan.model, feeds)):
        np.testing.assert_allclose(a, b, rtol=1e-4)


def test_the_whole_has_time_in_dram() -> None:
    plan = laid(ROWS)
    schedule(plan.model, plan.machine, sram_budget=12)
    by_name = {str(v.name): placement_of(v) for v in values(plan.model)}
    for name in ("x", "h"):
        assert any(sub.level == TIME for sub in by_name[name].layout.subaxes), name
    local = [p for p in by_name.values() if p.location in ("LM0", "LM1")]
    assert local and not any(sub.level == TIME for p in local for sub in p.layout.subaxes)


def test_what_cannot_be_sliced_is_named() -> None:
    text = ROWS.replace("Exp(h)", "Transpose<perm = [1, 0]>(h)").replace("float[64,200] w", "float[64,1000] w")
    plan = laid(text.replace("float[1000] y", "float[200] y"))
    with pytest.raises(UnsupportedOpError, match=r"does not fit a local memory.*would help"):
        schedule(plan.model, plan.machine, sram_budget=2)


def test_slices_of_a_view_are_views_of_slices() -> None:
    plan = laid(EVAL_STEP)
    found = schedule(plan.model, plan.machine, "spill_opt", sram_budget=4)
    check_scheduled(plan.model, plan.machine)
    declare_moves(plan.model)
    onnx.checker.check_model(ir.to_proto(plan.model), full_check=True)
    assert found.sliced and [node.op_type for node in plan.model.graph].count("Reshape") == 2


PRODUCT = """
<ir_version: 10, opset_import: ["" : 20]>
product (float[64,128] g, float[64,64] x, float[64,256] w) => (float[128,256] dw, float[64,256] e)
{
  k = Softmax(g)
  e = MatMul(x, w)
  dw = Gemm<transA = 1>(k, e)
}
"""


def test_a_weight_that_fits_no_local_memory_is_read_from_dram() -> None:
    plan = laid(PRODUCT)
    found = schedule(plan.model, plan.machine, sram_budget=24)
    check_scheduled(plan.model, plan.machine)
    relaid = [node.outputs[0] for node in plan.model.graph if node.op_type == "MNCoreLayoutSwitch"]
    assert "DRAM" in {placement_of(value).location for value in relaid} and max(found.peak.values()) <= 24


JOINED = """
<ir_version: 10, opset_import: ["" : 20]>
joined (float[1000,64] x, float[1000,64] z) => (float[1000,128] y, float[1000,32] p, float[1000,96] q)
  <int64[2] sizes = {32, 96}>
{
  y = Concat<axis = 1>(x, z)
  p, q = Split<axis = 1>(y, sizes)
}
"""


@pytest.mark.parametrize(
    ("text", "budget"),
    [(ROWS, 12), (EVAL_STEP, 8), (PRODUCT, 24), (JOINED, 12)],
    ids=["rows", "eval", "product", "joined"],
)
@pytest.mark.parametrize("scheduler", ["reuse_consecutive", "spill_opt"])
def test_the_emulator_runs_slices(text: str, budget: int, scheduler: str) -> None:
    model = read_model(parse(text))
    rng = np.random.default_rng(0)
    feeds = {
        v.name: rng.integers(0, 10, v.shape.numpy())
        if v.dtype == ir.DataType.INT64
        else rng.normal(size=v.shape.numpy()).astype(np.float32)
        for v in model.graph.inputs
    }
    expected = OrtExecutable(model)(feeds)
    assert schedule(laid(text).model, load_machine("mncore2"), scheduler, sram_budget=budget).sliced or text in (
        EVAL_STEP,
        PRODUCT,
    )
    emulated = EmulatorExecutable(model, exact=True, scheduler=scheduler, sram_budget=budget / 2048)
    for name, value in emulated(feeds).items():
        assert np.linalg.norm(value - expected[name]) <= 1e-5 * np.linalg.norm(expected[name]), name


UPDATE = """
<ir_version: 10, opset_import: ["" : 20, "test" : 1]>
update (float[1000,64] w, float[1000,64] g, float step) => (float[1000,64] w_new, float step_new)
{
  w_new, step_new = test.Update(w, g, step)
}
<domain: "test", opset_import: ["" : 20]>
Update (w, g, step) => (w_new, step_new)
{
  one = Constant<value = float {1.0}>()
  step_new = Add(step, one)
  scaled = Div(g, step_new)
  w_new = Sub(w, scaled)
}
"""


def test_a_result_without_the_axis_is_computed_by_every_slice() -> None:
    model = read_model(parse(UPDATE))
    plan = laid(UPDATE)
    call = next(node for node in plan.model.graph if node.op_type == "Update")
    assert rule_of(call).kind == "elementwise"
    assert schedule(plan.model, plan.machine, sram_budget=12).sliced == 1
    check_scheduled(plan.model, plan.machine)
    rng = np.random.default_rng(0)
    feeds = {v.name: rng.normal(size=v.shape.numpy()).astype(np.float32) for v in model.graph.inputs}
    expected = OrtExecutable(model)(feeds)
    for name, value in EmulatorExecutable(model, exact=True, sram_budget=12 / 2048)(feeds).items():
        assert np.linalg.norm(value - expected[name]) <= 1e-5 * np.linalg.norm(expected[name]), name
