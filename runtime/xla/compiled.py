"""Compiles a segment for the shapes and values that it is called with, and keeps the executables."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Container, Mapping
from typing import Any

import jax
import jax.export
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.compiler.loop import STEPS_KEY
from pfvm.compiler.signature import read_manifest
from pfvm.errors import InputError, PfvmError, UnsupportedOpError

from .apart import Border, around
from .context import DataDependentShapeError, NeedsValue, Scope, locate
from .early_checks import split_off
from .fusion import Fusion, compile_program
from .host_nodes import data_dependent
from .interpreter import Interpreter
from .placement import OneDevice, Placement, Spread, spread_of
from .platforms import Precision, lowering_for, traced_platform
from .prepared import Preparation, Program
from .random_keys import Keys
from .range_checks import RangeChecks
from .scratch import keep_memory_of
from .segments import MustCut, Segment
from .specialize import Specialization, backward_slice
from .weights import Weights

# A run-time input is specialised on only where it can be shape data: every new value compiles again.
_MAX_INTEGER_ELEMENTS = 1024
_MAX_FLOAT_ELEMENTS = 16

Key = tuple[tuple[Any, ...], ...]
InterpreterFactory = Callable[[Mapping[ir.Value, Any], set[ir.Value], Keys, RangeChecks], Interpreter]


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A segment compiled for one key. `traced` are the inputs that it takes as arguments; `reloaded`: from the disk.

    `call`: `function` as it is called. `entropy`: of its last argument, new in every call, where it takes one.
    `checks`: it returns their finding as last result, unless it is known early.
    """

    function: jax.stages.Compiled
    call: Callable[..., list[Any]]
    reloaded: bool
    traced: tuple[ir.Value, ...]
    weights: tuple[jax.Array, ...]
    outputs: tuple[ir.Value, ...]
    entropy: Callable[[], np.ndarray] | None
    checks: RangeChecks | None

    def __call__(self, values: Mapping[ir.Value, Any]) -> dict[ir.Value, Any]:
        return dict(zip(self.outputs, self.run([values[v] for v in self.traced])))

    def run(self, inputs: list[Any]) -> list[Any]:
        """Values of `traced` → those of `outputs`. Raises InputError before it runs, RunRefused when it has run."""
        arguments = [*inputs, *self.weights]
        if self.entropy is not None:
            arguments.append(self.entropy())
        checks = self.checks
        if checks is not None and checks.early is not None:
            checks.judge(checks.early(arguments))
        results = self.call(*arguments)
        if checks is not None and checks.early is None:
            try:
                checks.judge(results[-1])
            except InputError as error:
                raise RunRefused(error, dict(zip(self.outputs, results))) from error
        return results


