"""The segments of a model with what runs each of them."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Container, Mapping
from typing import Any

import jax
import onnx_ir as ir

from .compiled import SegmentRunner, TooManyCompilations
from .fusion import Fusion
from .host import HostRunner
from .host_nodes import value_types
from .interpreter import Interpreter
from .placement import Placement
from .platforms import Precision, computed_types
from .prepared import Preparation
from .schema_functions import SchemaFunctions
from .segments import Segment, cut
from .weights import Weights

Runner = Callable[[Mapping[ir.Value, Any]], dict[ir.Value, Any]]


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Segments in execution order, and a runner for each."""

    segments: tuple[Segment, ...]
    runners: tuple[Runner, ...]
    device_runners: tuple[SegmentRunner, ...]


class Planner:
    """Makes plans for one model. Runners of segments that stay the same are kept."""

    def __init__(
        self,
        model: ir.Model,
        weights: Weights,
        placement: Placement,
        platform: str,
        max_compilations: int,
        cut_shapes: int,
        allow_host: bool,
        fusion: Fusion,
        judged: Container[ir.Node],
        precision: Precision,
        bf16: bool,
        compile_only: bool,
    ) -> None:
        self._model = model
        self._precision = precision
        self._judged = judged
        self._weights = weights
        self._placement = placement
        self._platform = platform
        self._max_compilations = max_compilations
        self._cut_shapes = cut_shapes
        self._allow_host = allow_host
        self._fusion = fusion
        self._preparation = Preparation(weights, placement, compile_only, computed_types(platform, precision), bf16)
        self._schema_functions = SchemaFunctions()
        self._types = functools.cache(lambda: value_types(model))
        self._runners: dict[tuple[Any, ...], tuple[Segment, Runner, SegmentRunner | None]] = {}

    @property
    def compilations(self) -> int:
        """Of all plans so far."""
        return sum(runner.compilations for runner in self._device_runners())

    @property
    def reloads(self) -> int:
        """How many of the compilations were read from the cache on disk."""
        return sum(runner.reloads for runner in self._device_runners())

    def _device_runners(self) -> list[SegmentRunner]:
        return [runner for _, _, runner in list(self._runners.values()) if runner is not None]

    @property
    def host_calls(self) -> int:
        """How often a device segment ran on the host."""
        return sum(r.host_calls for _, r, _ in list(self._runners.values()) if isinstance(r, BehindCut))

    def plan(self, reasons: Mapping[ir.Node, str]) -> Plan:
        """The plan with these nodes on the host."""
        segments = cut(self._model.graph, self._weights, reasons)
        listed = {v for segment in segments for v in segment.constants}
        # Constants of functions belong to no segment: every one gets them.
        shared = [v for v in self._weights.arguments() if v not in listed and v not in self._weights.state]
        entries = [self._entry(segment, shared) for segment in segments]
        device = tuple(runner for _, _, runner in entries if runner is not None)
        return Plan(tuple(s for s, _, _ in entries), tuple(r for _, r, _ in entries), device)

    def _entry(self, segment: Segment, shared: list[ir.Value]) -> tuple[Segment, Runner, SegmentRunner | None]:
        key = (segment.kind, segment.after_cut, segment.nodes, segment.inputs, segment.outputs)
        entry = self._runners.get(key)
        if entry is None:
            entry = self._runners[key] = self._make(segment, shared)
        return entry

    def _make(self, segment: Segment, shared: list[ir.Value]) -> tuple[Segment, Runner, SegmentRunner | None]:
        if segment.kind == "host":
            return segment, HostRunner(segment, self._model, self._types), None
        needed = {*shared, *segment.constants}
        runner = SegmentRunner(
            segment,
            self._model,
            self._weights,
            [v for v in self._weights.arguments() if v in needed],
            self._interpreter,
            self._placement,
            self._platform,
            self._cut_shapes if segment.after_cut else self._max_compilations,
            self._allow_host,
            self._preparation,
            self._fusion,
            self._judged,
            self._precision,
        )
        if segment.after_cut:
            return segment, BehindCut(runner, HostRunner(segment, self._model, self._types)), runner
        return segment, runner, runner

    def _interpreter(self, arguments: Mapping[ir.Value, Any], forced: set[ir.Value], *rest: Any) -> Interpreter:
        return Interpreter(self._model.functions, self._schema_functions, self._weights, arguments, forced, *rest)


class BehindCut:
    """A device segment whose inputs come from a host segment, with any number of shapes: the host takes the rest."""

    def __init__(self, device: SegmentRunner, host: HostRunner) -> None:
        self._device = device
        self._host = host
        self._count = itertools.count()
        self.host_calls = 0

    def __call__(self, env: Mapping[ir.Value, Any]) -> dict[ir.Value, Any]:
        try:
            return self._device(env)
        except TooManyCompilations:
            results = self._host(env)
        self.host_calls = next(self._count) + 1
        return results

    def export(self, env: Mapping[ir.Value, Any], platform: str) -> jax.export.Exported:
        """See `SegmentRunner.export`."""
        return self._device.export(env, platform)
