"""FX graph of ATen ops → nodes of an ONNX graph, by the table in aten/. One rule per op, nothing cleaned up."""

from __future__ import annotations

import operator
from typing import Any

import onnx_ir as ir
import torch
from pfvm.errors import CaptureError

from .aten import TABLE
from .dtypes import onnx_dtype
from .emit import Emitter
from .source import origin_of_node
from .symbols import Symbols

aten = torch.ops.aten
# Memory without contents: what torch's own code reserves and then does not use, such as batch_norm, is no node.
# Nor is a question of its own, which the trace has answered.
RESERVATIONS = (
    *(aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default),
    aten._has_same_storage_numel.default,
)


def translate(emitter: Emitter, graph: torch.fx.GraphModule) -> list[tuple[Any, Any]]:
    """Translate every call of the graph; placeholders are bound already. Returns the outputs with their values."""
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            value = getattr(graph, str(node.target))
            if isinstance(value, torch.fx.GraphModule):  # a body, for the rule that reads it
                emitter.values[node] = value
                continue
            emitter.begin(node)
            emitter.bind(node, emitter.torch_constant(value, "value"))
        elif node.op == "call_function" and (node.users or node.target not in RESERVATIONS):
            _translate_call(emitter, node)
    outputs = graph.graph.output_node().args[0]
    assert isinstance(outputs, (tuple, list))
    return [(n, emitter.values[n] if isinstance(n, torch.fx.Node) else n) for n in outputs]


def _translate_call(emitter: Emitter, node: torch.fx.Node) -> None:
    if node.target is operator.getitem:
        source, index = node.args
        emitter.bind(node, emitter.values[source][index])  # type: ignore[index]
        return
    rule = TABLE.get(node.target)
    if rule is None:
        where = origin_of_node(node)
        inside = f" in module {where.module}" if where.module and where.known_source else ""
        part = "" if where.op == str(node.target) else f" (its part {node.target})"
        raise CaptureError(
            f"{where.where}: ATen op {where.op}{part}{inside} has no translation to ONNX; "
            "write this line with other torch functions (pfvm.compiler.capture.aten holds the table)"
        )
    emitter.begin(node)
    first = len(emitter.nodes)
    result = rule(emitter, node, *node.args, **node.kwargs)
    _name(emitter, node, result, emitter.nodes[first:])
    emitter.bind(node, result)


def _name(emitter: Emitter, node: torch.fx.Node, result: Any, made: list[ir.Node]) -> None:
    """Results take the FX node's name, shape and dtype; several get the names of the schema's results added."""
    several = isinstance(result, (list, tuple))
    values = list(result) if several else [result]
    found: Any = node.meta.get("val")
    seen = found if several else [found]
    for index, value in enumerate(values):
        if value is None or value.producer() not in made:
            continue  # a dead second result, or a view that is the operand itself
        value.name = emitter.names.take(f"{node.name}.{_result_name(node, index)}" if several else node.name)
        describe_value(value, seen[index], emitter.symbols)


def _result_name(node: torch.fx.Node, index: int) -> str:
    returns = node.target._schema.returns if isinstance(node.target, torch._ops.OpOverload) else ()
    return (returns[index].name if index < len(returns) else "") or str(index)


def describe_value(value: ir.Value, seen: Any, symbols: Symbols) -> None:
    """Shape and dtype of a Value from what the trace saw."""
    if isinstance(seen, torch.Tensor):
        value.shape = ir.Shape([symbols.dim(s) for s in seen.shape])
        value.type = ir.TensorType(onnx_dtype(seen.dtype))
    elif isinstance(seen, (torch.SymInt, int)):
        value.shape = ir.Shape([])
        value.type = ir.TensorType(ir.DataType.INT64)
