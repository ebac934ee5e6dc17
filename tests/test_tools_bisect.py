"""Promise: `pfvm bisect` finds the pass and the match that break a model, and a few nodes that still show it."""

from __future__ import annotations

import json
import pathlib
import shlex
from collections.abc import Callable

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cli_support import Pfvm
from pfvm.passes import eliminate_identity, simplify_algebra
from pfvm.passes.eliminate_common_subexpressions import EliminateCommonSubexpressions
from pfvm.passes.rewriter import Rewriter
from pfvm.tools import bisection
from pfvm.tools.bisecting.reproduce import Reproducer
from pfvm.tools.bisecting.search import Found
from support import model

CHAIN = "".join(f"a{i} = Tanh({'x' if not i else f'c{i - 1}'}) b{i} = Abs(a{i}) c{i} = Sin(b{i}) " for i in range(12))
LONG = f"agraph (float[n,4] x) => (float[n,4] y) {{ {CHAIN} [here] u = Sigmoid(c11) v = Cos(u) y = Neg(v) }}"
LOOP = """agraph (float[4] x) => (float[4] y) <int64 three = {3}, bool go = {1}>
{ s = Exp(x) r = Loop <body = g (int64 i, bool c, float[4] h) => (bool d, float[4] k)
  { d = Identity(c) p = Abs(h) [here] q = Sigmoid(p) t = Cos(q) k = Add(t, s) }> (three, go, x) y = Neg(r) }"""
FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
agraph (float[4] x) => (float[4] y) { e = Exp(x) y = f.F(e) }
<domain: "f", opset_import: ["" : 17]> F (u) => (v) { p = Abs(u) [here] q = Sigmoid(p) v = Neg(q) }"""
Rule = Callable[[ir.Node, Rewriter], bool]


def skip_sigmoid(node: ir.Node, rw: Rewriter) -> bool:
    """Other numbers."""
    rw.replace(node, node.inputs[0])
    return True


def wrong_type(node: ir.Node, rw: Rewriter) -> bool:
    """A model that ONNX's checker refuses: what reads the result takes no bool."""
    rw.replace(node, rw.op("Cast", node.inputs[0], at=node, to=ir.DataType.BOOL).outputs[0])
    return True


def crash(node: ir.Node, rw: Rewriter) -> bool:
    raise KeyError("no such thing")


def wrong_at_zero(node: ir.Node, rw: Rewriter) -> bool:
    """Right unless the input is 0: |Sign(x)|·Sigmoid(x)."""
    if node.name == "done":
        return False
    gate = rw.op("Abs", rw.op("Sign", node.inputs[0], at=node).outputs[0], at=node).outputs[0]
    same = rw.op("Sigmoid", node.inputs[0], at=node, name="done").outputs[0]
    rw.replace(node, rw.op("Mul", gate, same, at=node).outputs[0])
    return True


def find(text: str, **options: object) -> tuple[Found, Reproducer]:
    found, reproducer, _ = bisection.run(model(text), {"disable": ["inline-functions", "unroll-loops"], **options})
    assert found is not None and reproducer is not None
    onnx.checker.check_model(reproducer.proto, full_check=True)
    return found, reproducer


def break_with(monkeypatch: pytest.MonkeyPatch, rule: Rule, op_type: str = "Sigmoid") -> None:
    monkeypatch.setitem(eliminate_identity.RULES, op_type, [rule])


@pytest.mark.parametrize(("rule", "kind"), [(skip_sigmoid, "numbers"), (wrong_type, "invalid"), (crash, "crash")])
@pytest.mark.parametrize("text", [LONG, LOOP, FUNCTION], ids=["main graph", "Loop body", "function"])
def test_pass_match_node_and_a_small_reproducer(
    monkeypatch: pytest.MonkeyPatch, text: str, rule: Rule, kind: str
) -> None:
    break_with(monkeypatch, rule)
    found, reproducer = find(text)
    assert found.pass_name == "eliminate-identity" and found.fault.kind == kind
    assert found.match is not None and found.match.rule == rule.__name__ and "Sigmoid 'here'" in found.match.node
    operators = [node.op_type for node in reproducer.proto.graph.node]
    assert "Sigmoid" in operators and len(operators) <= 2
    assert reproducer.fault.kind == kind


def test_the_first_match_of_many_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_large(node: ir.Node, rw: Rewriter) -> bool:
        return node.name == "here" and skip_sigmoid(node, rw)

    break_with(monkeypatch, only_large)
    ones = "".join(f"m{i} = Mul({'x' if not i else f't{i - 1}'}, one) t{i} = Tanh(m{i}) " for i in range(20))
    text = f"agraph (float[4] x) => (float[4] y) <float one = {{1}}> {{ {ones} [here] u = Sigmoid(t9) v = Sigmoid(t19) y = Add(u, v) }}"  # noqa: E501
    found, reproducer = find(text)
    assert found.match is not None and found.match.rule == "only_large" and 1 <= found.match.number <= found.matches
    assert found.matches > 15 and [node.op_type for node in reproducer.proto.graph.node] == ["Sigmoid", "Add"]


