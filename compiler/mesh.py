"""`--mesh data=4,model=2` and `--shard 'linear*.weight=model,None'`: their forms, and which dimension goes where.

Nothing here knows a device: a mesh is an ordered mapping from axis names to sizes, a placement of an array one axis (or
several, or None) for each of its dimensions.
"""

from __future__ import annotations

import fnmatch
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from pfvm.errors import OptionError, did_you_mean, short

AUTO = "auto"
DATA, MODEL = "data", "model"
"""The axes with a meaning of their own: batches are split over the first; `auto` splits weights over the second."""

Axes = tuple[str, ...]  # that one dimension is split over; () where it is whole
Spec = tuple[Axes, ...]
_NAME = re.compile(r"[A-Za-z_]\w*")


@dataclass(frozen=True)
class Rule:
    """A pattern of names, and the axes that the dimensions of such an array are split over."""

    pattern: str
    spec: Spec
    text: str

    def matches(self, names: Iterable[str]) -> bool:
        """Is one of the names, or a part of it behind a dot, of this pattern?"""
        return any(fnmatch.fnmatchcase(part, self.pattern) for name in names for part in _suffixes(name))


def parse_mesh(text: object) -> dict[str, int]:
    """ "data=4,model=2" → {"data": 4, "model": 2}. Raises OptionError."""
    if not isinstance(text, str):
        raise OptionError(f"mesh: expected a text such as 'data=4,model=2', got {short(text)}")
    axes: dict[str, int] = {}
    for part in text.split(","):
        name, equals, size = (item.strip() for item in part.partition("="))
        if not equals or not _NAME.fullmatch(name) or not size.isdecimal() or int(size) < 1:
            raise OptionError(f"mesh {text!r}: {part.strip()!r} is no axis and its size, as in data=4,model=2")
        if name == "None":
            raise OptionError(f"mesh {text!r}: an axis cannot be called None, which stands for a dimension left whole")
        if name in axes:
            raise OptionError(f"mesh {text!r}: the axis {name!r} is given twice")
        axes[name] = int(size)
    return axes


def mesh_size(axes: Mapping[str, int]) -> int:
    """How many devices a mesh has."""
    return math.prod(axes.values())


def mesh_text(axes: Mapping[str, int]) -> str:
    """ "data=4,model=2"."""
    return ",".join(f"{name}={size}" for name, size in axes.items())


def parse_shard(texts: str | Sequence[str] | None, axes: Mapping[str, int]) -> tuple[list[Rule], bool]:
    """Rules, in their order, and whether `auto` is among them.

    Of several rules that match a name, the last one counts. Raises OptionError for an unknown axis, or one given twice,
    and for an axis of the mesh that nothing can be split over.
    """
    given = [texts] if isinstance(texts, str) else list(texts or ())
    for text in given:
        if not isinstance(text, str):
            raise OptionError(f"shard: expected texts such as 'linear*.weight=model,None', got {short(text)}")
    rules = [_rule(text, axes) for text in given if text != AUTO]
    used = {axis for rule in rules for dim in rule.spec for axis in dim}
    for axis in axes:
        if axis not in used and axis not in (DATA, MODEL):
            raise OptionError(
                f"mesh {mesh_text(axes)}: nothing is split over the axis {axis!r}{did_you_mean(axis, (DATA, MODEL))}; "
                f"batches are split over {DATA!r}, all else over the axes that a rule of shard names"
            )
    return rules, AUTO in given


def _rule(text: str, axes: Mapping[str, int]) -> Rule:
    pattern, equals, spec = (part.strip() for part in text.rpartition("="))
    if not equals or not pattern or not spec:
        raise OptionError(
            f"shard {text!r} is not of the form NAME=AXES, as in 'linear*.weight=model,None', nor {AUTO!r}"
        )
    dims = tuple(_axes(part.strip(), text, axes) for part in spec.split(","))
    used = [axis for dim in dims for axis in dim]
    for axis in used:
        if used.count(axis) > 1:
            raise OptionError(f"shard {text!r}: the axis {axis!r} is given twice; it can split one dimension only")
    return Rule(pattern, dims, text)


def _axes(text: str, rule: str, axes: Mapping[str, int]) -> Axes:
    if text == "None":
        return ()
    names = tuple(name.strip() for name in text.split("+"))
    for name in names:
        if name not in axes:
            raise OptionError(
                f"shard {rule!r}: the mesh {mesh_text(axes)} has no axis {name!r}{did_you_mean(name, axes)}; a "
                "dimension that stays whole is None"
            )
    return names


def checked_spec(spec: Spec, shape: Sequence[int | None], axes: Mapping[str, int], what: str, why: str) -> Spec:
    """The spec, where it fits a shape (None: a size that is not known). Raises OptionError.

    what: how a message names the array; why: what asks for it.
    """
    dims = "[" + ",".join("?" if size is None else str(size) for size in shape) + "]"
    if len(spec) > len(shape):
        raise OptionError(f"{why}: it names {len(spec)} dimensions, and {what} has {len(shape)}: {dims}")
    for dim, (names, size) in enumerate(zip(spec, shape)):
        parts = math.prod(axes[name] for name in names)
        if size is not None and size % parts:
            raise OptionError(
                f"{why}: dimension {dim} of {what} {dims} cannot be split over {'+'.join(names)}: {size} is not a "
                f"multiple of {parts}"
            )
    return spec


def auto_spec(shape: Sequence[int], axes: Mapping[str, int], at_least: int = 1024) -> Spec:
    """How `auto` splits a weight: its largest dimension that divides (of equal ones the last) over the axis `model`.

    Where the mesh has no such axis, over `data`: every device then keeps a part of each weight, and gathers it where it
    is used. Vectors, and weights of fewer elements than `at_least`, stay whole.
    """
    axis = MODEL if MODEL in axes else DATA
    size = axes.get(axis, 1)
    if len(shape) < 2 or math.prod(shape) < at_least or size == 1:
        return ()
    fitting = [dim for dim, length in enumerate(shape) if length % size == 0 and length >= size]
    if not fitting:
        return ()
    chosen = max(fitting, key=lambda dim: (shape[dim], dim))
    return (*((),) * chosen, (axis,))


def _suffixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[i:]) for i in range(len(parts))]
