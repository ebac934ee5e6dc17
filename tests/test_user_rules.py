"""`--rules FILE`: a user's rules are tried, counted, rejected, verified and named like ours."""

from __future__ import annotations

import json
import pathlib

import onnx
import onnx_ir as ir
import pfvm
import pytest
from cli_support import Pfvm, one_line
from pfvm.errors import MismatchError, OptionError, RuleError
from pfvm.passes import constant, forward, rule
from pfvm.passes.rewriter import Rewriter
from pfvm.tools.view.folder import open_folder
from pfvm.tools.view.pass_diff import pass_diffs
from support import assert_same_numbers, model, ops

SQUARE = '''
"""Rules of ours."""
from pfvm.passes import constant, rule


@rule("Pow")
def square(node, rw):
    """Pow(x, 2) → Mul(x, x)."""
    base, exponent = node.inputs
    number = constant(exponent)
    if number is None or number.shape or base.dtype != exponent.dtype:
        return rw.reject("square", "the exponent is no constant number")
    if number != 2:
        return False
    rw.replace(node, rw.op("Mul", base, base, at=node).outputs[0])
    return True
'''
POWERS = """agraph (float[N,4] x, float p) => (float[N,4] y, float[N,4] z) {
    two = Constant<value = float {2}>() three = Constant<value = float {3}>()
    [squared] a = Pow(x, two) [cubed] y = Pow(a, three) [any] z = Pow(x, p) }"""


@pytest.fixture
def rules(tmp_path: pathlib.Path) -> pathlib.Path:
    path = tmp_path / "my_rules.py"
    path.write_text(SQUARE)
    return path


def test_a_rule_is_applied_counted_and_named_in_what_it_makes(rules: pathlib.Path, tmp_path: pathlib.Path) -> None:
    source = model(POWERS)
    compiled = pfvm.optimize(source, rules=rules, artifacts=tmp_path / "out", verify=True)
    assert ops(compiled) == ["Mul", "Pow", "Pow"]
    assert_same_numbers(source, compiled)
    meta = {entry.key: entry.value for entry in compiled.graph.node[0].metadata_props}
    assert meta == {"pfvm.rule": "my_rules.py/square", "pfvm.from": '["squared"]'}
    runs = json.loads((tmp_path / "out" / "passes.json").read_text())["passes"]
    mine = [run for run in runs if run["name"] == "my_rules.py"]
    assert mine[0]["matches"] == {"square": 1} and mine[0]["max_difference"] is not None
    assert mine[0]["rejected"] == {"square: the exponent is no constant number": 1}
    assert pfvm.optimize(compiled, rules=rules) == compiled


def test_on_the_command_line_and_in_an_option_file(pfvm: Pfvm, rules: pathlib.Path, tmp_path: pathlib.Path) -> None:
    source, target = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(model(POWERS), source)
    assert pfvm("compile", source, "-o", target, "--rules", rules, "-O0").code == 0
    assert ops(onnx.load(target)) == ["Mul", "Pow", "Pow"]
    options = tmp_path / "options.json"
    options.write_text(json.dumps({"args": [f"--rules={rules}", "--opt-level=1"]}))
    assert pfvm("compile", source, "-o", target, "--option-json", options).code == 0
    assert ops(onnx.load(target)) == ["Mul", "Pow", "Pow"]
    assert "no such file" in one_line(pfvm("compile", source, "-o", target, "--rules", tmp_path / "none.py"))


