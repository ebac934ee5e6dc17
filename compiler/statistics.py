"""What is in a model: operators, constants, types, dynamic dims, control flow. Weights are never read."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir
from pfvm.passes.effects import bodies, roots
from pfvm.passes.view import constant_tensor

from .signature import Interface, read_manifest

CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")


class Tensor(NamedTuple):
    """A constant of the file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    elements: int
    bytes: int


@dataclasses.dataclass
class Content:
    """Counts over the main graph, all bodies, and each local function once, in normal form.

    Constant nodes are constants and no nodes there, inside functions too. inputs, outputs: name → type as text.
    overridable: constants that a call may replace, state included; state: how many of each kind the manifest names.
    dynamic_dims: symbol → the inputs and outputs that have it; unnamed ones are "?".
    constants: largest first. depth: of bodies inside bodies.
    """

    opsets: dict[str, int]
    inputs: dict[str, str]
    outputs: dict[str, str]
    overridable: dict[str, str]
    state: dict[str, int]
    ops: dict[str, int]
    functions: dict[str, int]
    control_flow: dict[str, int]
    depth: int
    constants: list[Tensor]
    dynamic_dims: dict[str, list[str]]

    @property
    def nodes(self) -> int:
        return sum(self.ops.values())

    def by_dtype(self) -> dict[str, tuple[int, int, int]]:
        """Element type → (tensors, elements, bytes) of the constants, most bytes first."""
        found: dict[str, tuple[int, int, int]] = {}
        for tensor in self.constants:
            count, elements, size = found.get(tensor.dtype, (0, 0, 0))
            found[tensor.dtype] = count + 1, elements + tensor.elements, size + tensor.bytes
        return dict(sorted(found.items(), key=lambda item: -item[1][2]))


def content(model: ir.Model) -> Content:
    """Count what is in a model in normal form."""
    interface = Interface.of(model)
    declared, maps = interface.declared(), interface.maps()

    def text(value: ir.Value) -> str:
        name = value.name or ""
        return maps.get(name) or type_text(declared.get(name, value))

    signature = [declared.get(v.name or "", v) for v in (*model.graph.inputs, *model.graph.outputs)]
    required = [v for v in model.graph.inputs if not v.is_initializer()]
    optional = [v for v in model.graph.inputs if v.is_initializer()]
    nodes = [node for root in roots(model) for node in root.all_nodes()]
    counted = [node for node in nodes if not _is_constant(node)]
    ops = collections.Counter(full_name(node) for node in counted)
    return Content(
        opsets={domain or "ai.onnx": version for domain, version in sorted(model.opset_imports.items())},
        inputs={v.name or "": text(v) for v in required},
        outputs={v.name or "": text(v) for v in model.graph.outputs},
        overridable={v.name or "": type_text(v) for v in optional},
        state=dict(collections.Counter(entry.kind for entry in read_manifest(model))),
        ops=dict(sorted(ops.items(), key=lambda item: (-item[1], item[0]))),
        functions=_functions(model, nodes),
        control_flow={name: n for name in CONTROL_FLOW if (n := ops.get(name, 0))},
        depth=max((_depth(root) for root in roots(model)), default=0),
        constants=sorted(_constants(model), key=lambda tensor: (-tensor.bytes, tensor.name)),
        dynamic_dims=_dynamic_dims(signature),
    )


def full_name(node: ir.Node) -> str:
    """ "Relu", or "com.microsoft::FusedMatMul"."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def type_text(value: ir.Value) -> str:
    """ "float[batch,3]", "any" without a type, "sequence(float[?])"; unnamed dims are "?"."""
    shape = value.shape
    dims = "[?]" if shape is None else "[" + ",".join(str(_dim_name(d)) for d in shape) + "]"
    if value.type is None:
        return f"any{dims}"
    dtype = value.type.dtype
    text = f"{dtype.name.lower() if dtype is not None else 'any'}{dims}"
    kind: object = value.type
    while isinstance(kind, (ir.SequenceType, ir.OptionalType)):
        text = f"{'sequence' if isinstance(kind, ir.SequenceType) else 'optional'}({text})"
        kind = kind.elem_type
    return text


def _dim_name(dim: int | ir.SymbolicDim) -> int | str:
    return dim if isinstance(dim, int) else dim.value or "?"


def _is_constant(node: ir.Node) -> bool:
    return node.op_type == "Constant" and node.domain == "" and constant_tensor(node.outputs[0]) is not None


def _functions(model: ir.Model, nodes: Sequence[ir.Node]) -> dict[str, int]:
    """Calls by function; 0 for one that nobody calls."""
    called = collections.Counter(node.op_identifier() for node in nodes)
    return {
        f"{domain}::{name}{f':{overload}' if overload else ''}": called[domain, name, overload]
        for domain, name, overload in model.functions
    }


def _depth(graph: ir.Graph) -> int:
    """How many bodies stand inside each other."""
    return max((1 + _depth(body) for node in graph for body in bodies(node)), default=0)


def _constants(model: ir.Model) -> Iterator[Tensor]:
    for root in roots(model):
        for graph in [root, *root.subgraphs()]:
            for value in graph.initializers.values():
                if value.const_value is not None:
                    yield _tensor(value.name or "", value.const_value)
            for node in graph:
                if _is_constant(node):
                    tensor = constant_tensor(node.outputs[0])
                    assert tensor is not None
                    yield _tensor(node.outputs[0].name or "", tensor)


def _tensor(name: str, tensor: ir.TensorProtocol) -> Tensor:
    shape = tuple(int(d) for d in tensor.shape.numpy())
    if isinstance(tensor, ir.StringTensor):
        size = sum(len(word) for word in np.asarray(tensor.string_data()).reshape(-1).tolist())
    else:
        size = int(tensor.nbytes)
    return Tensor(name, tensor.dtype.name.lower(), shape, int(tensor.size), size)


def _dynamic_dims(values: Sequence[ir.Value]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for value in values:
        for i, dim in enumerate(value.shape or ()):
            if not isinstance(dim, int):
                found.setdefault(dim.value or "?", []).append(f"{value.name}[{i}]")
    return found
