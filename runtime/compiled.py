"""`pfvm.compile`: a PyTorch function that runs as a compiled graph on a device."""

from __future__ import annotations

import importlib.util
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
from pfvm.compiler import options as option_schema
from pfvm.compiler.driver import CompileResult
from pfvm.compiler.driver import compile_source as compile_with
from pfvm.compiler.until import parse_until
from pfvm.errors import InputError, MissingExtraError, OptionError, did_you_mean, short

from .api import device_options as options_of
from .device import Device, device_files, load_executable, parse_device
from .ort import evaluate
from .portable import check_export, export_to
from .prefetch import Prefetched
from .synthesis import workable
from .verify import make_verifier

if TYPE_CHECKING:
    from pfvm.compiler.capture.export import Exported

    from .executable import Executable
    from .torch_step import StepState

    Run = Callable[[dict[str, Any]], dict[str, Any]]  # feeds → results, by name


def compile(
    fn: Callable[..., Any],
    example_inputs: Any,
    device: str | Device = "pfvm:cpu",
    codegen_dir: str | os.PathLike[str] | None = None,
    options: option_schema.Options | Mapping[str, Any] | str | os.PathLike[str] | None = None,
    freeze: bool | None = None,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    steps_per_call: int | None = None,
    until: str | None = None,
    device_options: Mapping[str, Any] | None = None,
    mesh: str | None = None,
    shard: str | Sequence[str] | None = None,
) -> CompiledFunction:
    """Compile a function, training step or nn.Module for the inputs' shapes and dtypes; it is called like `fn`.

    `fn` runs a few times on fake tensors without values: what it prints is printed here, and never at a call. Results
    carry no gradient (requires_grad is False and backward() through them fails), as under torch.no_grad().

    A training step is any function that changes what it reaches: parameters, buffers, optimizer state, gradients. Its
    state stays on the device between calls, and every look at a tensor shows current values. Numbers of optimizers
    (learning rate, betas, …) are read at each call; a change that would make another graph is refused by name.

    fn: from tensors in any nesting of dicts, lists and tuples to the same; it may use modules and tensors from outside.
    example_inputs: its only argument, or a tuple of positional arguments. Values do not matter.
    device: as for `pfvm.load`.
    codegen_dir: folder for model.onnx (as captured), pfvm.onnx (as run), passes.json, and what the device's compiler
        decided: l3ir.txt, report.json and, for mncore2 devices, the other files of a plan. XLA compiles at once then,
        for the example's shapes where they are fixed.
        For xla:tpu@TOPOLOGY it has all that the compiler made, and a call raises NoDeviceError; it is compiled with and
        without a folder.
    options: an Options, a mapping of its fields, or a JSON file {"args": ["--flag=value"]}; "<codegen_dir>" in it is
        replaced by the folder.
    freeze: False: weights are read at every call, so training between two calls shows. True: they are constants, and
        a call after they changed is refused; writes that torch does not count (through `.data`) are searched for in
        16 MiB of weights a call, in turns where there are more. Default: True for an nn.Module, False for a function.
    dynamic: {"x": {0: "batch"}} lets dimension 0 of input x take any size.
    steps_per_call: K: a call runs a training step K times, on K batches stacked along a new first axis, and returns
        results stacked alike (a vector of losses). `example_inputs` are those of one step. Numbers of optimizers are
        read once a call; random numbers are those of K calls of one step.
    until: with steps_per_call, "loss < 0.1" (or <=, >, >=): a call ends behind the first step whose result `loss`, one
        float, is below 0.1. Results have a row for each step that ran; `steps_done` of the compiled function says how
        many did. ("output" is the result of a function that returns a tensor alone.)
    mesh: of xla devices: "data=4" or "data=4,model=2" spreads the function over so many. The batch (dimension 0 of the
        inputs) is split over `data`; means and batch statistics are those of the whole batch. Weights, buffers and
        optimizer state are whole on each device, or split as `shard` says.
    shard: rules "linear*.weight=model,None" (a pattern of weights' names and an axis, or None, for each dimension), or
        "auto" for the large weights.
    device_options: the options that `pfvm.load` takes for this device: {"threads": 1}, {"bf16": True}, and for
        xla:tpu@TOPOLOGY {"effort": "fast"}.

    Raises CaptureError (names the source line), OptionError, MissingExtraError, NoDeviceError, DeviceMemoryError.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("pfvm.compile", "torch")
    from pfvm.compiler.capture.export import capture
    from pfvm.compiler.capture.repeat import check_steps, repeated

    target = parse_device(device)
    target.require()
    settings = settings_for(options, codegen_dir)
    if settings.device not in (None, target.name):
        raise OptionError(f"the options say device={settings.device!r}, and the argument device={target.name!r}")
    if settings.export is not None:
        check_export(settings)
    if steps_per_call is not None:
        check_steps(steps_per_call)
    elif until is not None:
        raise OptionError("until ends a call of several steps early: give steps_per_call, the most of them, as well")
    condition = None if until is None else parse_until(until)
    exported = capture(fn, example_inputs, freeze=freeze, dynamic=dynamic)
    if steps_per_call is not None:
        exported = repeated(exported, steps_per_call, condition)
    own = {**options_of(settings), **(device_options or {}), **spread(mesh, shard)}
    loaded: list[tuple[Executable, Run]] = []

    def accept(model: ir.Model) -> dict[str, bytes]:
        executable = load_executable(model, target, **own)
        run, rehearse = runner(exported, executable, steps_per_call, condition is not None)
        loaded.append((executable, run))
        if settings.artifacts is None and target.topology is None:
            return {}
        files = device_files(executable, target, lambda: workable(model, rehearse))
        return {} if settings.artifacts is None else files

    written = settings if settings.export is None else settings.model_copy(update={"output": None})
    result = compile_with(exported.model, written, evaluate=evaluate, make_verifier=make_verifier, accept=accept)
    if settings.export is not None:
        export_to(settings, result.model)
    return CompiledFunction(exported, result, *loaded[0], target, settings.artifacts, steps_per_call)


def runner(exported: Exported, executable: Executable, steps: int | None, ends_early: bool = False) -> tuple[Run, Run]:
    """Feeds → results, and the same as a rehearsal, which changes nothing.

    Tensors of a function are read at every call; state of a step is kept on the device.
    """
    from .torch_numbers import drawing_nothing

    if not exported.updates and not exported.cleared:
        from .torch_assumptions import StepAssumptions
        from .torch_state import TorchState

        weights, assumptions = TorchState(exported), StepAssumptions(exported)

        def run(feeds: dict[str, Any]) -> dict[str, Any]:
            values = weights.feeds()  # which names the weight that no longer fits
            numbers = assumptions.numbers()
            return executable({**feeds, **values, **({} if exported.frozen else numbers)})

        return run, drawing_nothing(run)
    from .resident import resident
    from .torch_step import StepState
    from .torch_steps import StepsState

    on_device = resident(executable, exported.updates)
    state = StepState(exported, on_device) if steps is None else StepsState(exported, on_device, steps, ends_early)
    return state.run, drawing_nothing(state.rehearse)


def spread(mesh: str | None, shard: str | Sequence[str] | None) -> dict[str, Any]:
    """The options of a device for the arguments `mesh` and `shard` of `compile`."""
    given = {"mesh": mesh, "shard": shard}
    return {name: value for name, value in given.items() if value is not None}


def settings_for(
    options: option_schema.Options | Mapping[str, Any] | str | os.PathLike[str] | None,
    codegen_dir: str | os.PathLike[str] | None,
) -> option_schema.Options:
    """The compiler's options for the arguments of `compile`. Raises OptionError."""
    if codegen_dir is None:
        settings = option_schema.parse(options, from_python=True)
    elif isinstance(codegen_dir, (str, os.PathLike)):
        folder = pathlib.Path(codegen_dir)
        placeholders = {"codegen_dir": str(folder)}
        settings = option_schema.parse(options, placeholders=placeholders, from_python=True, artifacts=folder)
    else:
        raise OptionError(f"codegen_dir is a folder's path, not {short(codegen_dir)}")
    if settings.shape:
        raise OptionError("leave 'shape' out: shapes are those of example_inputs, open ones as `dynamic` says")
    if settings.explain:
        raise OptionError("leave 'explain' out, which prints: `pfvm compile --explain` does, for an ONNX file")
    return settings


