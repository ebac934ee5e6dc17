"""l3ir.txt is read and written byte for byte: the published form, our own dumps, and shortened ones."""

import pathlib

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pfvm.compiler.plan.dump import print_l3ir
from pfvm.compiler.plan.foreign import ForeignPlacement, place_foreign
from pfvm.compiler.plan.l3check import check_l3ir
from pfvm.compiler.plan.layout import Layout
from pfvm.compiler.plan.machine import load_machine
from pfvm.compiler.plan.mngraph import DOWNLOAD, GATHERED, move_node
from pfvm.compiler.plan.placement import Placement, place
from pfvm.compiler.plan.text import L3irError, format_l3ir, parse_l3ir

PUBLISHED = pathlib.Path(__file__).parents[2] / "shared" / "facts" / "l3ir-sample.txt"
MATRIX = "((8_L2B:1, 8_L1B:1, 2:1), (16_MAB:1, 4_W:1, 4_PE:1))"

PROGRAM = """\
MNCoreDownload(x) -> (x_Download_0)
   in(0):x onnx_type=Tensor(dtype=FLOAT32 shape=100,256) num_lw=2 padded_shape=128,256 layout=PadLayout{(100,256)/((8_L2B:1, 8_L1B:1, 2:1), (16_MAB:1, 4_W:1, 4_PE:1))} layout_kind=MNCore dtype=Half gene=[N,C] pad_type=Zero loc=DRAM addr=1024)
  out(0):x_Download_0 onnx_type=Tensor(dtype=FLOAT32 shape=100,256) num_lw=2 padded_shape=128,256 layout=PadLayout{(100,256)/((8_L2B:1, 8_L1B:1, 2:1), (16_MAB:1, 4_W:1, 4_PE:1))} layout_kind=MNCore dtype=Half gene=[N,C] pad_type=Zero loc=LM0 addr=0)
Clip(x_Download_0, , limit) -> (y)
   in(0):x_Download_0 onnx_type=Tensor(dtype=FLOAT32 shape=100,256) num_lw=2 padded_shape=128,256 layout=PadLayout{(100,256)/((8_L2B:1, 8_L1B:1, 2:1), (16_MAB:1, 4_W:1, 4_PE:1))} layout_kind=MNCore dtype=Half gene=[N,C] pad_type=Zero loc_kind=LM loc=LM0 addr=0)
   in(2):limit onnx_type=Tensor(dtype=FLOAT32 shape=) num_lw=2 padded_shape= layout=PadLayout{()/(; B@[PE,W,MAB,L1B,L2B])} layout_kind=MNCore dtype=Half gene=[] loc_kind=IMM loc=IMM)
  out(0):y onnx_type=Tensor(dtype=FLOAT32 shape=100,256) num_lw=2 padded_shape=128,256 layout=PadLayout{(100,256)/((8_L2B:1, 8_L1B:1, 2:1), (16_MAB:1, 4_W:1, 4_PE:1))} layout_kind=MNCore dtype=Half gene=[N,C] pad_type=Dirty loc_kind=LM loc=LM1 addr=4)
Flatten(y, axis) -> (z%20%28flat%29) [gathered]
   in(0):y onnx_type=Tensor(dtype=FLOAT32 shape=100,256) num_lw=2 padded_shape=128,256 layout=PadLayout{(100,256)/((8_L2B:1, 8_L1B:1, 2:1), (16_MAB:1, 4_W:1, 4_PE:1))} layout_kind=MNCore dtype=Half gene=[N,C] pad_type=Dirty loc_kind=LM loc=LM1 addr=4)
  out(0):z%20%28flat%29 onnx_type=Tensor(dtype=FLOAT32 shape=100,256) num_lw=2 padded_shape=128,256 layout=PadLayout{(100,256)/((8_L2B:1, 8_L1B:1, 2:1), (16_MAB:1, 4_W:1, 4_PE:1))} layout_kind=MNCore dtype=Half gene=[N,C] pad_type=Dirty loc_kind=LM loc=LM1 addr=4 parent=y)
"""  # noqa: E501 - one value is one line


