"""XLA's own schedule: its order, layouts and memories as l3ir.txt and report.json, with nothing made up."""

import json

import numpy as np
import onnx
import pytest
import zstandard
from pfvm.errors import PfvmError

pytest.importorskip("jax")

from pfvm.compiler.plan.dump import print_l3ir
from pfvm.compiler.plan.foreign import find_foreign
from pfvm.compiler.plan.text import format_l3ir, parse_l3ir
from pfvm.runtime.xla.scheduled import read_hlo

HLO = """\
HloModule jit_f, is_scheduled=true, entry_computation_layout={(f32[8,128]{1,0:T(8,128)})->f32[8]{0}}

%fused (p: f32[8,128]) -> f32[8] {
  ROOT %r = f32[8]{0} reduce(%p, %z), dimensions={1}
}

ENTRY %main.9 (a.1: f32[8,128], b.1: f32[128,8]) -> f32[8] {
  %a.1 = f32[8,128]{1,0:T(8,128)} parameter(0), metadata={op_name="arguments[1]"}
  %b.1 = f32[128,8]{1,0:T(8,128)} parameter(1), metadata={op_name="arguments[4]"}
  %c = f32[] constant(0)
  %copy-start = (f32[8,128]{1,0:T(8,128)S(1)}, f32[8,128]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%a.1)
  %copy-done = f32[8,128]{1,0:T(8,128)S(1)} copy-done(%copy-start)
  %bitcast = f32[1024]{0:T(1024)S(1)} bitcast(%copy-done), metadata={op_name="a, (b)" source_line=3}
  %pair = (f32[8]{0}, /*index=1*/(s32[], bf16[8,8]{1,0:T(8,128)(2,1)})) fusion(%bitcast, /*index=1*/%b.1, %c), \
kind=kLoop, calls=%fused, backend_config={"estimated_cycles":"7","x":["a, b"]}
  %first = f32[8]{0} get-tuple-element(%pair), index=0
  %flat = f32[1]{0} bitcast(%c)
  %second = (s32[], bf16[8,8]{1,0:T(8,128)(2,1)}) get-tuple-element(%pair), index=1
  %inner = bf16[8,8]{1,0:T(8,128)(2,1)} get-tuple-element(%second), index=1
  %out = f32[8]{0} custom-call(%first, %inner), custom_call_target="f(x, y)"
  ROOT %tuple = (f32[8]{0}) tuple(%out)
}
"""


def test_a_scheduled_module_is_read_in_its_order_with_its_own_layouts_and_memories():
    graph = read_hlo(HLO, ["unused", "x"], "HBM").graph
    assert [value.name for value in graph.inputs] == ["x", "b.1"]
    assert [node.op_type for node in graph] == [
        "constant", "copy-start", "copy-done", "bitcast", "fusion", "bitcast", "custom-call",
    ]  # fmt: skip
    assert [value.name for value in graph.outputs] == ["out"]
    call = graph[-1]
    assert [value.name for value in call.inputs] == ["pair:0", "pair:1:1"]
    places = {out.name: find_foreign(out) for node in graph for out in node.outputs}
    assert (places["copy-done"].layout, places["copy-done"].location) == ("{1,0:T(8,128)S(1)}", "VMEM")
    assert (places["bitcast"].parent, places["out"].location, places["c"].location) == ("copy-done", "HBM", "IMM")
    assert (places["flat"].parent, places["flat"].location) == ("c", "IMM")  # a bitcast is where its operand is
    assert (places["pair:1:1"].dtype, places["pair:1:1"].address) == ("bf16", None)


def test_its_text_is_read_back_byte_for_byte_and_leaves_out_what_is_not_known():
    text = print_l3ir(read_hlo(HLO, ["unused", "x"], "HBM"), None)
    assert format_l3ir(parse_l3ir(text)) == text
    assert "fusion(bitcast, b.1, c, kind, calls) -> (pair:0, pair:1:0, pair:1:1)\n" in text
    assert "layout={1,0:T(8,128)S(1)} layout_kind=XLA dtype=f32 loc_kind=VMEM loc=VMEM)" in text
    assert "num_lw" not in text and "addr" not in text


