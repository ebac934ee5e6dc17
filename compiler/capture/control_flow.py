"""torch.cond, torch.while_loop and torch.scan while a function is traced: bodies that take what they read as arguments.

torch's own way runs Dynamo over the call, which lifts what a body reads from outside (weights, tensors of the function)
into arguments. Here a body runs once on fakes while it is watched: every tensor that it touches and did not make is one
of those. From then on it runs with arguments in their place, so that one trace holds the whole program.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import torch
import torch.utils._pytree as pytree
from pfvm.errors import CaptureError
from torch._higher_order_ops import utils as hop_utils
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op
from torch.fx.experimental import proxy_tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from .source import OriginMode, here

Body = Callable[..., Any]
_rehearsing: ContextVar[bool] = ContextVar("rehearsing", default=False)


class _Watch(TorchFunctionMode):
    """Notes the tensors that a body reads and has neither been given nor made."""

    def __init__(self, given: Sequence[Any]) -> None:
        super().__init__()
        self.read: dict[int, torch.Tensor] = {}
        self._own = {id(t): t for t in given}  # holds them, so that no id is used twice

    def note(self, values: Any) -> None:
        """`values` are read."""
        for value in pytree.tree_leaves(values):
            if isinstance(value, torch.Tensor) and id(value) not in self._own:
                self.read[id(value)] = value

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.note((args, kwargs))
        result = func(*args, **(kwargs or {}))
        made = [v for v in pytree.tree_leaves(result) if isinstance(v, torch.Tensor) and id(v) not in self.read]
        self._own.update((id(v), v) for v in made)
        return result


class _Exchange(TorchFunctionMode):
    """Within the block, others stand in the place of some tensors."""

    def __init__(self, exchanged: dict[int, Any]) -> None:
        super().__init__()
        self._exchanged = exchanged

    def of(self, values: Any) -> Any:
        """`values` with the others in it."""
        return pytree.tree_map(lambda v: self._exchanged.get(id(v), v), values)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return func(*self.of(args), **self.of(kwargs or {}))


class _InBody(TorchDispatchMode):
    """Refuses what a body may not do: it may run any number of times, or not at all."""

    supports_higher_order_operators = True

    def __init__(self, name: str, given: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self._name = name
        self._memories = {_memory(t) for t in given}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if isinstance(func, torch._ops.OpOverload):
            if torch.Tag.nondeterministic_seeded in func.tags:
                raise CaptureError(
                    f"{here()}: random op {func} in a body of {self._name} cannot be captured; draw the numbers "
                    "outside of it, for a scan as one of its xs"
                )
            if func is torch.ops.aten._local_scalar_dense.default and _origin_mode() is not None:  # lint goes on
                raise CaptureError(
                    f"{here()}: a body of {self._name} asks for the value of a tensor (if, .item(), int(), x[i]), "
                    "which it has not yet; write torch.where(condition, a, b) or torch.cond, and "
                    "x.index_select(0, i.reshape(1)) for x[i]"
                )
            target = args[0] if args else None
            if func._schema.is_mutable and isinstance(target, torch.Tensor) and _memory(target) in self._memories:
                raise CaptureError(
                    f"{here()}: a body of {self._name} changes in place a tensor from outside, which a graph cannot; "
                    "return the new value from the body and write it where the result is (a BatchNorm that "
                    "counts batches: call model.eval(), or run it outside)"
                )
        return func(*args, **(kwargs or {}))


def _origin_mode() -> OriginMode | None:
    """The mode of a trace."""
    return next((m for m in _get_current_dispatch_mode_stack() if isinstance(m, OriginMode)), None)


def _memory(tensor: torch.Tensor) -> Any:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


class _Bodies:
    """The bodies of one call, with the tensors from outside that they read: `captured`, in the order of reading."""

    def __init__(self, name: str, bodies: Sequence[Body], samples: Sequence[Sequence[Any]]) -> None:
        self._name = name
        self._bodies = bodies
        self.where = here()
        self.results: list[Any] = []
        with proxy_tensor.disable_proxy_modes_tracing():  # a body may read what it is given also by its outer name
            samples = [[v.view_as(v) if isinstance(v, torch.Tensor) else v for v in sample] for sample in samples]
        given = [v for sample in samples for v in sample if isinstance(v, torch.Tensor)]
        watch = _Watch(given)
        with proxy_tensor.disable_proxy_modes_tracing(), _rehearsal(), watch:
            for body, sample in zip(bodies, samples):
                with _InBody(name, given):
                    result = body(*sample)
                watch.note(result)
                self.results.append(result)
        self.captured = tuple(watch.read.values())
        self._origin = _origin_mode()

    def lifted(self, index: int, count: int) -> Body:
        """The body as a function of its `count` arguments and of `captured`, to a flat tuple of tensors."""
        body = self._bodies[index]

        def run(*arguments: Any) -> tuple[Any, ...]:
            exchange = _Exchange(dict(zip(map(id, self.captured), arguments[count:])))
            tensors = [a for a in arguments if isinstance(a, torch.Tensor)]
            with self._origin or contextlib.nullcontext(), _InBody(self._name, tensors), exchange:
                results = exchange.of(pytree.tree_leaves(body(*arguments[:count])))
            given = {id(t) for t in tensors}
            return tuple(_apart(r, given) for r in results)

        return run


def _apart(result: Any, taken: set[int]) -> Any:
    """A result that is neither an argument nor another result, as torch asks of bodies."""
    if not isinstance(result, torch.Tensor):
        return torch.as_tensor(result)
    if id(result) in taken or result._is_view():
        result = result.clone()
    taken.add(id(result))
    return result


@contextlib.contextmanager
def _rehearsal() -> Iterator[None]:
    token = _rehearsing.set(True)
    try:
        yield
    finally:
        _rehearsing.reset(token)


def _is_traced() -> bool:
    return proxy_tensor._CURRENT_MAKE_FX_TRACER is not None and not _rehearsing.get()


def _check_alike(name: str, where: str, what: str, wanted: Sequence[Any], found: Sequence[Any]) -> None:
    def types(values: Sequence[Any]) -> list[str]:
        tensors = [torch.as_tensor(v) for v in values]
        return [f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in tensors]

    if len(wanted) != len(found) or types(wanted) != types(found):
        raise CaptureError(
            f"{where}: {name}: {what}: ({', '.join(types(wanted))}) and ({', '.join(types(found))}); make shapes and "
            "dtypes equal"
        )


def _cond(pred: Any, true_fn: Body, false_fn: Body, operands: Any) -> Any:
    leaves, structure = pytree.tree_flatten(tuple(operands))

    def flat(function: Body) -> Body:
        return lambda *values: function(*pytree.tree_unflatten(list(values), structure))

    bodies = _Bodies("torch.cond", [flat(true_fn), flat(false_fn)], [leaves, leaves])
    (first, form), (second, other) = map(pytree.tree_flatten, bodies.results)
    if form != other:
        raise CaptureError(f"{bodies.where}: torch.cond: its branches return different structures: {form} and {other}")
    _check_alike("torch.cond", bodies.where, "its branches return different types", first, second)
    if not _is_traced():
        return bodies.results[0]
    arguments = (*leaves, *bodies.captured)
    results = cond_op(pred, bodies.lifted(0, len(leaves)), bodies.lifted(1, len(leaves)), arguments)
    return pytree.tree_unflatten(list(results), form)


class _WithoutGradient(torch.autograd.Function):
    """The results of a while loop, whose gradient is an error with its line."""

    @staticmethod
    def forward(ctx: Any, where: str, count: int, *values: Any) -> Any:
        ctx.where = where
        results = tuple(v.view_as(v) for v in values[:count])
        ctx.mark_non_differentiable(*(r for r in results if not r.dtype.is_floating_point))
        return results

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise CaptureError(
            f"{ctx.where}: torch.while_loop has no gradient, since how often it runs is known only when it has run; "
            "write torch.scan over a fixed number of steps, with torch.where(done, old, new) for those that are not "
            "needed, or run the loop under torch.no_grad()"
        )


def _while_loop(cond_fn: Body, body_fn: Body, carried: Sequence[Any], additional: Sequence[Any] = ()) -> Any:
    name = "torch.while_loop"
    init = [torch.as_tensor(v) for v in carried]  # Python numbers too
    bodies = _Bodies(name, [cond_fn, body_fn], [init, init])
    flat, form = pytree.tree_flatten(bodies.results[1])
    _check_alike(name, bodies.where, "its body returns other types than it takes", init, flat)
    test = torch.as_tensor(bodies.results[0])
    if test.dtype != torch.bool or test.numel() != 1:
        raise CaptureError(
            f"{bodies.where}: {name}: its condition returns {str(test.dtype).removeprefix('torch.')}"
            f"{list(test.shape)}, expected one bool"
        )
    if not _is_traced():
        return bodies.results[1]
    condition, body = bodies.lifted(0, len(init)), bodies.lifted(1, len(init))
    outside = tuple(t.detach() for t in bodies.captured)
    start: Any = tuple(t.detach() for t in init)
    with torch.no_grad():
        results = while_loop_op(lambda *a: condition(*a)[0].reshape(()), body, start, outside)
    needed = [t for t in (*init, *bodies.captured) if t.requires_grad]
    if needed and torch.is_grad_enabled():
        results = _WithoutGradient.apply(bodies.where, len(results), *results, *needed)
    return pytree.tree_unflatten(list(results), form)


def _scan(combine: Body, init: Sequence[Any], xs: Sequence[Any]) -> Any:
    slices = [x.select(0, 0) for x in xs]
    bodies = _Bodies("torch.scan", [combine], [[*init, *slices]])
    (result,) = bodies.results
    if not isinstance(result, (tuple, list)) or len(result) != 2:
        raise CaptureError(
            f"{bodies.where}: torch.scan: its function returns two things, the carry and what is stacked"
        )
    (carry, carry_form), (outputs, form) = map(pytree.tree_flatten, result)
    _check_alike("torch.scan", bodies.where, "its function returns another carry than it takes", init, carry)
    if _is_traced():
        leaves = scan_op(bodies.lifted(0, len(init) + len(xs)), list(init), list(xs), bodies.captured)
    else:
        leaves = [*carry, *(o.unsqueeze(0).expand(xs[0].shape[0], *o.shape).clone() for o in outputs)]
    split = len(init)
    return (
        pytree.tree_unflatten(list(leaves[:split]), carry_form),
        pytree.tree_unflatten(list(leaves[split:]), form),
    )


_FORMS: dict[str, Callable[..., Any]] = {"_cond_op_wrapper": _cond, "_while_loop_op_wrapper": _while_loop}


def _call(fn: Any, args: Sequence[Any], kwargs: Any = None) -> Any:
    """In the place of torch's function that hands a control-flow operator to Dynamo."""
    form = _FORMS.get(getattr(fn, "__name__", ""))
    if form is None:
        return fn(*args, **(kwargs or {}))  # refused where it arrives
    return form(*args)


def _scan_call(fn: Any, *args: Any) -> Any:
    return _scan(*args)


# The package's attribute of this name is the function.
_scan_module = importlib.import_module("torch._higher_order_ops.scan")
PATCHES = ((hop_utils, "_hop_compile_and_call", _call), (_scan_module, "_maybe_compile_and_run_fn", _scan_call))
