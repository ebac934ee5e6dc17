"""The engine that mutates: names, outputs, captures, opset forms."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from pfvm.compiler.exporter import to_proto
from pfvm.compiler.importer import read_model
from pfvm.errors import UnsupportedOpError
from pfvm.passes.rewriter import Rewriter
from pfvm.passes.rules import apply_rules
from support import model


def _open(text: str) -> tuple[Rewriter, list[ir.Node]]:
    rw = Rewriter(read_model(model(text)))
    return rw, list(rw.model.graph)


@pytest.mark.parametrize(
    ("opset", "inputs", "attributes"), [(11, 1, {"axes", "keepdims"}), (13, 2, {"keepdims"}), (21, 2, {"keepdims"})]
)
def test_an_operator_is_written_in_the_form_of_its_opset(opset: int, inputs: int, attributes: set[str]) -> None:
    rw, (relu,) = _open(
        f'<ir_version: 8, opset_import: ["" : {opset}]> agraph (float[2,3] x) => (float[2] y) {{ y = Relu(x) }}'
    )
    node = rw.op("ReduceSum", relu.inputs[0], at=relu, axes=[1], keepdims=0)
    assert len(node.inputs) == inputs and set(node.attributes) == attributes


def test_an_operator_that_the_opset_lacks_is_refused() -> None:
    rw, (relu,) = _open('<ir_version: 8, opset_import: ["" : 9]> agraph (float[2] x) => (float[2] y) { y = Relu(x) }')
    with pytest.raises(UnsupportedOpError, match=r"Gelu .* does not exist at opset 9"):
        rw.op("Gelu", relu.inputs[0], at=relu)
    with pytest.raises(UnsupportedOpError, match="no parameter 'approximate'"):
        rw.op("Relu", relu.inputs[0], at=relu, approximate="tanh")


def test_a_function_body_is_written_at_its_own_opset_and_holds_constant_nodes() -> None:
    rw, _ = _open(
        """<ir_version: 8, opset_import: ["" : 17, "my" : 1]> agraph (float[2,3] x) => (float[2] y) { y = my.F(x) }
        <domain: "my", opset_import: ["" : 11]> F (a) => (b) { c = Neg(a) b = Relu(c) }"""
    )
    (function,) = rw.model.functions.values()
    negation = next(iter(function))
    assert set(rw.op("ReduceSum", negation.inputs[0], at=negation, axes=[1]).attributes) == {"axes"}
    value = rw.constant(np.arange(3), "k", negation)
    assert value.producer() is not None and value.producer().op_type == "Constant"


def test_names_are_unique_over_bodies_and_equal_constants_are_one() -> None:
    rw, nodes = _open(
        """agraph (bool c, float[3] x) => (float[3] y) {
        y = If (c) <then_branch = t () => (float[3] p) { p = Neg(x) },
                    else_branch = e () => (float[3] q) { q = Abs(x) }> }"""
    )
    assert rw.unique_name("p") == "p_1" and rw.unique_name("p") == "p_2"
    first = rw.constant(np.ones(3, np.float32), "k", nodes[0])
    assert rw.constant(np.ones(3, np.float32), "other", nodes[0]) is first
    assert rw.constant(np.ones(3, np.float64), "k", nodes[0]) is not first


def test_erasing_takes_what_is_dead_with_it_but_no_more() -> None:
    rw, nodes = _open(
        '<ir_version: 8, opset_import: ["" : 17, "theirs" : 1]> agraph (float[3] x) => (float[3] y) '
        "{ a = Exp(x) b = theirs.Log(a) c = Neg(b) d = Abs(c) y = Relu(x) }"
    )
    rw.erase(nodes[3])
    assert [node.op_type for node in rw.model.graph] == ["Exp", "Log", "Relu"]


def test_a_graph_output_is_replaced_under_its_name_and_readers_in_bodies_follow() -> None:
    rw, nodes = _open(
        """agraph (bool c, float[3] x) => (float[3] y, float[3] z) {
        a = Exp(x) y = Neg(a)
        z = If (c) <then_branch = t () => (float[3] p) { p = Abs(y) },
                    else_branch = e () => (float[3] q) { q = Abs(x) }> }"""
    )
    relu = rw.op("Relu", nodes[0].outputs[0], at=nodes[1])
    rw.replace(nodes[1], relu.outputs[0])
    proto = to_proto(rw.model)
    assert [(n.op_type, list(n.output)) for n in proto.graph.node[:2]] == [("Exp", ["a"]), ("Relu", ["y"])]
    assert proto.graph.node[2].attribute[0].g.node[0].input[0] == "y"
    with pytest.raises(ValueError, match="is a graph output"):
        rw.replace_value(rw.model.graph.outputs[0], rw.model.graph.inputs[1])


def test_provenance_goes_to_what_replaces() -> None:
    rw, nodes = _open("agraph (float[3] x) => (float[3] y) { a = Exp(x) y = Neg(a) }")
    nodes[1].metadata_props["pfvm.source"] = "f.py:3"
    node = rw.op("Relu", nodes[0].outputs[0], at=nodes[1])
    rw.replace(nodes[1], node.outputs[0])
    assert node.metadata_props["pfvm.source"] == "f.py:3"


def test_rules_run_until_none_applies_and_are_counted() -> None:
    rw, _ = _open("agraph (float[3] x) => (float[3] y) { a = Neg(x) b = Neg(a) c = Neg(b) d = Neg(c) y = Relu(d) }")

    def double_negation(node: ir.Node, rw: Rewriter) -> bool:
        inner = node.inputs[0].producer() if node.inputs[0] is not None else None
        if inner is None or inner.op_type != "Neg":
            return False
        rw.replace(node, inner.inputs[0])
        return True

    apply_rules(rw, {"Neg": [double_negation]})
    assert [node.op_type for node in rw.model.graph] == ["Relu"] and rw.matches == {"double_negation": 2}
