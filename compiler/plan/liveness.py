"""Which memory each value of a program has, and from when until when: read off the text's blocks, ours or a vendor's.

Positions are those of the nodes. A value that no node makes is there from the start (-1); what DRAM holds and nobody
reads again is a result, and stays to the end. Reads of a value with a parent are reads of the parent's memory.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from .machine import Machine, Memory
from .mngraph import OUTPUT_CONCAT
from .placement import DRAM, IMMEDIATE
from .text import L3Node, L3Value

START = -1


@dataclass
class Block:
    """Addresses [start, end) of a memory, in its units, that a value has from position `begin` to `last`."""

    name: str
    memory: str
    start: int
    end: int
    begin: int
    last: int

    def overlaps(self, other: Block) -> bool:
        """Do they share an address at one time?"""
        same = self.memory == other.memory and self.start < other.end and other.start < self.end
        return same and self.begin <= other.last and other.begin <= self.last


def blocks(nodes: Sequence[L3Node], machine: Machine) -> list[Block]:
    """Every block of memory in the order in which they come to be. Values of unknown place or size are left out.

    A value that was put together from time slices has their blocks.
    """
    found: dict[str, Block] = {}
    roots: dict[str, str] = {}
    joined: dict[str, list[str]] = {}  # the first slice of a value that was put together → all of them
    for position, node in enumerate(nodes):
        for value in _given(node.inputs):
            root = root_of(value, roots)
            if root not in found:
                block = _block(value, machine, START)
                if block is not None:
                    found[root] = block
            for each in joined.get(root, [root]):
                if each in found:
                    found[each].last = max(found[each].last, position)
        if node.op == OUTPUT_CONCAT:
            slices = [root_of(value, roots) for value in _given(node.inputs)]
            joined[slices[0]] = slices
            roots.update((value.name, slices[0]) for value in _given(node.outputs))
        for value in _given(node.outputs):
            root = root_of(value, roots)
            if root == value.name and root not in found:
                block = _block(value, machine, position)
                if block is not None:
                    found[root] = block
            elif root in found:
                found[root].last = max(found[root].last, position)
    read = {root_of(value, roots) for node in nodes for value in _given(node.inputs)}
    read |= {name for first in joined if first in read for name in joined[first]}
    for root, block in found.items():
        if block.memory == DRAM and root not in read:
            block.last = len(nodes)
    return list(found.values())


def root_of(value: L3Value, roots: dict[str, str]) -> str:
    """The name of the value whose memory this one names; `roots` collects what is known."""
    parent = value.get("parent")
    if parent is not None and value.name not in roots:
        roots[value.name] = roots.get(parent, parent)
    return roots.get(value.name, value.name)


def size_of(value: L3Value, machine: Machine, memory: Memory) -> int | None:
    """Addresses that a value takes in a memory; None where its line does not say."""
    if memory.name == DRAM:
        layout, dtype = value.layout, value.get("dtype")
        if layout is None or dtype not in machine.dtypes:
            return None
        words = -(-layout.stored_elements() // machine.lanes(dtype))
        return -(-words // machine.cells(memory.level)) * memory.units_per_long_word
    return None if value.num_lw is None else value.num_lw * memory.units_per_long_word


def peaks(found: Iterable[Block]) -> dict[str, int]:
    """The most addresses that are live at one time, by memory."""
    changes: dict[str, dict[int, int]] = {}
    for block in found:
        at = changes.setdefault(block.memory, {})
        at[block.begin] = at.get(block.begin, 0) + block.end - block.start
        at[block.last + 1] = at.get(block.last + 1, 0) - (block.end - block.start)
    result = {}
    for memory, at in changes.items():
        live = most = 0
        for position in sorted(at):
            live += at[position]
            most = max(most, live)
        result[memory] = most
    return result


def overlapping(found: Sequence[Block]) -> Iterator[tuple[Block, Block]]:
    """Pairs of blocks that share an address at one time: for each block that meets earlier ones, its neighbours."""
    live: dict[str, list[tuple[int, int, Block]]] = {}  # by start
    ends: dict[str, list[tuple[int, int, Block]]] = {}  # a heap by the last position
    for number, block in enumerate(sorted(found, key=lambda block: (block.begin, block.last, block.start))):
        here, dying = live.setdefault(block.memory, []), ends.setdefault(block.memory, [])
        while dying and dying[0][0] < block.begin:
            _, dead, gone = heapq.heappop(dying)
            del here[bisect.bisect_left(here, (gone.start, dead))]
        at = bisect.bisect_left(here, (block.start, number))
        yield from ((other, block) for _, _, other in here[max(at - 1, 0) : at + 1] if other.overlaps(block))
        here.insert(at, (block.start, number, block))
        heapq.heappush(dying, (block.last, number, block))


def _given(values: Iterable[L3Value | None]) -> Iterator[L3Value]:
    return (value for value in values if value is not None)


def _block(value: L3Value, machine: Machine, position: int) -> Block | None:
    location = value.get("loc")
    if location in (None, IMMEDIATE) or value.addr is None or value.is_shortened:
        return None
    memory = next((memory for memory in machine.memories if memory.name == location), None)
    size = None if memory is None else size_of(value, machine, memory)
    if memory is None or size is None:
        return None
    return Block(value.name, memory.name, value.addr, value.addr + size, position, position)