def test_wrong_on_one_input_only(monkeypatch: pytest.MonkeyPatch) -> None:
    break_with(monkeypatch, wrong_at_zero)
    text = "agraph (float[4] x) => (float[4] y) { a = Sin(x) [here] u = Sigmoid(a) y = Neg(u) }"
    found, reproducer = find(text)
    assert found.fault.case == "all-zero inputs"
    assert not any(np.any(value) for value in reproducer.feeds.values())
    nothing, _, judge = bisection.run(model(text), {}, seed=5)
    assert nothing is not None and len(judge.cases) == 5


def test_a_pass_that_is_not_made_of_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    run = EliminateCommonSubexpressions.run

    def merge_too_much(self: EliminateCommonSubexpressions, rw: Rewriter) -> None:
        run(self, rw)
        for node in list(rw.model.graph):
            if node.op_type == "Cos":
                rw.replace(node, node.inputs[0])
                rw.matched("common node")

    monkeypatch.setattr(EliminateCommonSubexpressions, "run", merge_too_much)
    found, reproducer = find(LONG)
    assert found.pass_name == "eliminate-common-subexpressions" and found.match is None
    assert found.note == f"{found.pass_name} is not made of rules, so which match it is cannot be told"
    assert [node.op_type for node in reproducer.proto.graph.node] == ["Cos", "Neg"]


def test_a_pass_that_crashes_outside_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: EliminateCommonSubexpressions, rw: Rewriter) -> None:
        if any(node.op_type == "Cos" for node in rw.model.graph):
            raise RuntimeError("cannot")

    monkeypatch.setattr(EliminateCommonSubexpressions, "run", fail)
    found, reproducer = find(LONG)
    assert found.fault.kind == "crash" and found.fault.message == "RuntimeError: cannot" and found.match is None
    assert [node.op_type for node in reproducer.proto.graph.node] == ["Cos"]


def test_a_loop_in_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    break_with(monkeypatch, skip_sigmoid)
    body = LOOP.partition("{ s = ")[2].rpartition("}")[0]
    text = f"""<ir_version: 8, opset_import: ["" : 17, "f" : 1]>
    agraph (float[4] x) => (float[4] y) {{ e = Exp(x) y = f.F(e) }}
    <domain: "f", opset_import: ["" : 17]> F (x) => (y) {{
        three = Constant<value = int64 {{3}}>() go = Constant<value = bool {{1}}>() s = {body} }}"""
    found, reproducer = find(text)
    assert found.match is not None and "Sigmoid 'here'" in found.match.node
    assert [node.op_type for node in reproducer.proto.graph.node] == ["Sigmoid", "Cos"]


def test_options_are_those_of_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    break_with(monkeypatch, skip_sigmoid)
    assert bisection.run(model(LONG), {"disable": ["eliminate-identity"]})[0] is None
    assert bisection.run(model(LONG), {"opt_level": 0})[0] is None
    found = bisection.run(model(LONG), {"opt_level": 0, "passes": ["eliminate-identity"]})[0]
    assert found is not None and found.run == 1


def test_a_fault_that_needs_several_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def far(node: ir.Node, rw: Rewriter) -> bool:
        """Wrong where three operators stand in a row."""
        inner = rw.producer(node.inputs[0], "Sin")
        if inner is None or rw.producer(inner.inputs[0], "Abs") is None:
            return False
        rw.replace(node, node.inputs[0])
        return True

    monkeypatch.setitem(simplify_algebra.RULES, "Sigmoid", [far])
    found, reproducer = find(LONG)
    assert found.pass_name == "simplify-algebra"
    assert [node.op_type for node in reproducer.proto.graph.node] == ["Abs", "Sin", "Sigmoid"]


def test_the_command_and_its_reproducer(pfvm: Pfvm, tmp_path: pathlib.Path) -> None:
    rules = tmp_path / "mine.py"
    rules.write_text(
        "from pfvm.passes import rule\n\n\n"
        "@rule('Sigmoid')\ndef drop(node, rw):\n    rw.replace(node, node.inputs[0])\n    return True\n"
    )
    onnx.save(model(LONG), tmp_path / "m.onnx")
    assert pfvm("bisect", tmp_path / "m.onnx").code == 0
    result = pfvm("bisect", tmp_path / "m.onnx", "--rules", rules, "-o", tmp_path / "found")
    assert result.code == 1
    lines = result.out.splitlines()
    assert lines[0] == "mine.py: changes numbers"
    assert any(line.startswith("  match: 1 of 1, by rule drop") for line in lines)
    (repeat,) = [line.removeprefix("  repeat: ") for line in lines if line.startswith("  repeat: ")]
    program, *arguments = shlex.split(repeat)
    assert program == "pfvm"
    again = pfvm(*arguments, "--json")
    report = json.loads(again.out)
    assert again.code == 1 and report["pass"] == "mine.py" and report["match"]["rule"] == "drop"
    assert report["cases"] == ["the given inputs"] and report["reproducer"]["nodes"] == 2
    assert [node.op_type for node in onnx.load(tmp_path / "found" / "reproducer.onnx").graph.node] == ["Sigmoid", "Cos"]