class CompiledFunction:
    """A compiled function. Call it as the original; results are torch tensors, without gradient, in its structure.

    `model` is the compiled graph, `exported` the graph as captured, `signature` that graph with its arguments and
    state, `passes` what every pass did, `artifacts` the folder of the files (None without one). Raises InputError
    naming the input for a wrong shape, dtype or nesting.
    """

    def __init__(
        self,
        exported: Exported,
        result: CompileResult,
        executable: Executable,
        run: Run,
        device: Device,
        artifacts: pathlib.Path | None,
        steps_per_call: int | None = None,
    ) -> None:
        self.exported: ir.Model = exported.model
        self.model: ir.Model = result.model
        self.passes = result.passes
        self.executable = executable
        self.device = device
        self.artifacts = artifacts
        self.signature = exported
        self.steps_per_call = steps_per_call
        self._run = run
        from .torch_state import as_array, as_tensor

        self._as_array, self._as_tensor = as_array, as_tensor

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run once with the current weights. The only argument may be a batch of `pfvm.prefetch`.

        args, kwargs: those of the function, tensors or arrays of the sample's dtypes and shapes. Raises InputError,
        StaleWeightError where frozen weights changed, and CaptureError where the function would take another path now.
        """
        if len(args) == 1 and isinstance(args[0], Prefetched):
            return self._packed(args[0].run(self))
        return self._packed(self._run(self.feeds(*args, **kwargs)))

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        """Run once. feeds: arrays by the names of the graph's inputs; the results are by the names of its outputs.

        Raises InputError for a missing or unknown name, a wrong dtype or a wrong shape.
        """
        return self._run(feeds)

    def feeds(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The arguments of a call, args and kwargs, as arrays by the names of the graph's inputs. Raises InputError."""
        positional = self._positional(args, kwargs)
        given = self.signature.inputs.unpack(positional, self.signature.argument_names)
        return {name: self._as_array(name, value) for name, value in given.items()}

    @property
    def step(self) -> StepState | None:
        """What runs a training step; None for a function that changes nothing."""
        from .torch_step import StepState

        owner = getattr(self._run, "__self__", None)
        return owner if isinstance(owner, StepState) else None

    @property
    def steps_done(self) -> int | None:
        """How many steps the last call ran, where a call runs several; None for one step a call, or a function."""
        return getattr(self.step, "steps_done", None)

    def _packed(self, results: dict[str, Any]) -> Any:
        sizes = self.signature.size_outputs if self.steps_per_call is None else ()
        return self.signature.outputs.pack(
            {n: v.item() if n in sizes else self._as_tensor(v) for n, v in results.items()}
        )

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        names = self.signature.argument_names
        if not kwargs:
            return args
        for name in kwargs:
            if name in names[: len(args)]:
                raise InputError(f"argument {name!r} is given twice")
            if name not in names:
                known = ", ".join(filter(None, names)) or "positional only"
                raise InputError(f"unknown argument {name!r}; the arguments are {known}{did_you_mean(name, names)}")
        missing = [name for name in names[len(args) :] if name not in kwargs]
        if missing:
            raise InputError(f"missing argument {missing[0]!r}")
        return (*args, *(kwargs[name] for name in names[len(args) :]))

    def __repr__(self) -> str:
        return f"<CompiledFunction {self.exported.graph.name!r} on {self.device.name}>"
