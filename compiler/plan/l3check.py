"""Is a dump's program possible? Layouts, sizes, places, parents and lifetimes, on our dumps and on a vendor's.

What a shortened dump leaves out is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from .layout import LANE, TIME, Layout, LayoutError
from .liveness import blocks, overlapping, size_of
from .machine import Machine
from .placement import DRAM, IMMEDIATE
from .text import L3Node, L3Value, has_gap

Severity = Literal["error", "warning"]


class Finding(NamedTuple):
    """What is wrong, where. line: of the dump; node: its first output."""

    severity: Severity
    line: int
    node: str
    value: str
    message: str


def check_l3ir(nodes: Sequence[L3Node], machine: Machine) -> list[Finding]:
    """Everything that is wrong with a program for a machine, in the order of the dump."""
    rules = (_layouts, _places, _sizes, _parents, _order, _one_memory, _overlaps)
    found = [finding for rule in rules for finding in rule(nodes, machine)]
    return sorted(dict.fromkeys(found), key=lambda finding: finding.line)


def _each(nodes: Sequence[L3Node]) -> Iterator[tuple[L3Node, L3Value]]:
    return ((node, value) for node in nodes for value in node.values())


def _error(node: L3Node, value: str, message: str) -> Finding:
    return Finding("error", node.line, node.name, value, message)


def _layouts(nodes: Sequence[L3Node], machine: Machine) -> Iterator[Finding]:
    """A layout covers every level of the machine with the lanes of its dtype, and agrees with the line's sizes."""
    granularity = machine.local_memories[0].granularity
    for node, value in _each(nodes):
        layout, dtype = value.layout, value.get("dtype")
        if layout is None:
            continue
        if dtype is not None and dtype not in machine.dtypes:
            yield _error(node, value.name, f"machine {machine.name} has no dtype {dtype}")
        elif dtype is not None:
            try:
                layout.check({**machine.index_levels, LANE: machine.lanes(dtype)})
            except LayoutError as error:
                yield _error(node, value.name, str(error))
        pairs = (
            ("shape", value.shape, layout.shape),
            ("padded_shape", value.padded_shape, layout.padded_shape),
            ("num_lw", value.num_lw, layout.num_lw(granularity)),
        )
        for name, said, is_so in pairs:
            if said is not None and said != is_so:
                yield _error(node, value.name, f"{name} is {said}, its layout {layout} says {is_so}")


def _places(nodes: Sequence[L3Node], machine: Machine) -> Iterator[Finding]:
    """A value keeps its layout, dtype and place from line to line."""
    first: dict[str, L3Value] = {}
    for node, value in _each(nodes):
        before = first.setdefault(value.name, value)
        for field in ("onnx_type", "layout", "dtype", "loc", "addr", "parent"):
            old, new = before.get(field), value.get(field)
            if old is not None and new is not None and old != new:
                yield _error(node, value.name, f"{field} is {new}, before it was {old}")


def _sizes(nodes: Sequence[L3Node], machine: Machine) -> Iterator[Finding]:
    """Every place is inside its memory and aligned to its long words."""
    names = {memory.name: memory for memory in machine.memories}
    for node, value in _each(nodes):
        location = value.get("loc")
        if location is None or location == IMMEDIATE or value.get("layout_kind") not in (None, "MNCore"):
            continue
        memory = names.get(location)
        if memory is None:
            yield _error(node, value.name, f"machine {machine.name} has no memory {location}")
            continue
        size, unit = size_of(value, machine, memory), memory.units_per_long_word
        if value.addr is None or size is None:
            continue
        if value.addr < 0 or value.addr + size > memory.size * unit:
            end = value.addr + size
            yield _error(node, value.name, f"{location} ends at {memory.size * unit}, the value at {end}")
        if value.addr % unit:
            yield _error(node, value.name, f"address {value.addr} of {location} is inside a long word")


