"""One run of the user's function on fakes: its graph, its results, and what it left in the places of state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.utils._pytree as pytree
from pfvm.errors import CaptureError, short
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv

from .decompose import DECOMPOSITIONS
from .fake_swap import fake_swap
from .library_forms import library_forms
from .numbers import NumberSymbols, ReachedNumber, Symbolic
from .optimizers import Created, first_entries, traced_optimizers
from .random import RandomStreams, is_seed, seed_state
from .reach import Place, Reach, ReachedTensor
from .schedulers import Schedule, noted_schedulers
from .source import OriginMode, line_of_function, origin_of_exception
from .structure import Structure, describe
from .symbols import Symbols
from .tensor_data import TensorDataMode

DATA_DEPENDENT = (
    "Python needs the value of a tensor here (if/while/assert on a tensor, .item(), int(), float(), .tolist(), "
    ".numpy()), but a captured function has no values yet; write torch.where(condition, a, b) or "
    "torch.cond, or return the tensor and ask for its value after the call"
)
DYNAMIC_SHAPE = (
    "the shape of this result depends on the data; keep a fixed shape, for example torch.where(mask, x, 0) "
    "in place of x[mask]"
)
_VALUE_ASKED = (".numpy() is not supported", "passed to FakeTensor.__format__")


@dataclass
class States:
    """What a function starts from besides its inputs: tensors and Python numbers, each with its place."""

    tensors: list[ReachedTensor] = field(default_factory=list)
    numbers: list[ReachedNumber] = field(default_factory=list)

    def __iter__(self) -> Iterator[ReachedTensor | ReachedNumber]:
        yield from self.tensors
        yield from self.numbers

    def extend(self, found: Sequence[ReachedTensor | ReachedNumber]) -> None:
        """Add what a run has discovered."""
        self.tensors += [s for s in found if isinstance(s, ReachedTensor)]
        self.numbers += [s for s in found if isinstance(s, ReachedNumber)]


class Run:
    """One trace of the user's function, with symbols and fakes of its own. Called by make_fx.

    The graph returns the tensor leaves of `outputs`, then the new values of `replaced`: state in whose place the
    function put something else. State in `cleared` holds None afterwards (a gradient). In-place changes are still ops.
    `schedule` are the schedulers to call after it.
    """

    def __init__(
        self, function: Callable[..., Any], inputs: Structure, reach: Reach, dynamic: dict[str, dict[int, str]]
    ) -> None:
        shape_env = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
        self.number_symbols = NumberSymbols(shape_env)
        self.symbols = Symbols(shape_env, dynamic, self.number_symbols)
        self.mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
        self.outputs: Structure
        self.graph: torch.fx.GraphModule
        self.replaced: list[ReachedTensor | ReachedNumber] = []
        self.cleared: list[ReachedTensor] = []
        self.flipped: set[int] = set()  # ids of tensors whose requires_grad the function itself changes
        self.lost: list[str] = []  # gradients that it leaves on inputs
        self.schedule = Schedule()
        self._function = function
        self._inputs = inputs
        self._reach = reach
        self._states = States()
        self._is_dynamic = bool(dynamic)
        self._created: list[Created] = []
        self._left_gradients: list[ReachedTensor] = []

    def trace(self, samples: Sequence[torch.Tensor], states: States) -> None:
        """Fill `graph`, `outputs`, `replaced` and `cleared`. Raises CaptureError."""
        self._states = states
        tensors = [s.tensor for s in states.tensors]
        with fake_swap(self.mode, tensors), self.mode, contextlib.ExitStack() as stack:
            if self._is_dynamic:
                stack.enter_context(enable_python_dispatcher())
            stack.enter_context(traced_optimizers(self._reach, self._created))
            symbols = [self.number_symbols.symbol(n) for n in states.numbers]
            stack.enter_context(_in_place(states, symbols))
            self._created.clear()
            fakes = [self.symbols.fake(name, s) for name, s in zip(self._inputs.tensor_names, samples)]
            self._data = TensorDataMode()
            stack.callback(self._data.put_back)
            self.graph = _errors_named(self, fakes, tensors, symbols)

    def discovered(self) -> list[ReachedTensor | ReachedNumber]:
        """State that the function made or needs: an optimizer's after its first step, gradients that stay, a seed."""
        placeholders = self.graph.graph.find_nodes(op="placeholder")[len(self._inputs.tensor_names) :]
        values = [s.tensor if isinstance(s, ReachedTensor) else s.value for s in self._states]
        found = first_entries(self._created, self._reach, dict(zip(placeholders, values)))
        found += [gradient_of(p) for p in self._left_gradients]
        needs_seed = self._streams.is_used and not any(is_seed(s) for s in self._states.tensors)
        return [*found, seed_state()] if needs_seed else found

    def added_since(self, earlier: Run) -> tuple[set[torch.fx.Node], set[int]]:
        """Placeholders, and positions of results, of state that an earlier run did not start from."""
        known = {id(s) for s in earlier._states}
        placeholders = self.graph.graph.find_nodes(op="placeholder")[len(self._inputs.tensor_names) :]
        results = self.graph.graph.output_node().args[0]
        assert isinstance(results, tuple)
        first = len(results) - len(self.replaced)
        return (
            {node for node, state in zip(placeholders, self._states) if id(state) not in known},
            {first + i for i, state in enumerate(self.replaced) if id(state) not in known},
        )

    def __call__(self, fakes: list[torch.Tensor], tensors: list[torch.Tensor], symbols: list[Any]) -> list[Any]:
        args = self._inputs.pack(dict(zip(self._inputs.tensor_names, fakes)))
        seed = next((s.tensor for s in self._states.tensors if is_seed(s)), None)
        self._streams = RandomStreams(seed)
        origins = OriginMode(self._reach.module_names, self.mode, self._streams)
        forms = library_forms(), noted_schedulers(self.schedule)
        with fx_traceback.preserve_node_meta(), origins, self._data, forms[0], forms[1]:
            before = [s.tensor.requires_grad for s in self._states.tensors]
            result = self._function(*args)
            self.flipped = {id(s.tensor) for s, b in zip(self._states.tensors, before) if s.tensor.requires_grad != b}
            leaves = self._described(result)
            values = [*leaves, *self._replacements(symbols)]
        self._check_gradients_of(fakes)
        return [v.detach() if isinstance(v, torch.Tensor) and v.requires_grad else v for v in values]

    def _check_gradients_of(self, inputs: list[torch.Tensor]) -> None:
        """A call leaves no gradient on its arguments. Where the caller or the function looks for one, it is refused.

        One that backward() leaves because the function itself calls x.requires_grad_(), to differentiate by x with
        torch.autograd.grad, is hardly ever read: `lost` names it, for a warning.
        """
        for name, fake in zip(self._inputs.tensor_names, inputs):
            if not fake.is_leaf or fake.grad is None:
                continue
            if id(fake) in self._data.asked or id(fake) not in self._data.required:
                raise CaptureError(
                    f"{line_of_function(self._function)}: the gradient of input {name!r} would be lost; return "
                    "torch.autograd.grad(loss, x) instead of x.grad, or, where nobody reads it, start from "
                    "x.detach().requires_grad_()"
                )
            self.lost.append(f"{name}.grad")

    def _described(self, result: Any) -> list[Any]:
        self.outputs, leaves = describe(result, lambda v: isinstance(v, (torch.Tensor, *Symbolic)), "output")
        if not leaves:
            what = "None (is a return missing?)" if result is None else f"{short(result)}, which holds no tensor"
            raise CaptureError(
                f"{line_of_function(self._function)}: the function returns {what}; there is nothing to compute"
            )
        return leaves

    def _replacements(self, symbols: Sequence[Any]) -> Iterator[Any]:
        """New values of `replaced`, in its order. Buffers may be exchanged for others, so places count, not objects."""
        for state in self._states.tensors:
            if is_seed(state):
                continue
            now = _at(state.place, state.tensor)
            if now is state.tensor:
                continue
            if now is None and is_gradient(state):
                self.cleared.append(state)
            else:
                self._check_replacement(state, now)
                self.replaced.append(state)
                yield now
        for number, symbol in zip(self._states.numbers, symbols):
            now = _at(number.place, symbol)
            if now is not symbol:
                self.replaced.append(number)
                yield now
        known = {s.name for s in self._states.tensors if is_gradient(s)}
        for state in self._states.tensors:
            if state.tensor.is_leaf and state.tensor.grad is not None and _gradient_name(state) not in known:
                self._left_gradients.append(state)

    def _check_replacement(self, state: ReachedTensor, now: Any) -> None:
        old = state.tensor
        if not isinstance(now, torch.Tensor) or now.shape != old.shape or now.dtype != old.dtype:
            what = f"{now.dtype} {list(now.shape)}" if isinstance(now, torch.Tensor) else f"{type(now).__name__}"
            raise CaptureError(
                f"{line_of_function(self._function)}: {state.name!r} ({old.dtype} {list(old.shape)}) is replaced by "
                f"{what}; state keeps its shape and dtype from step to step"
            )

    def where(self, error: Exception) -> str:
        """The user's line, else the module, else the function that an exception comes from."""
        place = origin_of_exception(error, self._reach.module_names)
        return place.where if place.known_source or place.module else line_of_function(self._function)

    def inside(self, error: Exception) -> str:
        """ " in module 'model.0'" where `where` is the line of its caller."""
        place = origin_of_exception(error, self._reach.module_names)
        return f" in module {place.module!r}" if place.known_source and place.module else ""

    def sample(self, fakes: Sequence[torch.Tensor]) -> str:
        """The sample's shapes, as in "x float32[2, 7]"."""
        types = [f"{str(fake.dtype).removeprefix('torch.')}{list(fake.shape)}" for fake in fakes]
        return ", ".join(f"{name} {text}" for name, text in zip(self._inputs.tensor_names, types)) or "no tensors"


