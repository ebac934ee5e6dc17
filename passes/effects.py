"""The purity table: what a pass may do with a node.

Seeded from the operator schemas (determinism) and the training forms that a schema cannot express. Control flow and
calls of local functions are as pure as the least pure node inside them. One table serves folding, common
subexpressions, dead code and scheduling.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator, Mapping, MutableMapping

import onnx
import onnx_ir as ir

from . import schema
from .view import constant_tensor


class Effect(enum.IntEnum):
    """Ordered from harmless to untouchable; a node with bodies takes the maximum of what is inside."""

    PURE = 0
    """Same inputs, same outputs: may be folded, merged, moved, duplicated and dropped."""
    RANDOM = 1
    """Draws numbers or is in training mode: never folded, merged, moved or duplicated; dropped only when unused."""
    OPAQUE = 2
    """Of a domain that nobody described: kept even when unused."""


# com.microsoft operators that exported models hold and whose meaning is a function of their inputs.
PURE_CONTRIB = frozenset(
    {
        "Attention",
        "BiasGelu",
        "BiasSplitGelu",
        "DequantizeLinear",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeMatMul",
        "EmbedLayerNormalization",
        "FastGelu",
        "FusedConv",
        "FusedGemm",
        "FusedMatMul",
        "FusedMatMulActivation",
        "Gelu",
        "GridSample",
        "Inverse",
        "GroupQueryAttention",
        "LayerNormalization",
        "MatMulInteger16",
        "MatMulIntegerToFloat",
        "MatMulNBits",
        "MultiHeadAttention",
        "NhwcMaxPool",
        "Pad",
        "QAttention",
        "QGemm",
        "QLinearAdd",
        "QLinearAveragePool",
        "QLinearConcat",
        "QLinearConv",
        "QLinearGlobalAveragePool",
        "QLinearLeakyRelu",
        "QLinearMul",
        "QLinearReduceMean",
        "QLinearSigmoid",
        "QLinearSoftmax",
        "QLinearWhere",
        "QuantizeLinear",
        "QuickGelu",
        "ReduceSumInteger",
        "RelativePositionBias",
        "RotaryEmbedding",
        "SimplifiedLayerNormalization",
        "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization",
        "Trilu",
        "TransposeMatMul",
        "Unique",
    }
)
_CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def effect(
    node: ir.Node,
    opset_of: Callable[[ir.Node, str], int | None],
    functions: Mapping[ir.OperatorIdentifier, ir.Function],
    known: MutableMapping[ir.OperatorIdentifier, Effect],
) -> Effect:
    """Effect of one node, bodies and called functions included.

    `opset_of(node, domain)` is the opset that the node's scope imports, None when it imports none. `known` remembers
    functions between calls. A function that calls itself is invalid ONNX and counts as OPAQUE.
    """
    identifier = node.op_identifier()
    if identifier in known:
        return known[identifier]
    inner: list[ir.Node] = [n for graph in bodies(node) for n in graph]
    if not inner and identifier not in functions:
        return _own_effect(node, opset_of(node, node.domain))
    own = Effect.PURE
    if identifier in functions:
        known[identifier] = Effect.OPAQUE  # until it is known to be less; what a recursive call sees
        inner.extend(functions[identifier])
    else:
        own = _own_effect(node, opset_of(node, node.domain))
    found = max([own, *(effect(n, opset_of, functions, known) for n in inner)])
    if identifier in functions:
        known[identifier] = found
    return found


def function_effects(
    model: ir.Model, opset_of: Callable[[ir.Node, str], int | None]
) -> dict[ir.OperatorIdentifier, Effect]:
    """Effect of every local function, for `effect`; callees first, so that long chains of calls need no recursion."""
    known: dict[ir.OperatorIdentifier, Effect] = {}
    for identifier in callees_first(model):
        nodes = list(model.functions[identifier])
        known[identifier] = max([Effect.PURE, *(effect(node, opset_of, model.functions, known) for node in nodes)])
    return known


def callees_first(model: ir.Model) -> list[ir.OperatorIdentifier]:
    """The model's functions, each after those that it calls."""
    order: dict[ir.OperatorIdentifier, None] = {}
    places = {identifier: i for i, identifier in enumerate(model.functions)}
    for start in model.functions:
        stack = [(start, False)]
        entered: set[ir.OperatorIdentifier] = set()
        while stack:
            identifier, done = stack.pop()
            if done:
                order.setdefault(identifier)
            elif identifier not in order and identifier not in entered:
                entered.add(identifier)
                called = {node.op_identifier() for node in nodes_in(model.functions[identifier].graph)}
                stack.append((identifier, True))
                stack.extend((each, False) for each in sorted(called & places.keys(), key=places.__getitem__))
    return list(order)


