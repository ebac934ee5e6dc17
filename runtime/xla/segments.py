"""An executable is a list of segments: stretches of the graph's nodes that run as one unit."""

from __future__ import annotations

import dataclasses
from typing import Literal

import onnx_ir as ir

from .weights import Weights


@dataclasses.dataclass(frozen=True, eq=False)
class Segment:
    """Consecutive nodes of the main graph.

    `inputs` are the run-time values it reads (graph inputs, state, results of earlier segments); `outputs` the values
    that later segments or the caller read. Constants of the model are not listed: every segment sees them.
    """

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    kind: Literal["device"] = "device"


def cut(graph: ir.Graph, weights: Weights) -> list[Segment]:
    """The graph as segments, in execution order. Everything that the rules cover fits into one."""
    inputs = tuple(v for v in graph.inputs if v not in weights or v in weights.state)
    return [Segment(tuple(graph), inputs, tuple(dict.fromkeys(graph.outputs)))]
