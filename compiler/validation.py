"""What a file must be before passes work on it: known operators in their form, defined tensors, sane functions."""

from __future__ import annotations

import graphlib

import onnx
import onnx_ir as ir
from pfvm.errors import InvalidModelError, UnsupportedOpError, describe_node
from pfvm.passes import schema
from pfvm.passes.effects import nodes_in, roots


def check_functions(proto: onnx.ModelProto) -> None:
    """Local functions compute their outputs, take no graphs as parameters and do not call themselves."""
    for function in proto.functions:
        defined = {*function.input, *(out for node in function.node for out in node.output)}
        for name in function.output:
            if name not in defined:
                raise InvalidModelError(f"function {function.name!r}: its output {name!r} is computed by no node")
        for node in function.node:
            for attribute in node.attribute:
                if attribute.ref_attr_name and attribute.type in (attribute.GRAPH, attribute.GRAPHS):
                    raise UnsupportedOpError(
                        f"function {function.name!r}: attribute {attribute.name!r} of node {node.name or '?'!r} "
                        f"({node.op_type}) is a graph that the caller gives; write the graph in the function"
                    )


def check_model(model: ir.Model) -> None:
    """Opsets, operators, their arity and attributes, and the tensors that nodes read.

    Raises UnsupportedOpError for what ai.onnx does not have, InvalidModelError for the rest, naming the node.
    """
    _check_opsets(model)
    _check_recursion(model)
    for root in roots(model):
        for node in nodes_in(root):
            _check_names(node)
            _check_operator(node, root, model)
            _check_operands(node)
        for value in root.outputs:
            if value.producer() is None and not value.is_graph_input() and not value.is_initializer():
                raise InvalidModelError(f"output {value.name!r} of graph {root.name!r} is computed by no node")


def _check_names(node: ir.Node) -> None:
    """protobuf gives bytes where a text is no UTF-8, and nothing after it could find that name again."""
    texts = (node.op_type, node.domain, node.name, *(value and value.name for value in (*node.inputs, *node.outputs)))
    for text in texts:
        if isinstance(text, bytes):
            raise InvalidModelError(f"{describe_node(node)}: the name {text!r} is not UTF-8, as ONNX asks for")


def _check_opsets(model: ir.Model) -> None:
    for where, imports in [
        ("the model", model.opset_imports),
        *((f"function {f.name!r}", f.opset_imports) for f in model.functions.values()),
    ]:
        if "ai.onnx" in imports:  # the long name of the default domain
            imports.setdefault("", imports.pop("ai.onnx"))
        for domain, version in imports.items():
            newest = schema.newest_opset(domain)
            if newest and not 1 <= version <= newest:
                raise UnsupportedOpError(
                    f"{where} imports opset {version} of {domain or 'ai.onnx'}; this onnx knows 1 to {newest}"
                )


def _check_recursion(model: ir.Model) -> None:
    calls = {
        identifier: sorted({n.op_identifier() for n in nodes_in(function.graph)} & model.functions.keys())
        for identifier, function in model.functions.items()
    }
    try:
        graphlib.TopologicalSorter(calls).prepare()
    except graphlib.CycleError as error:
        name = min(error.args[1])[1]
        raise InvalidModelError(f"function {name!r} calls itself, directly or through others") from error


def _check_operator(node: ir.Node, root: ir.Graph, model: ir.Model) -> None:
    if node.domain not in schema.STANDARD_DOMAINS or node.op_identifier() in model.functions:
        return
    version = root.opset_imports.get(node.domain)
    found = None if version is None else schema.find(node.domain, node.op_type, version)
    if found is not None:
        _check_form(node, found)
    elif not (node.domain == "" and node.op_type in schema.EXTENSIONS):
        raise UnsupportedOpError(
            f"{describe_node(node)}: {node.domain or 'ai.onnx'} has no operator {node.op_type!r} at opset {version}; "
            "use an operator of that opset, or a domain of your own"
        )


def _check_form(node: ir.Node, found: onnx.defs.OpSchema) -> None:
    count = len(node.inputs)
    if not found.min_input <= count <= found.max_input:
        wanted = str(found.min_input) if found.min_input == found.max_input else f"at least {found.min_input}"
        if count > found.max_input:
            wanted = f"at most {found.max_input}"
        raise InvalidModelError(f"{describe_node(node)} has {count} inputs; {node.op_type} takes {wanted}")
    if len(node.outputs) > found.max_output:
        raise InvalidModelError(
            f"{describe_node(node)} has {len(node.outputs)} outputs; {node.op_type} has at most {found.max_output}"
        )
    for index, formal in enumerate(found.inputs[:count]):
        if formal.option == onnx.defs.OpSchema.FormalParameterOption.Single and node.inputs[index] is None:
            raise InvalidModelError(
                f"{describe_node(node)}: input {formal.name!r} is left out, and {node.op_type} needs it"
            )
    for name, attribute in found.attributes.items():
        given = node.attributes.get(name)
        if given is None:
            if attribute.required:
                raise InvalidModelError(f"{describe_node(node)}: attribute {name!r} is missing")
            continue
        kind = ir.AttributeType(int(attribute.type))  # type: ignore[call-overload]  # a pybind11 enumeration
        if not given.is_ref() and given.type != kind:
            raise InvalidModelError(
                f"{describe_node(node)}: attribute {name!r} is of type {given.type.name}, not {kind.name}"
            )
    if node.op_type == "Cast":
        _check_element_type(node, node.attributes.get("to"))


def _check_element_type(node: ir.Node, to: ir.Attr | None) -> None:
    """A string at opset 5 and before; a reference inside functions."""
    if to is None or to.is_ref() or to.type != ir.AttributeType.INT:
        return
    if to.as_int() not in onnx.TensorProto.DataType.values():
        raise InvalidModelError(f"{describe_node(node)}: there is no element type {to.as_int()}")


def _check_operands(node: ir.Node) -> None:
    for value in node.inputs:
        if value is not None and value.producer() is None and value.graph is None:
            raise InvalidModelError(f"{describe_node(node)} reads tensor {value.name!r}, which nothing defines")