def roots(model: ir.Model) -> list[ir.Graph]:
    """The main graph, then the body of every local function."""
    return [model.graph, *(function.graph for function in model.functions.values())]


def bodies(node: ir.Node) -> list[ir.Graph]:
    """The graphs in a node's attributes (If, Loop, Scan, SequenceMap), in attribute order."""
    attributes = node.attributes.data  # the dict itself: every pass asks every node
    found: list[ir.Graph] = []
    if not attributes:
        return found
    for attr in attributes.values():
        if attr.type is ir.AttributeType.GRAPH and not attr.is_ref():
            found.append(attr.as_graph())
        elif attr.type is ir.AttributeType.GRAPHS and not attr.is_ref():
            found.extend(attr.as_graphs())
    return found


def graphs_in(graph: ir.Graph) -> Iterator[ir.Graph]:
    """The graph, then the bodies in it, outer ones first: what `subgraphs` of onnx_ir finds, in a fifth of the time."""
    yield graph
    for node in graph:
        for body in bodies(node):
            yield from graphs_in(body)


def nodes_in(graph: ir.Graph) -> Iterator[ir.Node]:
    """The graph's nodes, each followed by those of its bodies: `all_nodes` of onnx_ir, faster."""
    for node in graph:
        yield node
        for body in bodies(node):
            yield from nodes_in(body)


def _own_effect(node: ir.Node, opset: int | None) -> Effect:
    found = _operator_effect(node.domain, node.op_type, opset)
    if found is Effect.PURE and node.domain == "":
        if node.op_type == "Dropout":
            return Effect.RANDOM if _dropout_trains(node, opset or 0) else Effect.PURE
        if node.op_type == "BatchNormalization":
            return Effect.RANDOM if _batch_norm_trains(node, opset or 0) else Effect.PURE
    return found


@functools.cache
def _operator_effect(domain: str, op_type: str, opset: int | None) -> Effect:
    """Of any node with this operator, its bodies and what it says of training mode aside."""
    if domain == "com.microsoft" and op_type in PURE_CONTRIB:
        return Effect.PURE
    found = schema.find(domain, op_type, opset) if opset is not None else None
    if found is None:
        return Effect.PURE if domain == "" and op_type in schema.EXTENSIONS else Effect.OPAQUE
    if domain == "" and op_type in (*_CONTROL_FLOW, "Dropout", "BatchNormalization"):
        return Effect.PURE
    random = found.node_determinism == onnx.defs.OpSchema.NodeDeterminism.NonDeterministic  # type: ignore[attr-defined]
    # AffineGrid is marked so only because its function body holds an If.
    return Effect.RANDOM if random and op_type != "AffineGrid" else Effect.PURE


def _dropout_trains(node: ir.Node, opset: int) -> bool:
    """Opset 12 on: `training_mode` input, absent is False. 7 to 11: inference only. Before: `is_test`, default 0."""
    if opset >= 12:
        if len(node.inputs) < 3 or node.inputs[2] is None:
            return False
        known = constant_tensor(node.inputs[2])
        return known is None or bool(known.numpy())
    return opset < 7 and _may_train(node)


def _batch_norm_trains(node: ir.Node, opset: int) -> bool:
    """Opset 14 on: `training_mode`. Opset 7 to 13: more than one output. Before: `is_test`, default 0."""
    if opset >= 14:
        attr = node.attributes.get("training_mode")
        return attr is not None and (attr.is_ref() or attr.as_int() != 0)
    if opset >= 7:
        return sum(bool(out.name) and (bool(out.uses()) or out.is_graph_output()) for out in node.outputs) > 1
    return _may_train(node)


def _may_train(node: ir.Node) -> bool:
    """Whether `is_test` is 0, as by default, or a parameter of the function."""
    attr = node.attributes.get("is_test")
    return attr is None or attr.is_ref() or attr.as_int() == 0
