"""One PyTorch function → one functional FX graph of ATen ops, below autograd.

The function is run twice on fake tensors; a difference between the two graphs means that changing Python state (a
counter, a random number, the clock) would be baked in, and is refused. A second pass removes in-place updates where
there are any.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from pfvm.errors import CaptureError, short
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
)
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.nn.attention import SDPBackend, sdpa_kernel

from .decompose import DECOMPOSITIONS
from .fake_swap import fake_swap
from .functional import make_functional
from .graph_diff import first_difference
from .reach import Reach, ReachedTensor
from .source import OriginMode, line_of_function, origin_of_exception
from .structure import Structure, describe
from .symbols import Symbols

_DATA_DEPENDENT = (
    "Python needs the value of a tensor here (if/while/assert on a tensor, .item(), int(), float(), .tolist(), "
    ".numpy()), but a captured function has no values yet; write torch.where(condition, a, b), or keep it a tensor"
)
_DYNAMIC_SHAPE = (
    "the shape of this result depends on the data; keep a fixed shape, for example torch.where(mask, x, 0) "
    "in place of x[mask]"
)
_CHANGING = (
    "the function does not do the same the second time it is called, so a Python value that changes (counter, random "
    "number, time) would be baked into the graph; pass it in as a tensor input. If it only keeps a tensor from its "
    "first call, call it once before"
)
_ATTEMPTS = 4  # each adds the tensors that only the trace could see


@dataclass
class Trace:
    """A functional FX graph.

    Placeholders: the inputs in order, then `states` in order. Outputs: the tensor leaves of `outputs`.
    """

    graph: torch.fx.GraphModule
    states: list[ReachedTensor]
    outputs: Structure
    symbols: Symbols


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
    states = [t for t in reach.tensors if _can_be_state(t)]
    for _ in range(_ATTEMPTS):
        runs = [_Run(function, inputs, reach, dynamic) for _ in range(2)]
        with _untouched(reach), _tracing_settings():
            runs[0].trace(samples, states)
            _again(runs[1], samples, states)
        found = [ReachedTensor(f"tensor_{len(states) + i}", t, None) for i, t in enumerate(_seen_by_trace(runs))]
        extra = [t for t in found if _can_be_state(t)]
        if not extra:
            break
        states = states + extra
    else:
        raise CaptureError(f"{line_of_function(function)}: every call reaches other tensors; return those it makes")
    first, second = runs
    difference = first_difference(first.graph, second.graph)
    if difference is not None:
        raise CaptureError(f"{difference}: {_CHANGING}")
    names = inputs.tensor_names + [s.name for s in states]
    try:
        graph = make_functional(first.graph, first.mode, names, len(samples), bool(dynamic))
    except CaptureError:
        raise
    except Exception as error:  # torch raises whatever the op's kernel does
        where = line_of_function(function)
        raise CaptureError(
            f"{where}: an in-place update could not be taken out of the function; write it out of place "
            f"({_one_line(error)})"
        ) from error
    return Trace(graph, states, first.outputs, first.symbols)


def _can_be_state(reached: ReachedTensor) -> bool:
    """Sparse and quantized tensors are left alone: where the function does use one, it is refused."""
    tensor = reached.tensor
    if torch.nn.parameter.is_lazy(tensor):
        raise CaptureError(f"weight {reached.name!r} of a lazy module has no shape yet; call the module once before")
    return tensor.layout is torch.strided and not tensor.is_quantized and not isinstance(tensor, FakeTensor)


def _again(run: _Run, samples: Sequence[torch.Tensor], states: Sequence[ReachedTensor]) -> None:
    """The second run; what only fails there fails because of what the first one left behind in Python."""
    try:
        run.trace(samples, states)
    except CaptureError as error:
        raise CaptureError(f"{str(error).partition(': ')[0]}: {_CHANGING}") from error


class _Run:
    """One trace of the user's function, with symbols and fakes of its own. Called by make_fx."""

    def __init__(
        self, function: Callable[..., Any], inputs: Structure, reach: Reach, dynamic: dict[str, dict[int, str]]
    ) -> None:
        shape_env = ShapeEnv(allow_scalar_outputs=False, allow_dynamic_output_shape_ops=False)
        self.symbols = Symbols(shape_env, dynamic)
        self.mode = FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=True)
        self.outputs: Structure
        self.graph: torch.fx.GraphModule
        self._function = function
        self._inputs = inputs
        self._reach = reach
        self._is_dynamic = bool(dynamic)

    def trace(self, samples: Sequence[torch.Tensor], states: Sequence[ReachedTensor]) -> None:
        """Fill `graph` and `outputs`. Raises CaptureError."""
        tensors = [s.tensor for s in states]
        with fake_swap(self.mode, tensors), self.mode, contextlib.ExitStack() as stack:
            if self._is_dynamic:
                stack.enter_context(enable_python_dispatcher())
            fakes = [self.symbols.fake(name, s) for name, s in zip(self._inputs.tensor_names, samples)]
            self.graph = _errors_named(self, fakes, tensors)

    def __call__(self, fakes: list[torch.Tensor], states: list[torch.Tensor]) -> list[Any]:
        names = self._inputs.tensor_names
        args = self._inputs.pack(dict(zip(names, fakes)))
        with fx_traceback.preserve_node_meta(), OriginMode(self._reach.module_names) as origins:
            result = self._function(*args)
        if any(t.is_leaf and t.grad is not None for t in (*fakes, *states)):
            where = origins.backward_line or line_of_function(self._function)
            raise CaptureError(
                f"{where}: the function calls backward(); capture of training steps is not built yet, compile the "
                "forward pass"
            )
        self.outputs, leaves = self._described(result)
        return [leaf.detach() if isinstance(leaf, torch.Tensor) and leaf.requires_grad else leaf for leaf in leaves]

    def _described(self, result: Any) -> tuple[Structure, list[Any]]:
        structure, leaves = describe(result, lambda v: isinstance(v, (torch.Tensor, torch.SymInt)), "output")
        if not leaves:
            what = "None (is a return missing?)" if result is None else f"{short(result)}, which holds no tensor"
            raise CaptureError(
                f"{line_of_function(self._function)}: the function returns {what}; there is nothing to compute"
            )
        return structure, leaves

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


