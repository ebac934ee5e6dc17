"""Operands brought to the layout and the padding that a node needs, by moves that its later readers share."""

from __future__ import annotations

import onnx_ir as ir
from pfvm.passes.provenance import location
from pfvm.passes.view import constant_tensor

from .constants import constant_node
from .cost import CostModel
from .dtypes import KEY, device_dtype
from .forms import Forms
from .layout import Layout
from .mngraph import CAST, LAYOUT_SWITCH, REFILL, move_node
from .operand_layouts import operand_layout
from .ops.table import PadNeed, Rule, dims, rule_of
from .placement import DRAM, IMMEDIATE, Pad, Placement, find_placement, place, placement_of
from .wishes import Wishes


class Operands:
    """Places values and inserts moves. A move stands before its first reader; later ones share it."""

    def __init__(self, model: ir.Model, forms: Forms, wishes: Wishes) -> None:
        self.forms = forms
        self._graph = model.graph
        self._wishes = wishes
        self._shared: dict[tuple[int, str, Layout | str], ir.Value] = {}
        self._numbers = {LAYOUT_SWITCH: 0, REFILL: 0, CAST: 0}
        self._costs = CostModel(forms.machine)

    # ---- placements

    def place(
        self,
        value: ir.Value,
        layout: Layout,
        pad: str | None = None,
        parent: str | None = None,
        location: str | None = None,
    ) -> None:
        """Sets a value's placement. The state of padding is dropped where there is none."""
        known = pad if layout.is_padded else None
        place(value, Placement(layout, device_dtype(value), location, None, known, parent))  # type: ignore[arg-type]

    def place_rest(self) -> None:
        """Inputs and initializers that no node reads: as a host would write them."""
        for value in (*self._graph.inputs, *self._graph.initializers.values()):
            if find_placement(value) is None:
                self._place_source(value, None)

    def cycles(self, source: Layout, target: Layout, dtype: str) -> int:
        """What a LayoutSwitch takes; 0 between layouts that are the same."""
        return 0 if source.is_same_as(target) else self._costs.switch(source, target, dtype).cycles

    def switch_cycles(self, value: ir.Value, wanted: Layout) -> int:
        """What it takes to have a placed value in a layout: nothing for a constant."""
        placed = placement_of(value)
        return 0 if constant_tensor(value) is not None else self.cycles(placed.layout, wanted, placed.dtype)

    # ---- operands

    def lay(self, node: ir.Node, i: int, wanted: Layout, rule: Rule | None = None) -> None:
        """Makes input `i` lie in a layout: places it so, or inserts a LayoutSwitch.

        rule: the node's, where it reads padding. It is refilled before the switch if that is where it is smaller.
        """
        value = node.inputs[i]
        assert value is not None
        if find_placement(value) is None:
            self._place_source(value, wanted)
        placed = placement_of(value)
        if placed.layout == wanted or placed.layout.is_same_as(wanted):
            return
        need = rule.pad_need(node)[i] if rule is not None else None
        smaller = _fits(wanted, placed.layout) and placed.layout.num_lw() <= wanted.num_lw()
        if need is not None and smaller and _reads_padding(wanted, placed.pad, need):
            value = self._refilled(value, need, node)
        node.replace_input_with(i, self._switched(value, wanted, node))

    def lay_where_it_is(self, node: ir.Node, i: int) -> None:
        """Makes sure that input `i` is placed: by its wish, or as a host would write it."""
        value = node.inputs[i]
        assert value is not None
        if find_placement(value) is None:
            self._place_source(value, None)

    def parameters(self, node: ir.Node) -> None:
        """Places the constant shapes, axes and pads of a node: they are read when the program is made."""
        for i, value in enumerate(node.inputs):
            if i and value is not None and find_placement(value) is None and _is_parameter(value):
                layout = self.forms.parameter(dims(value), device_dtype(value))
                self.place(value, layout, location=IMMEDIATE)

    def refill(self, node: ir.Node, i: int, rule: Rule) -> None:
        """Inserts a RefillPadding where the node reads padding of input `i` that is not what it needs."""
        need = rule.pad_need(node)[i]
        value = node.inputs[i]
        if need is None or value is None:
            return
        placed = placement_of(value)
        if _reads_padding(placed.layout, placed.pad, need):
            node.replace_input_with(i, self._refilled(value, need, node))

    # ---- moves

    def _refilled(self, value: ir.Value, need: PadNeed, node: ir.Node) -> ir.Value:
        key = id(value), REFILL, need.pad
        if key not in self._shared:
            attributes = [ir.Attr("pad", ir.AttributeType.STRING, need.pad)]
            move = self._move(REFILL, value, node, attributes)
            self.place(move, placement_of(value).layout, need.pad)
            self._shared[key] = move
        return self._shared[key]

    def switched_at_end(self, value: ir.Value, wanted: Layout) -> ir.Value:
        """The value in another layout, by a LayoutSwitch behind all nodes."""
        move = self._move(LAYOUT_SWITCH, value, None)
        self.place(move, wanted, _carried(placement_of(value), wanted))
        return move

    def _switched(self, value: ir.Value, wanted: Layout, node: ir.Node) -> ir.Value:
        key = id(value), LAYOUT_SWITCH, wanted.merged()
        if key not in self._shared:
            self._shared[key] = self._new_switch(value, wanted, node)
        return self._shared[key]

    def _new_switch(self, value: ir.Value, wanted: Layout, node: ir.Node) -> ir.Value:
        producer = value.producer()
        if producer is not None and producer.op_type == "Constant":
            twin = constant_node(value, f"{value.name}_{LAYOUT_SWITCH.removeprefix('MNCore')}_{len(self._shared)}")
            self._graph.insert_after(producer, twin)
            self.place(twin.outputs[0], wanted, location=IMMEDIATE)
            return twin.outputs[0]
        if constant_tensor(value) is not None and value.is_initializer():
            return self._another_initializer(value, wanted)
        if producer is not None and producer.op_type == CAST:
            source = producer.inputs[0]
            assert source is not None
            if self.forms.machine.lanes(device_dtype(source)) > self.forms.machine.lanes(device_dtype(value)):
                return self._switched_before_cast(value, source, wanted, node)
        if producer is not None and self._is_smaller_before(producer, value, wanted):
            for i in _given(producer):
                self.lay(producer, i, operand_layout(self.forms, producer, i, wanted, device_dtype(value)))
            self.place(value, wanted, "Dirty")
            return value
        move = self._move(LAYOUT_SWITCH, value, node)
        self.place(move, wanted, _carried(placement_of(value), wanted))
        return move

    def _is_smaller_before(self, producer: ir.Node, value: ir.Value, wanted: Layout) -> bool:
        """Do the operands of an elementwise node take fewer cycles to switch than its result, which one node reads?"""
        alone = len(producer.outputs) == 1 and len(value.uses()) == 1 and not value.is_graph_output()
        if not alone or rule_of(producer).kind != "elementwise":
            return False
        before = 0
        for i in _given(producer):
            operand = producer.inputs[i]
            assert operand is not None
            before += self.switch_cycles(operand, operand_layout(self.forms, producer, i, wanted, device_dtype(value)))
        placed = placement_of(value)
        return before < self.cycles(placed.layout, wanted, placed.dtype)

    def _another_initializer(self, value: ir.Value, wanted: Layout) -> ir.Value:
        """A constant that two nodes want in two layouts stands in DRAM twice: a copy by the host, and no move."""
        name = f"{value.name}_Layout_{len(self._shared)}"
        twin = ir.Value(name=name, type=value.type, shape=value.shape, const_value=value.const_value)
        twin.meta[KEY] = device_dtype(value)
        self._graph.initializers.add(twin)
        self.place(twin, wanted, "Zero", location=DRAM)
        return twin

    def _switched_before_cast(self, value: ir.Value, source: ir.Value, wanted: Layout, node: ir.Node) -> ir.Value:
        """The switch where the value is small: before it was converted to a wider dtype."""
        narrow = self.forms.convert(wanted, device_dtype(value), device_dtype(source))
        if placement_of(source).layout.is_same_as(narrow):
            switched = source
        else:
            switched = self._switched(source, narrow, node)
        cast = self._move(CAST, switched, node, dtype=device_dtype(value))
        self.place(cast, wanted, placement_of(switched).pad)
        return cast

    def _move(
        self, kind: str, value: ir.Value, node: ir.Node | None, attributes: list[ir.Attr] | None = None, dtype: str = ""
    ) -> ir.Value:
        name = f"{value.name}_{kind.removeprefix('MNCore')}_{self._numbers[kind]}"
        self._numbers[kind] += 1
        move = move_node(kind, value, name, attributes or [])
        move.outputs[0].meta[KEY] = dtype or device_dtype(value)
        if node is None:
            self._graph.append(move)
            return move.outputs[0]
        move.metadata_props.update(location(node))
        self._graph.insert_before(node, move)
        return move.outputs[0]

    def _place_source(self, value: ir.Value, wanted: Layout | None) -> None:
        """Places a constant, an initializer or an input of the graph. State lies as its first reader needs it."""
        producer = value.producer()
        if producer is not None and producer.op_type == "Constant":
            layout = wanted or self._wishes.source(value) or self.forms.parameter(dims(value), device_dtype(value))
            self.place(value, layout, location=IMMEDIATE)
            return
        if value.is_initializer():
            updated = self._wishes.is_updated(value)
            wish = self._wishes.source(value)
            first, second = (wish, wanted) if updated else (wanted, wish)
            layout = first or second or self.forms.matrix(dims(value), device_dtype(value), None)
            self.place(value, layout, "Dirty" if updated else "Zero", location=DRAM)
            return
        wish = self._wishes.source(value)
        layout = wish or self.forms.host(dims(value), device_dtype(value))
        self.place(value, layout, "Zero" if wish is not None else None, location=DRAM)


def _given(node: ir.Node) -> list[int]:
    return [i for i, value in enumerate(node.inputs) if value is not None]


def _carried(placed: Placement, wanted: Layout) -> Pad:
    """What a LayoutSwitch leaves in the padding: what was there, unless there is more padding than there was."""
    return placed.pad if placed.pad and _fits(wanted, placed.layout) else "Dirty"


def _fits(wanted: Layout, there: Layout) -> bool:
    """Is all padding of one layout padding of another one too?"""
    return all(new <= old for new, old in zip(wanted.padded_shape, there.padded_shape))


def _is_parameter(value: ir.Value) -> bool:
    return len(dims(value)) <= 1 and constant_tensor(value) is not None and device_dtype(value) == "Int"


def _reads_padding(layout: Layout, pad: Pad | None, need: PadNeed) -> bool:
    return pad != need.pad and any(layout.padded_shape[axis] != layout.shape[axis] for axis in need.axes)
