"""What the devices of a mesh send each other: the collectives of a compiled program, from its HLO text.

Bytes are those of a collective's operands on one device. What stands in a loop counts as often as the loop runs.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from .hlo import Instruction, Module, parse_module
from .trips import Place, trip_count

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
)
_CALLS = {"fusion": "calls", "call": "to_apply", "async-start": "calls"}
_MOST_DEVICES = 64  # groups of more are not listed one by one
_IOTA = re.compile(r"^\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?$")
_MESH = re.compile(r"^mesh\[(.*)\]")
_AXES = re.compile(r"\{([^{}]*)\}\s*$")
_ORDER = re.compile(r"^\(\[([\d,]+)\](?:T\(([\d,]+)\))?\)")


@dataclasses.dataclass(frozen=True)
class Collective:
    """One collective of a program.

    bytes: of its operands on one device, in one run of it. times: how often it runs, None where a loop around it does
    not say. groups: the devices that take part together, by their number in the mesh; for collective-permute pairs of
    sender and receiver; None where they are too many to list or the text has another form. text: of the groups in HLO.
    """

    kind: str
    name: str
    type: str
    bytes: int
    times: int | None
    groups: tuple[tuple[int, ...], ...] | None
    text: str
    source: str  # what it was made of: the operator's name in the program


def collectives(hlo: str) -> list[Collective]:
    """Every collective that a program runs, in the order of its text. Raises PfvmError for a text that is no HLO."""
    module = parse_module(hlo)
    devices = _devices(hlo)
    return [_collective(each, where, times, devices) for each, where, times in _walk(module, Place(module.entry), 1)]


def collectives_report(programs: Iterable[str]) -> dict[str, Any]:
    """As it stands in report.json, for programs that run one after the other: totals by kind, and all of them."""
    found = [each for hlo in programs for each in collectives(hlo)]
    kinds: dict[str, list[Collective]] = defaultdict(list)
    for each in found:
        kinds[each.kind].append(each)
    return {
        "bytes": _total(found),
        "by_kind": {kind: {"count": len(items), "bytes": _total(items)} for kind, items in sorted(kinds.items())},
        "list": [dataclasses.asdict(each) for each in found],
    }


def _total(items: Iterable[Collective]) -> int | None:
    """Bytes that a device gives to collectives in one call; None where it is not known how often one runs."""
    parts = [None if each.times is None else each.bytes * each.times for each in items]
    return None if None in parts else sum(part for part in parts if part is not None)


def _walk(
    module: Module, place: Place, times: int | None
) -> Iterator[tuple[Instruction, Mapping[str, Instruction], int | None]]:
    names = module.computations[place.computation]
    for each in names.values():
        if each.opcode.removesuffix("-start") in KINDS:
            yield each, names, times
        elif each.opcode == "while":
            trips = trip_count(module, each, place)
            inner = None if times is None or trips is None else times * trips
            for key in ("condition", "body"):
                if called := each.called(key):
                    yield from _walk(module, Place(called, each, place), inner)
        elif each.opcode == "conditional":
            for branch in each.branches:
                yield from _walk(module, Place(branch), None)  # it depends on the branch that is taken
        elif (key := _CALLS.get(each.opcode, "")) and (called := each.called(key)):
            yield from _walk(module, Place(called), times)


def _collective(each: Instruction, names: Mapping[str, Instruction], times: int | None, devices: int) -> Collective:
    operands = [names[name] for name in each.reads if name in names]
    sizes = [operand.bytes for operand in operands]
    text = each.attributes.get("replica_groups", each.attributes.get("source_target_pairs", ""))
    order = each.attributes.get("device_ids")
    source = re.search(r'op_name="([^"]*)"', each.attributes.get("metadata", ""))
    types = ", ".join(f"{a['dtype']}[{a['dims']}]" for operand in operands for a in operand.arrays)
    return Collective(
        each.opcode.removesuffix("-start"),
        each.name,
        types,
        sum(sizes),
        times,
        replica_groups(text, devices, order),
        text if order is None else f"{text}, device_ids={order}",
        source[1] if source else "",
    )


def replica_groups(text: str, devices: int, order: str | None = None) -> tuple[tuple[int, ...], ...] | None:
    """The groups that HLO writes as {{0,1},{2,3}}, as [2,2]<=[4] or as mesh['a'=2,'b'=2] {'b'}; {} is all devices.

    order: what stands behind device_ids=. None for other forms, and for many devices.
    """
    text = text.strip()
    if devices > _MOST_DEVICES:
        return None
    if text in ("", "{}"):
        return (tuple(range(devices)),)
    if re.fullmatch(r"[{}\d,\s]*", text):
        return tuple(tuple(_integers(group)) for group in re.findall(r"\{([\d,\s]+)\}", text))
    if match := _IOTA.match(text):
        return _rows(_arranged(match[2], match[3]).reshape(_integers(match[1])))
    if match := _MESH.match(text):
        return _of_mesh(match[1], text if order is None else order, order)
    return None


def _of_mesh(mesh: str, axes_in: str, order: str | None) -> tuple[tuple[int, ...], ...] | None:
    """Groups along some axes of a mesh whose devices may be in another order."""
    sizes = dict(re.findall(r"'([^']+)'=(\d+)", mesh))
    axes = _AXES.search(axes_in)
    if axes is None:
        return None
    wanted = re.findall(r"'([^']+)'(:?)", axes[1])
    if any(part for _, part in wanted) or not all(name in sizes for name, _ in wanted):
        return None  # a part of an axis
    shape = [int(size) for size in sizes.values()]
    ids = np.arange(math.prod(shape))
    if order is not None:
        match = _ORDER.match(order)
        if match is None:
            return None
        ids = _arranged(match[1], match[2]).reshape(-1)
    names = list(sizes)
    along = [names.index(name) for name, _ in wanted]
    others = [axis for axis in range(len(names)) if axis not in along]
    grouped = ids.reshape(shape).transpose([*others, *along])
    return _rows(grouped.reshape(-1, math.prod(shape[axis] for axis in along)))


def _arranged(dims: str, permutation: str | None) -> np.ndarray:
    """The numbers from 0 on in an array of these dimensions, transposed."""
    shape = _integers(dims)
    array = np.arange(math.prod(shape)).reshape(shape)
    return array if permutation is None else array.transpose(_integers(permutation))


def _rows(array: np.ndarray) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in array.tolist())


def _integers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part.strip()]


def _devices(hlo: str) -> int:
    head = hlo.partition("\n")[0]
    counts = [int(n) for n in re.findall(r"(?:num_partitions|replica_count)=(\d+)", head)]
    return math.prod(counts)
