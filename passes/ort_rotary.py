"""ort-rotary: rotary positions by one kernel of ONNX Runtime."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .attention_steps import heads_of
from .contrib import contrib
from .dims import same_dim, static_shape
from .matching import either_way, read_only_by
from .rewriter import Rewriter
from .rules import apply_rules, rule, rules_in
from .view import constant


@dataclasses.dataclass(frozen=True)
class OrtRotary:
    """x · cos + turned(x) · sin, where turned swaps the halves of a head and negates one, becomes RotaryEmbedding.

    before:  x ─┬───────────────────── Mul cos ─ Add ─ y
                ├─ Slice(32:) ─ Neg ─ Concat ─ Mul sin ─ ·
                └─ Slice(:32) ──────── ·
    after:   x ─ com.microsoft.RotaryEmbedding(·, 0, cos, sin) ─ y

    x is [batch, heads, length, size] in float; cos and sin are constants, a row for each position, of equal halves, or
    the first rows of such constants, as many as the length. Half the time of the steps, in ONNX Runtime 1.32. Where
    Reshape and Transpose set the heads of x apart, they follow it instead.
    """

    name: ClassVar[str] = "ort-rotary"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Add")
def rotary(node: ir.Node, rw: Rewriter) -> bool:
    """Add(Mul(x, cos), Mul(Concat(Neg(Slice(x)), Slice(x)), sin)) → RotaryEmbedding(x)."""
    if (rw.opset(node) or 0) < 13 or node.outputs[0].dtype != ir.DataType.FLOAT:
        return False
    for plain, turned in either_way(node):
        found = _turned(turned, rw)
        straight = rw.producer(plain, "Mul")
        if found is None or straight is None:
            continue
        source, sin, inside = found
        cos = next((by for x, by in either_way(straight) if x is source), None)
        if cos is None:
            continue
        if not read_only_by([straight, *inside, node]):
            rw.reject("rotary", "a step is needed elsewhere")
            continue
        tables = [_table(value, source, rw) for value in (cos, sin)]
        if tables[0] is None or tables[1] is None:
            return rw.reject("rotary", "cos and sin are not proved to be rows of equal halves, one for each position")
        return _replace(node, source, [table for table in tables if table is not None], rw)
    return False


def _turned(value: ir.Value, rw: Rewriter) -> tuple[ir.Value, ir.Value, list[ir.Node]] | None:
    """x, sin and the steps of turned(x) · sin."""
    product = rw.producer(value, "Mul")
    for joined, sin in either_way(product) if product is not None else ():
        concat = rw.producer(joined, "Concat")
        if product is None or concat is None or len(concat.inputs) != 2 or rw.view(concat).attr("axis") not in (-1, 3):
            continue
        negated = rw.producer(concat.inputs[0], "Neg")
        high = rw.producer(negated.inputs[0], "Slice") if negated is not None else None
        low = rw.producer(concat.inputs[1], "Slice")
        if negated is None or high is None or low is None or high.inputs[0] is not low.inputs[0]:
            continue
        source = low.inputs[0]
        if source is None or source.shape is None or len(source.shape) != 4 or not isinstance(source.shape[3], int):
            continue
        half, odd = divmod(source.shape[3], 2)
        if not odd and _range(low, rw) == (0, half) and _range(high, rw) == (half, 2 * half):
            return source, sin, [product, concat, negated, high, low]
    return None


def _range(node: ir.Node, rw: Rewriter) -> tuple[int, int] | None:
    """Start and end along the last dim."""
    view, source = rw.view(node), node.inputs[0]
    starts, ends, axes, steps = (view.ints(name) for name in ("starts", "ends", "axes", "steps"))
    if source is None or source.shape is None or axes not in ((3,), (-1,)) or steps not in (None, (1,)):
        return None
    size = source.shape[3]
    if not isinstance(starts, tuple) or not isinstance(ends, tuple) or not isinstance(size, int):
        return None
    start, end = (min(max(bound + size if bound < 0 else bound, 0), size) for bound in (starts[0], ends[0]))
    return start, end


def _table(value: ir.Value, source: ir.Value, rw: Rewriter) -> np.ndarray | None:
    """The rows of cos or sin for the positions of `source`, the first half of each."""
    assert source.shape is not None
    length, size = source.shape[2], source.shape[3]
    known, dims = constant(value), static_shape(value)
    if known is None:
        known = _first_rows(value, length, rw)
    elif dims is None or len(dims) < 2 or not same_dim(dims[-2], length):
        return None
    if known is None or known.shape[-1] != size or known.size != known.shape[-2] * known.shape[-1]:
        return None
    rows = known.reshape(known.shape[-2:])
    low, high = np.split(rows, 2, axis=1)
    return np.ascontiguousarray(low) if np.array_equal(low, high) else None


def _first_rows(value: ir.Value, length: int | ir.SymbolicDim, rw: Rewriter) -> np.ndarray | None:
    """The constant of two dims or more that `value` is the first `length` rows of.

    Slice stops at the end of the constant. With more than one row, it multiplies something of this length only if that
    is no longer than the constant.
    """
    node = rw.producer(value, "Slice")
    if node is None:
        return None
    view, whole = rw.view(node), constant(node.inputs[0])
    ends = rw.shapes.contents(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] is not None else None
    if whole is None or whole.ndim < 2 or whole.shape[-2] < 2 or ends is None or len(ends) != 1:
        return None
    if view.ints("starts") != (0,) or view.ints("axes") not in ((whole.ndim - 2,), (-2,)):
        return None
    return whole if view.ints("steps") in (None, (1,)) and same_dim(ends[0], length) else None


def _replace(node: ir.Node, source: ir.Value, tables: list[np.ndarray], rw: Rewriter) -> bool:
    name = node.outputs[0].name
    cos, sin = (rw.constant(table, f"{name}_{what}", node) for table, what in zip(tables, ("cos", "sin"), strict=True))
    first = rw.constant(np.zeros(1, np.int64), f"{name}_position", node)
    heads, transpose = heads_of(source, rw), source.producer()
    reshape = transpose.inputs[0].producer() if heads and transpose and transpose.inputs[0] is not None else None
    if heads is None or reshape is None or heads.target is not None:
        rw.replace(node, contrib(rw, "RotaryEmbedding", source, first, cos, sin, at=node).outputs[0])
        return True
    rotated = contrib(rw, "RotaryEmbedding", heads.source, first, cos, sin, at=node, num_heads=heads.heads)
    apart = rw.op("Reshape", rotated.outputs[0], reshape.inputs[1], at=node, attributes=reshape.attributes.values())
    rw.replace(node, rw.op("Transpose", apart.outputs[0], at=node, perm=[0, 2, 1, 3]).outputs[0])
    return True


RULES = rules_in(globals())