def _parents(nodes: Sequence[L3Node], machine: Machine) -> Iterator[Finding]:
    """A value with a parent is where the parent is, and is the parent's elements under another shape."""
    known = {value.name: value for _, value in _each(nodes)}
    for node, value in _each(nodes):
        name = value.get("parent")
        parent = known.get(name) if name is not None else None
        if parent is None:
            continue
        for field in ("loc", "addr", "dtype"):
            mine, theirs = value.get(field), parent.get(field)
            if mine is not None and theirs is not None and mine != theirs:
                yield _error(node, value.name, f"its parent {parent.name} has {field} {theirs}, it has {mine}")
        mine_layout, theirs_layout = value.layout, parent.layout
        if mine_layout is not None and theirs_layout is not None and not _is_view(theirs_layout, mine_layout):
            yield _error(
                node, value.name, f"layout {mine_layout} is not that of its parent {parent.name}, {theirs_layout}"
            )


def _is_view(parent: Layout, layout: Layout) -> bool:
    """Are these the same elements in the same cells: a reshape, a transpose, or time slices put together?"""
    if any(sub.level == TIME for sub in (*parent.subaxes, *layout.subaxes)):
        return True
    return _reshapes(parent, layout) or sorted(_pieces(parent)) == sorted(_pieces(layout))


def _reshapes(parent: Layout, layout: Layout) -> bool:
    try:
        return parent.reshaped(layout.shape).is_same_as(layout)
    except LayoutError:
        return False


def _pieces(layout: Layout) -> list[tuple[str, int, int]]:
    return [(sub.level, sub.stride, sub.size) for sub in layout.merged().subaxes]


def is_shortened(nodes: Sequence[L3Node]) -> bool:
    """Was text left out of the dump?"""
    if any(node.before or node.verbatim or len(node.results) > len(node.outputs) for node in nodes):
        return True
    heads = (word for node in nodes for word in (node.op, *node.arguments, *node.results))
    return any(map(has_gap, heads)) or any(value.is_shortened for _, value in _each(nodes))


def _order(nodes: Sequence[L3Node], machine: Machine) -> Iterator[Finding]:
    """What a node reads is there: made by an earlier node, or in DRAM from the start."""
    if is_shortened(nodes):
        return  # nodes may be missing
    made: set[str] = set()
    given = (None, IMMEDIATE, DRAM)
    for node in nodes:
        for value in node.inputs:
            is_ours = value is not None and value.get("layout_kind") in (None, "MNCore")
            if value is not None and is_ours and value.name not in made and value.get("loc") not in given:
                yield _error(node, value.name, f"nothing before this node puts it into {value.get('loc')}")
        for result in node.results:
            if result in made:
                yield _error(node, result, "an earlier node has made it already")
            made.add(result)


def _one_memory(nodes: Sequence[L3Node], machine: Machine) -> Iterator[Finding]:
    """A node that computes reads one local memory, and writes another where one cannot be read and written at once."""
    local = {memory.name: memory for memory in machine.local_memories}
    for node in nodes:
        if node.op.startswith("MNCore") or any(value.get("parent") for value in node.outputs if value is not None):
            continue
        reads = {value.get("loc") for value in node.inputs if value is not None} & set(local)
        writes = {value.get("loc") for value in node.outputs if value is not None} & set(local)
        if len(reads) > 1:
            yield Finding("warning", node.line, node.name, "", f"reads {' and '.join(sorted(map(str, reads)))}")
        for name in sorted(map(str, reads & writes)):
            if local[name].exclusive and len(local) > 1:
                yield Finding("warning", node.line, node.name, "", f"reads and writes {name}, which no instruction can")


def _overlaps(nodes: Sequence[L3Node], machine: Machine) -> Iterator[Finding]:
    """Values that are live at one time share no address."""
    for old, new in overlapping(blocks(nodes, machine)):
        node = nodes[max(new.begin, 0)]
        yield _error(
            node,
            new.name,
            f"{new.memory} {new.start}…{new.end} overlaps {old.name} at {old.start}…{old.end}, which is read until "
            f"{nodes[min(old.last, len(nodes) - 1)].name}",
        )
