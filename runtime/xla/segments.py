"""An executable is a list of segments: nodes that run as one unit, on the device or on the host."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Literal

import onnx_ir as ir
from pfvm.errors import UnsupportedOpError, describe_node
from pfvm.passes.effects import bodies

from .weights import Weights


class MustCut(Exception):
    """While a segment was traced it turned out that `node` of the main graph cannot run on the device."""

    def __init__(self, node: ir.Node, error: UnsupportedOpError) -> None:
        super().__init__(describe_node(node))
        self.node, self.error = node, error


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
    """Nodes of the main graph that run as one unit, in their order there.

    `inputs` are the run-time values it reads (graph inputs, state, results of earlier segments), `outputs` the values
    that later segments or the caller read, `constants` those of the model's constants that it reads. `kind` is
    "device" (compiled by XLA) or "host" (ONNX Runtime); `reasons` says for each node that forced a host segment why.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    constants: tuple[ir.Value, ...] = ()
    kind: Literal["device", "host"] = "device"
    reasons: tuple[tuple[str, str], ...] = ()
    after_cut: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """How messages name the nodes."""
        return tuple(describe_node(node) for node in self.nodes)

    @property
    def reason(self) -> str:
        """Why this is a segment of its own; empty for device segments."""
        return "; ".join(f"{name}: {why}" for name, why in self.reasons)


def cut(graph: ir.Graph, weights: Weights, reasons: Mapping[ir.Node, str]) -> list[Segment]:
    """The graph as alternating device and host segments, as few as its edges allow, in execution order.

    `reasons`: the nodes that must run on the host. Without any there is one segment (none for a graph without nodes).
    """
    levels: dict[int, list[ir.Node]] = defaultdict(list)
    level_of: dict[ir.Node, int] = {}
    readers: dict[ir.Value, set[int]] = defaultdict(set)
    reads_of: dict[ir.Node, dict[ir.Value, None]] = {}
    for node in graph:
        if all(v in weights for v in node.outputs):
            continue  # a Constant
        reads = reads_of[node] = _reads(node)
        earliest = max((level_of[p] for v in reads if (p := v.producer()) in level_of), default=0)
        level = earliest + (earliest % 2 != (node in reasons))  # device levels are even, host levels odd
        level_of[node] = level
        levels[level].append(node)
        for value in reads:
            readers[value].add(level)
    outputs = set(graph.outputs)
    segments = []
    for level, nodes in sorted(levels.items()):
        reads = dict.fromkeys(v for node in nodes for v in reads_of[node])
        produced = [v for node in nodes for v in node.outputs if v.name]
        outer = [v for v in reads if v.producer() not in level_of or level_of[v.producer()] != level]  # type: ignore[index]
        segments.append(
            Segment(
                tuple(nodes),
                tuple(v for v in outer if _is_run_time(v, graph, weights, level_of)),
                tuple(v for v in produced if v in outputs or any(reader != level for reader in readers[v])),
                tuple(v for v in outer if (v in weights or v.is_initializer()) and v not in weights.state),
                "host" if level % 2 else "device",
                tuple((describe_node(n), _why(n, reasons[n])) for n in nodes if n in reasons),
                level > 1,
            )
        )
    return segments


def _why(node: ir.Node, reason: str) -> str:
    """The reason; bodies and functions are not cut themselves."""
    return f"{reason}; so all of the {node.op_type} runs there" if bodies(node) else reason


def _is_run_time(value: ir.Value, graph: ir.Graph, weights: Weights, level_of: Mapping[ir.Node, int]) -> bool:
    if value.producer() in level_of:
        return True
    return value.graph is graph and value.is_graph_input() and (value not in weights or value in weights.state)


def _reads(node: ir.Node) -> dict[ir.Value, None]:
    """What the node and the bodies in it read; what bodies compute themselves is among it."""
    found: dict[ir.Value, None] = dict.fromkeys(v for v in node.inputs if v is not None and v.name)
    for body in bodies(node):
        found.update(dict.fromkeys(body.outputs))
        found.update(_all_reads(body))
    return found


def _all_reads(nodes: Iterable[ir.Node]) -> dict[ir.Value, None]:
    found: dict[ir.Value, None] = {}
    for node in nodes:
        found.update(_reads(node))
    return found
