"""One PyTorch function → one functional FX graph of ATen ops, below autograd: forward, backward and optimizer alike.

The function is run on fake tensors until all state that it reaches is known, then once more; a difference between the
last two graphs means that changing Python state (a counter, a random number, the clock) would be baked in, and is
refused. A second pass turns in-place updates into new values of state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pfvm.errors import CaptureError
from torch._subclasses.fake_tensor import FakeTensor

from . import optimizers
from .bodies import functional_bodies
from .functional import make_functional
from .graph_diff import first_difference
from .initial import order, reads_values
from .numbers import NumberGuard, ReachedNumber
from .predicted import predicted_entries
from .reach import Reach, ReachedTensor
from .run import Run, States, gradient_of, is_gradient, one_line
from .settings import tracing_settings, untouched
from .source import line_of_function
from .structure import Structure
from .symbols import Symbols

aten = torch.ops.aten

_CHANGING = (
    "the function does not do the same the second time it is called, so a Python value that changes (counter, random "
    "number, time) would be baked into the graph; pass it in as a tensor input. If it only keeps a tensor from its "
    "first call, call it once before"
)
_REPLACES_ABSENT = frozenset({aten.add_.Tensor, aten.zero_.default, aten.copy_.default})
_ATTEMPTS = 5  # each adds the state that only a run could discover


@dataclass
class Trace:
    """A functional FX graph.

    Placeholders: the inputs in order, then `states` in order. Outputs: the tensor leaves of `outputs`, then the new
    values of `updated`, in order. Places of `cleared` hold None after a call. `guards` and `constants` (name, value,
    place) are what the graph takes for granted about Python values of optimizers. `schedulers` are to be called
    after it. `flipped` are ids of tensors whose requires_grad the function changes, `lost` the gradients that it leaves
    on inputs and a call does not.
    """

    graph: torch.fx.GraphModule
    states: list[ReachedTensor | ReachedNumber]
    outputs: Structure
    symbols: Symbols
    updated: list[ReachedTensor | ReachedNumber]
    cleared: list[ReachedTensor]
    guards: list[NumberGuard]
    constants: list[tuple[str, Any, Any]]
    schedulers: list[Any]
    flipped: set[int]
    lost: list[str]


def trace(
    function: Callable[..., Any],
    inputs: Structure,
    samples: Sequence[torch.Tensor],
    reach: Reach,
    dynamic: dict[str, dict[int, str]],
) -> Trace:
    """Trace `function` at the shapes of `samples`. The user's tensors, grads and generators stay untouched.

    Raises CaptureError.
    """
    known = optimizers.find(reach)
    states = States([t for t in reach.tensors if _can_be_state(t)] + known.tensors, known.numbers)
    states.extend([gradient_of(t) for t in states.tensors if t.tensor.is_leaf and t.tensor.grad is not None])
    states.extend(predicted_entries(reach))
    run = _settled(function, inputs, samples, reach, dynamic, states)
    _note_required(run, states.tensors, len(samples))
    names = inputs.tensor_names + [s.name for s in states]
    try:
        graph, written = make_functional(run.graph, run.mode, names, len(samples), bool(dynamic))
        functional_bodies(graph, run.mode, bool(dynamic))
    except CaptureError:
        raise
    except Exception as error:  # torch raises whatever the op's kernel does
        where = line_of_function(function)
        raise CaptureError(
            f"{where}: an in-place update could not be taken out of the function; write it out of place "
            f"({one_line(error)})"
        ) from error
    updated = _join_updates(graph, run, list(states), written, len(samples))
    _refuse_shared_memory(updated, list(states))
    return Trace(
        graph,
        list(states),
        run.outputs,
        run.symbols,
        updated,
        run.cleared,
        run.number_symbols.guards(),
        known.constants,
        run.schedule.called,
        run.flipped,
        run.lost,
    )


def _settled(
    function: Callable[..., Any],
    inputs: Structure,
    samples: Sequence[torch.Tensor],
    reach: Reach,
    dynamic: dict[str, dict[int, str]],
    states: States,
) -> Run:
    """A run that reaches no other state than `states`, which grows, and that a second run confirms."""
    for _ in range(_ATTEMPTS):
        first, second = (Run(function, inputs, reach, dynamic) for _ in range(2))
        with untouched(reach), tracing_settings():
            first.trace(samples, states)
            found = first.discovered()
            if found and all(isinstance(s, ReachedTensor) and is_gradient(s) for s in found):
                more = States([*states.tensors], states.numbers)
                more.extend(found)
                if _confirms(second, first, samples, more):
                    states.extend(found)
                    return second
            elif not found:
                _again(second, samples, states)
                found = [
                    ReachedTensor(f"tensor_{len(states.tensors) + i}", t, None)
                    for i, t in enumerate(_seen_by_trace((first, second)))
                ]
        extra = [s for s in found if not isinstance(s, ReachedTensor) or _can_be_state(s)]
        if not extra:
            difference = first_difference(first.graph, second.graph)
            if difference is not None:
                where = line_of_function(function) if difference == "<unknown>" else difference
                raise CaptureError(f"{where}: {_CHANGING}")
            return first
        states.extend(extra)
    raise CaptureError(f"{line_of_function(function)}: every call reaches other tensors; return those it makes")


def _confirms(second: Run, first: Run, samples: Sequence[torch.Tensor], states: States) -> bool:
    """Whether a run that starts from gradients, too, does as the first, which left them: as it does where the function
    clears gradients before it computes new ones.
    """
    try:
        second.trace(samples, states)
    except CaptureError:
        return False
    if second.discovered() or _seen_by_trace((first, second)):
        return False
    return first_difference(first.graph, second.graph, *second.added_since(first)) is None


def _can_be_state(reached: ReachedTensor) -> bool:
    """Sparse and quantized tensors are left alone: where the function does use one, it is refused."""
    tensor = reached.tensor
    if torch.nn.parameter.is_lazy(tensor):
        raise CaptureError(f"weight {reached.name!r} of a lazy module has no shape yet; call the module once before")
    return tensor.layout is torch.strided and not tensor.is_quantized and not isinstance(tensor, FakeTensor)


def _again(run: Run, samples: Sequence[torch.Tensor], states: States) -> None:
    """The second run; what only fails there fails because of what the first one left behind in Python."""
    try:
        run.trace(samples, states)
    except CaptureError as error:
        raise CaptureError(f"{str(error).partition(': ')[0]}: {_CHANGING}") from error


def _seen_by_trace(runs: Sequence[Run]) -> list[torch.Tensor]:
    """Tensors older than the call that only the trace could find: the same object in both traces."""
    found: list[dict[int, torch.Tensor]] = []
    for run in runs:
        values = (getattr(run.graph, str(n.target)) for n in run.graph.graph.find_nodes(op="get_attr"))
        found.append({id(v): v for v in values if isinstance(v, torch.Tensor)})
    return [tensor for key, tensor in found[0].items() if key in found[1]]


def _note_required(run: Run, tensors: Sequence[ReachedTensor], input_count: int) -> None:
    """Gradients that the function reads as they are: where there is none, it would do something else than with zeros.

    A gradient that backward() adds to, or that is cleared first, may as well be absent.
    """
    placeholders = run.graph.graph.find_nodes(op="placeholder")[input_count:]
    for state, placeholder in zip(tensors, placeholders):
        if is_gradient(state) and not state.is_initial:
            first = next((user for user in sorted(placeholder.users, key=order) if reads_values(user)), None)
            state.is_required = first is not None and first.target not in _REPLACES_ABSENT


def _join_updates(
    graph: torch.fx.GraphModule,
    run: Run,
    states: list[ReachedTensor | ReachedNumber],
    written: dict[int, torch.fx.Node],
    input_count: int,
) -> list[ReachedTensor | ReachedNumber]:
    """Add the values that were written in place to the outputs; drop gradients that were used up and what is dead.

    A gradient is used up where the function has changed its parameter and does not read it in the next call. Its place
    is cleared, so that nobody finds an old one. All others stay, for an optimizer outside.
    """
    output = graph.graph.output_node()
    placeholders = graph.graph.find_nodes(op="placeholder")[input_count:]
    assert isinstance(output.args[0], (tuple, list))
    values = list(output.args[0])
    user_values, replacements = values[: -len(run.replaced) or None], values[len(values) - len(run.replaced) :]
    new = dict(zip(map(id, run.replaced), replacements))
    by_name = {state.name: placeholder for state, placeholder in zip(states, placeholders)}
    values_of = [new.get(id(s), written.get(i)) for i, s in enumerate(states)]
    changed = {s.name for s, v, p in zip(states, values_of, placeholders) if v is not None and v is not p}
    updated, results = [], []
    for state, placeholder, value in zip(states, placeholders, values_of):
        if state.name not in changed:
            continue
        if isinstance(state, ReachedTensor) and is_gradient(state) and not _is_read(placeholder):
            # Its memory is cleared and filled again: the parameter has the shape that is all that was asked.
            placeholder.replace_all_uses_with(by_name[state.name.removesuffix(".grad")])
            if state.name.removesuffix(".grad") in changed:
                run.cleared.append(state)
                continue
        updated.append(state)
        results.append(value)
    output.args = ((*user_values, *results),)
    if written:  # what updated a gradient that nobody reads; a forward pass stays as it was written
        graph.graph.eliminate_dead_code()
    graph.recompile()
    return updated


def _refuse_shared_memory(updated: Sequence[Any], states: Sequence[Any]) -> None:
    """A write to one tensor would show in another whose memory it shares, which two values of a graph cannot."""
    written = {id(s) for s in updated}
    owners: dict[int, ReachedTensor] = {}
    for state in states:
        if not isinstance(state, ReachedTensor) or not state.tensor.numel():
            continue
        other = owners.setdefault(state.tensor.untyped_storage()._cdata, state)
        if other is not state and {id(state), id(other)} & written:
            raise CaptureError(
                f"{other.name!r} and {state.name!r} share memory and the function changes one of them; let one be the "
                f"parameter and take views of it inside the function{_renewed(other.name, state.name)}"
            )


def _renewed(*names: str) -> str:
    """What to write for torch.nn.utils.spectral_norm and its like, which keep a weight and its source."""
    if not any(name.endswith("_orig") for name in names):
        return ""
    return " (torch.nn.utils.parametrizations.spectral_norm in place of torch.nn.utils.spectral_norm)"


def _is_read(placeholder: torch.fx.Node) -> bool:
    return any(reads_values(user) for user in placeholder.users if user.op != "output")
