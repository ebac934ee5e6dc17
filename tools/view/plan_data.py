"""The Plan tab's figures, read off l3ir.txt, report.json and trace.json: a plan of ours, and XLA's own schedule."""

from __future__ import annotations

import importlib.resources
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pfvm.errors import PfvmError

from .folder import Folder

if TYPE_CHECKING:
    from pfvm.compiler.plan.liveness import Block
    from pfvm.compiler.plan.machine import Machine
    from pfvm.compiler.plan.text import L3Node, L3Value

BYTES = {"FLOAT64": 8, "INT64": 8, "UINT64": 8, "FLOAT32": 4, "INT32": 4, "UINT32": 4, "FLOAT16": 2, "BFLOAT16": 2,
         "INT16": 2, "UINT16": 2}  # fmt: skip


def plan_data(folder: Folder, report: dict[str, Any] | None) -> dict[str, Any] | None:
    """`machine`, `nodes`, `values`, `memory` and `timeline`; None without l3ir.txt. Raises PfvmError."""
    from pfvm.compiler.plan.text import parse_l3ir

    text = folder.read_text("l3ir.txt")
    if text is None:
        return None
    nodes = parse_l3ir(text, tolerant=True)
    machine = _machine(report)
    index = folder.read_json("l3ir_index.json") or {"nodes": []}
    return {
        "machine": None if machine is None else _levels(machine),
        "bandwidth": None if machine is None else _dram_bytes_per_second(machine),
        "nodes": [_node(node, entry) for node, entry in zip(nodes, [*index["nodes"], *([{}] * len(nodes))])],
        "values": _values(nodes),
        "memory": _by_shape(nodes) if machine is None else _memory(nodes, machine),
        "estimated": machine is None,
        "timeline": _timeline(folder),
    }


def _machine(report: dict[str, Any] | None) -> Machine | None:
    """The machine of a report where pfvm ships it: a report's name never leads to a file elsewhere."""
    from pfvm.compiler.plan.machine import load_machine

    name = str(((report or {}).get("machine") or {}).get("name"))
    shipped = importlib.resources.files("pfvm.compiler.plan") / "machines"
    return load_machine(name) if f"{name}.toml" in {entry.name for entry in shipped.iterdir()} else None


def _levels(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.title,
        "levels": [[name, count] for name, count in machine.index_levels.items()],
        "lanes": {name: machine.lanes(name) for name in machine.dtypes},
    }


def _dram_bytes_per_second(machine: Machine) -> float:
    """What all cells with DRAM read from it together."""
    return max(
        path.rate * machine.cells(path.level) * machine.long_word_bits / 8 * machine.clock_mhz * 1e6
        for path in machine.paths
        if path.source_memory == "DRAM" and path.target_memory != "host"
    )


def _node(node: L3Node, entry: dict[str, Any]) -> dict[str, Any]:
    return {
        "op": node.op,
        "name": node.name,
        "in": [value.name for value in node.inputs if value is not None],
        "out": list(node.results),
        "source": entry.get("source"),
        "module": entry.get("module"),
    }


def _values(nodes: Sequence[L3Node]) -> list[dict[str, Any]]:
    """Every value once, where it is made or first read."""
    found: dict[str, dict[str, Any]] = {}
    for position, node in enumerate(nodes):
        for value in node.values():
            if value.name not in found:
                found[value.name] = {"at": position, **_value(value)}
    return list(found.values())


def _value(value: L3Value) -> dict[str, Any]:
    layout = value.layout
    return {
        "name": value.name,
        "type": (value.get("onnx_type") or "").removeprefix("Tensor(").removesuffix(")"),
        "onnx_dtype": value.onnx_dtype,
        "shape": value.shape,
        "dtype": value.get("dtype"),
        "layout": value.get("layout"),
        "loc": value.get("loc"),
        "addr": value.addr,
        "pad": value.get("pad_type"),
        "axes": None if layout is None else [[list(sub) for sub in axis] for axis in layout.axes],
        "copies": None if layout is None else [list(copy) for copy in layout.copies],
    }


def _memory(nodes: Sequence[L3Node], machine: Machine) -> list[dict[str, Any]]:
    """By memory the bytes that each cell has live at every position of the schedule."""
    from pfvm.compiler.plan.liveness import blocks

    found = blocks(nodes, machine)
    word = machine.long_word_bits // 8
    return [
        {
            "name": memory.name,
            "size": memory.size * word,
            "points": [
                live * word // memory.units_per_long_word
                for live in _live([block for block in found if block.memory == memory.name], len(nodes))
            ],
        }
        for memory in machine.memories
        if any(block.memory == memory.name for block in found)
    ]


def _live(found: Sequence[Block], count: int) -> list[int]:
    return _sums([(block.begin, block.last, block.end - block.start) for block in found], count)


def _sums(spans: Sequence[tuple[int, int, int]], count: int) -> list[int]:
    """At each of `count` positions the total size of the spans (first, last, size) that cover it."""
    change = [0] * (count + 1)
    for first, last, size in spans:
        change[max(first, 0)] += size
        if last < count:
            change[last + 1] -= size
    total, result = 0, []
    for step in change[:count]:
        total += step
        result.append(total)
    return result


def _by_shape(nodes: Sequence[L3Node]) -> list[dict[str, Any]]:
    """The same for a compiler that states no addresses: bytes of the shapes, from making to the last read."""
    from pfvm.compiler.plan.liveness import root_of

    roots: dict[str, str] = {}
    spans: dict[str, list[Any]] = {}  # root → memory, first, last, bytes
    for position, node in enumerate(nodes):
        for value in node.values():
            root, place = root_of(value, roots), value.get("loc") or "HOST"
            if place == "IMM" or value.shape is None:
                continue
            made = position if value in node.outputs else 0
            entry = spans.setdefault(root, [place, made, position, _bytes(value)])
            entry[2] = position
    names = sorted({entry[0] for entry in spans.values()})
    return [
        {
            "name": name,
            "size": None,
            "points": _sums([tuple(e[1:]) for e in spans.values() if e[0] == name], len(nodes)),
        }
        for name in names
    ]


def _bytes(value: L3Value) -> int:
    size = BYTES.get(value.onnx_dtype or "", 1)
    for dim in value.shape or ():
        size *= dim
    return size


def _timeline(folder: Folder) -> dict[str, Any] | None:
    """Rows by unit and spans (row, start, cycles, text), from trace.json."""
    trace = folder.read_json("trace.json")
    if trace is None:
        return None
    try:
        events = trace["traceEvents"]
        rows = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
        spans = [
            [event["tid"], event["args"]["start_cycle"], event["args"]["cycles"], event["name"]]
            for event in events
            if event["ph"] == "X"
        ]
    except (KeyError, TypeError) as error:
        raise PfvmError(f"{folder.path / 'trace.json'}: not a trace of pfvm: {error!r}") from error
    return {"rows": [rows[row] for row in sorted(rows)], "spans": spans}
