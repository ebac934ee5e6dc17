"""Context: compiles functions for one device, and knows the tensors that were registered with it."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pathlib
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from pfvm.errors import InputError, OptionError, short
from pfvm.runtime.compiled import compile as compile_function
from pfvm.runtime.compiled import spread
from pfvm.runtime.launch import COORDINATOR
from pfvm.runtime.torch_deferred import on_device, settle

from . import stored
from .backprop import with_backward
from .compile_options import CacheOptions, translate, warn_of_keywords
from .device import MNDevice
from .function import CompiledFunction
from .io_spec import IOSpec, check_constraints
from .names import MLSDKWarning
from .proxy import TensorProxy, as_proxy
from .registry import Registry
from .tracing import trace_event

Function = Callable[..., Any]
Folder = str | os.PathLike[str]


class Context:
    """Compiles functions for a device.

    Modules and optimizers that a function reaches are found by the trace; what is registered as well can be found by
    name, in `load_codegen_dir`. All tensors show current values whenever somebody looks, in every context.
    """

    current: Context | None = None

    def __init__(
        self,
        device: MNDevice | str | None = None,
        *,
        coordinator: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        mesh: str | None = None,
        shard: str | Sequence[str] | None = None,
    ) -> None:
        """Join other processes where told to, and name the device of what is compiled here.

        device: by default xla:cpu where there are several processes; else it must be given.
        coordinator, num_processes, process_id: host:port of process 0, how many processes run this program, and which
            one this is, from 0; also from the environment of `python -m pfvm.runtime.launch`. From then on a mesh is of
            the devices of all of them. Every process makes the same calls with the same inputs.
        mesh, shard: as for `pfvm.compile`, for all that this context compiles.

        Raises OptionError, PfvmError where the other processes do not come within 60 s, MissingExtraError.
        """
        told = (coordinator, num_processes, process_id) != (None, None, None)
        several = told or COORDINATOR in os.environ
        if device is None and not several:
            raise OptionError("Context needs a device, such as 'xla:cpu'")
        device = "xla:cpu" if device is None else device
        self.device = device if isinstance(device, MNDevice) else MNDevice(device)
        if several:
            if self.device.device.backend != "xla":
                raise OptionError(f"several processes work together on xla devices, not on {self.device.device.name}")
            from pfvm.runtime.xla.processes import connect

            connect(coordinator, num_processes, process_id)
        self._mesh, self._shard = mesh, shard
        self.registry = Registry()
        self._functions: weakref.WeakSet[CompiledFunction] = weakref.WeakSet()

    @staticmethod
    def switch_context(context: Context) -> None:
        """Make a context the current one. Nothing depends on it: tensors belong to no context.

        Raises OptionError for what is no context.
        """
        if not isinstance(context, Context):
            raise OptionError(f"switch_context takes a Context, not {short(context)}")
        Context.current = context

    # Registering

    def register_param(self, parameter: torch.Tensor) -> None:
        """Register a named parameter, a tensor of any shape and dtype.

        Raises InputError without a name, OptionError for a name that is taken.
        """
        self.registry.add_tensor(parameter)

    def register_buffer(self, buffer: torch.Tensor) -> None:
        """Register a named buffer, a tensor as for `register_param`."""
        self.registry.add_tensor(buffer)

    def register_optimizer_buffers(self, optimizer: torch.optim.Optimizer) -> None:
        """Register an optimizer that `set_buffer_name_in_optimizer` named."""
        self.registry.add_optimizer(optimizer)

    def get_registered_value_proxy(self, tensor: torch.Tensor) -> TensorProxy:
        """A proxy of a registered tensor: `load_from` sets its value, for the next call as well.

        Raises InputError for a tensor that is not registered.
        """
        if self.registry.name_of(tensor) is None:
            raise InputError("get_registered_value_proxy: this tensor is not registered with this context")
        return as_proxy(tensor)

    # Compiling

    def compile(
        self,
        function: Function,
        inputs: Mapping[str, Any],
        codegen_dir: Folder,
        *,
        options: Mapping[str, Any] | None = None,
        cache_options: CacheOptions | None = None,
        num_compiler_threads: int | None = None,
        quiet: bool = False,
        export_kwargs: Mapping[str, Any] | None = None,
        optimizers: Sequence[torch.optim.Optimizer] | None = None,
        training: bool = True,
        io_spec_constraints: Mapping[str, IOSpec] | None = None,
    ) -> CompiledFunction:
        """Compile a function from a dict of tensors to a dict of tensors, for the shapes and dtypes of `inputs`.

        codegen_dir: gets model.onnx, pfvm.onnx, passes.json and signature.json.
        options: option_json, envs, float_dtype, backprop, … and the fields of pfvm.Options.
        optimizers: with options={"backprop": True}, whose steps are added to the function.
        training: False captures the function under torch.no_grad().
        io_spec_constraints: name of an input or output → what another function needs it to be; checked.
        cache_options, num_compiler_threads, export_kwargs: accepted, without a meaning here.
        What has no meaning here is an MLSDKWarning (with `quiet`, none).

        Raises CaptureError, OptionError, NotBuiltError, and InputError for inputs that are no dict.
        """
        if not isinstance(inputs, Mapping):
            raise InputError(f"compile takes a dict of sample tensors, not {short(inputs)}; see compile_automap")
        with _warnings(quiet):
            ours, backprop = translate(options)
            warn_of_keywords(cache_options, num_compiler_threads, export_kwargs, optimizers, backprop)
        added = tuple(optimizers or ()) if backprop else ()
        target = with_backward(function, added) if backprop else function
        target = target if training else _without_grad(target)
        made = self._compile(target, dict(inputs), codegen_dir, ours, _name(function), False, added)
        if io_spec_constraints:
            check_constraints(io_spec_constraints, made.input_specs, made.output_specs)
        return made

    def compile_automap(
        self,
        function: Function,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        codegen_dir: Folder,
        *,
        options: Mapping[str, Any] | None = None,
        quiet: bool = False,
    ) -> CompiledFunction:
        """Compile a function of any arguments: tensors in tuples, lists, dicts, NamedTuples and registered dataclasses.

        args, kwargs: the arguments of a sample call. It is called like the function, with the same keywords.
        codegen_dir, options, quiet: as for `compile`, without backprop, which is an OptionError.
        """
        with _warnings(quiet):
            ours, backprop = translate(options)
        if backprop:
            raise OptionError("backprop adds to a function of a dict: use Context.compile")
        keywords = dict(kwargs or {})
        target = _positional(function, len(args), tuple(keywords))
        sample = (*args, *keywords.values())
        return self._compile(target, sample, codegen_dir, ours, _name(function), True)

    def _compile(
        self,
        target: Function,
        sample: Any,
        codegen_dir: Folder,
        options: dict[str, Any],
        name: str,
        automap: bool,
        optimizers: Sequence[torch.optim.Optimizer] = (),
    ) -> CompiledFunction:
        with trace_event(f"compile {name}"):
            compiled = compile_function(
                target,
                sample,
                self.device.device,
                codegen_dir=codegen_dir,
                options=options,
                freeze=False,
                mesh=self._mesh,
                shard=self._shard,
            )
        made = CompiledFunction(compiled, name, automap, optimizers)
        stored.write_signature(pathlib.Path(codegen_dir), made, target, self.registry)
        self._functions.add(made)
        return made

    def load_codegen_dir(self, codegen_dir: Folder) -> CompiledFunction:
        """The function that was compiled into the folder `codegen_dir`, without its Python code.

        Its state is that of tensors and optimizers registered here under the same names; what is not registered starts
        from the file's values and is kept by the function. Raises InvalidModelError.
        """
        with trace_event(f"load {codegen_dir}"):
            own = spread(self._mesh, self._shard)
            made = stored.load(pathlib.Path(codegen_dir), self.device.device, self.registry, own)
        self._functions.add(made)
        return made

    # State

    def synchronize(self) -> None:
        """Bring the newest values of all state to the tensors' own memory. Looking at a tensor does so by itself."""
        with trace_event("synchronize"):
            for tensor in self._state():
                if on_device(tensor) is not None:
                    settle(tensor)

    def invalidate(self) -> None:
        """Free the device: state comes to the host, registered names and compiled functions are dropped."""
        self.synchronize()
        for function in list(self._functions):
            function.drop()
        self._functions.clear()
        self.registry = Registry()

    def _state(self) -> list[torch.Tensor]:
        found = list(self.registry.tensors.values())
        for optimizer in self.registry.optimizers.values():
            found += [v for entries in optimizer.state.values() for v in entries.values() if _is_tensor(v)]
        for function in self._functions:
            for state in function.exported.states.values():
                found += [t for t in (state.tensor, _there(state)) if _is_tensor(t)]
        return found

    def __repr__(self) -> str:
        return f"Context({self.device!r})"


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _there(state: Any) -> Any:
    """What hangs in a state's place now; None where nothing does. A seed is drawn by looking, so it is not."""
    if state.place is None or state.kind == "rng":
        return None
    try:
        return state.place.get()
    except (LookupError, AttributeError, TypeError):
        return None


@contextlib.contextmanager
def _warnings(quiet: bool) -> Iterator[None]:
    with warnings.catch_warnings() if quiet else contextlib.nullcontext():
        if quiet:
            warnings.simplefilter("ignore", MLSDKWarning)
        yield


def _name(function: Function) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _without_grad(function: Function) -> Function:
    @functools.wraps(function, updated=())
    def forward(inputs: Any) -> Any:
        with torch.no_grad():
            return function(inputs)

    return forward


def _positional(function: Function, count: int, keywords: tuple[str, ...]) -> Function:
    """The function with its keywords as further positional arguments, which keep their names."""
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        given = list(inspect.signature(target).parameters)[:count]
    except (TypeError, ValueError):
        given = []
    given += [f"input{i}" for i in range(len(given), count)]

    def call(*values: Any) -> Any:
        return function(*values[:count], **dict(zip(keywords, values[count:])))

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in (*given, *keywords)])
    call.__signature__ = signature  # type: ignore[attr-defined]
    return call
