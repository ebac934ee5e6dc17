"""The files of XLA's own schedule, as text and graph: the order, layouts and memories of what was compiled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
import zstandard
from pfvm.compiler.plan.artifacts import to_json
from pfvm.compiler.plan.dump import print_l3ir
from pfvm.compiler.plan.foreign import KEY, find_foreign
from pfvm.compiler.plan.report import SCHEMA_VERSION, rates

from .collectives import collectives_report
from .compiled import Compiled
from .executable import XlaExecutable
from .origins import complete
from .scheduled import read_hlo

MAIN_MEMORY = {"cpu": "HOST", "cuda": "HBM", "tpu": "HBM"}
_NOTES = (
    "flops and bytes are XLA's own estimates, loop bodies counted once",
    "what a while, a call or a fusion runs is one node",
)
_NO_CYCLES = "XLA's CPU compiler states no cycles"


def files_of(executable: XlaExecutable) -> dict[str, bytes]:
    """l3ir.txt, l3ir_stripped.onnx.zst and report.json of the programs that the executable has compiled: call it once.

    Where a model runs in several programs, they follow each other, and values of the second have the prefix `1/`.
    """
    programs = executable.programs()
    memory = MAIN_MEMORY[executable.platform]
    graphs = [_graph(program, i, memory) for i, program in enumerate(programs)]
    text = "".join(print_l3ir(graph, None) for graph in graphs)
    report = make_report(programs, graphs, executable.platform, executable.device)
    whole = joined(graphs)
    complete(whole.graph, executable.model)
    return {"l3ir.txt": text.encode(), "l3ir_stripped.onnx.zst": stripped(whole), "report.json": to_json(report)}


def _graph(program: Compiled, number: int, memory: str) -> ir.Model:
    names = [value.name or "" for value in program.traced]
    graph = read_hlo(program.function.as_text() or "", names, memory)
    if number:
        for value in [*graph.graph.inputs, *(out for node in graph.graph for out in node.outputs)]:
            value.name = f"{number}/{value.name}"
    return graph


def joined(graphs: Sequence[ir.Model]) -> ir.Model:
    """The programs as one graph, in the order in which they run. They are used up."""
    first, *others = graphs
    for each in others:
        nodes, inputs, outputs = list(each.graph), list(each.graph.inputs), list(each.graph.outputs)
        each.graph.remove(nodes)
        each.graph.inputs.clear()
        each.graph.outputs.clear()
        first.graph.inputs.extend(inputs)
        first.graph.extend(nodes)
        first.graph.outputs.extend(outputs)
    return first


def stripped(graph: ir.Model) -> bytes:
    """The scheduled program as ONNX, compressed by zstd; values have their place in the metadata."""
    copy = graph.clone()
    everything = [*graph.graph.all_nodes()]
    for old, new in zip(everything, copy.graph.all_nodes()):
        for value, other in zip((*old.outputs, *_inputs(old)), (*new.outputs, *_inputs(new))):
            _note_place(value, other)
    for value, other in zip(graph.graph.inputs, copy.graph.inputs):
        _note_place(value, other)
    data = ir.to_proto(copy).SerializeToString(deterministic=True)
    return zstandard.ZstdCompressor(level=10).compress(data)


def _inputs(node: ir.Node) -> list[ir.Value]:
    """The inputs of the graphs that a node runs."""
    graphs = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
    return [value for graph in graphs for value in graph.inputs]


def _note_place(value: ir.Value, other: ir.Value) -> None:
    placement = find_foreign(value)
    if placement is not None:
        other.metadata_props[KEY] = placement.to_json()


def make_report(programs: Sequence[Compiled], graphs: Sequence[ir.Model], platform: str, device: str) -> dict[str, Any]:
    """The content of report.json, in the form of a plan's; null is what XLA does not say.

    On a mesh, figures are those of one device.
    """
    flops = _estimate(programs, "flops")
    moved = _estimate(programs, "bytes accessed")
    counts = Counter(node.op_type for graph in graphs for node in graph.graph)
    return {
        "schema_version": SCHEMA_VERSION,
        "machine": {"name": device, "title": f"XLA's {platform} compiler"},
        "emulated": False,
        "vsm_cycles": None,
        "core_freq": None,
        "flops": None if flops is None else int(flops),
        **rates(None, None, None if flops is None else int(flops), None),
        "prefetch": None,
        "schedule": {"scheduler": "xla", "stopped_by": None, "programs": len(programs)},
        "nodes": dict(sorted(counts.items())),
        "cycles": {"by_op": None, "by_path": None, "serial": None},
        "bytes_moved": None if moved is None else {"accessed": int(moved)},
        "peak_memory": {MAIN_MEMORY[platform]: {"bytes_per_cell": _peak(programs), "size_per_cell": None}},
        "collectives": collectives_report(program.function.as_text() or "" for program in programs),
        "host": None,
        "lower_bound": None,
        "readings": [],
        "options": None,
        "notes": [*_NOTES, *([_NO_CYCLES] if platform == "cpu" else [])],
    }


def _estimate(programs: Sequence[Compiled], key: str) -> float | None:
    """The sum of a figure of XLA's cost analysis; None where a program has none."""
    found = [(program.function.cost_analysis() or {}).get(key) for program in programs]
    known = [float(figure) for figure in found if figure is not None]
    return sum(known) if known and len(known) == len(found) else None


def _peak(programs: Sequence[Compiled]) -> int | None:
    """The most bytes that one program needs: arguments, results and temporaries, shared memory counted once."""
    needed = []
    for program in programs:
        stats = program.function.memory_analysis()
        if stats is None:
            return None
        needed.append(
            stats.argument_size_in_bytes
            + stats.output_size_in_bytes
            + stats.temp_size_in_bytes
            - stats.alias_size_in_bytes
        )
    return max(needed, default=None)
