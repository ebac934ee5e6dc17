"""What nodes cost: the figures that follow from published rates, both readings, and a bound below every schedule."""

import numpy as np
import onnx
import pytest
from pfvm.compiler.importer import read_model
from pfvm.compiler.plan.bounds import lower_bound, totals
from pfvm.compiler.plan.cost import CostModel
from pfvm.compiler.plan.layout import Layout
from pfvm.compiler.plan.machine import load_machine
from pfvm.compiler.plan.ops.table import rule_of
from pfvm.compiler.plan.planner import lay_out
from pfvm.compiler.plan.readings import readings
from plan_support import MNIST_EVAL, MNIST_WEIGHTS, write_pond

X = Layout.parse("(125,1024)/((8_L2B:1, 8_L1B:1, 2:1), (16_MAB:1, 4:2, 4_W:1, 4_PE:1))")
WEIGHT = Layout.parse("(256,1024)/((16:64, 4_W:1, 4_PE:1), (16_MAB:1, 4:16, 4:1, 4:4); B@[L1B,L2B])")


def mnist_eval():
    """The evaluation step of the published example, at batch 125, laid out."""
    proto = onnx.parser.parse_model(MNIST_EVAL)
    for name, shape in MNIST_WEIGHTS.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name))
    return lay_out(read_model(proto))


def test_transfers_take_what_the_published_rates_say():
    costs = CostModel(load_machine())
    assert costs.download(X, "Half").busy == {"DRAM→L2BM": 512, "L2BM→L1BM": 64, "L1BM→PE": 8}
    assert costs.download(WEIGHT, "Half").busy == {"DRAM→L2BM": 2048, "L2BM→L1BM": 4096, "L1BM→PE": 1024}
    assert costs.download(WEIGHT, "Half").cycles == 4096
    assert costs.download(WEIGHT, "Half").serial == 2048 + 4096 + 1024
    assert costs.upload(X, "Half").busy == {"PE→L1BM": 8, "L1BM→L2BM": 64, "L2BM→DRAM": 512}
    assert costs.download(X, "Half").words["DRAM→L2BM"] * 4 == 128 * 1024  # every element once


def test_the_other_reading_of_a_broadcast_gives_the_other_published_total():
    machine = load_machine()
    other = readings(machine, machine.ambiguous[0])["in all"]
    assert CostModel(other).download(WEIGHT, "Half").busy["DRAM→L2BM"] == 8192
    assert CostModel(other).download(X, "Half") == CostModel(machine).download(X, "Half")


@pytest.mark.parametrize(
    ("source", "target", "paths"),
    [
        ("((8_L2B:1, 8_L1B:1, 2:1); B@[PE,W,MAB])", "((8_L2B:1, 8_L1B:1, 2:1); B@[PE,W,MAB])", set()),
        ("((8_L2B:1, 8_L1B:1, 1:1, 2_W:1); B@[PE,MAB])", "((8_L2B:1, 8_L1B:1, 2:1); B@[PE,W,MAB])", {"local"}),
        ("((8_L2B:1, 8_L1B:1, 2:1); B@[PE,W,MAB])", "((8_L2B:1, 8_L1B:1, 2_MAB:1); B@[PE,W,8_MAB:2])", {"local"}),
        ("((8_L2B:1, 8_L1B:1, 2_MAB:1); B@[PE,W,8_MAB:2])", "((8_L2B:1, 8_L1B:1, 2:1); B@[PE,W,MAB])",
         {"PE→L1BM", "L1BM→PE"}),
        ("((8_L1B:1, 8_L2B:1, 2:1); B@[PE,W,MAB])", "((8_L2B:1, 8_L1B:1, 2:1); B@[PE,W,MAB])",
         {"PE→L1BM", "L1BM→L2BM", "L2BM→DRAM", "DRAM→L2BM", "L2BM→L1BM", "L1BM→PE"}),
    ],
)  # fmt: skip
def test_a_switch_goes_as_high_as_elements_have_to(source, target, paths):
    costs = CostModel(load_machine())
    cost = costs.switch(Layout.parse(f"(128)/{source}"), Layout.parse(f"(128)/{target}"), "Int")
    assert set(cost.busy) == paths


def test_the_evaluation_step_takes_the_published_operations_and_times():
    plan = mnist_eval()
    costs = CostModel(plan.machine)
    assert sum(rule_of(node).flops(node) for node in plan.model.graph) == pytest.approx(66_273_875, rel=1e-3)
    gemm = costs.node(next(node for node in plan.model.graph if node.op_type == "Gemm"))
    assert (gemm.busy["matrix"], gemm.busy["matrix load"]) == (128, 1024)
    assert gemm.busy["L2BM→L1BM"] == pytest.approx(4096, rel=0.01)  # and the bias
    total = totals(plan.model, costs)
    assert total.cycles < total.cost.serial
    assert sum(total.by_op.values()) == total.cycles


def test_the_bound_is_that_of_the_busiest_resource_and_below_what_the_nodes_take():
    plan = mnist_eval()
    costs = CostModel(plan.machine)
    bound = lower_bound(plan.model, costs)
    assert bound.resource == "L2B-down"
    assert bound.cycles == max(bound.by_resource.values())
    inputs = sum(costs.download(layout, dtype).cycles for layout, dtype in ((X, "Half"), (X, "Int")))
    assert bound.cycles <= totals(plan.model, costs).cycles + inputs


def test_a_machine_of_other_levels_has_costs_of_the_same_kinds(tmp_path):
    costs = CostModel(load_machine(write_pond(tmp_path)))
    rows = Layout.parse("(48,8)/((6_Tile:1, 4_Core:1, 2:1), (8_W:1))")
    assert costs.download(rows, "Half").busy == {"DRAM→Tile": 4, "Tile→Core": 2}
    copies = Layout.parse("(8)/((8_W:1); B@[Core,Tile])")
    assert costs.download(copies, "Half").busy == {"DRAM→Tile": 1, "Tile→Core": 1}
    assert set(costs.upload(rows, "Half").busy) == {"Core→Tile", "Tile→DRAM"}


def test_every_node_of_a_training_step_has_a_cost():
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
g (float[64,48] x, float[48,24] w, float[64,24] target) => (float loss, float[48,24] new) <float lr = {0.1}>
{ h = MatMul(x, w)  s = Softmax<axis=1>(h)  d = Sub(s, target)  q = Mul(d, d)  loss = ReduceMean<keepdims=0>(q)
  xt = Transpose<perm=[1,0]>(x)  g = MatMul(xt, d)  step = Mul(g, lr)  new = Sub(w, step) }"""
    )
    plan = lay_out(read_model(proto))
    costs = CostModel(plan.machine)
    busy = {node.op_type: costs.node(node) for node in plan.model.graph}
    assert busy["MatMul"].busy["matrix"] > 0
    assert busy["Softmax"].busy["vector"] > 0
    assert lower_bound(plan.model, costs).cycles > 0


def test_a_name_does_not_make_a_node_one_that_computes_again():
    """The schedule marks those; a model's own value may have any name."""
    models = [
        f"""<ir_version: 10, opset_import: ["" : 21]>
g (float[64,48] x, float[48,24] w) => (float[64,24] y) {{ {name} = MatMul(x, w)  y = Relu({name}) }}"""
        for name in ("h", "h_Recompute_0")
    ]
    plans = [lay_out(read_model(onnx.parser.parse_model(text))) for text in models]
    plain, other = (lower_bound(plan.model, CostModel(plan.machine)) for plan in plans)
    assert other == plain
