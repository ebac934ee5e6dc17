"""Which nodes of the main graph XLA cannot express, as far as the model alone shows: their types and operators.

Shapes that follow from run-time data show only while a segment is traced; see `segments.MustCut`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir
from pfvm.compiler.shapes import ShapeInference
from pfvm.errors import describe_node
from pfvm.passes.effects import bodies

from .registry import lookup

_MICROSOFT, _ML = "com.microsoft", "ai.onnx.ml"

# What may run on the host, and why. An operator that has a lowering runs there only where its operands make it.
_REASONS: dict[str, tuple[tuple[str, str], ...]] = {
    "sequences": tuple(
        ("", name)
        for name in (
            *("SequenceAt", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength"),
            *("SequenceMap", "SplitToSequence", "ConcatFromSequence"),
        )
    ),
    "optionals": (("", "Optional"), ("", "OptionalGetElement"), ("", "OptionalHasElement")),
    "strings": (
        *(("", name) for name in ("RegexFullMatch", "StringConcat", "StringNormalizer", "StringSplit")),
        (_ML, "CategoryMapper"),
        *((_MICROSOFT, name) for name in ("StringConcat", "Tokenizer", "WordConvEmbedding", "MurmurHash3")),
    ),
    "text features": (("", "TfIdfVectorizer"),),
    "maps": ((_ML, "CastMap"), (_ML, "DictVectorizer"), (_ML, "ZipMap")),
    "image decoding": (("", "ImageDecoder"),),
    "data-dependent shape": (
        *(("", name) for name in ("Compress", "NonMaxSuppression", "NonZero", "Unique")),
        (_MICROSOFT, "Unique"),
    ),
}
_HOST_OPS = {op: reason for reason, ops in _REASONS.items() for op in ops}
_KINDS = {ir.SequenceType: "sequences", ir.OptionalType: "optionals", ir.SparseTensorType: "sparse tensors"}


def host_ops() -> dict[tuple[str, str], str]:
    """(domain, operator) → why it may have to run on the host."""
    return dict(sorted(_HOST_OPS.items()))


def data_dependent(node: ir.Node) -> bool:
    """Does the shape of this operator's result always follow from the data of its operand?"""
    return _HOST_OPS.get((node.domain, node.op_type)) == "data-dependent shape"


def host_nodes(model: ir.Model) -> dict[ir.Node, str]:
    """The nodes of the main graph that must run on the host, each with the reason. The model is not changed."""
    if not any(True for _ in _triggers(model)):
        return {}
    judge = _Judge(model)
    reasons = {node: judge.reason(node, model.graph.opset_imports) for node in model.graph}
    return {node: reason for node, reason in reasons.items() if reason is not None}


def _triggers(model: ir.Model) -> Iterator[ir.Node | ir.Value]:
    """What makes a closer look necessary; most models have none."""
    interface = (*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values())
    yield from (value for value in interface if _opaque(value.type) is not None)
    for nodes, opsets in _all_nodes(model):
        yield from (node for node in nodes if _own_reason(node, opsets) is not None)


def _all_nodes(model: ir.Model) -> Iterable[tuple[Iterable[ir.Node], Mapping[str, int]]]:
    yield model.graph.all_nodes(), model.graph.opset_imports
    for function in model.functions.values():
        yield function.all_nodes(), function.opset_imports or model.graph.opset_imports


def _opaque(kind: ir.TypeProtocol | None) -> str | None:
    """What a value is that XLA has no type for, or None for a tensor of numbers and where the type is unknown."""
    if kind is None:
        return None
    if kind.dtype == ir.DataType.STRING:
        return "strings"
    return next((word for cls, word in _KINDS.items() if isinstance(kind, cls)), None)


def _own_reason(node: ir.Node, opsets: Mapping[str, int]) -> str | None:
    """Why the operator itself, or an attribute, keeps the node from XLA."""
    reason = _HOST_OPS.get((node.domain, node.op_type))
    if reason is not None and lookup(node.domain, node.op_type, opsets.get(node.domain, 1)) is None:
        return reason
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.TENSOR and attribute.value.dtype == ir.DataType.STRING:
            return "strings"
        if attribute.type == ir.AttributeType.STRINGS and attribute.value and _is_text(node, attribute.name):
            return "strings"
        if node.op_type == "Cast" and attribute.name == "to" and attribute.value == ir.DataType.STRING:
            return "strings"
    return None


def _is_text(node: ir.Node, name: str) -> bool:
    """Is this list of strings data (labels, keys), and not a list of modes such as an LSTM's activations?"""
    if node.op_type == "Constant":
        return name == "value_strings"
    return node.domain == _ML and name.endswith("_strings")


def value_types(model: ir.Model) -> dict[str, ir.TypeProtocol]:
    """The types of all values of the graph and its bodies, as far as they can be inferred. The model is not changed."""
    typed = model.clone()
    ShapeInference(typed).infer_model()
    return {v.name: v.type for v in _values(typed.graph) if v.type is not None and v.name}


class _Judge:
    """Judges nodes with the types of all values at hand."""

    def __init__(self, model: ir.Model) -> None:
        self._functions = model.functions
        self._types = value_types(model)

    def reason(self, node: ir.Node, opsets: Mapping[str, int]) -> str | None:
        return self._of_itself(node, opsets) or self._of_what_it_runs(node, opsets)

    def _of_itself(self, node: ir.Node, opsets: Mapping[str, int]) -> str | None:
        values = map(self._of_value, (*node.inputs, *node.outputs))
        return _own_reason(node, opsets) or next(filter(None, values), None)

    def _of_what_it_runs(self, node: ir.Node, opsets: Mapping[str, int]) -> str | None:
        """The first reason in its bodies or function, with the node that has it and the innermost place around that."""
        function = self._functions.get((node.domain, node.op_type, node.overload))
        inner: list[tuple[Iterable[ir.Node], Mapping[str, int]]] = [(body, opsets) for body in bodies(node)]
        if function is not None:
            inner.append((function, function.opset_imports or opsets))
        for nodes, scope in inner:
            for each in nodes:
                own = self._of_itself(each, scope)
                if own is not None:
                    return f"{own} in its {_part(node)}, at {describe_node(each)}"
                deeper = self._of_what_it_runs(each, scope)
                if deeper is not None:
                    return deeper
        return None

    def _of_value(self, value: ir.Value | None) -> str | None:
        if value is None or not value.name:
            return None
        return _opaque(value.type) or _opaque(self._types.get(value.name))


def _part(node: ir.Node) -> str:
    return "body" if bodies(node) else "function"


def _values(graph: ir.Graph) -> Iterator[ir.Value]:
    for each in (graph, *graph.subgraphs()):
        yield from each.inputs
        yield from each.initializers.values()
        for node in each:
            yield from node.outputs
