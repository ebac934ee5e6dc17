"""The files of a plan: l3ir.txt, l3ir_index.json, l3ir_stripped.onnx.zst, trace.json, layout specs and report.json."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import onnx_ir as ir
import zstandard
from pfvm.compiler import exporter
from pfvm.passes.provenance import MODULE, SOURCE

from .cost import CostModel
from .dump import l3ir_nodes
from .layout_spec import gemm_layout_spec, layout_spec
from .mngraph import declare_moves, is_move, save_placements, values
from .planner import Plan
from .report import make_report
from .text import format_l3ir
from .timeline import timeline
from .trace import make_trace

WEIGHT = "pfvm.weight"
"""Metadata of an input of the stripped graph that is a weight in the whole one."""


def write_artifacts(plan: Plan, directory: pathlib.Path) -> None:
    """Fills the plan's report and writes all files, each whole or not at all, report.json last. Raises PfvmError."""
    exporter.write_files(directory, files_of(plan))


def files_of(plan: Plan) -> dict[str, bytes]:
    """The content of all files, report.json last; fills the plan's report."""
    costs = CostModel(plan.machine)
    plan.report = make_report(
        plan.model,
        plan.machine,
        prefetch=plan.options.prefetch,
        schedule=plan.report.get("schedule"),
        options=plan.options.model_dump(mode="json"),
        costs=costs,
    )
    spans = timeline(plan.model, costs, plan.options.prefetch)
    return {
        "l3ir.txt": format_l3ir(l3ir_nodes(plan.model, plan.machine)).encode(),
        "l3ir_index.json": to_json(index(plan.model)),
        "l3ir_stripped.onnx.zst": stripped(plan.model),
        "trace.json": to_json(make_trace(spans, plan.machine.clock_mhz)),
        "layout_spec.json": to_json(layout_spec(plan.model)),
        "gemm_layout_spec.json": to_json(gemm_layout_spec(plan.model)),
        "report.json": to_json(plan.report),
    }


def to_json(content: Any) -> bytes:
    """The bytes of a JSON file."""
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def index(model: ir.Model) -> dict[str, Any]:
    """For every block of l3ir.txt its first line there, and the source line and module that the node comes from.

    A node that the plan inserted has those of the node whose value it moves; null where nothing is known.
    """
    line, entries = 1, []
    for number, node in enumerate(model.graph):
        origin = _origin(node)
        entries.append(
            {
                "index": number,
                "line": line,
                "op": node.op_type,
                "outputs": [out.name for out in node.outputs if out.name],
                "source": origin.metadata_props.get(SOURCE),
                "module": origin.metadata_props.get(MODULE),
            }
        )
        line += 1 + sum(value is not None for value in node.inputs) + sum(bool(out.name) for out in node.outputs)
    return {"schema_version": 1, "nodes": entries}


def _origin(node: ir.Node) -> ir.Node:
    """The node of the compiled graph that a node of the plan comes from."""
    while is_move(node) and SOURCE not in node.metadata_props and node.inputs and node.inputs[0] is not None:
        maker = node.inputs[0].producer()
        if maker is None:
            users = [user for user, _ in node.outputs[0].uses() if not is_move(user)]
            return users[0] if users else node
        node = maker
    return node


def stripped(model: ir.Model) -> bytes:
    """The MNGraph without the data of its weights, which become inputs, as ONNX, compressed by zstd."""
    copy = model.clone()
    originals = {value.name: value for value in values(model)}
    for value in values(copy):
        if value.name in originals:
            value.meta.update(originals[value.name].meta)
    save_placements(copy)
    declare_moves(copy)
    given = {value.name for value in copy.graph.inputs}
    for name, value in list(copy.graph.initializers.items()):
        del copy.graph.initializers[name]
        value.const_value = None
        value.metadata_props[WEIGHT] = "yes"
        if name not in given:
            copy.graph.inputs.append(value)
    data = ir.to_proto(copy).SerializeToString(deterministic=True)
    return zstandard.ZstdCompressor(level=10).compress(data)
