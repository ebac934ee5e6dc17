"""Which layout every value has, and the LayoutSwitch and RefillPadding nodes that this takes.

First backwards: products wish for a layout of their data, and wishes go through reshapes and elementwise nodes to the
inputs of the graph. Then forwards: each node's rule says how its operands must lie and how its outputs do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import onnx_ir as ir

from .constants import drop_unread, place_constants
from .dtypes import HALF, device_dtype
from .forms import Forms
from .genes import name_axes
from .images import data_image_layout, image_layout, kernel_layout
from .layout import ADDRESS, Layout
from .machine import Machine
from .mngraph import GATHERED, OVER_ROWS, REUSES, declare_moves
from .operand_layouts import data_layout, gathered_layout, operand_layout, viewed, viewed_back, weight_layout
from .operands import Operands
from .ops import contract, convolve, reduce
from .ops.table import KIND, Rule, dims, rule_of
from .orient import orient_products
from .placement import Placement, find_placement, placement_of
from .state import settle_state
from .wishes import Wishes


def assign_layouts(
    model: ir.Model,
    machine: Machine,
    other_way: Collection[str] = (),
    in_cells: Collection[str] = (),
    over_rows: Collection[str] = (),
) -> ir.Model:
    """Gives every value a Placement and inserts the moves that layouts need, in place.

    other_way: outputs of products whose operands change places against the rule of `orient`. in_cells: outputs of
    convolutions and pools that run where their images lie; the others gather them. over_rows: outputs of products, or
    of convolutions in_cells, whose contracted axis is dealt as rows are.
    Small constants become Constant nodes at the head (IMM); inputs and initializers are in DRAM; the schedule decides
    about the rest. The dtypes must be assigned.
    """
    forms = Forms(machine)
    for node in model.graph:
        _mark(node, forms, in_cells, over_rows)
    orient_products(model, other_way)
    place_constants(model)
    work = _Assigner(model, forms)
    for node in list(model.graph):
        rule = rule_of(node)
        _KINDS[rule.kind](work, node, rule)
    work.operands.place_rest()
    settle_state(model, work.operands)
    drop_unread(model)
    name_axes(model)
    declare_moves(model)
    return model


def _mark(node: ir.Node, forms: Forms, in_cells: Collection[str], over_rows: Collection[str]) -> None:
    name = node.outputs[0].name if node.outputs else None
    kind = convolve.local_kind(node) if name in in_cells else None
    if kind is not None:
        node.metadata_props[KIND] = kind
    if name not in over_rows:
        return
    if kind == "convolve":
        node.metadata_props[OVER_ROWS] = str(convolve.taps(node))
    elif contract.may_be_over_rows(node):
        layout = forms.matrix(dims(node.inputs[0]), HALF, 1 - contract.product(node).data_column)
        own = (sub.size for sub in layout.axes[contract.product(node).data_column] if sub.level == ADDRESS)
        node.metadata_props[OVER_ROWS] = str(math.prod(own))


class _Assigner:
    """What the rules share: forms, wishes, and the operands with the moves before them."""

    def __init__(self, model: ir.Model, forms: Forms) -> None:
        self.forms = forms
        self.wishes = Wishes(model, forms)
        self.operands = Operands(model, forms, self.wishes)

    def result(self, out: ir.Value, layout: Layout, pad: str | None, parent: str | None = None) -> None:
        self.operands.place(out, layout, pad, parent)


def _constant(work: _Assigner, node: ir.Node, rule: Rule) -> None:
    """Constants are placed where they are first read."""


def _elementwise(work: _Assigner, node: ir.Node, rule: Rule) -> None:
    """All operands in the output's layout; that of the operand which saves most moves."""
    out = node.outputs[0]
    layout = _common_layout(work, node, out)
    dtype = device_dtype(out)
    zero = rule.keeps_zero
    for i, value in enumerate(node.inputs):
        if value is None:
            continue
        wanted = operand_layout(work.forms, node, i, layout, dtype)
        work.operands.lay(node, i, wanted)
        placed = placement_of(node.inputs[i])  # type: ignore[arg-type]
        zero = zero and wanted.padded_shape == layout.padded_shape and placed.pad == "Zero"
    for each in node.outputs:
        mine = work.forms.convert(layout, dtype, device_dtype(each))
        if dims(each) != layout.shape:
            mine = work.forms.operand(mine, dims(each), device_dtype(each))
        work.result(each, mine, pad="Zero" if zero else "Dirty")


def _common_layout(work: _Assigner, node: ir.Node, out: ir.Value) -> Layout:
    """The layout for an elementwise node, in the output's dtype: that which costs the least moves."""
    shape, dtype = dims(out), device_dtype(out)
    candidates: dict[Layout, None] = {}
    for i, value in sorted(enumerate(node.inputs), key=lambda pair: pair[1] is not None and pair[1].is_graph_input()):
        if value is None or dims(value) != shape:
            continue
        if value.is_graph_input() and not value.is_initializer():
            work.operands.lay_where_it_is(node, i)
        there = find_placement(value)
        if there is not None:
            candidates.setdefault(work.forms.convert(there.layout, there.dtype, dtype))
    wish = work.wishes.get(out)
    if not candidates:
        return wish or work.forms.matrix(shape, dtype, None)
    if len(candidates) == 1:
        return next(iter(candidates))

    def moved(layout: Layout) -> int:
        total = 0
        for i, value in enumerate(node.inputs):
            if value is not None and find_placement(value) is not None:
                wanted = operand_layout(work.forms, node, i, layout, dtype, device_dtype(value))
                total += work.operands.switch_cycles(value, wanted)
        return total + (work.operands.cycles(layout, wish, dtype) if wish is not None else 0)

    return min(candidates, key=moved)