def planned() -> ir.Model:
    """The graph of PROGRAM."""
    matrix = Placement(Layout.parse(f"(100,256)/{MATRIX}"), "Half", "DRAM", 1024, "Zero", gene=("N", "C"))
    x = value("x", (100, 256), matrix)
    download = move_node(DOWNLOAD, x, "x_Download_0")
    local = download.outputs[0]
    place(local, Placement(matrix.layout, "Half", "LM0", 0, "Zero", gene=("N", "C")))
    everywhere = Layout.parse("()/(; B@[PE,W,MAB,L1B,L2B])")
    limit = value("limit", (), Placement(everywhere, "Half", "IMM"))
    y = value("y", (100, 256), Placement(matrix.layout, "Half", "LM1", 4, "Dirty", gene=("N", "C")))
    clip = ir.Node("", "Clip", [local, None, limit], outputs=[y])
    z = value("z (flat)", (100, 256), Placement(matrix.layout, "Half", "LM1", 4, "Dirty", "y", ("N", "C")))
    flatten = ir.Node("", "Flatten", [y], [ir.AttrInt64("axis", 1)], outputs=[z])
    flatten.metadata_props[GATHERED] = "yes"
    graph = ir.Graph([x, limit], [z], nodes=[download, clip, flatten], opset_imports={"": 21}, name="g")
    return ir.Model(graph, ir_version=10)


def value(name: str, shape: tuple[int, ...], placement: Placement | None = None) -> ir.Value:
    """A float value with a place."""
    made = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
    if placement is not None:
        place(made, placement)
    return made


def test_a_planned_graph_prints_as_the_published_form_and_is_read_back_byte_for_byte():
    text = print_l3ir(planned(), load_machine())
    assert text == PROGRAM
    nodes = parse_l3ir(text)
    assert format_l3ir(nodes) == text
    assert [(node.op, node.attributes, node.flags) for node in nodes] == [
        ("MNCoreDownload", (), ()),
        ("Clip", (), ()),
        ("Flatten", ("axis",), ("gathered",)),
    ]
    clip = nodes[1]
    assert clip.inputs[1] is None
    assert clip.inputs[2] is not None and clip.inputs[2].shape == ()
    out = clip.outputs[0]
    assert out is not None
    assert (out.onnx_dtype, out.shape, out.num_lw, out.padded_shape) == ("FLOAT32", (100, 256), 2, (128, 256))
    assert (out.layout, out.gene, out.addr) == (Layout.parse(f"(100,256)/{MATRIX}"), ("N", "C"), 4)


def test_what_a_constant_holds_is_no_setting():
    out = value("c", (1,), Placement(Layout.parse("(1)/(())"), "Half", "IMM"))
    node = ir.Node("", "Constant", [], [ir.AttrTensor("value", ir.tensor(np.zeros(1, np.float32)))], outputs=[out])
    model = ir.Model(ir.Graph([], [out], nodes=[node], opset_imports={"": 21}), ir_version=10)
    assert print_l3ir(model, load_machine()).startswith("Constant() -> (c)\n")


