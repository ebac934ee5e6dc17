"""Rotations of heads as an operator computes them: of heads set apart, or before a Reshape sets them apart."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from .attention_steps import heads_of
from .dims import same_dim
from .rewriter import Rewriter
from .rotary_steps import Rotation
from .rotary_tables import Tables


@dataclasses.dataclass(frozen=True)
class HeadRotation:
    """The rotation that `found.last` ends, of x with four dims.

    `apart`: the Reshape of [batch, length, heads · size] that sets the heads of x apart. What is before it is turned,
    and the Reshape, with the Transpose that puts heads first, follows. None: x is turned as it is.
    """

    found: Rotation
    heads_first: bool
    apart: ir.Node | None

    @property
    def heads(self) -> int | None:
        """How many there are; known where `apart` is."""
        assert self.found.x.shape is not None
        heads = self.found.x.shape[1 if self.heads_first else 2]
        return heads if isinstance(heads, int) else None

    def operand(self, rw: Rewriter) -> ir.Value:
        """What is turned, of three dims or of four. All of a head's numbers, or those alone that are turned."""
        found = self.found
        if self.apart is not None:
            assert self.apart.inputs[0] is not None
            return self.apart.inputs[0]
        if _is_whole(found):
            return found.x
        return found.turned or _cut_out(found.x, found.places, found.last, rw)

    def replace(self, turned: ir.Value, rw: Rewriter) -> None:
        """Put the operand, turned, where the steps' result is read."""
        last = self.found.last
        if self.apart is not None:
            attributes = self.apart.attributes.values()
            turned = rw.op("Reshape", turned, self.apart.inputs[1], at=last, attributes=attributes).outputs[0]
            if self.heads_first:
                turned = rw.op("Transpose", turned, at=last, perm=[0, 2, 1, 3]).outputs[0]
        rw.replace(last, turned)


def head_rotation(found: Rotation, tables: Tables, rule: str, rw: Rewriter) -> HeadRotation | None:
    """None where operators do not read such an x, `rule` rejected with why."""
    apart = None
    if _is_whole(found):
        apart = _reshape_before_transpose(found.x, rw) if tables.heads_first else _reshape(found.x, rw)
    if apart is None and not tables.heads_first:
        rw.reject(rule, "positions stand before heads, and no Reshape sets the heads apart")
        return None
    return HeadRotation(found, tables.heads_first, apart)


def _is_whole(found: Rotation) -> bool:
    """Whether the result has all numbers of each head."""
    assert found.x.shape is not None
    return found.kept or len(found.places) == found.x.shape[3]


def _reshape_before_transpose(x: ir.Value, rw: Rewriter) -> ir.Node | None:
    """The Reshape of [batch, length, heads · size] whose transposed result x is: [batch, heads, length, size]."""
    heads, transpose = heads_of(x, rw), x.producer()
    if heads is None or heads.target is not None or transpose is None or transpose.inputs[0] is None:
        return None
    if x.shape is None or x.shape[1] != heads.heads:
        return None
    return transpose.inputs[0].producer()


def _reshape(x: ir.Value, rw: Rewriter) -> ir.Node | None:
    """The Reshape of [batch, length, heads · size] that makes x: [batch, length, heads, size]."""
    reshape = rw.producer(x, "Reshape")
    source = reshape.inputs[0] if reshape is not None else None
    if source is None or source.shape is None or x.shape is None or len(source.shape) != 3:
        return None
    heads, size, hidden = x.shape[2], x.shape[3], source.shape[2]
    if not isinstance(heads, int) or not isinstance(size, int) or hidden != heads * size:
        return None
    leads = all(same_dim(a, b) for a, b in zip(source.shape[:2], x.shape[:2], strict=True))
    return reshape if leads else None


def _cut_out(x: ir.Value, places: range, at: ir.Node, rw: Rewriter) -> ir.Value:
    """These numbers of each head of x, which has four dims."""
    return rw.op("Slice", x, at=at, starts=[places.start], ends=[places.stop], axes=[3]).outputs[0]
