"""One line per rewrite for the settings that every pass must survive.

A graph of text is put into a Loop body and a local function, and every value that it computes on the way is, one
after the other, also a graph output, read a second time, and captured by a body. The numbers must stay in each, and
compiling again must change nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx
from onnx import TensorProto, helper
from support import assert_same_numbers, model, ops, run_passes


def assert_rewritten(text: str, expected: Sequence[str], *passes: str) -> onnx.ModelProto:
    """The main graph's operators become `expected`; the numbers stay there and in every setting."""
    passes = (*passes, "eliminate-dead-code")
    source = model(text)
    compiled = run_passes(source, *passes)
    assert ops(compiled) == list(expected)
    assert_settings(source, *passes)
    return compiled


def assert_settings(source: onnx.ModelProto, *passes: str) -> None:
    """Alone and in every setting the result is valid, computes the same, and does not change again."""
    for name, variant in [("alone", source), *settings(source)]:
        result = run_passes(variant, *passes)
        onnx.checker.check_model(result, full_check=True)
        try:
            assert_same_numbers(variant, result)
        except Exception as error:
            raise AssertionError(f"{name}: {error}") from error
        assert _bytes(run_passes(result, *passes)) == _bytes(result), f"{name}: changes again"


def settings(source: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Name and model of each setting."""
    yield "in a Loop body", looped(source)
    yield "in a function", called(source)
    inferred = onnx.shape_inference.infer_shapes(source)
    known = {value.name: value for value in inferred.graph.value_info}
    for node in source.graph.node:
        for name in node.output:
            if node.op_type == "Constant" or name not in known or not known[name].type.tensor_type.HasField("shape"):
                continue
            value = known[name]
            yield f"{name} is an output", _with(source, [], value)
            twice = helper.make_tensor_value_info("again_", value.type.tensor_type.elem_type, None)
            twice.type.CopyFrom(value.type)
            yield f"{name} is read twice", _with(source, [helper.make_node("Identity", [name], ["again_"])], twice)
            yield f"{name} is captured", _with(source, _capture(value), twice)


def _with(source: onnx.ModelProto, nodes: list[onnx.NodeProto], output: onnx.ValueInfoProto) -> onnx.ModelProto:
    variant = onnx.ModelProto()
    variant.CopyFrom(source)
    variant.graph.node.extend(nodes)
    variant.graph.output.append(output)
    return variant


def _capture(value: onnx.ValueInfoProto) -> list[onnx.NodeProto]:
    result = onnx.ValueInfoProto(name="inner_", type=value.type)
    branches = [
        helper.make_graph([helper.make_node("Identity", [value.name], ["inner_"])], name, [], [result])
        for name in ("yes", "no")
    ]
    condition = helper.make_node("Constant", [], ["when_"], value=helper.make_tensor("t", TensorProto.BOOL, [], [1]))
    return [condition, helper.make_node("If", ["when_"], ["again_"], then_branch=branches[0], else_branch=branches[1])]


def looped(source: onnx.ModelProto) -> onnx.ModelProto:
    """Twice in a Loop that captures the inputs; the outputs are stacked."""
    variant = onnx.ModelProto()
    variant.CopyFrom(source)
    del variant.metadata_props[:]  # a step's state is a matter of the main graph's outputs
    graph = variant.graph
    condition = helper.make_tensor_value_info("go_", TensorProto.BOOL, [])
    again = helper.make_tensor_value_info("again_", TensorProto.BOOL, [])
    index = helper.make_tensor_value_info("i_", TensorProto.INT64, [])
    nodes = [helper.make_node("Identity", ["go_"], ["again_"]), *source.graph.node]
    body = helper.make_graph(nodes, "body", [index, condition], [again, *source.graph.output])
    del graph.node[:], graph.output[:], graph.value_info[:]
    names = [value.name for value in source.graph.output]
    graph.node.extend(
        [
            helper.make_node("Constant", [], ["n_"], value=helper.make_tensor("t", TensorProto.INT64, [], [2])),
            helper.make_node("Constant", [], ["c_"], value=helper.make_tensor("t", TensorProto.BOOL, [], [1])),
            helper.make_node("Loop", ["n_", "c_"], [f"{name}_all" for name in names], body=body),
        ]
    )
    for value in source.graph.output:
        shape = [2, *[d.dim_value or d.dim_param for d in value.type.tensor_type.shape.dim]]
        graph.output.append(helper.make_tensor_value_info(f"{value.name}_all", value.type.tensor_type.elem_type, shape))
    return variant


def called(source: onnx.ModelProto) -> onnx.ModelProto:
    """In a model-local function; initializers of the graph are its parameters."""
    variant = onnx.ModelProto()
    variant.CopyFrom(source)
    names = [*[v.name for v in source.graph.input], *[t.name for t in source.graph.initializer]]
    names = list(dict.fromkeys(names))
    outputs = [value.name for value in source.graph.output]
    function = helper.make_function("local", "F", names, outputs, source.graph.node, source.opset_import)
    del variant.graph.node[:], variant.graph.value_info[:]
    variant.graph.node.append(helper.make_node("F", names, outputs, domain="local"))
    variant.functions.append(function)
    variant.opset_import.append(helper.make_opsetid("local", 1))
    return variant


def _bytes(proto: onnx.ModelProto) -> bytes:
    return proto.SerializeToString(deterministic=True)