def test_a_module_without_a_schedule_is_an_error():
    with pytest.raises(PfvmError, match="not a scheduled HLO module"):
        read_hlo(HLO.replace("is_scheduled=true, ", ""))


@pytest.fixture
def net(tmp_path):
    """A small net with a loop and a product, whose weights are constants."""
    proto = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["" : 21]>
g (float[4,8] x, int64[4] t) => (float[4,16] y, float hits) <int64 trips = {3}, bool go = {1}>
{ h = MatMul(x, w)  s = Softmax<axis=1>(h)
  y = Loop<body = b (int64 i, bool c, float[4,16] a) => (bool k, float[4,16] n) { k = Identity(c)  n = Add(a, s) }>
      (trips, go, s)
  p = ArgMax<axis=1, keepdims=0>(y)  e = Equal(p, t)  f = Cast<to=1>(e)  hits = ReduceSum<keepdims=0>(f) }"""
    )
    weight = np.linspace(-1, 1, 128, dtype=np.float32).reshape(8, 16)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    path = tmp_path / "net.onnx"
    onnx.save(proto, path)
    return path


def drawn(folder):
    """The graph that Netron draws."""
    packed = (folder / "l3ir_stripped.onnx.zst").read_bytes()
    return onnx.load_model_from_string(zstandard.ZstdDecompressor().decompress(packed)).graph


def test_compile_writes_the_schedule_and_a_report_with_null_for_what_xla_does_not_say(pfvm, net, tmp_path):
    folder = tmp_path / "out"
    assert pfvm("compile", net, "--device", "xla:cpu", "--artifacts", folder).code == 0
    assert {path.name for path in folder.iterdir()} == {
        "model.onnx", "pfvm.onnx", "passes.json", "l3ir.txt", "l3ir_stripped.onnx.zst", "report.json",
    }  # fmt: skip
    text = (folder / "l3ir.txt").read_text(encoding="utf-8")
    nodes = parse_l3ir(text)
    assert format_l3ir(nodes) == text
    inputs = {value.name for node in nodes for value in node.inputs if value is not None}
    assert {"x", "t"} <= inputs
    assert all(value.get("layout_kind") == "XLA" for node in nodes for value in node.values())
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert sum(report["nodes"].values()) == len(nodes)
    assert [node.op_type for node in drawn(folder).node] == [node.op for node in nodes]
    assert report["emulated"] is False
    assert report["flops"] >= 2 * 4 * 8 * 16
    assert report["peak_memory"]["HOST"]["bytes_per_cell"] > 4 * 8 * 16
    for key in ("vsm_cycles", "core_freq", "time_us", "tflops", "efficiency", "lower_bound"):
        assert report[key] is None
    assert pfvm("l3ir", "check", folder).code == 0
    assert "loc" not in pfvm("l3ir", "show", folder).err


def test_the_programs_of_a_cut_model_are_drawn_as_one_graph(pfvm, tmp_path):
    """Between them runs the operator that XLA has no program for."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
g (float[8] x) => (float[k] y) { e = Exp(x)  b = Cast<to=9>(e)  n = NonZero(b)  f = Cast<to=1>(n)  y = Neg(f) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "cut.onnx")
    folder = tmp_path / "out"
    assert pfvm("compile", tmp_path / "cut.onnx", "--device", "xla:cpu", "--artifacts", folder).code == 0
    assert json.loads((folder / "report.json").read_text())["schedule"]["programs"] > 1
    listed = parse_l3ir((folder / "l3ir.txt").read_text(encoding="utf-8"))
    assert [node.output[0] for node in drawn(folder).node] == [node.outputs[0].name for node in listed]


def test_two_compilations_write_the_same_schedule(pfvm, net, tmp_path):
    for name in ("a", "b"):
        assert pfvm("compile", net, "--device", "xla:cpu", "--artifacts", tmp_path / name).code == 0
    assert pfvm("l3ir", "diff", tmp_path / "a", tmp_path / "b").code == 0
