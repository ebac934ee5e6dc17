"""How many operations a model computes: a polynomial of its symbolic dims, and what is not in it.

2 for a multiply-add, 1 for another element, 0 for what only moves or names data: the tables of `compiler/plan/ops`.
Bodies count as often as they run, functions at each call, an If by the dearer branch. Nothing is guessed: a loop of
unknown length is a symbol, and what has no known shape is listed as not counted.
"""

from __future__ import annotations

import collections
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import cast

import onnx_ir as ir
import onnx_ir.passes.common
from pfvm.errors import describe_node
from pfvm.passes.effects import bodies, callees_first
from pfvm.passes.loops import LoopForm, loop_form, trip_count
from pfvm.passes.rewriter import Rewriter

from .amounts import ITERATIONS, Amount, atom_size, dim_amount, symbols
from .flop_rules import RULES
from .importer import read_model
from .plan.ops import table
from .shapes import ShapeInference

_MOST_NODES = 500_000
_IMAGE_SIDE = 224
_CONTROL_FLOW = ("If", "Loop", "Scan", "SequenceMap")


@dataclasses.dataclass
class Flops:
    """Operations of one run of a model.

    by_op: per operator. one_per_element: nodes by operator that have no rule of their own and count one operation per
    element of their largest output. not_counted: nodes by operator whose shapes are not known. sizes: of the symbols,
    for `value`: 224 for the sides of images, else 1. note: why nothing is counted at all.
    """

    total: Amount = dataclasses.field(default_factory=Amount)
    by_op: dict[str, Amount] = dataclasses.field(default_factory=dict)
    one_per_element: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    not_counted: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    branches: int = 0  # Ifs, of which the dearer branch counts
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)
    note: str = ""

    @property
    def unknown_sizes(self) -> list[str]:
        """Symbols that no input has: a size that only the data decide."""
        return sorted({name for atom in self.total.atoms for name in symbols(atom)} - set(self.sizes))

    @property
    def is_complete(self) -> bool:
        """Every operation is counted, and the sizes of inputs decide how many there are."""
        return not (self.note or self.not_counted or self.unknown_sizes)

    def value(self, amount: Amount | None = None) -> int:
        """The total, or another amount, for `sizes`."""
        return (self.total if amount is None else amount).value(lambda atom: atom_size(atom, self.sizes))


def count_flops(model: ir.Model, shapes: Mapping[str, Sequence[int]] | None = None) -> Flops:
    """The operations of a model in normal form, which is not changed; weights are not read.

    `shapes` fixes inputs by name; a symbolic dim that they give a size has it everywhere.
    """
    flops = Flops()
    if expanded_nodes(model) > _MOST_NODES:
        flops.note = f"not counted: with functions inlined there are more than {_MOST_NODES:,} nodes"
        return flops
    working = read_model(model)
    ir.passes.common.InlinePass()(working)
    flops.sizes = _fix(working, shapes or {})
    inference = ShapeInference(working)
    inference.infer_model()
    counter = _Counter(working, inference, flops)
    counter.graph(working.graph, Amount.of(1))
    flops.by_op = counter.by_op
    flops.total = sum(counter.by_op.values(), Amount())
    return flops


def expanded_nodes(model: ir.Model) -> int:
    """Nodes of the main graph and its bodies with every call of a local function replaced by the function's nodes."""
    sizes: dict[ir.OperatorIdentifier, int] = {}
    for identifier in callees_first(model):
        sizes[identifier] = sum(sizes.get(n.op_identifier(), 1) for n in model.functions[identifier].graph.all_nodes())
    return sum(sizes.get(node.op_identifier(), 1) for node in model.graph.all_nodes())


def _fix(model: ir.Model, shapes: Mapping[str, Sequence[int]]) -> dict[str, int]:
    """Give inputs their shapes, and every dim of a name that these bind its size. Returns sizes for the other names.

    Unnamed dims get names.
    """
    bound: dict[str, int] = {}
    free: dict[str, int] = {}
    for value in model.graph.inputs:
        given = shapes.get(value.name or "")
        if given is not None:
            named = [dim.value if isinstance(dim, ir.SymbolicDim) else None for dim in value.shape or ()]
            bound.update({name: extent for name, extent in zip(named, given) if name is not None})
            value.shape = ir.Shape(given)
    for value in model.graph.inputs:
        dims: list[int | str] = []
        for axis, dim in enumerate(value.shape or ()):
            name = dim if isinstance(dim, int) else dim.value or _dim_name(value.name or "", axis)
            dims.append(bound.get(name, name) if isinstance(name, str) else name)
            if isinstance(dims[-1], str):
                is_side = axis >= 2 and len(value.shape or ()) == 4
                free[dims[-1]] = max(free.get(dims[-1], 1), _IMAGE_SIDE if is_side else 1)
        if value.shape is not None:
            value.shape = ir.Shape(dims)
    return free