def test_another_compilers_values_say_what_is_known_of_them():
    x, y = value("p0", (8, 128)), value("fusion", (8, 128))
    place_foreign(x, ForeignPlacement("XLA", "{1,0:T(8,128)}", "f32", "HBM"))
    place_foreign(y, ForeignPlacement("XLA", "{1,0}"))
    node = ir.Node("xla", "fusion", [x], outputs=[y])
    model = ir.Model(ir.Graph([x], [y], nodes=[node], opset_imports={"xla": 1}), ir_version=10)
    text = print_l3ir(model, None)
    assert text == (
        "fusion(p0) -> (fusion)\n"
        "   in(0):p0 onnx_type=Tensor(dtype=FLOAT32 shape=8,128) layout={1,0:T(8,128)} layout_kind=XLA dtype=f32"
        " loc_kind=HBM loc=HBM)\n"
        "  out(0):fusion onnx_type=Tensor(dtype=FLOAT32 shape=8,128) layout={1,0} layout_kind=XLA)\n"
    )
    assert format_l3ir(parse_l3ir(text)) == text


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="the published sample is not here")
def test_the_published_sample_is_read_and_written_byte_for_byte():
    text = PUBLISHED.read_text(encoding="utf-8")
    nodes = parse_l3ir(text)
    assert format_l3ir(nodes) == text
    assert sum(len(list(node.values())) for node in nodes) == 16
    for each in (each for node in nodes for each in node.values()):
        assert each.layout is not None
        assert (each.layout.shape, each.layout.padded_shape) == (each.shape, each.padded_shape)
        assert each.layout.num_lw() == each.num_lw
        assert f"PadLayout{{{each.layout}}}" == each.get("layout")


SHORTENED = """\
…
Gemm(a, b, transB) -> (c)
   in(0):a onnx_type=Tensor(dtype=FLOAT32 shape=8,8) num_lw=… layout=PadLayout{(8,8)/(…)} dtype=Half new_field=3)
  out(0):c onnx_type=Tensor(…) … loc=LM0)
...
Relu(c) -> (d)
"""


def test_a_shortened_dump_of_another_tool_is_read_and_written_byte_for_byte():
    nodes = parse_l3ir(SHORTENED, tolerant=True)
    assert format_l3ir(nodes) == SHORTENED
    a, c = nodes[0].inputs[0], nodes[0].outputs[0]
    assert a is not None and c is not None
    assert (a.shape, a.num_lw, a.layout, a.get("new_field")) == ((8, 8), None, None, "3")
    assert (c.shape, c.get("loc")) == (None, "LM0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: neither a node"),
        ("Relu(x) -> (y)\n   in(0):x num_lw=two)\n", r"line 2: value 'x': 'two' is no number"),
        ("Relu(x) -> (y)\n   in(0):z num_lw=2)\n", r"line 2: 'z' is not in\(0\) of the head"),
        ("Relu(x) -> (y)\n   in(0):x size=2)\n", "line 2: value 'x' has an unknown field 'size'"),
        ("Relu(x) -> (y)\n   in(0):x layout=PadLayout{(8)/(8)})\n", "line 2: value 'x'"),
        ("Relu(x) -> (y)\n…\n", "line 2: neither a node nor one of its values"),
        (SHORTENED, "line 1"),
    ],
)
def test_a_text_that_is_no_dump_is_an_error_that_names_the_line(text, message):
    with pytest.raises(L3irError, match=message):
        parse_l3ir(text)


CUTS = st.lists(st.tuples(st.integers(0, len(PROGRAM)), st.integers(1, 200), st.sampled_from(["…", "..."])), max_size=4)


def shortened(cuts, over_lines: bool) -> str:
    text = PROGRAM
    for start, length, gap in cuts:
        rest = length if over_lines else min(length, max(text.find("\n", start), start) - start)
        text = text[:start] + gap + text[start + rest :]
    return text


@given(CUTS)
@settings(max_examples=100, deadline=None)
def test_any_text_may_be_left_out(cuts):
    text = shortened(cuts, over_lines=True)
    try:
        nodes = parse_l3ir(text, tolerant=True)
    except L3irError as error:
        assert "no node in it" in str(error)  # its heads are all cut
        return
    assert format_l3ir(nodes) == (text if text.endswith("\n") else f"{text}\n")


@given(CUTS)
@settings(max_examples=100, deadline=None)
def test_nothing_is_wrong_with_what_is_left_of_a_line(cuts):
    text = shortened(cuts, over_lines=False)
    try:
        nodes = parse_l3ir(text, tolerant=True)
    except L3irError:
        return
    assert [finding for finding in check_l3ir(nodes, load_machine()) if finding.severity == "error"] == []
