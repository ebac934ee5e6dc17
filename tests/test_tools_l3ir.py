"""`pfvm l3ir`: a dump is shown, compared and checked, and every way to corrupt one is found and named."""

import json
import pathlib

import pytest
from cli_support import one_line

PUBLISHED = pathlib.Path(__file__).parents[2] / "shared" / "facts" / "l3ir-sample.txt"
MATRIX = "PadLayout{(100,256)/((8_L2B:1, 8_L1B:1, 2:1), (16_MAB:1, 4_W:1, 4_PE:1))}"
TYPE = f"onnx_type=Tensor(dtype=FLOAT32 shape=100,256) num_lw=2 padded_shape=128,256 layout={MATRIX} layout_kind=MNCore"
HALF = f"{TYPE} dtype=Half gene=[N,C]"
DUMP = f"""\
MNCoreDownload(x) -> (x_Download_0)
   in(0):x {HALF} loc=DRAM addr=0)
  out(0):x_Download_0 {HALF} loc=LM0 addr=0)
MNCoreDownload(y) -> (y_Download_1)
   in(0):y {HALF} loc=DRAM addr=3072)
  out(0):y_Download_1 {HALF} loc=LM0 addr=4)
Add(x_Download_0, y_Download_1) -> (sum)
   in(0):x_Download_0 {HALF} loc_kind=LM loc=LM0 addr=0)
   in(1):y_Download_1 {HALF} loc_kind=LM loc=LM0 addr=4)
  out(0):sum {HALF} loc_kind=LM loc=LM1 addr=0)
Reshape(sum, shape) -> (view)
   in(0):sum {HALF} loc_kind=LM loc=LM1 addr=0)
   in(1):shape loc_kind=IMM loc=IMM)
  out(0):view {HALF} loc_kind=LM loc=LM1 addr=0 parent=sum)
MNCoreUpload(view) -> (out)
   in(0):view {HALF} loc=LM1 addr=0 parent=sum)
  out(0):out {HALF} loc=DRAM addr=6144)
"""
CHANGES = [
    ("levels", "8_L1B:1, 2:1), (16_MAB", "4_L1B:1, 4:1), (16_MAB", "level L1B has 8 indices"),
    ("words", "num_lw=2", "num_lw=4", "num_lw is 4"),
    ("padded", "padded_shape=128,256", "padded_shape=100,256", r"padded_shape is (100, 256)"),
    ("dtype", "dtype=Half", "dtype=Quarter", "machine mncore2 has no dtype Quarter"),
    ("lanes", "dtype=Half", "dtype=Float", "level W has 2 indices"),
    ("memory", "loc=LM1", "loc=LM2", "machine mncore2 has no memory LM2"),
    ("end", "loc=LM1 addr=0", "loc=LM1 addr=4094", "LM1 ends at 4096, the value at 4098"),
    ("alignment", "loc=LM0 addr=4", "loc=LM0 addr=5", "address 5 of LM0 is inside a long word"),
    ("overlap", "loc=LM0 addr=4", "loc=LM0 addr=2", "LM0 2…6 overlaps x_Download_0 at 0…4, which is read until sum"),
    ("parent", "loc=LM1 addr=0 parent", "loc=LM1 addr=8 parent", "its parent sum has addr 0, it has 8"),
    ("exclusive", "loc=LM1", "loc=LM0", "reads and writes LM0"),
]


@pytest.fixture
def dump(tmp_path):
    path = tmp_path / "l3ir.txt"
    path.write_text(DUMP, encoding="utf-8")
    return path


def test_a_possible_program_passes(pfvm, dump):
    result = pfvm("l3ir", "check", dump.parent)  # the directory does as well
    assert (result.code, result.out) == (0, "5 nodes, 12 value lines: 0 errors, 0 warnings\n")


@pytest.mark.parametrize(("old", "new", "message"), [change[1:] for change in CHANGES], ids=[c[0] for c in CHANGES])
def test_an_impossible_program_is_an_error_that_names_line_and_value(pfvm, dump, old, new, message):
    dump.write_text(DUMP.replace(old, new), encoding="utf-8")
    result = pfvm("l3ir", "check", dump)
    assert message in result.out
    assert result.out.startswith("line ")
    findings = json.loads(pfvm("l3ir", "check", dump, "--json").out)
    assert result.code == any(finding["severity"] == "error" for finding in findings)
    assert any(message in finding["message"] for finding in findings)


