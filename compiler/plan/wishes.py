"""Where the readers of a value would like it to lie: what products ask of their data, carried back to its source."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir
from pfvm.compiler.signature import read_manifest

from .dtypes import device_dtype
from .forms import Forms
from .images import data_image_layout, image_layout, kernel_layout
from .layout import Layout
from .mngraph import CAST
from .operand_layouts import gathered_layout, operand_layout, viewed, viewed_back, weight_layout
from .ops import contract
from .ops.table import dims, rule_of


def updated_state(model: ir.Model) -> set[ir.Value]:
    """State that a call updates: what stands in its padding is what the last call left there."""
    inputs = {value.name: value for value in model.graph.inputs}
    return {inputs[entry.name] for entry in read_manifest(model) if entry.output and entry.name in inputs}


class Wishes:
    """For each value the layout that its first reader with an opinion would like, in the value's own dtype."""

    def __init__(self, model: ir.Model, forms: Forms) -> None:
        self._forms = forms
        self._wishes: dict[ir.Value, Layout] = {}
        self._weights: dict[ir.Value, Layout] = {}
        nodes = list(model.graph)
        self._updated = updated_state(model)
        self._state = self._of_state(nodes)
        for node in reversed(nodes):
            self._ask(node)

    def get(self, value: ir.Value) -> Layout | None:
        """The wish for a value, None where nobody has one."""
        return self._wishes.get(value)

    def source(self, value: ir.Value) -> Layout | None:
        """The wish for an input or an initializer: that of its data readers, else that of products that it weighs.

        A weight's wish has copies in many cells, so it is for values that come from DRAM and not for computed ones.
        State that a call updates lies as what it is updated with.
        """
        if value in self._updated:
            return self._state.get(value) or self._wishes.get(value)
        return self._wishes.get(value) or self._weights.get(value)

    def is_updated(self, value: ir.Value) -> bool:
        """Is it state that a call updates?"""
        return value in self._updated

    def _of_state(self, nodes: Sequence[ir.Node]) -> dict[ir.Value, Layout]:
        """The layouts that gradients come in, carried on to the state that they update."""
        known: dict[ir.Value, Layout] = {}
        state: dict[ir.Value, Layout] = {}
        for node in nodes:
            kind = rule_of(node).kind
            source = node.inputs[0] if node.inputs else None
            if kind == "contract" and contract.is_local(node):
                out = node.outputs[0]
                known[out] = self._forms.matrix(dims(out), device_dtype(out))
            elif kind in ("convolve", "window"):
                known.update((out, image_layout(self._forms, out)) for out in node.outputs)
            elif kind in ("contract", "gathered"):
                known.update((out, gathered_layout(self._forms, node, out)) for out in node.outputs)
            elif kind == "reuse" and source in known:
                layout = viewed(known[source], node, dims(node.outputs[0]))
                if layout is not None:
                    known[node.outputs[0]] = layout
            elif kind == "elementwise" or node.op_type == CAST:
                self._carry(node, known, state)
        return state

    def _carry(self, node: ir.Node, known: dict[ir.Value, Layout], state: dict[ir.Value, Layout]) -> None:
        given = next((value for value in node.inputs if value is not None and value in known), None)
        if given is None:
            return
        for value in (*node.inputs, *node.outputs):
            if value is None or dims(value) != dims(given):
                continue
            layout = self._forms.convert(known[given], device_dtype(given), device_dtype(value))
            if value in self._updated:
                state.setdefault(value, layout)
            elif value.producer() is node:
                known.setdefault(value, layout)

    def _ask(self, node: ir.Node) -> None:
        kind = rule_of(node).kind
        if kind == "contract":
            self._ask_data(node)
            self._ask_weight(node)
            return
        if kind in ("convolve", "window"):
            self._ask_images(node)
            return
        if kind == "reuse":
            for wishes in (self._wishes, self._weights):
                self._ask_back(node, wishes)
            return
        wish = self._wishes.get(node.outputs[0]) if node.outputs else None
        if wish is None:
            return
        if kind == "elementwise" or node.op_type == CAST:
            own = device_dtype(node.outputs[0])
            for value in node.inputs:
                if value is not None and dims(value) == wish.shape:
                    self._wishes[value] = self._forms.convert(wish, own, device_dtype(value))

    def _ask_data(self, node: ir.Node) -> None:
        data = node.inputs[0]
        if data is None or not dims(data):
            return
        column = contract.column_of_data(node) if contract.is_local(node) else -1
        if node.op_type in ("Conv", "ConvTranspose"):
            column = 1
        self._wishes[data] = self._forms.matrix(dims(data), device_dtype(data), column)

    def _ask_weight(self, node: ir.Node) -> None:
        if not contract.is_local(node):
            return
        weight, out = node.inputs[1], node.outputs[0]
        assert weight is not None and node.inputs[0] is not None
        self._ask_beside(node, weight, weight_layout(self._forms, node))
        for i in range(2, len(node.inputs)):
            bias = node.inputs[i]
            if bias is not None:
                layout = self._forms.matrix(dims(out), device_dtype(out))
                self._weights[bias] = operand_layout(self._forms, node, i, layout, device_dtype(out))

    def _ask_beside(self, node: ir.Node, weight: ir.Value, layout: Layout) -> None:
        """Where rows are contracted, the second operand's lie as the data's do: a wish for what is computed, too."""
        if contract.is_over_rows(node):
            self._wishes[weight] = layout
        else:
            self._weights[weight] = layout

    def _ask_images(self, node: ir.Node) -> None:
        data, out = node.inputs[0], node.outputs[0]
        assert data is not None
        self._wishes[data] = data_image_layout(self._forms, node)
        for i, value in enumerate(node.inputs):
            if i == 1 and value is not None:
                self._ask_beside(node, value, kernel_layout(self._forms, node))
            elif i and value is not None:
                layout = image_layout(self._forms, out)
                self._weights[value] = operand_layout(self._forms, node, i, layout, device_dtype(out))

    def _ask_back(self, node: ir.Node, wishes: dict[ir.Value, Layout]) -> None:
        source, wish = node.inputs[0], wishes.get(node.outputs[0])
        if source is None or wish is None:
            return
        layout = viewed_back(wish, node, dims(source))
        if layout is None:
            wishes.pop(source, None)
        else:
            wishes[source] = layout
