"""Constants of two models side by side: which are the same, which were renamed or changed."""

from __future__ import annotations

import collections
import functools
import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import onnx_ir as ir
from pfvm.passes.effects import roots
from pfvm.passes.view import constant_tensor

Kind = Literal["same", "renamed", "changed", "removed", "added"]
_COMPARED = 1 << 26  # elements; of larger tensors it is only said that they differ


@dataclass(frozen=True)
class ConstantChange:
    """A constant of one model, or of both. `note` says what differs, or of which other one it has the bytes."""

    kind: Kind
    old: str | None
    new: str | None
    note: str = ""


@dataclass(eq=False)
class Constant:
    """An initializer, or a Constant node of a function. An overridable one belongs to the signature, by its name."""

    name: str
    value: ir.Value
    tensor: ir.TensorProtocol
    overridable: bool

    @property
    def form(self) -> tuple[object, ...]:
        return self.tensor.dtype, tuple(self.tensor.shape.numpy())

    @property
    def place(self) -> tuple[object, ...] | None:
        """The bytes of a file that it is; None for one in memory."""
        if not isinstance(self.tensor, ir.ExternalTensor):
            return None
        return (*self.form, os.path.realpath(self.tensor.path), self.tensor.offset or 0)

    @functools.cached_property
    def content(self) -> tuple[object, ...]:
        """Element type, shape and a hash of the bytes."""
        if isinstance(self.tensor, ir.StringTensor):
            words = np.asarray(self.tensor.string_data()).reshape(-1).tolist()
            return (*self.form, *words)
        array = np.ascontiguousarray(self.tensor.numpy()).reshape(-1)  # mapped, where the weights are in a file
        return (*self.form, hashlib.sha256(array.view(np.uint8).data).digest() if array.size else b"")


def constants_of(model: ir.Model) -> list[Constant]:
    """All constants, bodies and functions included, in the order of the file."""
    return list(_found(model))


def _found(model: ir.Model) -> Iterator[Constant]:
    for root in roots(model):
        for graph in [root, *root.subgraphs()]:
            for value in graph.initializers.values():
                if value.const_value is not None:
                    yield Constant(value.name or "", value, value.const_value, value.is_graph_input())
            for node in graph:
                if node.op_type == "Constant" and node.domain == "":
                    tensor = constant_tensor(node.outputs[0])
                    if tensor is not None:
                        yield Constant(node.outputs[0].name or "", node.outputs[0], tensor, False)


