"""Proves that the rows of a graph's results, along one symbolic dimension, depend on one row of the inputs each.

Then inputs may be padded with more rows, and those of the results cut off. What is not proved counts as mixing rows.
"""

from __future__ import annotations

import onnx_ir as ir
import onnx_ir.passes.common
from pfvm.compiler.shapes import ShapeInference
from pfvm.errors import OptionError, describe_node
from pfvm.passes.dims import symbols
from pfvm.passes.effects import bodies

from .row_facts import Mixes, Rows
from .row_rules import RULES

# Operands that only fix the shape of a result which may have rows, so that they may follow from the number of rows.
_SHAPE_OPERANDS = {"Reshape": {1}, "Expand": {1}, "ConstantOfShape": {0}, "Range": {1}, "Resize": {3}}
_INTEGERS = {ir.DataType.INT64, ir.DataType.INT32}


def rows_of_outputs(model: ir.Model, symbol: str) -> dict[str, Rows]:
    """The outputs that have rows along `symbol`, each with its axis. The model is not changed.

    Raises OptionError that names the node where rows may influence each other, or that no input has the symbol.
    """
    working = model.clone()
    ir.passes.common.InlinePass()(working)
    inference = ShapeInference(working)
    inference.infer_model()
    facts = _Facts(working, symbol, inference)
    rows: dict[ir.Value, Rows] = {}
    sizes: set[ir.Value] = set()
    for value in working.graph.inputs:
        axes = [i for i, dim in enumerate(value.shape or ()) if _name(dim) == symbol]
        if len(axes) > 1:
            raise OptionError(f"bucket {symbol!r}: input {value.name!r} has this dimension twice")
        if axes:
            rows[value] = Rows(axes[0])
    if not rows:
        raise OptionError(f"bucket {symbol!r}: no input has a dimension of this name")
    for node in working.graph:
        try:
            _follow(node, facts, rows, sizes)
        except Mixes as why:
            raise OptionError(
                f"bucket {symbol!r}: {describe_node(node)} may mix rows ({why}), so inputs cannot be padded along "
                f"{symbol!r}"
            ) from why
    for value in working.graph.outputs:
        if value in sizes:
            raise OptionError(f"bucket {symbol!r}: output {value.name!r} holds a size, which padding would change")
    return {value.name or "": rows[value] for value in working.graph.outputs if value in rows}


def _follow(node: ir.Node, facts: _Facts, rows: dict[ir.Value, Rows], sizes: set[ir.Value]) -> None:
    """Enter what the node's results are: rows, or in `sizes`, what follows from the number of rows alone."""
    read = [v for v in node.inputs if v is not None]
    for body in bodies(node):
        read += [v for inner in body.all_nodes() for v in inner.inputs if v is not None] + list(body.outputs)
    has_rows, has_sizes = any(v in rows for v in read), any(v in sizes for v in read)
    if not (has_rows or has_sizes):
        return
    rule = RULES.get(node.op_type) if node.domain == "" else None
    only_shapes = not bodies(node) and _are_shapes(node, facts, sizes)
    if not has_rows or (node.domain == "" and node.op_type in ("Shape", "Size")):
        shaped = has_sizes and node.op_type in _SHAPE_OPERANDS and only_shapes
        if shaped and rule is not None and facts.row_axis(node.outputs[0]) is not None:
            rows.update(zip(node.outputs, rule(node, facts, [None] * len(node.inputs))))
        else:
            sizes.update(v for v in node.outputs if not facts.is_free(v))
        return
    if rule is None:
        raise Mixes("nothing is known about this operator")
    if not only_shapes:
        raise Mixes("the number of rows becomes data")
    results = rule(node, facts, [None if v is None else rows.get(v) for v in node.inputs])
    if len(results) < len(node.outputs):
        raise Mixes("nothing is known about one of its results")
    rows.update(zip(node.outputs, results))


def _are_shapes(node: ir.Node, facts: _Facts, sizes: set[ir.Value]) -> bool:
    """Is the number of rows read only as a size of the result, as it is?"""
    positions = _SHAPE_OPERANDS.get(node.op_type, set()) if node.domain == "" else set()
    return all(i in positions and facts.is_shape(v) for i, v in enumerate(node.inputs) if v is not None and v in sizes)


class _Facts:
    """What shape inference found, and the constants."""

    def __init__(self, model: ir.Model, symbol: str, inference: ShapeInference) -> None:
        self._model = model
        self._symbol = symbol
        self._inference = inference

    def is_free(self, value: ir.Value) -> bool:
        """Integers of which none depends on the number of rows, although they were computed from shapes."""
        contents = self._inference.contents(value)
        return contents is not None and all(self._is_known(dim) and not self._depends(dim) for dim in contents)

    def is_shape(self, value: ir.Value) -> bool:
        """Integers of which one is the number of rows and none else depends on it."""
        contents = self._inference.contents(value) or ()
        dependent = [dim for dim in contents if self._depends(dim)]
        return all(map(self._is_known, contents)) and [_name(dim) for dim in dependent] == [self._symbol]

    def _is_known(self, dim: int | ir.SymbolicDim) -> bool:
        return isinstance(dim, int) or dim.value is not None

    def _depends(self, dim: int | ir.SymbolicDim) -> bool:
        return self._symbol in symbols(dim)

    def rank(self, value: ir.Value) -> int:
        if value.shape is None:
            raise Mixes(f"the rank of {value.name!r} is unknown")
        return value.shape.rank()

    def dim(self, value: ir.Value, axis: int) -> int | None:
        size = None if value.shape is None else value.shape[axis]
        return size if isinstance(size, int) else None

    def row_axis(self, value: ir.Value) -> int | None:
        axes = [i for i, dim in enumerate(value.shape or ()) if self._depends(dim)]
        return axes[0] if len(axes) == 1 and value.shape and _name(value.shape[axes[0]]) == self._symbol else None

    def ints(self, value: ir.Value) -> list[int] | None:
        tensor = None if value.is_graph_input() else value.const_value
        if tensor is not None and tensor.dtype in _INTEGERS:
            return [int(i) for i in tensor.numpy().reshape(-1)]
        contents = self._inference.contents(value)
        known = None if contents is None else [dim for dim in contents if isinstance(dim, int)]
        return known if contents is not None and known is not None and len(known) == len(contents) else None

    def flag(self, value: ir.Value) -> bool | None:
        tensor = None if value.is_graph_input() else value.const_value
        return None if tensor is None else bool(tensor.numpy().reshape(-1)[0])

    def opset(self, domain: str) -> int:
        return self._model.graph.opset_imports.get(domain, 1)


def _name(dim: int | ir.SymbolicDim) -> str | None:
    return None if isinstance(dim, int) else dim.value