def _dim_name(value: str, axis: int) -> str:
    """A symbol for an unnamed dim; one that can stand in an expression."""
    return f"dim{axis}_of_{re.sub(r'[^A-Za-z0-9_]', '_', value)}"


class _Unknown(Exception):
    """A rule asks for a size that is not known."""


class _Shape(tuple):
    """Dims as ints and Amounts, for the rules, which were written for ints."""

    def numpy(self) -> _Shape:
        if None in self:
            raise _Unknown
        return self


class _Value:
    """What rules read of a value."""

    def __init__(self, value: ir.Value) -> None:
        self._value = value

    @property
    def shape(self) -> _Shape:
        shape = self._value.shape
        if shape is None and self._value.const_value is not None:
            shape = ir.Shape(self._value.const_value.shape.numpy())
        if shape is None:
            raise _Unknown
        return _Shape(_dim(d) for d in shape)


def _dim(dim: int | ir.SymbolicDim) -> int | Amount | None:
    if isinstance(dim, int):
        return dim
    return None if dim.value is None else dim_amount(dim.value)


class _Node:
    """A node as rules see it."""

    def __init__(self, node: ir.Node) -> None:
        self.domain, self.op_type, self.attributes = node.domain, node.op_type, node.attributes
        self.metadata_props = node.metadata_props
        self.inputs = [None if value is None else _Value(value) for value in node.inputs]
        self.outputs = [_Value(value) for value in node.outputs if value.name]


class _Counter:
    def __init__(self, model: ir.Model, inference: ShapeInference, flops: Flops) -> None:
        self._rw = Rewriter(model, inference)
        self._inference = inference
        self._flops = flops
        self.by_op: dict[str, Amount] = {}

    def graph(self, graph: ir.Graph, times: Amount) -> None:
        for node in graph:
            if node.domain == "" and node.op_type in _CONTROL_FLOW:
                self._control_flow(node, times)
            else:
                self._leaf(node, times)

    def _control_flow(self, node: ir.Node, times: Amount) -> None:
        inner = bodies(node)
        if node.op_type != "If":
            form = loop_form(node, self._rw)
            if form is not None and node.op_type == "Loop":
                self._carry_shapes(form)
            for body in inner:
                self.graph(body, times * self._iterations(node, form))
            return
        before, branches = self.by_op, []
        for body in inner:
            self.by_op = {}
            self.graph(body, times)
            branches.append(self.by_op)
        self.by_op = before
        self._flops.branches += len(branches) > 1 and branches[0] != branches[1]
        for op in dict.fromkeys(op for branch in branches for op in branch):
            self._add(op, Amount.most(branch.get(op, 0) for branch in branches))

    def _carry_shapes(self, form: LoopForm) -> None:
        """Shapes inside a Loop's body, by induction: what the body hands on in the shape that it got keeps it."""
        kept = [value is not None and value.shape is not None for value in form.initial]
        for _ in range(len(kept) + 1):
            for formal, initial, keeps in zip(form.formals, form.initial, kept):
                formal.shape = initial.shape if keeps and initial is not None else None
            for node in form.body.all_nodes():
                for out in node.outputs:
                    out.shape = None
            for node in form.body:
                self._inference.infer_node(node)
            found = [
                keeps and formal.shape == last.shape for keeps, formal, last in zip(kept, form.formals, form.following)
            ]
            if found == kept:
                return
            kept = found

    def _iterations(self, node: ir.Node, form: LoopForm | None) -> int | Amount:
        known = None if form is None else trip_count(form, self._rw)
        if known is not None:
            return known
        if form is not None and node.op_type == "Scan" and len(node.inputs) > form.carried:
            axes = node.attributes.get_ints("scan_input_axes", ()) or (0,)
            shape = node.inputs[form.carried].shape  # type: ignore[union-attr]
            dim = None if shape is None or not len(shape) else _dim(shape[axes[0]])
            if dim is not None:
                return dim
        return Amount.atom(ITERATIONS + describe_node(node))

    def _leaf(self, node: ir.Node, times: Amount) -> None:
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        stand_in = cast(ir.Node, _Node(node))
        key = (node.domain, node.op_type)
        by_element = key not in RULES and not table.has_row(*key)
        try:
            if key in RULES:
                found = RULES[key](stand_in)
            elif table.rule_of(stand_in).flops is table.elements:
                found = Amount.most(table.size(out) for out in stand_in.outputs)
            else:
                found = table.rule_of(stand_in).flops(stand_in)
        except (_Unknown, IndexError, ValueError):  # the latter two: another form than the rule knows
            self._flops.not_counted[name] += 1
            return
        if by_element:
            self._flops.one_per_element[name] += 1
        self._add(name, times * found)

    def _add(self, op: str, amount: Amount) -> None:
        self.by_op[op] = self.by_op.get(op, Amount()) + amount
