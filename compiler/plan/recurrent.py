"""LSTM, GRU and RNN unrolled: one product for all steps' inputs, then each step's products and elementwise nodes.

Every gate has products of its own, so that nothing is cut out of a matrix on the way. What a recurrent operator may
have and these forms have not (other activations, a clip, batches first) leaves it as it is: it runs gathered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir
from pfvm.passes.provenance import location
from pfvm.passes.view import constant

from .ops.table import dims

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
_NODES_OF_A_STEP = {"LSTM": 20, "GRU": 16, "RNN": 4}


def is_recurrent(node: ir.Node) -> bool:
    """An operator of this family, in a form that can be unrolled, with weights that are constants."""
    if node.domain != "" or node.op_type not in GATES or not all(constant(node.inputs[i]) is not None for i in (1, 2)):
        return False
    extras = [node.inputs[i] for i in (3, 7) if i < len(node.inputs) and node.inputs[i] is not None]
    names = node.attributes.get_strings("activations", ()) if "activations" in node.attributes else ()
    known = tuple(names) in ((), _ACTIVATIONS[node.op_type], _ACTIVATIONS[node.op_type] * 2)
    plain = not {"clip", "activation_alpha", "activation_beta"} & set(node.attributes)
    first = node.attributes.get_int("layout", 0) or node.attributes.get_int("input_forget", 0)
    return known and plain and not first and all(constant(value) is not None for value in extras)


def steps(node: ir.Node) -> int:
    """How many nodes it unrolls to."""
    length = dims(node.inputs[0])[0]
    return length * len(_directions(node)) * _NODES_OF_A_STEP[node.op_type]


def unroll(model: ir.Model, node: ir.Node) -> list[ir.Value]:
    """Inserts the steps before the node and returns what its outputs are there: Y, Y_h and for an LSTM Y_c."""
    return _Recurrence(model, node).run()


def _directions(node: ir.Node) -> list[bool]:
    """For each direction: does it go backwards?"""
    name = node.attributes.get_string("direction", "forward")
    return {"forward": [False], "reverse": [True]}.get(name, [False, True])


class _Recurrence:
    def __init__(self, model: ir.Model, node: ir.Node) -> None:
        self._model, self._node = model, node
        self._name = node.name or str(node.outputs[0].name)
        self._count = 0
        self.length, self.batch, self.width = dims(node.inputs[0])
        self.hidden = dims(node.inputs[2])[2]
        self._modern = model.opset_imports.get("", 0) >= 13

    # ---- the operator

    def run(self) -> list[ir.Value]:
        source = self._node.inputs[0]
        rows = self._op("Reshape", [source, self._ints([self.length * self.batch, self.width])])
        finals, columns = [], []
        for direction, backwards in enumerate(_directions(self._node)):
            states, ends = self._direction(rows, direction, backwards)
            columns.append(states)
            finals.append(ends)
        each = [self._joined([column[t] for column in columns], 0) for t in range(self.length)]
        results = [self._joined(each, 0)]
        results += [self._joined([ends[k] for ends in finals], 0) for k in range(len(finals[0]))]
        return results[: len(self._node.outputs)]

    def _direction(self, rows: ir.Value, direction: int, backwards: bool) -> tuple[list[ir.Value], list[ir.Value]]:
        """The outputs of each step, and the last states."""
        self._load(direction)
        gates = [self._steps_of(rows, gate) for gate in range(GATES[self._node.op_type])]
        state = [self._start(5, direction)]
        if self._node.op_type == "LSTM":
            state.append(self._start(6, direction))
        kept: list[ir.Value] = [state[0]] * self.length
        order = range(self.length)
        for t in reversed(order) if backwards else order:
            state, kept[t] = self._masked(t, self._step([gate[t] for gate in gates], state), state)
        return kept, state

    def _step(self, inputs: Sequence[ir.Value], state: list[ir.Value]) -> list[ir.Value]:
        return {"LSTM": self._lstm, "GRU": self._gru, "RNN": self._rnn}[self._node.op_type](inputs, state)

    def _rnn(self, inputs: Sequence[ir.Value], state: list[ir.Value]) -> list[ir.Value]:
        return [self._op("Tanh", [self._op("Add", [inputs[0], self._recur(state[0], 0)])])]

    def _lstm(self, inputs: Sequence[ir.Value], state: list[ir.Value]) -> list[ir.Value]:
        """Gates i, o, f, c; peepholes, where there are, look at the cell: i and f at the old one, o at the new one."""
        hidden, cell = state
        sums = [self._op("Add", [inputs[gate], self._recur(hidden, gate)]) for gate in range(4)]
        entering = self._op("Sigmoid", [self._peeped(sums[0], cell, 0)])
        forgetting = self._op("Sigmoid", [self._peeped(sums[2], cell, 2)])
        new = self._op("Mul", [entering, self._op("Tanh", [sums[3]])])
        cell = self._op("Add", [self._op("Mul", [forgetting, cell]), new])
        leaving = self._op("Sigmoid", [self._peeped(sums[1], cell, 1)])
        return [self._op("Mul", [leaving, self._op("Tanh", [cell])]), cell]

    def _gru(self, inputs: Sequence[ir.Value], state: list[ir.Value]) -> list[ir.Value]:
        """Gates z, r, h; linear_before_reset: the reset gate multiplies the product, else what goes into it."""
        (hidden,) = state
        update, reset = (
            self._op("Sigmoid", [self._op("Add", [inputs[gate], self._recur(hidden, gate)])]) for gate in range(2)
        )
        if self._node.attributes.get_int("linear_before_reset", 0):
            remembered = self._op("Mul", [reset, self._recur(hidden, 2)])
        else:
            remembered = self._recur(self._op("Mul", [reset, hidden]), 2)
        new = self._op("Tanh", [self._op("Add", [inputs[2], remembered])])
        difference = self._op("Mul", [update, self._op("Sub", [hidden, new])])
        return [self._op("Add", [new, difference])]

    # ---- parts

    def _load(self, direction: int) -> None:
        """The weights of a direction, by gate. Both biases go where they can be added once: to the inputs."""
        size = self.hidden
        weight, recurrence = (self._array(i)[direction] for i in (1, 2))
        biases = self._array(3)[direction] if self._given(3) else np.zeros(2 * len(weight), weight.dtype)
        of_input, of_state = np.split(biases, 2)
        apart = self._node.op_type == "GRU" and bool(self._node.attributes.get_int("linear_before_reset", 0))
        self._weights, self._recurrences, self._biases, self._inner = [], [], [], []
        for gate in range(GATES[self._node.op_type]):
            part = slice(gate * size, (gate + 1) * size)
            stays = apart and gate == 2
            self._weights.append(self._constant(weight[part]))
            self._recurrences.append(self._constant(recurrence[part]))
            self._biases.append(self._constant(of_input[part] if stays else of_input[part] + of_state[part]))
            self._inner.append(self._constant(of_state[part]) if stays else None)
        holes = self._array(7)[direction] if self._given(7) else None
        self._peepholes = None if holes is None else [self._constant(part) for part in np.split(holes, 3)]

    def _steps_of(self, rows: ir.Value, gate: int) -> list[ir.Value]:
        """A gate's share of the inputs, for each step."""
        attributes = [ir.Attr("transB", ir.AttributeType.INT, 1)]
        every = self._op("Gemm", [rows, self._weights[gate], self._biases[gate]], attributes)
        if self.length == 1:
            return [every]
        sizes = [self.batch] * self.length
        axis = [ir.Attr("axis", ir.AttributeType.INT, 0)]
        if self._modern:
            return self._ops("Split", [every, self._ints(sizes)], axis, self.length)
        axis.append(ir.Attr("split", ir.AttributeType.INTS, sizes))
        return self._ops("Split", [every], axis, self.length)

    def _recur(self, hidden: ir.Value, gate: int) -> ir.Value:
        attributes = [ir.Attr("transB", ir.AttributeType.INT, 1)]
        bias = self._inner[gate]
        inputs = [hidden, self._recurrences[gate], *([] if bias is None else [bias])]
        if bias is None and self._model.opset_imports.get("", 0) < 11:
            inputs.append(self._constant(np.zeros(self.hidden, self._array(2).dtype)))
        return self._op("Gemm", inputs, attributes)

    def _peeped(self, total: ir.Value, cell: ir.Value, hole: int) -> ir.Value:
        """Peepholes come in the order i, o, f."""
        if self._peepholes is None:
            return total
        return self._op("Add", [total, self._op("Mul", [self._peepholes[hole], cell])])

    def _masked(self, t: int, new: list[ir.Value], old: list[ir.Value]) -> tuple[list[ir.Value], ir.Value]:
        """State and output where sequences have lengths: behind its end one keeps its state and gives 0."""
        if not self._given(4):
            return new, new[0]
        lengths = self._node.inputs[4]
        assert lengths is not None and lengths.dtype is not None
        now = self._constant(np.asarray(t, lengths.dtype.numpy()))
        runs = self._unsqueezed(self._op("Less", [now, lengths]), 1)
        zero = self._constant(np.zeros((), self._array(1).dtype))
        state = [self._op("Where", [runs, a, b]) for a, b in zip(new, old)]
        return state, self._op("Where", [runs, new[0], zero])

    def _start(self, i: int, direction: int) -> ir.Value:
        """The first state [batch, hidden]."""
        given = self._node.inputs[i] if self._given(i) else None
        if given is None:
            return self._constant(np.zeros((self.batch, self.hidden), self._array(1).dtype))
        index = self._constant(np.asarray(direction, np.int64))
        return self._op("Gather", [given, index], [ir.Attr("axis", ir.AttributeType.INT, 0)])

    def _joined(self, parts: Sequence[ir.Value], axis: int) -> ir.Value:
        """Values as the slices of one more axis."""
        tall = [self._unsqueezed(part, axis) for part in parts]
        return tall[0] if len(tall) == 1 else self._op("Concat", tall, [ir.Attr("axis", ir.AttributeType.INT, axis)])

    def _unsqueezed(self, value: ir.Value, axis: int) -> ir.Value:
        if self._modern:
            return self._op("Unsqueeze", [value, self._ints([axis])])
        return self._op("Unsqueeze", [value], [ir.Attr("axes", ir.AttributeType.INTS, [axis])])

    # ---- nodes

    def _given(self, i: int) -> bool:
        return i < len(self._node.inputs) and self._node.inputs[i] is not None

    def _array(self, i: int) -> np.ndarray:
        array = constant(self._node.inputs[i])
        assert array is not None
        return array

    def _op(self, op: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr] = ()) -> ir.Value:
        return self._ops(op, inputs, attributes, 1)[0]

    def _ops(
        self, op: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr], outputs: int
    ) -> list[ir.Value]:
        made = ir.Node("", op, inputs, attributes, num_outputs=outputs, name=f"{self._name}/{op}_{self._next()}")
        for i, out in enumerate(made.outputs):
            out.name = f"{made.name}_output_{i}"
        made.metadata_props.update(location(self._node))
        self._model.graph.insert_before(self._node, made)
        return list(made.outputs)

    def _ints(self, numbers: Sequence[int]) -> ir.Value:
        return self._constant(np.asarray(numbers, np.int64))

    def _constant(self, array: np.ndarray) -> ir.Value:
        name = f"{self._name}/constant_{self._next()}"
        tensor = ir.tensor(array.copy(), name=name)
        shape = ir.Shape(array.shape)
        value = ir.Value(name=name, type=ir.TensorType(tensor.dtype), shape=shape, const_value=tensor)
        self._model.graph.initializers.add(value)
        return value

    def _next(self) -> int:
        self._count += 1
        return self._count
