"""XlaExecutable: an ONNX model compiled by XLA, once for each set of input shapes that it is called with."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.export
import numpy as np
import onnx_ir as ir
from pfvm.errors import InputError, OptionError, PfvmError, describe_node
from pfvm.runtime.executable import check_feeds, representation, specs_of

from .bodies import CANNOT_EXPRESS
from .buckets import Buckets
from .compiled import Compiled, RunRefused, SegmentRunner
from .context import MisfitError
from .direct import DirectCall, direct_call
from .fusion import check_fusion
from .host_nodes import host_nodes
from .indices import index_checks, judged_nodes
from .own_settings import own_settings
from .placement import placement_of
from .plan import BehindCut, Plan, Planner
from .platforms import precision_of
from .segments import MustCut, Segment
from .support import check_supported
from .weights import Weights

# A look at each of them comes before every other call.
_MOST_DIRECT = 4


class XlaExecutable:
    """Runs a model on an XLA platform; implements `pfvm.runtime.executable.Executable`.

    Every set of input shapes (and of values of shape-like inputs) is compiled once and kept; `max_compilations` bounds
    their number. Safe to call from several threads.

    allow_host: what XLA cannot express (strings, sequences, optionals, maps, image decoding, shapes that follow from
        run-time data) runs in ONNX Runtime, in host segments; False makes it an error that names the node. None: True
        except on a TPU.
    bucket: {"batch": [1, 8, 32]} pads inputs along the dimension "batch" to the next of these sizes and cuts results
        back; OptionError where that might change the other rows' results.
    fusion: "default" or "no_convolution", a setting of XLA's CPU compiler; "auto" chooses by
        the model's operators.
    precision: how products of float32 are computed: "default" (on a TPU of bfloat16 ones), "high" or "highest" (in
        float32). None: "default" on a TPU, else "highest".
    mesh: "data=4,model=2" spreads the model over so many devices (see `sharding`): the batch over `data`, state and
        weights whole on each unless `shard` says otherwise: rules "linear*.weight=model,None", or "auto".
    bf16: float32 is computed as bfloat16 where that is customary (see `autocast`); inputs, results and state stay what
        they are.
    compile_only: programs are lowered for the platform and never run; no device is needed.
    cut_shapes: a device segment behind a host segment is compiled for so many shapes; for more it runs on the host.

    Raises UnsupportedOpError at load time for operators without a lowering, and NoDeviceError where there is no such
    device.
    """

    def __init__(
        self,
        model: ir.Model,
        platform: str = "cpu",
        max_compilations: int = 64,
        *,
        allow_host: bool | None = None,
        cut_shapes: int = 8,
        bucket: Mapping[str, Sequence[int]] | None = None,
        fusion: str = "auto",
        precision: str | None = None,
        bf16: bool = False,
        compile_only: bool = False,
        mesh: str | None = None,
        shard: str | Sequence[str] | None = None,
    ) -> None:
        if type(max_compilations) is not int or max_compilations < 1:
            raise OptionError(f"max_compilations={max_compilations!r}: expected a whole number of 1 or more")
        self.model = model
        self._platform = platform
        self._placement = placement_of(model, platform, mesh, shard, compile_only)
        self.precision = precision_of(platform, precision)
        self.bf16 = bf16
        allow_host = self._placement.may_use_host and (platform != "tpu" if allow_host is None else allow_host)
        self._host_nodes = host_nodes(model) if allow_host else {}
        check_supported(model, f"xla:{platform}", self._host_nodes, passes_on=allow_host)
        self._weights = Weights(model)
        self.inputs, optional, self.outputs = specs_of(model)
        overridable = {v.name for v in self._weights.state}
        self.optional_inputs = tuple(spec for spec in optional if spec.name in overridable)
        self._graph_inputs = {v.name or "": v for v in model.graph.inputs}
        self._graph_outputs = tuple(model.graph.outputs)
        self._buckets = Buckets(model, self.inputs, bucket) if bucket else None
        self._index_checks = index_checks(model.graph)
        self._lock = threading.Lock()
        self._planner = Planner(
            model,
            self._weights,
            self._placement,
            platform,
            max_compilations,
            cut_shapes,
            allow_host,
            check_fusion(fusion),
            judged_nodes(self._index_checks),
            self.precision,
            bf16,
            compile_only,
        )
        self._plan = self._planner.plan(self._host_nodes)
        self._direct: tuple[DirectCall, ...] = ()

    @property
    def segments(self) -> tuple[Segment, ...]:
        """What runs where. Cuts at shapes that follow from run-time data are there after the first call."""
        return self._plan.segments

    @property
    def compilations(self) -> int:
        """How many executables there are so far, one for each set of shapes and specialised values."""
        return self._planner.compilations

    @property
    def reloads(self) -> int:
        """How many of these were not compiled but read from the cache on disk (see `cache`)."""
        return self._planner.reloads

    @property
    def host_calls(self) -> int:
        """How often a device segment ran on the host, because it had been compiled for `cut_shapes` shapes."""
        return self._planner.host_calls

    def programs(self) -> list[Compiled]:
        """What has been compiled so far, in the order of the segments."""
        return [program for runner in self._plan.device_runners for program in runner.programs()]

    def hlo(self) -> list[str]:
        """XLA's optimized program text, one for each executable compiled so far."""
        return [text for runner in self._plan.device_runners for text in runner.hlo()]

    def export(self, feeds: Mapping[str, Any], platform: str) -> list[jax.export.Exported]:
        """The programs of the device segments for these feeds, lowered for a platform that need not be here.

        platform: "cpu", "cuda" or "tpu". What lies before the last segment is run, on this executable's device.
        Raises what a call raises.
        """
        checked = check_feeds(self.inputs, self.optional_inputs, feeds)
        given = {self._graph_inputs[name]: array for name, array in checked.items()}
        with own_settings():
            while True:
                plan = self._plan
                try:
                    return list(_exports(plan, dict(given), platform))
                except MustCut as request:
                    self._cut(request, plan)

    def __repr__(self) -> str:
        return representation(self.device, self.inputs, self.outputs)

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        direct = self._direct_for(feeds, {})
        if direct is not None:
            return {name: self.host(value) for name, value in self._run_direct(direct, feeds, {}).items()}
        checked = check_feeds(self.inputs, self.optional_inputs, feeds)
        given = {self._graph_inputs[name]: array for name, array in checked.items()}
        for check in self._index_checks:
            check(given)
        if self._buckets is None:
            results = self._results(given)
            self._learn(checked, {})
            return results
        padded, counts = self._buckets.pad(checked)
        results = self._results({self._graph_inputs[name]: array for name, array in padded.items()})
        return self._buckets.cut(results, counts)

    def check_spread(self, feeds: Mapping[str, Any]) -> None:
        """Raises InputError where an array of `feeds` has a shape that the mesh cannot split. Names may be missing."""
        for name, array in feeds.items():
            if name in self._graph_inputs:
                self._placement.check(self._graph_inputs[name], np.shape(array))

    @property
    def spread(self) -> str | None:
        """What is split over the mesh, in a line; None without one."""
        return self._placement.summary

    @property
    def platform(self) -> str:
        """ "cpu", "cuda" or "tpu"."""
        return self._platform

    def put(self, array: np.ndarray, name: str | None = None) -> jax.Array:
        """Host values on the device, for the input `name`; jax may go on using the host array's memory."""
        with own_settings():
            return self._placement.put(array, None if name is None else self._graph_inputs[name])

    def host(self, value: Any) -> np.ndarray:
        """A copy of a value of the device, of its shape and dtype. Raises PfvmError where others have parts of it."""
        return self._placement.host(value)

    @property
    def device(self) -> str:
        """Names the device, and the mesh where there is one."""
        return f"xla:{self._platform}{self._placement.text}"

    def donate(self, updates: Mapping[str, str]) -> None:
        """From now on the memory of state may become that of its next value; `updates`: name → the output that is it.

        Call it before the first run. Nothing is donated where the model runs in several segments: one may fail after
        another has used up the state.
        """
        outputs = {v.name: v for v in self._graph_outputs}
        if self._buckets is None and len(self._plan.runners) == 1:
            for runner in self._plan.device_runners:
                runner.donations = {self._graph_inputs[name]: outputs[output] for name, output in updates.items()}

    def run_on_device(self, feeds: Mapping[str, Any], state: dict[str, jax.Array]) -> dict[str, Any]:
        """A call with `feeds` as arrays, and `state` already on the device, of the right types; results stay there.

        Donated arrays of `state` are used up; where the call fails, `state` holds others of the same values.
        """
        if self._placement.text:
            with own_settings():
                state.update({name: self._placement.placed(x, self._graph_inputs[name]) for name, x in state.items()})
        direct = self._direct_for(feeds, state)
        if direct is not None:
            return self._run_direct(direct, feeds, state)
        given_optional = [spec for spec in self.optional_inputs if spec.name in feeds]
        checked = check_feeds([spec for spec in self.inputs if spec.name not in state], given_optional, feeds)
        given = {self._graph_inputs[name]: array for name, array in (*checked.items(), *state.items())}
        for check in self._index_checks:
            check(given)
        with own_settings():
            try:
                env = self._run(given)
            except RunRefused as refused:
                self._take_back(state, refused.outputs)
                raise refused.error from None
            outputs = self._graph_outputs
            results = {v.name or "": env[v] if v in env else self._raw_result(v, env) for v in outputs}
        self._learn(checked, state)
        return results

    def _direct_for(self, feeds: Mapping[str, Any], state: Mapping[str, Any]) -> DirectCall | None:
        for direct in self._direct:
            if direct.fits(feeds, state):
                return direct
        return None

    def _run_direct(
        self, direct: DirectCall, feeds: Mapping[str, Any], state: dict[str, jax.Array]
    ) -> dict[str, jax.Array]:
        with own_settings():
            try:
                return direct(feeds, state)
            except RunRefused as refused:
                self._take_back(state, refused.outputs)
                raise refused.error from None
            except jax.errors.JaxRuntimeError as error:
                raise self._failure(error) from error

    def _learn(self, feeds: Mapping[str, Any], state: Mapping[str, Any]) -> None:
        """The next call with inputs of these types goes a short way. Where there are many types, only the first do."""
        plan = self._plan
        if len(self._direct) >= _MOST_DIRECT or len(plan.runners) != 1:
            return
        with own_settings(), self._lock:
            for runner in plan.device_runners:
                found = direct_call(runner, self._graph_inputs, self._graph_outputs, feeds, state, self._index_checks)
                if found is not None and self._plan is plan:
                    self._direct = (*self._direct, found)

    def _take_back(self, state: dict[str, jax.Array], outputs: Mapping[ir.Value, Any]) -> None:
        for runner in self._plan.device_runners:
            state.update({v.name or "": outputs[new] for v, new in runner.donations.items() if new in outputs})

    def _results(self, given: Mapping[ir.Value, Any]) -> dict[str, Any]:
        with own_settings():
            try:
                env = self._run(given)
            except RunRefused as refused:
                raise refused.error from None
            return {value.name or "": self._result(value, env) for value in self._graph_outputs}

    def _run(self, given: Mapping[ir.Value, Any]) -> dict[ir.Value, Any]:
        while True:
            plan = self._plan
            env = dict(given)
            try:
                for runner in plan.runners[:-1]:
                    env.update((value, self._placement.between(result)) for value, result in runner(env).items())
                for runner in plan.runners[-1:]:
                    env.update(runner(env))
                return env
            except MustCut as request:
                self._cut(request, plan)
            except MisfitError as error:
                if all(spec.is_fixed for spec in self.inputs):
                    raise
                shapes = ", ".join(f"{value.name} {list(np.shape(array))}" for value, array in given.items())
                raise InputError(f"xla:{self._platform} cannot run these inputs ({shapes}): {error}") from error
            except jax.errors.JaxRuntimeError as error:
                raise self._failure(error) from error

    def _failure(self, error: Exception) -> PfvmError:
        """Most likely there is not enough memory."""
        reason = str(error).strip().partition("\n")[0]
        return PfvmError(f"{self.device}: the model could not be run: {reason}")

    def _cut(self, request: MustCut, plan: Plan) -> None:
        """Plan again, with one more node on the host (unless another thread has done so in the meantime)."""
        with self._lock:
            if self._plan is plan:
                self._host_nodes[request.node] = f"data-dependent shape ({_why(request)})"
                self._plan = self._planner.plan(self._host_nodes)
                self._direct = ()

    def _raw_result(self, value: ir.Value, env: Mapping[ir.Value, Any]) -> Any:
        if value in env:
            return env[value]
        if value in self._weights:
            return self._weights.on_device(value, self._placement)
        assert value.const_value is not None, f"{value.name} is computed by nothing and no constant"
        return _strings(value.const_value)  # XLA has no type for them, so that they are no weights

    def _result(self, value: ir.Value, env: Mapping[ir.Value, Any]) -> Any:
        result = self._raw_result(value, env)
        if result is None or isinstance(result, (list, tuple, dict)):
            return result
        # A copy: XLA may return an input's own buffer, and its arrays are read-only.
        return self.host(result)


def _strings(tensor: ir.TensorProtocol) -> np.ndarray:
    """A constant of strings as results have them: objects, of text."""
    stored = tensor.numpy()
    texts = [each.decode() if isinstance(each, bytes) else each for each in stored.ravel()]
    return np.array(texts, object).reshape(stored.shape)


def _exports(plan: Plan, env: dict[ir.Value, Any], platform: str) -> Iterator[jax.export.Exported]:
    last = plan.runners[-1] if plan.runners else None
    for runner in plan.runners:
        if isinstance(runner, (SegmentRunner, BehindCut)):
            yield runner.export(env, platform)
        if runner is not last:
            env.update(runner(env))


def _why(request: MustCut) -> str:
    """The error's reason, without the node's name and what it says about devices."""
    message = str(request.error).split("; ")[0].removeprefix(f"{describe_node(request.node)} ")
    return message.removeprefix(CANNOT_EXPRESS)
