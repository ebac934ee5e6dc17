"""How often a while of an HLO module runs its body, where its condition compares a counter with a constant."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from .hlo import Instruction, Module

_SAME = ("copy", "bitcast", "bitcast-convert", "convert", "reshape", "copy-done")
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE", "NE": "NE", "EQ": "EQ"}


class Counter(NamedTuple):
    """`start + offset`, where start is this element of the loop's state (None: a constant, offset)."""

    element: int | None
    offset: int


class Test(NamedTuple):
    """A condition: `counter`, which has an element, compared with `limit`. high: its high half, see `_halves`."""

    counter: Counter
    direction: str
    limit: int
    high: int | None = None


class Place(NamedTuple):
    """A computation in one activation: the while that runs it as its body, and where that while stands."""

    computation: str
    loop: Instruction | None = None
    outer: Place | None = None


def trip_count(module: Module, loop: Instruction, place: Place) -> int | None:
    """How often `loop`, which stands at `place`, runs its body; None where that is not known before it runs."""
    stated = loop.config.get("known_trip_count")
    if isinstance(stated, dict) and str(stated.get("n", "")).isdigit():
        return int(stated["n"])
    condition, body = loop.called("condition"), loop.called("body")
    if condition is None or body is None:
        return None
    test = _comparison(module, condition) or _halves(module, condition)
    if test is None:
        return None
    step = _affine(module, body, _element(module, body, test.counter.element))
    start = _initial(module, loop, place, test.counter.element)
    if step is None or step.element != test.counter.element or start is None:
        return None
    if test.high is not None and _initial(module, loop, place, test.high) != 0:
        return None
    return _count(start + test.counter.offset, test.direction, test.limit, step.offset)


def _count(start: int, direction: str, limit: int, step: int) -> int | None:
    if direction in ("GT", "GE"):
        start, limit, step, direction = -start, -limit, -step, {"GT": "LT", "GE": "LE"}[direction]
    if direction == "NE":
        return (limit - start) // step if step and (limit - start) % step == 0 and (limit - start) * step >= 0 else None
    if direction == "EQ":
        return None
    room = limit - start + (direction == "LE")
    if room <= 0:
        return 0
    return -(-room // step) if step > 0 else None


def _comparison(module: Module, condition: str, name: str | None = None) -> Test | None:
    """What a condition compares, or the instruction `name` of it, where that is one comparison."""
    root, where = module.computations[condition].get(name or "") or module.root(condition), condition
    arguments: list[Counter | None] | None = None
    if root.opcode == "fusion" and (called := root.called("calls")):
        arguments = [_affine(module, condition, name) for name in root.reads]
        root, where = module.root(called), called
    if root.opcode != "compare":
        return None
    left, right = (_affine(module, where, name, arguments) for name in root.reads[:2])
    direction = root.attributes.get("direction", "")
    if left is None or right is None or direction not in _MIRRORED:
        return None
    if left.element is None and right.element is not None:
        left, right, direction = right, left, _MIRRORED[direction]
    if left.element is None or right.element is not None:
        return None
    return Test(left, direction, right.offset)


def _halves(module: Module, condition: str) -> Test | None:
    """As `_comparison`, of a counter of 64 bits, of which a TPU makes two: high < 0 or (high = 0 and low < limit).

    Only for limits below 2^31, to which such a counter gets before its high half changes.
    """
    names = module.computations[condition]
    either = module.root(condition)
    if either.opcode != "or":
        return None
    parts = [names[name] for name in either.reads if name in names]
    both = next((part for part in parts if part.opcode == "and"), None)
    if both is None or len(parts) != 2 or len(both.reads) != 2:
        return None
    above = next(_comparison(module, condition, part.name) for part in parts if part is not both)
    equal, low = (_comparison(module, condition, name) for name in both.reads)
    if equal is not None and low is not None and equal.direction != "EQ":
        equal, low = low, equal
    if above is None or equal is None or low is None:
        return None
    high = above.counter.element
    is_split = (equal.direction, above.limit, equal.limit, equal.counter.element) == ("EQ", 0, 0, high)
    if not is_split or above.direction != low.direction or not 0 <= low.limit < 1 << 31:
        return None
    return low._replace(high=high)


def _affine(
    module: Module, computation: str, name: str | None, arguments: list[Counter | None] | None = None
) -> Counter | None:
    """A value as an element of the computation's parameter plus a constant; `arguments` are a fusion's operands."""
    each = None if name is None else module.computations[computation].get(name)
    if each is None:
        return None
    if each.opcode == "constant":
        return _constant(each)
    if each.opcode == "parameter":
        number = each.operands.strip()
        return arguments[int(number)] if arguments is not None and int(number) < len(arguments) else None
    if each.opcode in _SAME:
        return _affine(module, computation, each.reads[0], arguments)
    if each.opcode == "get-tuple-element":
        source = module.computations[computation].get(each.reads[0])
        is_state = source is not None and source.opcode == "parameter" and arguments is None
        return Counter(int(each.attributes["index"]), 0) if is_state else None
    if each.opcode in ("add", "subtract"):
        left, right = (_affine(module, computation, operand, arguments) for operand in each.reads[:2])
        if left is None or right is None or (left.element is not None and right.element is not None):
            return None
        if each.opcode == "subtract":
            return None if right.element is not None else Counter(left.element, left.offset - right.offset)
        return Counter(right.element if left.element is None else left.element, left.offset + right.offset)
    if each.opcode == "fusion" and (called := each.called("calls")):
        given = [_affine(module, computation, operand, arguments) for operand in each.reads]
        return _affine(module, called, module.root(called).name, given)
    return None


def _constant(each: Instruction) -> Counter | None:
    return Counter(None, int(each.operands)) if re.fullmatch(r"-?\d+", each.operands.strip()) else None


def _element(module: Module, computation: str, index: int | None) -> str | None:
    """The name of the element `index` of the tuple that a computation returns."""
    root = module.root(computation)
    return root.reads[index] if root.opcode == "tuple" and index is not None and index < len(root.reads) else None


def _initial(module: Module, loop: Instruction, place: Place, index: int | None) -> int | None:
    """The constant that an element of a loop's state starts with."""
    names: Mapping[str, Instruction] = module.computations[place.computation]
    state = names.get(loop.reads[0]) if loop.reads else None
    if state is None or index is None:
        return None
    if state.opcode == "while" or (state.opcode in _SAME and state.type.startswith("(")):
        return None
    if state.opcode != "tuple" or index >= len(state.reads):
        return None
    value = _affine(module, place.computation, state.reads[index])
    if value is None or value.element is None:
        return None if value is None else value.offset
    outside = _unchanged(module, place, value.element)
    return None if outside is None else outside + value.offset


def _unchanged(module: Module, place: Place, index: int) -> int | None:
    """The constant in an element of the state of the loop around, which its body passes on as it is."""
    if place.loop is None or place.outer is None:
        return None
    passed = _affine(module, place.computation, _element(module, place.computation, index))
    if passed != Counter(index, 0):
        return None
    return _initial(module, place.loop, place.outer, index)
