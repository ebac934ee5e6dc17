"""Appends nodes to a graph: what gradient rules, losses and optimizers write with. Opset 18 and later."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from pfvm.errors import flag
from pfvm.passes.dims import same_dims, static_shape
from pfvm.passes.effects import bodies
from pfvm.passes.provenance import location
from pfvm.passes.shape_inference import ShapeInference

MIN_OPSET = 18
"""The builder writes the forms of this opset, which later ones accept (axes of every reduction are an input)."""

FIX_SHAPES = "fix the inputs' shapes with " + flag("shape", "x=1,3,224,224", 'shapes={"x": (1, 3, 224, 224)}')
"""What helps where a gradient depends on open dimensions."""

_FORWARD_OF = "pfvm.gradient_of"


class Builder:
    """Writes nodes at the end of a model's main graph, or of a body that is being made (see `body`)."""

    def __init__(self, model: ir.Model, shapes: ShapeInference) -> None:
        self.model = model
        self._shapes = shapes
        self._graph: ir.Graph = model.graph
        self._names = _names(model.graph)
        self._pooled: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self._origin: ir.Node | None = None

    # ---- where

    @contextlib.contextmanager
    def at(self, origin: ir.Node) -> Iterator[None]:
        """Inside, new nodes are named after `origin` and carry its provenance."""
        before, self._origin = self._origin, origin
        try:
            yield
        finally:
            self._origin = before

    @contextlib.contextmanager
    def body(self, name: str) -> Iterator[ir.Graph]:
        """Inside, new nodes go to a new body graph, which the caller gives inputs and outputs."""
        before, made = self._graph, ir.Graph([], [], nodes=[], name=self.unique(name))
        self._graph = made
        try:
            yield made
        finally:
            self._graph = before

    def input(self, hint: str, dtype: ir.DataType, shape: Sequence[int] | None) -> ir.Value:
        """A new input of the body that is being made."""
        value = ir.Value(
            name=self.unique(hint), type=ir.TensorType(dtype), shape=None if shape is None else ir.Shape(shape)
        )
        self._graph.inputs.append(value)
        return value

    # ---- nodes

    def op(self, op_type: str, *inputs: ir.Value | None, hint: str = "", **attributes: Any) -> ir.Value:
        """A new node of ai.onnx with one output, which it returns. Attributes that are None are left out."""
        return self.ops(1, op_type, *inputs, hint=hint, **attributes)[0]

    def ops(
        self, count: int, op_type: str, *inputs: ir.Value | None, hint: str = "", **attributes: Any
    ) -> tuple[ir.Value, ...]:
        """Like `op`, with `count` outputs."""
        operands = list(inputs)
        while operands and operands[-1] is None:
            operands.pop()
        given = {key: value for key, value in attributes.items() if value is not None}
        node = ir.Node(
            "",
            op_type,
            operands,
            ir.convenience.convert_attributes(given),
            num_outputs=count,
            name=self.unique(f"{self._prefix()}grad/{op_type}"),
            metadata_props=self._provenance(),
        )
        for value in node.outputs:
            value.name = self.unique(hint or f"{self._prefix()}grad")
        self._graph.append(node)
        self._shapes.infer_node(node)
        for value in node.outputs:
            if value.type is None and operands and operands[0] is not None:
                value.type = operands[0].type
        return tuple(node.outputs)

    def _prefix(self) -> str:
        return f"{self._origin.outputs[0].name}/" if self._origin is not None else ""

    def _provenance(self) -> dict[str, str]:
        if self._origin is None:
            return {}
        return {**location(self._origin), _FORWARD_OF: self._origin.name or self._origin.outputs[0].name or ""}

    def constant(self, array: Any, dtype: ir.DataType | None = None, hint: str = "constant") -> ir.Value:
        """A constant of the main graph; equal small ones are one value."""
        data = np.asarray(array) if dtype is None else np.asarray(array).astype(dtype.numpy())
        key = (data.dtype.name, data.shape, data.tobytes()) if data.nbytes <= 1024 else None
        if key is not None and key in self._pooled:
            return self._pooled[key]
        tensor = ir.tensor(np.array(data), dtype=dtype, name=self.unique(hint))
        value = ir.Value(
            name=tensor.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(data.shape), const_value=tensor
        )
        self.model.graph.initializers.add(value)
        if key is not None:
            self._pooled[key] = value
        return value

    def ints(self, *numbers: int) -> ir.Value:
        """A constant int64 vector."""
        return self.constant(np.asarray(numbers, np.int64))

    def unique(self, hint: str) -> str:
        """`hint`, or `hint_1` … where it is taken; then taken."""
        name, count = hint, self._names.get(hint, -1)
        while name in self._names:
            count += 1
            name = f"{hint}_{count + 1}"
        self._names[hint] = max(count, 0)
        self._names[name] = 0
        return name

    # ---- arithmetic

    def like(self, number: float, value: ir.Value) -> ir.Value:
        """A scalar constant of the value's element type."""
        assert value.dtype is not None, f"{value.name} has no type"
        return self.constant(number, value.dtype)

    def add(self, a: ir.Value, b: ir.Value | float) -> ir.Value:
        return self.op("Add", a, self._operand(b, a))

    def sub(self, a: ir.Value, b: ir.Value | float) -> ir.Value:
        return self.op("Sub", a, self._operand(b, a))

    def mul(self, a: ir.Value, b: ir.Value | float) -> ir.Value:
        return a if b == 1 and isinstance(b, (int, float)) else self.op("Mul", a, self._operand(b, a))

    def div(self, a: ir.Value, b: ir.Value | float) -> ir.Value:
        return self.op("Div", a, self._operand(b, a))

    def one_minus(self, a: ir.Value) -> ir.Value:
        return self.op("Sub", self.like(1, a), a)

    def square(self, a: ir.Value) -> ir.Value:
        return self.op("Mul", a, a)

    def _operand(self, b: ir.Value | float, like: ir.Value) -> ir.Value:
        return b if isinstance(b, ir.Value) else self.like(b, like)

    def where(self, condition: ir.Value, a: ir.Value, b: ir.Value | float) -> ir.Value:
        return self.op("Where", condition, a, self._operand(b, a))

    def cast(self, a: ir.Value, dtype: ir.DataType | None) -> ir.Value:
        return a if dtype is None or a.dtype == dtype else self.op("Cast", a, to=int(dtype))

    def sum(self, a: ir.Value, axes: Sequence[int] | None, keepdims: bool = True) -> ir.Value:
        """Over these axes; None: all of them."""
        return self.op("ReduceSum", a, None if axes is None else self.ints(*axes), keepdims=int(keepdims))

    # ---- shapes

    def shape(self, value: ir.Value, start: int = 0, end: int | None = None) -> ir.Value:
        """The dims `start` to `end` as int64: a constant where they are known."""
        dims = None if value.shape is None else list(value.shape)[start:end]
        if dims is not None and all(isinstance(d, int) for d in dims):
            return self.constant(np.asarray(dims, np.int64))
        return self.op("Shape", value, start=start or None, end=end)

    def reshape(self, value: ir.Value, like: ir.Value) -> ir.Value:
        """With the dims of `like`, which has as many elements."""
        if same_dims(value.shape, like.shape):
            return value
        dims = None if like.shape is None else list(like.shape)
        open_dims = [i for i, d in enumerate(dims or ()) if not isinstance(d, int)]
        if dims is not None and len(open_dims) <= 1 and 0 not in dims:
            new = self.op("Reshape", value, self.ints(*(d if isinstance(d, int) else -1 for d in dims)))
        else:
            new = self.op("Reshape", value, self.shape(like))
        return _shaped(new, like)

    def expand(self, value: ir.Value, like: ir.Value) -> ir.Value:
        """Broadcast to the dims of `like`."""
        if same_dims(value.shape, like.shape):
            return value
        return _shaped(self.op("Expand", value, self.shape(like)), like)

    def zeros(self, like: ir.Value) -> ir.Value:
        return _shaped(self.fill(self.shape(like), 0, like), like)

    def fill(self, shape: ir.Value, number: float, like: ir.Value) -> ir.Value:
        """A tensor of this shape and of the element type of `like`."""
        assert like.dtype is not None
        return self.op("ConstantOfShape", shape, value=ir.tensor(np.asarray([number]).astype(like.dtype.numpy())))

    def transpose(self, value: ir.Value, perm: Sequence[int]) -> ir.Value:
        return value if list(perm) == sorted(perm) else self.op("Transpose", value, perm=list(perm))

    def swap_last(self, value: ir.Value) -> ir.Value:
        """The last two axes exchanged."""
        rank = self.rank(value)
        return self.transpose(value, [*range(rank - 2), rank - 1, rank - 2])

    def rank(self, value: ir.Value) -> int:
        """Raises UnknownRank."""
        if value.shape is None:
            raise UnknownRank(value)
        return len(value.shape)

    def sum_to(self, gradient: ir.Value, value: ir.Value) -> ir.Value:
        """Sum over what broadcasting repeated, so that the gradient of a broadcast operand has its dims."""
        if same_dims(gradient.shape, value.shape):
            return gradient
        if value.shape is None or gradient.shape is None:
            return self._sum_to_unknown(gradient, value)
        rank = len(value.shape)
        full = [1] * (len(gradient.shape) - rank) + list(value.shape)
        if all(isinstance(d, int) for d in full) or self._only_symbols_kept(gradient, value):
            # Where the gradient's dim is not known, the value's says enough: 1 is summed over, anything else is equal.
            axes = [i for i, (d, g) in enumerate(zip(full, gradient.shape)) if d == 1 and g != 1]
            return self.reshape(self.sum(gradient, axes) if axes else gradient, value)
        return self._sum_to_unknown(gradient, value)

    def _sum_to_unknown(self, gradient: ir.Value, value: ir.Value) -> ir.Value:
        """Over the axes that the value lacks or has as 1, found when the model runs."""
        dims = self.op("Shape", value)
        extra = self.op("Sub", self.op("Shape", self.op("Shape", gradient)), self.op("Shape", dims))
        ones = self.op("ConstantOfShape", extra, value=ir.tensor(np.array([1], np.int64)))
        is_one = self.op("Equal", self.op("Concat", ones, dims, axis=0), self.constant(np.int64(1)))
        axes = self.op("Reshape", self.op("NonZero", is_one), self.ints(-1))
        summed = self.op("ReduceSum", gradient, axes, keepdims=1, noop_with_empty_axes=1)
        return _shaped(self.op("Reshape", summed, dims), value)

    @staticmethod
    def _only_symbols_kept(gradient: ir.Value, value: ir.Value) -> bool:
        """Whether every symbolic dim of the value is the gradient's own at that place."""
        mine, theirs = list(value.shape or ()), list(gradient.shape or ())
        aligned = theirs[len(theirs) - len(mine) :]
        return all(
            isinstance(d, int) or (isinstance(g, ir.SymbolicDim) and d.value == g.value and d.value is not None)
            for d, g in zip(mine, aligned)
        )

    def size_ratio(self, large: ir.Value, small: ir.Value) -> ir.Value:
        """Elements of one tensor by those of another, as a scalar of the element type."""
        a, b = static_shape(large), static_shape(small)
        if a is not None and b is not None:
            return self.like(float(np.prod(a, dtype=np.float64) / max(np.prod(b, dtype=np.float64), 1)), large)
        sizes = (self.op("Cast", self.op("Size", v), to=int(large.dtype or 0)) for v in (large, small))
        return self.op("Div", *sizes)


class UnknownRank(Exception):
    """A rule needs the rank of a value, and it is not known."""

    def __init__(self, value: ir.Value) -> None:
        super().__init__(value.name)
        self.value = value


def _shaped(value: ir.Value, like: ir.Value) -> ir.Value:
    """What was made with the dims of `like` has them, also where inference does not see it."""
    value.shape = like.shape
    return value


def _names(graph: ir.Graph) -> dict[str, int]:
    found: dict[str, int] = {}
    pending = [graph]
    while pending:
        each = pending.pop()
        for value in (*each.inputs, *each.outputs, *each.initializers.values()):
            found[value.name or ""] = 0
        for node in each:
            found[node.name or ""] = 0
            found.update({out.name or "": 0 for out in node.outputs})
            pending.extend(bodies(node))
    return found
