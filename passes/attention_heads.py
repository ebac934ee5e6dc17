"""Keys and values of attention, by heads, that several heads of queries may share."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from .attention_steps import Heads, heads_of, keys_of
from .dims import Dim, same_dim, same_dims
from .rewriter import Rewriter


@dataclasses.dataclass(frozen=True)
class PerHead:
    """A value of [batch, heads, length, size], `dims`; `heads`: how they are set apart, where that is proved.

    `turned`: kᵀ, where there is no k of that order to read.
    """

    value: ir.Value
    dims: list[Dim]
    heads: Heads | None
    turned: bool = False

    def apart(self, at: ir.Node, rw: Rewriter) -> ir.Value:
        """The value of four dims."""
        if not self.turned:
            return self.value
        keys = keys_of(self.value, at, rw)
        assert keys is not None
        return keys


def per_head(keys: ir.Value, values: ir.Value, rw: Rewriter) -> tuple[PerHead, PerHead] | None:
    """Keys, of kᵀ, and values, less what repeats both for several heads; None where kᵀ is no Transpose."""
    for shared in (True, False):
        found = _keys(keys, shared, rw), _values(values, shared, rw)
        if found[0] is None:
            return None
        if not shared or same_dim(found[0].dims[1], found[1].dims[1]):
            return found[0], found[1]
    return None


def _values(value: ir.Value, shared: bool, rw: Rewriter) -> PerHead:
    own = (_repeated(value, rw) if shared else None) or value
    assert own.shape is not None
    return PerHead(own, list(own.shape), heads_of(own, rw))


def _keys(transposed: ir.Value, shared: bool, rw: Rewriter) -> PerHead | None:
    node = rw.producer(transposed, "Transpose")
    perm = rw.view(node).attr("perm") if node is not None else None
    inner = node.inputs[0] if node is not None else None
    if inner is None or inner.shape is None:
        return None
    if perm == (0, 1, 3, 2):
        return _values(inner, shared, rw)
    if perm == (0, 2, 3, 1):
        batch, length, heads, size = inner.shape
        return PerHead(transposed, [batch, heads, length, size], heads_of(transposed, rw, transposed=True), turned=True)
    return None


def _repeated(value: ir.Value, rw: Rewriter) -> ir.Value | None:
    """x of Reshape(Expand(Unsqueeze(x, 2))), where that repeats each head for several of the queries."""
    reshape = rw.producer(value, "Reshape")
    expand = rw.producer(reshape.inputs[0], "Expand") if reshape is not None else None
    unsqueeze = rw.producer(expand.inputs[0], "Unsqueeze") if expand is not None else None
    source = unsqueeze.inputs[0] if unsqueeze is not None else None
    if unsqueeze is None or expand is None or source is None or source.shape is None or len(source.shape) != 4:
        return None
    wide, shape = expand.outputs[0].shape, value.shape
    if wide is None or shape is None or len(wide) != 5 or len(shape) != 4:
        return None
    batch, heads, length, size = source.shape
    many, count = shape[1], wide[2]
    if not isinstance(heads, int) or not isinstance(many, int) or not isinstance(count, int) or many != heads * count:
        return None
    apart = same_dims(unsqueeze.outputs[0].shape, [batch, heads, 1, length, size])
    spread = same_dims(wide, [batch, heads, count, length, size])
    together = same_dim(shape[0], batch) and same_dim(shape[2], length) and same_dim(shape[3], size)
    return source if apart and spread and together else None
