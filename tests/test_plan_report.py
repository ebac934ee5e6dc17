"""The files of a plan: what they say agrees with each other, and they can be opened by what they are made for."""

import json

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import zstandard
from pfvm.compiler.importer import read_model
from pfvm.compiler.plan.addresses import dram_size
from pfvm.compiler.plan.artifacts import WEIGHT, write_artifacts
from pfvm.compiler.plan.cost import CostModel
from pfvm.compiler.plan.layout import Layout
from pfvm.compiler.plan.machine import load_machine
from pfvm.compiler.plan.mngraph import DOWNLOAD, move_node
from pfvm.compiler.plan.placement import KEY, Placement, place, placement_of
from pfvm.compiler.plan.planner import lay_out
from pfvm.compiler.plan.report import make_report, rates
from pfvm.compiler.plan.text import format_l3ir, parse_l3ir
from pfvm.compiler.plan.timeline import length, timeline
from plan_support import MNIST_EVAL, MNIST_WEIGHTS

FILES = {
    "l3ir.txt", "l3ir_index.json", "l3ir_stripped.onnx.zst", "trace.json", "layout_spec.json", "gemm_layout_spec.json",
    "report.json",
}  # fmt: skip


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The plan of the evaluation step, as far as it is laid out, and the folder of its files."""
    proto = onnx.parser.parse_model(MNIST_EVAL)
    for name, shape in MNIST_WEIGHTS.items():
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros(shape, np.float32), name))
    proto.graph.node[1].metadata_props.add(key="pfvm.source", value="mnist.py:12")
    proto.graph.node[1].metadata_props.add(key="pfvm.module", value="model.linear1")
    plan = lay_out(read_model(proto))
    folder = tmp_path_factory.mktemp("plan")
    write_artifacts(plan, folder)
    return plan, folder


def read(written, name: str):
    return json.loads((written[1] / name).read_text(encoding="utf-8"))


def test_all_files_are_there_and_nothing_else(written):
    assert {path.name for path in written[1].iterdir()} == FILES


def test_the_report_has_the_published_figures_and_null_for_what_is_not_known(written):
    report = read(written, "report.json")
    assert report == json.loads(json.dumps(written[0].report))
    assert report["schema_version"] == 1
    assert report["emulated"] is True
    assert report["core_freq"] == 750.0
    assert report["flops"] == pytest.approx(66_273_875, rel=1e-3)
    assert report["time_us"] == pytest.approx(report["vsm_cycles"] / 750)
    assert report["tflops"] == pytest.approx(report["flops"] / report["time_us"] / 1e6)
    assert report["efficiency"] == pytest.approx(report["tflops"] / 393.2, rel=1e-3)
    assert sum(report["cycles"]["by_op"].values()) == report["vsm_cycles"]
    assert report["cycles"]["serial"] == sum(report["cycles"]["by_path"].values())
    assert report["schedule"]["stopped_by"] is None
    assert report["peak_memory"]["LM0"]["bytes_per_cell"] is None  # nothing has an address yet
    assert report["host"]["bytes_in"] == 128 * 1024 * 2 + 128 * 4
    reading = report["readings"][0]["readings"]
    assert reading["per group"]["vsm_cycles"] == report["vsm_cycles"]
    assert reading["in all"]["vsm_cycles"] > report["vsm_cycles"]


def test_published_figures_follow_from_published_cycles():
    found = rates(7500, 750.0, 66_273_875, 393.2)
    assert found["time_us"] == pytest.approx(10.0)
    assert found["tflops"] == pytest.approx(6.63, abs=0.005)
    assert found["efficiency"] == pytest.approx(0.0169, abs=5e-5)
    assert rates(None, None, 1, 393.2) == {"time_us": None, "tflops": None, "efficiency": None, "peak_tflops": 393.2}


def test_the_text_is_read_back_and_the_index_names_its_lines(written):
    text = (written[1] / "l3ir.txt").read_text(encoding="utf-8")
    nodes = parse_l3ir(text)
    assert format_l3ir(nodes) == text
    entries = read(written, "l3ir_index.json")["nodes"]
    assert [(entry["line"], entry["op"], entry["outputs"]) for entry in entries] == [
        (node.line, node.op, list(node.results)) for node in nodes
    ]
    gemm = next(entry for entry in entries if entry["op"] == "Gemm")
    assert (gemm["source"], gemm["module"]) == ("mnist.py:12", "model.linear1")


def test_the_stripped_graph_is_a_valid_model_with_placements_and_without_weights(written):
    proto = onnx.load_from_string(
        zstandard.ZstdDecompressor().decompress((written[1] / "l3ir_stripped.onnx.zst").read_bytes())
    )
    onnx.checker.check_model(proto)
    assert not proto.graph.initializer
    metadata = {value.name: {p.key: p.value for p in value.metadata_props} for value in proto.graph.input}
    assert {name for name, props in metadata.items() if WEIGHT in props} == {"w0", "b0", "w1"}
    assert all(Placement.from_json(props[KEY]).location == "DRAM" for props in metadata.values())


def test_the_trace_has_a_row_for_every_unit_and_path(written):
    events = read(written, "trace.json")["traceEvents"]
    rows = {event["args"]["name"] for event in events if event["ph"] == "M"}
    report = read(written, "report.json")
    assert rows == {"nodes", *report["cycles"]["by_path"]}
    spans = [event for event in events if event["ph"] == "X"]
    assert max(event["ts"] + event["dur"] for event in spans) == pytest.approx(report["time_us"])


def test_layouts_are_given_as_the_sdk_reads_them(written):
    gemm = read(written, "gemm_layout_spec.json")
    assert [entry["key"] for entry in gemm] == ["w0", "w1"]
    assert Layout.parse(gemm[0]["BT"]).shape == (256, 1024)
    for entry in read(written, "layout_spec.json"):
        assert entry["trigger"] in ("SwitchInput", "FixOutput")
        assert Layout.parse(entry["layout"]).shape == tuple(entry["shape"])


def test_a_prefetched_transfer_waits_for_the_memory_that_it_writes():
    layout = Layout.parse("(128)/((8_L2B:1, 8_L1B:1, 2:1); B@[PE,W,MAB])")

    def graph(address: int) -> ir.Model:
        x, y = (ir.Value(name=n, shape=ir.Shape([128]), type=ir.TensorType(ir.DataType.FLOAT)) for n in "xy")
        for value in (x, y):
            place(value, Placement(layout, "Half", "DRAM", 0))
        first, second = move_node(DOWNLOAD, x, "x0"), move_node(DOWNLOAD, y, "y0")
        place(first.outputs[0], Placement(layout, "Half", "LM0", 0))
        place(second.outputs[0], Placement(layout, "Half", "LM0", address))
        relu = ir.Node("", "Exp", [first.outputs[0]], num_outputs=1)
        relu.outputs[0].name, relu.outputs[0].shape = "e", x.shape
        place(relu.outputs[0], Placement(layout, "Half", "LM1", 0))
        outputs = [relu.outputs[0], second.outputs[0]]
        return ir.Model(ir.Graph([x, y], outputs, nodes=[first, relu, second], opset_imports={"": 21}), ir_version=10)

    costs = CostModel(load_machine())
    beside, behind = (timeline(graph(address), costs, prefetch=True) for address in (4, 0))
    assert beside[2].start == beside[0].end == beside[1].start
    assert behind[2].start == behind[1].end
    assert length(beside) < length(behind) == length(timeline(graph(0), costs))
    report = make_report(graph(4), costs.machine, prefetch=True)
    assert report["vsm_cycles"] == length(beside)
    assert report["peak_memory"]["LM0"]["bytes_per_cell"] == 2 * 8  # never both, in order
    assert any("prefetch" in note for note in report["notes"])


def test_state_that_stays_on_the_device_is_no_transfer_of_the_host():
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
g (float[64,32] x, float[32,16] w) => (float[64,16] y, float[32,16] new) { y = MatMul(x, w)  new = Add(w, w) }"""
    )
    entry = {"name": "w", "kind": "param", "source": "w", "output": "new"}
    proto.metadata_props.add(key="pfvm.state", value=json.dumps({"version": 1, "state": [entry]}))
    plan = lay_out(read_model(proto))
    host = make_report(plan.model, plan.machine)["host"]
    assert host["bytes_in"] == dram_size(placement_of(plan.model.graph.inputs[0]), plan.machine) * 4 * 8
    assert host["bytes_out"] == dram_size(placement_of(plan.model.graph.outputs[0]), plan.machine) * 4 * 8