def test_what_changes_from_line_to_line_or_is_read_before_it_is_made_is_an_error(pfvm, dump):
    lines = DUMP.splitlines()
    lines[7] = lines[7].replace("addr=0", "addr=8")
    dump.write_text("\n".join(lines), encoding="utf-8")
    assert "line 7: error: sum: x_Download_0 addr is 8, before it was 0" in pfvm("l3ir", "check", dump).out
    dump.write_text("\n".join(DUMP.splitlines()[3:]), encoding="utf-8")
    assert "x_Download_0 nothing before this node puts it into LM0" in pfvm("l3ir", "check", dump).out


def test_a_shortened_dump_is_not_judged_on_what_it_leaves_out(pfvm, dump):
    lines = DUMP.splitlines()
    shortened = ["…", *lines[3:6], "…", lines[6], lines[7].split(" layout")[0] + " …)", *lines[9:]]
    dump.write_text("\n".join(shortened) + "\n", encoding="utf-8")
    result = pfvm("l3ir", "check", dump)
    assert (result.code, result.out.count("\n")) == (0, 1)


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="the published sample is not here")
def test_the_published_sample_passes(pfvm):
    assert pfvm("l3ir", "check", PUBLISHED).out == "7 nodes, 16 value lines: 0 errors, 0 warnings\n"


def test_a_program_is_shown_with_its_peaks(pfvm, dump):
    result = pfvm("l3ir", "show", dump)
    assert result.code == 0
    rows = [line.split() for line in result.out.splitlines()]
    assert rows[0] == ["operator", "makes", "dtype", "words", "place", "pad", "layout"]
    assert rows[3][:7] == ["2", "Add", "sum", "Half", "2", "LM1", "0"]
    assert result.out.splitlines()[-1].startswith("5 nodes, 3 of them moves; ")
    assert "LM0 at most 4 of 2048 long words a cell" in result.out
    only = pfvm("l3ir", "show", dump, "--op", "Reshape").out
    assert "= sum" in only and "Add" not in only
    nodes = json.loads(pfvm("l3ir", "show", dump, "--name", "view", "--json").out)
    assert [node["op"] for node in nodes] == ["Reshape", "MNCoreUpload"]
    assert nodes[0]["outputs"][0]["parent"] == "sum"


def test_an_operator_that_is_not_there_is_answered_with_those_that_are(pfvm, dump):
    result = pfvm("l3ir", "show", dump, "--op", "Gemm")
    assert result.out == "no such node; its operators are Add, MNCoreDownload, MNCoreUpload, Reshape\n"


def test_two_programs_are_compared_node_by_node(pfvm, dump, tmp_path):
    other = tmp_path / "other.txt"
    other.write_text(DUMP, encoding="utf-8")
    assert pfvm("l3ir", "diff", dump, other) == (0, "no difference\n", "")
    lines = DUMP.replace("loc=LM1 addr=0", "loc=LM1 addr=16").splitlines()
    other.write_text("\n".join([*lines[3:6], *lines[:3], *lines[6:10], *lines[14:]]), encoding="utf-8")
    result = pfvm("l3ir", "diff", dump, other)
    assert result.code == 1
    assert "removed: Reshape → view (line 11)" in result.out
    assert "moved: MNCoreDownload → " in result.out
    assert "changed: Add → sum: addr of sum: 0 → 16" in result.out
    changes = json.loads(pfvm("l3ir", "diff", dump, other, "--json").out)
    assert {change["kind"] for change in changes} == {"removed", "moved", "changed"}


def test_what_is_no_dump_is_an_error_that_names_the_file(pfvm, tmp_path):
    assert "no-such-file: No such file" in one_line(pfvm("l3ir", "show", tmp_path / "no-such-file"))
    path = tmp_path / "x.txt"
    path.write_text("hello\n", encoding="utf-8")
    assert "x.txt: line 1: neither a node nor one of its values: 'hello'" in one_line(pfvm("l3ir", "check", path))