def _reduce(work: _Assigner, node: ir.Node, rule: Rule) -> None:
    """Where the input lies; reduced axes become copies."""
    source, out = node.inputs[0], node.outputs[0]
    assert source is not None
    work.operands.lay_where_it_is(node, 0)
    work.operands.refill(node, 0, rule)
    work.operands.parameters(node)
    placed = placement_of(node.inputs[0])  # type: ignore[arg-type]
    layout = placed.layout
    axes = reduce.reduced_axes(node)
    if not reduce.is_in_place(node):
        layout = work.forms.without(layout, axes, placed.dtype, reduce.keeps_axes(node))
    elif len(node.inputs) > 1:
        _lay_scales(work, node, layout, placed.dtype)
    for i, each in enumerate(node.outputs):
        mine = layout if i == 0 else work.forms.without(placed.layout, axes, placed.dtype, True)
        work.result(each, work.forms.convert(mine, placed.dtype, device_dtype(each)), pad="Dirty")
    assert dims(out) == layout.shape, f"{node.op_type}: {dims(out)} is not {layout.shape}"


def _lay_scales(work: _Assigner, node: ir.Node, layout: Layout, dtype: str) -> None:
    for i, value in enumerate(node.inputs):
        if i and value is not None:
            work.operands.lay(node, i, operand_layout(work.forms, node, i, layout, dtype))


def _contract(work: _Assigner, node: ir.Node, rule: Rule) -> None:
    """Data in matrix layout, the weight beside it, the bias as the output's columns; the output in matrix layout."""
    if not contract.is_local(node):
        _gathered(work, node, rule)
        return
    out = node.outputs[0]
    beside = weight_layout(work.forms, node)
    for i, wanted in ((0, data_layout(work.forms, node)), (1, beside)):
        work.operands.lay(node, i, wanted, rule)
        work.operands.refill(node, i, rule)
    layout = work.forms.matrix(dims(out), device_dtype(out))
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        work.operands.lay(node, 2, operand_layout(work.forms, node, 2, layout, device_dtype(out)))
    work.result(out, layout, pad="Dirty")


def _convolve(work: _Assigner, node: ir.Node, rule: Rule) -> None:
    """Images whole in each cell, the weight beside them, the bias as their channels."""
    out = node.outputs[0]
    for i, wanted in ((0, data_image_layout(work.forms, node)), (1, kernel_layout(work.forms, node))):
        work.operands.lay(node, i, wanted, rule)
        work.operands.refill(node, i, rule)
    _lay_per_channel(work, node, out)


def _window(work: _Assigner, node: ir.Node, rule: Rule) -> None:
    """Images whole in each cell; what there is per channel beside them."""
    work.operands.lay(node, 0, image_layout(work.forms, node.inputs[0]))
    if len(node.inputs) > 1:
        work.operands.lay(node, 1, kernel_layout(work.forms, node))
    _lay_per_channel(work, node, node.outputs[0])


def _lay_per_channel(work: _Assigner, node: ir.Node, out: ir.Value) -> None:
    layout = image_layout(work.forms, out)
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        work.operands.lay(node, 2, operand_layout(work.forms, node, 2, layout, device_dtype(out)))
    work.result(out, layout, pad="Dirty")
    for other in node.outputs[1:]:
        work.result(other, image_layout(work.forms, other), pad="Dirty")  # the positions of maxima


def _reuse(work: _Assigner, node: ir.Node, rule: Rule) -> None:
    """The same memory under another shape; where the layout does not allow it, a switch to one that does."""
    out = node.outputs[0]
    shape = dims(out)
    work.operands.lay_where_it_is(node, 0)
    work.operands.parameters(node)
    placed = placement_of(node.inputs[0])  # type: ignore[arg-type]
    layout = viewed(placed.layout, node, shape)
    if layout is None:
        for wanted in (work.wishes.get(out), work.forms.matrix(shape, device_dtype(out), None)):
            below = viewed_back(wanted, node, placed.layout.shape)
            if below is not None:
                work.operands.lay(node, 0, below)
                layout = wanted
                break
    if layout is None:
        node.metadata_props[GATHERED] = "1"
        work.result(out, work.wishes.get(out) or work.forms.matrix(shape, device_dtype(out), None), pad="Dirty")
        return
    node.metadata_props[REUSES] = "1"
    source = node.inputs[0]
    placed = placement_of(source)  # type: ignore[arg-type]
    work.result(out, layout, pad=placed.pad, parent=source.name)  # type: ignore[union-attr]


def _gathered(work: _Assigner, node: ir.Node, rule: Rule) -> None:
    """Operands are collected from wherever they lie; outputs are dealt out in matrix layout."""
    node.metadata_props[GATHERED] = "1"
    work.operands.parameters(node)
    for i, value in enumerate(node.inputs):
        if value is not None:
            work.operands.lay_where_it_is(node, i)
    for out in node.outputs:
        wish = work.wishes.get(out)
        work.result(out, wish or gathered_layout(work.forms, node, out), pad="Dirty")


def _move(work: _Assigner, node: ir.Node, rule: Rule) -> None:
    """MNCoreCast: the same cells, other lanes."""
    source, out = node.inputs[0], node.outputs[0]
    assert source is not None
    work.operands.lay_where_it_is(node, 0)
    placed: Placement = placement_of(source)
    layout = work.forms.convert(placed.layout, placed.dtype, device_dtype(out))
    work.result(out, layout, pad=placed.pad)


_KINDS: dict[str, Callable[[_Assigner, ir.Node, Rule], None]] = {
    "constant": _constant,
    "elementwise": _elementwise,
    "reduce": _reduce,
    "contract": _contract,
    "convolve": _convolve,
    "window": _window,
    "reuse": _reuse,
    "gathered": _gathered,
    "move": _move,
}
