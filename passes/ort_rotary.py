"""ort-rotary: rotary positions by one kernel of ONNX Runtime."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from .contrib import contrib
from .rewriter import Rewriter
from .rotary_heads import HeadRotation, head_rotation
from .rotary_steps import Rotation, of_pairs, of_sum
from .rotary_tables import Tables, tables_of
from .rules import apply_rules, rule, rules_in
from .view import constant


@dataclasses.dataclass(frozen=True)
class OrtRotary:
    """Before opset 23, x · cos + turned(x) · sin becomes com.microsoft's RotaryEmbedding.

    before:  x ─┬───────────────────── Mul cos ─ Add ─ y
                ├─ Slice(32:) ─ Neg ─ Concat ─ Mul sin ─ ·
                └─ Slice(:32) ──────── ·
    after:   x ─ com.microsoft.RotaryEmbedding(·, 0, cos, sin) ─ y

    What counts as rotary positions is as in fuse-rotary-embedding. Rows of cos and sin that differ in the batch are
    numbered. Half the time of the steps, in ONNX Runtime 1.32. Where Reshape and Transpose set the heads of x apart,
    they follow it instead.
    """

    name: ClassVar[str] = "ort-rotary"

    def run(self, rw: Rewriter) -> None:
        apply_rules(rw, RULES)


@rule("Add")
def rotary(node: ir.Node, rw: Rewriter) -> bool:
    """Add(Mul(x, cos), Mul(Concat(Neg(b), a), sin)) → RotaryEmbedding(x)."""
    return _fuse(node, of_sum, "rotary", rw)


@rule("Concat", "Reshape")
def rotary_halves(node: ir.Node, rw: Rewriter) -> bool:
    """Concat(Sub(a · cos, b · sin), Add(b · cos, a · sin)) → RotaryEmbedding(x)."""
    return _fuse(node, of_pairs, "rotary_halves", rw)


def _fuse(node: ir.Node, find: Callable[[ir.Node, Rewriter, str], Rotation | None], name: str, rw: Rewriter) -> bool:
    if not 13 <= (rw.opset(node) or 0) < 23 or node.outputs[0].dtype != ir.DataType.FLOAT:
        return False
    found = find(node, rw, name)
    if found is None:
        return False
    tables = tables_of(found, name, rw)
    if tables is None:
        return False
    batches = {dims[0] == 1 for dims in tables.aligned if dims is not None}
    if len(batches) != 1:
        return rw.reject(name, "one of cos and sin is for all of the batch, the other for each of it")
    rotation = head_rotation(found, tables, name, rw)
    if rotation is None:
        return False
    if rotation.heads is None and (found.kept or rotation.apart is not None):
        return rw.reject(name, "the number of heads is not known")
    _replace(rotation, tables, batches == {True}, rw)
    return True


def _replace(rotation: HeadRotation, tables: Tables, shared: bool, rw: Rewriter) -> None:
    """`shared`: each of the batch has the same rows."""
    found = rotation.found
    attributes: dict[str, int | None] = {"interleaved": 1} if found.in_turn else {}
    if found.kept:
        attributes["rotary_embedding_dim"] = len(found.places)
    if found.kept or rotation.apart is not None:
        attributes["num_heads"] = rotation.heads
    given = [rotation.operand(rw), *_rows(tables, shared, found.last, rw)]
    rotation.replace(contrib(rw, "RotaryEmbedding", *given, at=found.last, **attributes).outputs[0], rw)


def _rows(tables: Tables, shared: bool, at: ir.Node, rw: Rewriter) -> list[ir.Value]:
    """Which row is for which position, and the rows of cos and sin, of two dims."""
    found = [make() for make in tables.makes if make is not None]
    name = f"{at.outputs[0].name}_position"
    positions = rw.constant(np.zeros(1, np.int64), name, at) if shared else _numbers(found[0], tables, at, rw)
    target = np.array([-1, tables.pairs], np.int64)
    rows = list[ir.Value]()
    for table in found:
        known = constant(table)
        if known is not None:
            rows.append(rw.constant(known.reshape(target), table.name or name, at))
        else:
            rows.append(rw.op("Reshape", table, at=at, shape=target).outputs[0])
    return [positions, *rows]


def _numbers(table: ir.Value, tables: Tables, at: ir.Node, rw: Rewriter) -> ir.Value:
    """[batch, length]: the rows numbered from 0."""
    assert table.shape is not None
    axis = len(table.shape) - (2 if tables.heads_first else 3)
    whole = rw.op("Shape", table, at=at).outputs[0]
    which = rw.constant(np.array([0, axis], np.int64), f"{at.outputs[0].name}_axes", at)
    target = rw.op("Gather", whole, which, at=at).outputs[0]
    count = rw.op("ReduceProd", target, at=at, keepdims=0).outputs[0]
    first, step = (rw.constant(np.array(n, np.int64), f"{at.outputs[0].name}_row", at) for n in (0, 1))
    numbers = rw.op("Range", first, count, step, at=at).outputs[0]
    return rw.op("Reshape", numbers, target, at=at).outputs[0]


RULES = rules_in(globals())