class RunRefused(Exception):
    """A check found something while the program ran. In `outputs`, donated state is what it was, in other memory."""

    def __init__(self, error: InputError, outputs: dict[ir.Value, Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.outputs = outputs


@dataclasses.dataclass(frozen=True, eq=False)
class Lowered:
    """A program for a platform that need not be here. Arguments: `inputs`, then weights, then entropy if `random`.

    donated: the positions of arguments whose memory results may use. spread: how arguments and results lie on a mesh.
    """

    exported: jax.export.Exported
    donated: tuple[int, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]
    random: bool
    spread: Spread | None


class TooManyCompilations(PfvmError):
    """A segment was called with more different shapes or values than it may be compiled for."""


class SegmentRunner:
    """One segment with its executables, keyed by input shapes and the values of specialised inputs.

    allow_cut: raise MustCut for a node whose shape follows from run-time data, and never compile once for each value
        of an operand whose data decides the shape (of NonZero, say).
    """

    def __init__(
        self,
        segment: Segment,
        model: ir.Model,
        weights: Weights,
        arguments: list[ir.Value],
        interpreter: InterpreterFactory,
        placement: Placement,
        platform: str,
        max_compilations: int,
        allow_cut: bool,
        preparation: Preparation,
        fusion: Fusion,
        judged: Container[ir.Node] = (),
        precision: Precision | None = None,
    ) -> None:
        self.segment = segment
        self._opsets = model.graph.opset_imports
        self._functions = dict(model.functions)
        self._weights = weights
        self._interpreter = interpreter
        self._placement = placement
        self._platform = platform
        self._device_name = f"xla:{platform}{placement.text}"
        self._max_compilations = max_compilations
        self._specialization = Specialization()
        self._executables: dict[Key, Compiled] = {}
        self._lock = threading.Lock()
        self._arguments = arguments
        self._allow_cut = allow_cut
        self._preparation = preparation
        self._fusion = fusion
        self._judged = judged
        self._precision = precision
        self._border = _border_of(model, placement) if platform == "cpu" else None
        # State → the output that replaces it: its memory is donated. Set before the first call, or not at all.
        self.donations: Mapping[ir.Value, ir.Value] = {}

    @property
    def compilations(self) -> int:
        return len(self._executables)

    @property
    def reloads(self) -> int:
        """How many of the executables came from the cache on disk."""
        return sum(compiled.reloaded for compiled in list(self._executables.values()))

    def programs(self) -> list[Compiled]:
        """The executables so far."""
        return list(self._executables.values())

    def hlo(self) -> list[str]:
        """The optimized HLO of every executable so far."""
        return [compiled.function.as_text() or "" for compiled in self.programs()]

    def __call__(self, env: Mapping[ir.Value, Any]) -> dict[ir.Value, Any]:
        """Run on the values of `env`; state that it lacks is taken from the model. Returns the segment's outputs."""
        values = {v: env[v] if v in env else self._value(v, env) for v in self.segment.inputs}
        executable = self._executables.get(self._key(values))
        if executable is None:
            with self._lock:
                executable = self._executables.get(self._key(values)) or self._compile(values)
        return executable(values)

    def program_for(self, env: Mapping[ir.Value, Any]) -> Compiled | None:
        """The program that runs for all values of these types. None where there is none (yet), or where values decide.

        It is none either where a call has to make a new array for state that `env` lacks, since the program ends it.
        """
        if self._specialization.inputs or any(v not in env for v in self.segment.inputs if v in self.donations):
            return None
        return self._executables.get(self._key({v: self._value(v, env) for v in self.segment.inputs}))

    def own_value(self, value: ir.Value) -> jax.Array:
        """The model's value of an input, on the device. Call with 64-bit types enabled."""
        return self._weights.on_device(value, self._placement)

    def _value(self, value: ir.Value, env: Mapping[ir.Value, Any]) -> Any:
        if value in env:
            return env[value]
        if value in self.donations:
            return self._weights.read(value)  # not the array that is kept, which a donation would end
        return self.own_value(value)

    def _key(self, values: Mapping[ir.Value, Any]) -> Key:
        """State that is donated keeps its type from call to call, so it need not be looked at."""
        special, state = self._specialization.inputs, self.donations
        return tuple(
            ("value", np.shape(x), np.asarray(x).tobytes()) if v in special else ("shape", x.dtype, x.shape)
            for v, x in values.items()
            if v not in state or v in special
        )

    def _compile(self, values: Mapping[ir.Value, Any]) -> Compiled:
        if len(self._executables) >= self._max_compilations:
            raise TooManyCompilations(
                f"{self._device_name}: this model was compiled for {self._max_compilations} different input shapes or "
                f"values{self._specialised_names()}, the limit; pad inputs to fewer shapes or raise max_compilations"
            )
        program, traced, checks = self._program(values, self._platform)
        try:
            compiled, reloaded = compile_program(program, self._fusion, self._placement)
        except jax.errors.JaxRuntimeError as error:
            reason = str(error).strip().split("\n")[0]
            raise PfvmError(f"{self._device_name}: XLA could not compile the model: {reason}") from error
        if self._platform == "cpu":
            keep_memory_of(compiled)
        call = self._placement.call(compiled, program.shardings)
        entropy = self._placement.entropy if program.random else None
        executable = Compiled(compiled, call, reloaded, traced, program.weights, self._outputs(), entropy, checks)
        self._executables[self._key(values)] = executable
        return executable

    def export(self, env: Mapping[ir.Value, Any], platform: str) -> jax.export.Exported:
        """The program for the values of `env`, lowered for a platform that need not be here. Nothing is compiled.

        It does not check indices: one that is out of range reads the nearest element.
        """
        return self.lowered(env, platform).exported

    def lowered(self, env: Mapping[ir.Value, Any], platform: str) -> Lowered:
        """As `export`, with what the program's arguments and results are."""
        with self._lock:
            values = {v: self._value(v, env) for v in self.segment.inputs}
            program, traced, _ = self._program(values, platform, check=False)
        closed = program.traced.jaxpr
        avals = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals]
        exported = jax.export.export(jax.jit(jex.jaxpr_as_fun(closed)), platforms=(platform,))(*avals)
        donated = tuple(program.traced.donate_argnums or ())
        return Lowered(exported, donated, traced, self._outputs(), program.random, spread_of(program.shardings))

    def _program(
        self, values: Mapping[ir.Value, Any], platform: str, check: bool = True
    ) -> tuple[Program, tuple[ir.Value, ...], RangeChecks | None]:
        """The traced program, the inputs that it takes as arguments, and its checks (None where there are none).

        Grows the specialization until tracing goes.
        """
        tracing: list[ir.Node] = []
        while True:
            special = frozenset(self._specialization.inputs)
            try:
                precision = self._precision if platform == self._platform else None
                with lowering_for(platform, precision), self._placement.tracing():
                    checks = RangeChecks(self._judged, check)
                    program, traced = self._trace(values, special, tracing, checks)
                    if not checks.total.items:
                        return program, traced, None
                    early = split_off(program, self._placement) if self.donations else None
                    if early is not None:
                        program, checks.early = early
                    elif self.donations:
                        checks = RangeChecks(self._judged, check)
                        program, traced = self._trace(values, special, tracing, checks, keeps_state=True)
                    return program, traced, checks
            except NeedsValue as request:
                self._specialise(request, values, tracing[-1])
            except DataDependentShapeError as error:
                raise self._cut_or(error, tracing[-1]) from error

    def _trace(
        self,
        values: Mapping[ir.Value, Any],
        special: frozenset[ir.Value],
        tracing: list[ir.Node],
        checks: RangeChecks,
        keeps_state: bool = False,
    ) -> tuple[Program, tuple[ir.Value, ...]]:
        """`tracing` receives the segment's nodes as they are reached.

        keeps_state: where a check finds something, donated state is returned as it was.
        """
        known = {v: np.asarray(x) for v, x in values.items() if v in special}
        outputs = self._outputs()
        order = {new: i for i, new in enumerate(outputs)}
        rank = {state: order.get(new, len(order)) for state, new in self.donations.items()}
        traced = tuple(sorted((v for v in values if v not in special), key=lambda v: rank.get(v, len(order))))

        def function(inputs: list[jax.Array], weights: list[jax.Array], entropy: jax.Array) -> list[Any]:
            given = dict(zip(self._arguments, weights))
            interpreter = self._interpreter(given, self._specialization.forced, Keys(entropy), checks)
            scope = Scope(self._opsets, {**known, **dict(zip(traced, inputs))})
            for node in self.segment.nodes:
                tracing.append(node)
                interpreter.run((node,), scope)
            results = [interpreter.read(v, scope) for v in outputs]
            if not checks.total.items:
                return results
            finding = checks.total.first()
            if not keeps_state:
                return [*results, finding]
            old = {self.donations[v]: x for v, x in zip(traced, inputs) if v in self.donations}
            with around():
                kept = [jnp.where(finding[0] == 0, r, old[v]) if v in old else r for v, r in zip(outputs, results)]
            return [*kept, finding]

        for value in traced:
            self._placement.check(value, values[value].shape)
        structs = [jax.ShapeDtypeStruct(values[v].shape, values[v].dtype) for v in traced]
        donated = tuple(i for i, v in enumerate(traced) if v in self.donations)
        border = self._border if traced_platform() == "cpu" else None
        return self._preparation.split(function, structs, self._arguments, donated, traced, outputs, border), traced

    def _outputs(self) -> tuple[ir.Value, ...]:
        """The segment's outputs, new state first.

        jax gives a donated argument's memory to the first result of its type that has none. So state stands in the same
        order among arguments and results: else weights of one shape would change places, with copies of all of them.
        """
        new = set(self.donations.values())
        return tuple(sorted(self.segment.outputs, key=lambda v: v not in new))

    def _specialise(self, request: NeedsValue, values: Mapping[ir.Value, Any], node: ir.Node) -> None:
        """Grow the specialisation by what `request` asks for. Raises MustCut, or an error, where that cannot be."""
        option: NeedsValue | None = request
        while option is not None:
            needed = self._slice(option)
            worthwhile = not (self._allow_cut and needed.inputs and data_dependent(option.node))
            may = all(_may_specialise(values.get(v)) for v in needed.inputs)
            if worthwhile and may and self._specialization.add(needed):
                return
            option = option.otherwise
        raise self._cut_or(request.error or self._refusal(request, values), node)

    def _slice(self, request: NeedsValue) -> Specialization:
        return backward_slice(request, self._weights, self._functions, self.segment.inputs)

    def _cut_or(self, error: PfvmError, node: ir.Node) -> Exception:
        """The request to cut `node` out where that may be done and helps, else the error itself."""
        if self._allow_cut and isinstance(error, DataDependentShapeError):
            return MustCut(node, error)
        return error

    def _refusal(self, request: NeedsValue, values: Mapping[ir.Value, Any]) -> UnsupportedOpError:
        for value in self._slice(request).inputs:
            array = values.get(value)
            if not _may_specialise(array) or data_dependent(request.node):
                what = "an inner value" if array is None else f"{array.dtype.name}{list(array.shape)}"
                return DataDependentShapeError(
                    f"{locate(request.node, request.scope)} needs the value of {request.value.name!r} when the model "
                    f"is compiled, but that depends on the data of {value.name!r} ({what}), which is known only at run "
                    f"time; {self._device_name} cannot run this, pfvm:cpu can",
                    request.node,
                )
        return UnsupportedOpError(
            f"{locate(request.node, request.scope)} needs the value of {request.value.name!r} at compile time, and "
            f"{self._device_name} cannot compute it there"
        )

    def _specialised_names(self) -> str:
        names = sorted(v.name or "" for v in self._specialization.inputs)
        return f" (it is compiled for each value of {', '.join(map(repr, names))})" if names else ""


def _border_of(model: ir.Model, placement: Placement) -> Border | None:
    """For training steps on one CPU: what a step computes does not depend on how many a call runs."""
    if not isinstance(placement, OneDevice) or not any(entry.output for entry in read_manifest(model)):
        return None
    return "loops" if STEPS_KEY in model.metadata_props else "program"


def _may_specialise(array: Any | None) -> bool:
    if array is None:
        return False
    limit = _MAX_INTEGER_ELEMENTS if np.dtype(array.dtype).kind in "iub" else _MAX_FLOAT_ELEMENTS
    return array.size <= limit