class ConstantPairs:
    """Pairs the constants of two models: by bytes, then by name; `unite` pairs others by where they are read.

    `token[value]` is equal for constants that count as one when graphs are compared.
    """

    def __init__(self, old: ir.Model, new: ir.Model) -> None:
        self._old, self._new = constants_of(old), constants_of(new)
        self.token: dict[ir.Value, object] = {}
        self._of: dict[ir.Value, Constant] = {c.value: c for c in (*self._old, *self._new)}
        self._pair: dict[Constant, Constant] = {}
        self._taken: set[Constant] = set()
        self._twin: dict[Constant, str] = {}
        self._by_name([c for c in self._old if c.overridable], [c for c in self._new if c.overridable])
        self._by_content()
        self._by_name(self._open(self._old), self._open(self._new))
        for constant in (*self._open(self._old), *self._open(self._new)):
            self.token.setdefault(constant.value, ("like", *constant.form))

    def _open(self, constants: Iterable[Constant]) -> list[Constant]:
        return [c for c in constants if c not in self._pair and c not in self._taken]

    def _join(self, old: Constant, new: Constant, token: object) -> None:
        self._pair[old] = new
        self._taken.add(new)
        self.token[old.value] = self.token[new.value] = token

    def _by_name(self, old: list[Constant], new: list[Constant]) -> None:
        named = {c.name: c for c in reversed(new)}
        for constant in old:
            other = named.pop(constant.name, None)
            if other is not None and other not in self._taken:
                self._join(constant, other, ("named", constant.name, id(constant.value)))

    def _by_content(self) -> None:
        """Only what has the type and shape of a constant of the other model is read."""
        unread = self._in_the_same_files()
        groups = []
        for mine, others in ((self._old, self._new), (self._new, self._old)):
            forms = {c.form for c in others}
            group: dict[tuple[object, ...], list[Constant]] = collections.defaultdict(list)
            for constant in mine:
                if not constant.overridable and constant.form in forms:
                    place = constant.place if constant.form in unread else None
                    group[constant.content if place is None else place].append(constant)
            groups.append(group)
        for content, old in groups[0].items():
            new = groups[1].get(content, [])
            if not new:
                continue
            names = {c.name: c for c in reversed(new)}
            for constant in old:  # those that kept their name first
                if constant.name in names:
                    self._join(constant, names.pop(constant.name), ("content", *content))
            for constant, other in zip(self._open(old), self._open(new)):
                self._join(constant, other, ("content", *content))
            for constant in (*self._open(old), *self._open(new)):  # one of several equal ones
                self.token[constant.value] = ("content", *content)
                self._twin[constant] = (new if constant in old else old)[0].name

    def _in_the_same_files(self) -> set[tuple[object, ...]]:
        """Types and shapes of which both models have the same bytes of the same files: those need not be read."""
        places: dict[tuple[object, ...], tuple[set[object], set[object]]] = {}
        for side, constants in enumerate((self._old, self._new)):
            for constant in constants:
                places.setdefault(constant.form, (set(), set()))[side].add(constant.place)
        return {form for form, (old, new) in places.items() if old == new and None not in old}

    def unite(self, old: ir.Value, new: ir.Value) -> bool:
        """Whether two constants stand for each other; open ones that are read at the same place are paired."""
        a, b = self._of.get(old), self._of.get(new)
        if a is None or b is None:
            return False
        if self.token[old] == self.token[new] and self.token[old][0] != "like":  # type: ignore[index]
            return True
        if self._pair.get(a) is b:
            return True
        if a in self._pair or b in self._taken or a in self._twin or b in self._twin:
            return False
        self._join(a, b, ("place", id(old)))
        return True

    def is_constant(self, value: ir.Value | None) -> bool:
        return value is not None and value in self._of

    def changes(self) -> list[ConstantChange]:
        """In the order of the first model; what was added comes last."""
        found = []
        for constant in self._old:
            other = self._pair.get(constant)
            if other is None:
                found.append(ConstantChange("removed", constant.name, None, self._described(constant)))
            else:
                found.append(_compared(constant, other))
        found += [ConstantChange("added", None, c.name, self._described(c)) for c in self._new if c not in self._taken]
        return found

    def _described(self, constant: Constant) -> str:
        twin = self._twin.get(constant)
        return _type(constant) + ("" if twin is None else f", the bytes of {twin!r} in the other model")


def _type(constant: Constant) -> str:
    return f"{constant.tensor.dtype.name.lower()}[{','.join(str(d) for d in constant.tensor.shape.numpy())}]"


def _compared(old: Constant, new: Constant) -> ConstantChange:
    if old.form != new.form:
        return ConstantChange("changed", old.name, new.name, f"{_type(old)} → {_type(new)}")
    if (old.place is None or old.place != new.place) and old.content != new.content:
        return ConstantChange("changed", old.name, new.name, f"{_type(old)}: {_numbers(old.tensor, new.tensor)}")
    return ConstantChange("same" if old.name == new.name else "renamed", old.name, new.name, _type(old))


def _numbers(old: ir.TensorProtocol, new: ir.TensorProtocol) -> str:
    """How many elements differ, and by how much."""
    if old.size > _COMPARED:
        return "other bytes"
    if isinstance(old, ir.StringTensor) or isinstance(new, ir.StringTensor):
        return "other strings"
    a, b = old.numpy(), new.numpy()
    if a.size == 1:
        return f"{a.reshape(-1)[0]} → {b.reshape(-1)[0]}"
    wrong = (a != b) & ~((a != a) & (b != b))
    text = f"{int(wrong.sum())} of {a.size} elements differ"
    if a.dtype.kind == "c":
        return text
    with np.errstate(all="ignore"):
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
    return f"{text}, by {np.nanmax(apart, initial=0.0):.3g} at most"