def _errors_named(run: _Run, fakes: list[Any], states: list[torch.Tensor]) -> torch.fx.GraphModule:
    try:
        graph = make_fx(run, DECOMPOSITIONS, tracing_mode="real", _allow_non_fake_inputs=True)(fakes, states)
    except CaptureError:
        raise
    except (DataDependentOutputException, GuardOnDataDependentSymNode) as error:
        raise CaptureError(f"{run.where(error)}: {_DATA_DEPENDENT}") from error
    except DynamicOutputShapeException as error:
        raise CaptureError(f"{run.where(error)}: {error.func}: {_DYNAMIC_SHAPE}") from error
    except UnsupportedOperatorException as error:
        raise CaptureError(
            f"{run.where(error)}: op {error.func} cannot be traced without data; write it with ATen ops"
        ) from error
    except Exception as error:  # the user's own error, or torch's: say where, and keep the cause
        where = run.where(error)
        if ".numpy() is not supported" in str(error):
            raise CaptureError(f"{where}: {_DATA_DEPENDENT}") from error
        raise CaptureError(
            f"{where}: capture failed{run.inside(error)}: {_one_line(error)} (the sample inputs: {run.sample(fakes)})"
        ) from error
    _flatten(graph)
    return graph


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def _flatten(graph: torch.fx.GraphModule) -> None:
    """Drop make_fx's pytree wrapping: the graph takes placeholders and returns a flat tuple."""
    graph.graph.set_codegen(torch.fx.graph.CodeGen())
    output = graph.graph.output_node()
    output.args = (tuple(pytree.tree_leaves(output.args[0])),)
    graph.recompile()


def _seen_by_trace(runs: Sequence[_Run]) -> list[torch.Tensor]:
    """Tensors older than the call that only the trace could find: the same object in both traces."""
    found: list[dict[int, torch.Tensor]] = []
    for run in runs:
        values = (getattr(run.graph, str(n.target)) for n in run.graph.graph.find_nodes(op="get_attr"))
        found.append({id(v): v for v in values if isinstance(v, torch.Tensor)})
    return [tensor for key, tensor in found[0].items() if key in found[1]]


@contextlib.contextmanager
def _untouched(reach: Reach) -> Iterator[None]:
    """Put back every generator and every attribute or list of the user's that the function changed."""
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    try:
        yield
    finally:
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        reach.restore()


@contextlib.contextmanager
def _tracing_settings() -> Iterator[None]:
    """Take the plain path through torch: no fused attention or encoder, no mkldnn-only ops, no autograd threads."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")  # prints a traceback for what is raised anyway
    level = logger.level
    fast_path, mkldnn = torch.backends.mha.get_fastpath_enabled(), torch._C._get_mkldnn_enabled()
    with (
        sdpa_kernel(SDPBackend.MATH),
        torch.autograd.set_multithreading_enabled(False),
        torch._dynamo.config.patch(error_on_nested_fx_trace=False),  # run what is under torch.compile as it was written
    ):
        torch.backends.mha.set_fastpath_enabled(False)
        torch._C._set_mkldnn_enabled(False)  # mkldnn.flags() would warn about Intel GPUs
        try:
            logger.setLevel(logging.CRITICAL)
            yield
        finally:
            logger.setLevel(level)
            torch.backends.mha.set_fastpath_enabled(fast_path)
            torch._C._set_mkldnn_enabled(mkldnn)
