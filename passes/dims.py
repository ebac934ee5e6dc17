"""Symbolic dims: what is proved about shapes."""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx_ir as ir

_SHORTER = re.compile(r"Min\((\d+), ([A-Za-z_]\w*)\)")
Dim = int | ir.SymbolicDim
Dims = Sequence[Dim] | ir.Shape


def same_dims(a: Dims | None, b: Dims | None) -> bool:
    """Whether shapes `a` and `b` are proved equal: ints, or the same named symbol; an anonymous dim equals nothing."""
    if a is None or b is None or len(a) != len(b):
        return False
    return all(same_dim(x, y) for x, y in zip(a, b))


def same_dim(a: Dim, b: Dim) -> bool:
    """Whether two dims are proved equal."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int) and a == b
    return a.value is not None and a.value == b.value


def symbols(dim: Dim) -> frozenset[str]:
    """The names in a dim; a size and an anonymous dim have none. ValueError where a dim's text is no expression."""
    if isinstance(dim, int) or dim.value is None:
        return frozenset()
    return frozenset([dim.value]) if is_symbol(dim.value) else dim.free_symbols()


def is_symbol(text: str) -> bool:
    """Whether a dim's text is one name, for which nothing needs to be parsed."""
    return text.isascii() and text.isidentifier()


def longer(a: Dim, b: Dim) -> ir.SymbolicDim | None:
    """n, where the other dim is Min(c, n) of two or more, as of a table sliced up to a length.

    Where the one meets the other, both are n: if the shorter is 1, n is 1; if it is not n, they do not fit.
    """
    for short, whole in ((a, b), (b, a)):
        if isinstance(short, int) or isinstance(whole, int):
            return None
        found = _SHORTER.fullmatch(str(short.value))
        if found is not None and int(found[1]) >= 2 and found[2] == str(whole.value):
            return whole
    return None


def may_be_same(a: Dims | None, b: Dims | None) -> bool:
    """Whether two shapes could be equal in some run, as far as is known: worth a word where that is not proved."""
    if a is None or b is None:
        return a is not b
    return len(a) == len(b) and not any(isinstance(x, int) and isinstance(y, int) and x != y for x, y in zip(a, b))


def rank_of(value: ir.Value | None) -> int | None:
    """The number of dims, where it is known."""
    return None if value is None or value.shape is None else len(value.shape)


def static_shape(value: ir.Value) -> tuple[int, ...] | None:
    """Shape as ints when every dim is known."""
    if value.shape is None:
        return None
    known = tuple(dim for dim in value.shape if isinstance(dim, int))
    return known if len(known) == len(value.shape) else None