def gradient_of(parameter: ReachedTensor) -> ReachedTensor:
    """The gradient of a parameter as state: what is there now, else zeros."""
    tensor = parameter.tensor
    place = Place(None, lambda _: tensor.grad, lambda _, value: setattr(tensor, "grad", value))
    gradient = tensor.grad
    value = torch.zeros_like(tensor, requires_grad=False) if gradient is None else gradient
    return ReachedTensor(_gradient_name(parameter), value, place, "buffer", gradient is None)


def _gradient_name(parameter: ReachedTensor) -> str:
    return f"{parameter.name}.grad"


def is_gradient(state: ReachedTensor) -> bool:
    """Made by `gradient_of`."""
    return state.role == "buffer"


def is_kept_gradient(state: ReachedTensor | ReachedNumber) -> bool:
    """A gradient, and not a number."""
    return isinstance(state, ReachedTensor) and is_gradient(state)


def _at(place: Place | None, default: Any) -> Any:
    if place is None:
        return default
    try:
        return place.get()
    except (LookupError, AttributeError):
        return None


@contextlib.contextmanager
def _in_place(states: States, symbols: Sequence[Any]) -> Iterator[None]:
    """Within the block numbers are symbols, and state that nothing holds yet hangs in its place.

    Optimizers put their own numbers and state back, see `traced_optimizers`.
    """
    back: list[Callable[[], None]] = []
    try:
        for number, symbol in zip(states.numbers, symbols):
            number.place.set(symbol)
        for state in states.tensors:
            if state.is_initial or is_gradient(state):
                assert state.place is not None
                state.place.set(state.tensor)  # a parameter's fake has no gradient yet
            elif state.place is not None and state.place.write is not None:
                back.append(_setter(state.place, state.tensor))
        yield
    finally:
        for restore in reversed(back):
            restore()