def test_rules_see_shapes_and_the_graph_before_our_passes(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "first.py"
    file.write_text(
        """
from pfvm.passes import rule

@rule("Add")
def kept_apart(node, rw):
    assert [str(dim) for dim in node.outputs[0].shape] == ["N", "4"]
    if rw.producer(node.inputs[0], "MatMul") is None:
        return False
    rw.replace(node, rw.op("Sub", node.inputs[0], rw.op("Neg", node.inputs[1], at=node).outputs[0], at=node).outputs[0])
    return True
"""
    )
    text = "agraph (float[N,8] x, float[8,4] w, float[4] c) => (float[N,4] y) { h = MatMul(x, w) y = Add(h, c) }"
    assert ops(pfvm.optimize(model(text), rules=file, opt_level=0)) == ["MatMul", "Neg", "Sub"]
    assert ops(pfvm.optimize(model(text))) == ["Gemm"]


@rule("Pow")
def power_of_one(node: ir.Node, rw: Rewriter) -> bool:
    """Pow(x, 1) → x."""
    return constant(node.inputs[1]) == 1 and forward(node, rw, node.inputs[0], "power_of_one")


def test_functions_may_be_given_in_python_and_files_together(rules: pathlib.Path) -> None:
    text = """agraph (float[4] x) => (float[4] y) {
        one = Constant<value = float {1}>() two = Constant<value = float {2}>() a = Pow(x, one) y = Pow(a, two) }"""
    assert ops(pfvm.optimize(model(text), rules=[power_of_one, str(rules)], opt_level=0)) == ["Mul"]
    assert ops(pfvm.optimize(model(text), rules=power_of_one, opt_level=0)) == ["Pow"]
    with pytest.raises(OptionError, match="functions marked with @rule"):
        pfvm.optimize(model(text), rules=[ops])


def test_for_a_pytorch_function(rules: pathlib.Path) -> None:
    torch = pytest.importorskip("torch")

    def cube_and_square(x: torch.Tensor) -> dict:
        return {"y": x**2, "z": x**3}

    compiled = pfvm.compile(cube_and_square, torch.ones(3), options={"rules": rules})
    assert [node.op_type for node in compiled.model.graph] == ["Mul", "Pow"]
    assert compiled(torch.full((3,), 3.0))["y"].tolist() == [9.0] * 3


def test_the_viewer_says_why_it_cannot_show_what_they_did(rules: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pfvm.optimize(model(POWERS), rules=rules, artifacts=tmp_path / "out")
    shown = pass_diffs(open_folder(tmp_path / "out"))
    assert shown["diffs"] == {} and "rules of one's own (my_rules.py) took part" in shown["note"]


def test_operators_of_other_domains_and_rules_inside_bodies_and_functions(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(
        """
from pfvm.passes import rule

@rule("theirs::Twice", "Neg")
def plain(node, rw):
    if node.op_type == "Neg":
        return False
    rw.replace(node, rw.op("Add", node.inputs[0], node.inputs[0], at=node).outputs[0])
    return True
"""
    )
    text = """<ir_version: 8, opset_import: ["" : 17, "theirs" : 1, "my" : 1]>
        agraph (float[3] x, bool k) => (float[3] y, float[3] z) { y = my.F(x)
        z = If (k) <then_branch = t () => (float[3] p) { p = theirs.Twice(x) },
                    else_branch = e () => (float[3] q) { q = Neg(x) }> }
        <domain: "my", opset_import: ["" : 17, "theirs" : 1]> F (a) => (c) { b = theirs.Twice(a) c = Neg(b) }"""
    compiled = pfvm.optimize(model(text), rules=file, opt_level=0)
    branch = next(a.g for a in compiled.graph.node[1].attribute if a.name == "then_branch")
    assert [n.op_type for n in branch.node] == ["Add"]
    assert [n.op_type for n in compiled.functions[0].node] == ["Add", "Neg"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return node.nothing", r"bad\.py, line 5: rule broken at Pow 'squared': AttributeError: .*nothing"),
        ("return 3", r"bad\.py: rule broken at Pow 'squared': it returned 3; a rule returns True when it changed"),
        ("rw.op('Neg', node.inputs[0], at=node)", r"rule broken at Pow 'squared': it changed the graph but did not"),
        ("return True", r"rule broken at Pow .*: it was applied [\d,]+ times; it returns True but comes to no end"),
        ("rw.op('Nagative', at=node)", r"line 5: rule broken at Pow 'squared': Nagative of domain 'ai\.onnx' does not"),
    ],
)
def test_a_rule_that_fails_is_named_with_file_and_node(tmp_path: pathlib.Path, body: str, message: str) -> None:
    file = tmp_path / "bad.py"
    file.write_text(f'from pfvm.passes import rule\n\n@rule("Pow")\ndef broken(node, rw):\n    {body}\n')
    with pytest.raises(RuleError, match=message):
        pfvm.optimize(model(POWERS), rules=file)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("import nowhere_to_be_found", RuleError, r"bad\.py, line 1: ModuleNotFoundError"),
        ("def f(:", RuleError, r"bad\.py, line 1: SyntaxError"),
        ("x = 1", OptionError, r"bad\.py has no rules: mark functions with @rule"),
        (
            'from pfvm.passes import rule\n@rule("Rleu")\ndef f(node, rw): ...',
            OptionError,
            "no operator 'Rleu', at which f is tried; did you mean 'Relu'",
        ),
    ],
)
def test_a_file_that_is_no_file_of_rules(
    tmp_path: pathlib.Path, text: str, error: type[Exception], message: str
) -> None:
    file = tmp_path / "bad.py"
    file.write_text(text)
    with pytest.raises(error, match=message):
        pfvm.optimize(model(POWERS), rules=file)


def test_verify_names_the_file_whose_rule_is_wrong(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "wrong.py"
    file.write_text(SQUARE.replace('"Mul"', '"Add"'))
    with pytest.raises(MismatchError, match=r"wrong\.py changed output"):
        pfvm.optimize(model(POWERS), rules=file, verify=True)


def test_a_rule_that_undoes_ours_is_named_with_the_pass(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "undo.py"
    file.write_text(
        """
from pfvm.passes import rule

@rule("Gemm")
def apart(node, rw):
    product = rw.op("MatMul", *node.inputs[:2], at=node).outputs[0]
    rw.replace(node, rw.op("Add", product, node.inputs[2], at=node).outputs[0])
    return True
"""
    )
    text = "agraph (float[N,8] x, float[8,4] w, float[4] c) => (float[N,4] y) { h = MatMul(x, w) y = Add(h, c) }"
    with pytest.raises(RuleError, match=r"undo\.py and other passes change the model for ever.*fuse-matmul-bias"):
        pfvm.optimize(model(text), rules=file)


def test_two_files_of_one_name_are_two_passes(rules: pathlib.Path, tmp_path: pathlib.Path) -> None:
    other = tmp_path / "sub" / "my_rules.py"
    other.parent.mkdir()
    other.write_text(SQUARE.replace("square", "again"))
    compiled = pfvm.optimize(model(POWERS), rules=[rules, other])
    assert ops(compiled) == ["Mul", "Pow", "Pow"]