def _setter(place: Place, value: Any) -> Callable[[], None]:
    return lambda: place.set(value) if _at(place, None) is not value else None


def _errors_named(run: Run, fakes: list[Any], tensors: list[torch.Tensor], symbols: list[Any]) -> torch.fx.GraphModule:
    try:
        trace = make_fx(run, DECOMPOSITIONS, tracing_mode="real", _allow_non_fake_inputs=True)
        graph = trace(fakes, tensors, symbols)
    except CaptureError:
        raise
    except (DataDependentOutputException, GuardOnDataDependentSymNode) as error:
        raise CaptureError(f"{run.where(error)}: {DATA_DEPENDENT}") from error
    except DynamicOutputShapeException as error:
        raise CaptureError(f"{run.where(error)}: {error.func}: {DYNAMIC_SHAPE}") from error
    except UnsupportedOperatorException as error:
        raise CaptureError(
            f"{run.where(error)}: op {error.func} cannot be traced without data; write it with ATen ops"
        ) from error
    except Exception as error:  # the user's own error, or torch's: say where, and keep the cause
        where = run.where(error)
        if any(text in str(error) for text in _VALUE_ASKED):
            raise CaptureError(f"{where}: {DATA_DEPENDENT}") from error
        raise CaptureError(
            f"{where}: capture failed{run.inside(error)}: {one_line(error)} (the sample inputs: {run.sample(fakes)})"
        ) from error
    _flatten(graph)
    return graph


def one_line(error: Exception) -> str:
    """An exception for a message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def _flatten(graph: torch.fx.GraphModule) -> None:
    """Drop make_fx's pytree wrapping: the graph takes placeholders and returns a flat tuple."""
    graph.graph.set_codegen(torch.fx.graph.CodeGen())
    output = graph.graph.output_node()
    output.args = (tuple(pytree.tree_leaves(output.args[0])),)
    graph.recompile()
