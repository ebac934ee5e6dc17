"""Computes once, when a model is compiled, what follows from its weights alone: layouts, transposes, folded scales.

The traced program is split. Steps that read nothing but weights, and whose results are no larger than what they read,
run now; the executable takes their results as arguments in the weights' place.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import onnx_ir as ir
from jax.core import ShapedArray
from jax.extend import linear_util
from jax.interpreters import partial_eval

from .apart import Border, apart
from .autocast import in_bfloat16
from .narrow import DtypeMap, narrowed
from .numpy_steps import evaluate, inner_of, is_numpy_step
from .placement import Placement, Shardings
from .platforms import traced_platform
from .random_keys import ENTROPY
from .scales import scaled_first
from .straight import straight
from .weights import Weights

# What takes a part of a weight.
_PARTS = {"slice", "split", "squeeze", "gather", "dynamic_slice"}
_DEBUG = jex.DebugInfo("jit", "model", None, None)


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """A traced function whose arguments are the caller's `inputs`, then `weights` (arrays of the device).

    `random`: it draws random numbers, from entropy that is its last argument.
    """

    traced: jax.stages.Traced
    weights: tuple[Any, ...]  # jax.Array, or ShapeDtypeStruct of a program that is never run
    random: bool
    shardings: Shardings


class Preparation:
    """Prepared weights of one model on one device, shared by its executables.

    compile_only: programs are made and never run, so that weights are types without data, prepared or not.
    types: what numbers of a type are computed as, where that is another (see `narrow`). bf16: see `autocast`.
    """

    def __init__(
        self,
        weights: Weights,
        placement: Placement,
        compile_only: bool = False,
        types: DtypeMap | None = None,
        bf16: bool = False,
    ) -> None:
        self._weights = weights
        self._types = types or {}
        self._bf16 = bf16
        self._placement = placement
        self._compile_only = compile_only
        self._arrays: dict[str, jax.Array] = {}
        self._lock = threading.Lock()

    def split(
        self,
        function: Callable[..., Any],
        inputs: Sequence[Any],
        values: Sequence[ir.Value],
        donated: tuple[int, ...] = (),
        arguments: Sequence[ir.Value] = (),
        results: Sequence[ir.Value] = (),
        border: Border | None = None,
    ) -> Program:
        """Trace and split ``function(inputs, weights, entropy)`` for the types `inputs` and the constants `values`.

        arguments, results: what the inputs and results are in the model. donated: positions of inputs whose memory the
        program may use for its results. Call with 64-bit types enabled.
        """
        structs = [self._weights.struct(value) for value in values]
        closed = narrowed(_traced(function, inputs, structs), self._types)
        if traced_platform() == "tpu":
            closed = scaled_first(closed)
        if self._bf16:
            closed = in_bfloat16(closed, len(donated))
        jaxpr = closed.jaxpr
        sources = dict(zip(jaxpr.invars[len(inputs) :], values))
        entropy = jaxpr.invars[-1]
        early, late = _partition(jaxpr, {v for v, value in sources.items() if not self._placement.is_split(value)})
        needed = dict.fromkeys(v for eqn in late for v in eqn.invars if isinstance(v, jex.Var))
        needed.update(dict.fromkeys(v for v in jaxpr.outvars if isinstance(v, jex.Var)))
        derived = {v for eqn in early for v in eqn.outvars}
        kept = [v for v in needed if v in sources or v in derived]
        arrays = self._arrays_of(closed, kept, early, sources)
        random = [entropy] if entropy in needed else []
        variables = [*jaxpr.invars[: len(inputs)], *kept, *random]
        rest = _closed(closed, variables, jaxpr.outvars, late)
        if border is not None:
            rest = apart(rest, border)
        if traced_platform() == "tpu":
            rest, arrays = self._with_vectors(rest, len(inputs), arrays, [sources.get(v) for v in kept])
        shardings = self._placement.shardings(arguments, arrays, bool(random), results, len(rest.out_avals))
        return Program(staged(rest, shardings, donated), arrays, bool(random), shardings)

    def _arrays_of(
        self, whole: Any, variables: list[Any], early: list[Any], sources: dict[Any, ir.Value]
    ) -> tuple[Any, ...]:
        """The device arrays of weights and prepared weights."""
        producers = {v: eqn for eqn in early for v in eqn.outvars}
        if self._compile_only:
            structs = ((v, jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype)) for v in variables)
            return tuple(self._placement.struct(struct, sources.get(v)) for v, struct in structs)
        keys = _Keys(producers, sources)
        with self._lock:
            missing = [v for v in variables if v in producers and keys[v] not in self._arrays]
            if missing:
                arrays = self._compute(whole, missing, early, sources)
                self._arrays.update((keys[v], array) for v, array in zip(missing, arrays))
            return tuple(
                self._arrays[keys[v]] if v in producers else self._weights.on_device(sources[v], self._placement)
                for v in variables
            )

    def _with_vectors(
        self, closed: Any, first: int, arrays: Sequence[Any], values: Sequence[ir.Value | None]
    ) -> tuple[Any, tuple[Any, ...]]:
        """The program with weights of one dimension larger than 1 as vectors, and the weights as it takes them.

        XLA's TPU compiler makes a reduction of every argument such as f32[1, 1, 768] that is added to a product's
        rows: 7 % of BERT's cycles. first: the position of the first weight. values: what the weights are in the model.
        """
        whole = (value is None or not self._placement.is_split(value) for value in values)
        flat = [w and a.ndim > 1 and a.size == max(a.shape) for w, a in zip(whole, arrays, strict=True)]
        given = tuple(self._as_vector(a) if f else a for f, a in zip(flat, arrays))
        types = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals]
        types[first : first + len(given)] = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in given]

        def function(*arguments: Any) -> list[Any]:
            shaped = [jnp.reshape(x, aval.shape) for x, aval in zip(arguments, closed.in_avals)]
            return jex.jaxpr_as_fun(closed)(*shaped)

        return jax.make_jaxpr(function)(*types) if any(flat) else closed, given

    def _as_vector(self, array: Any) -> Any:
        if isinstance(array, jax.ShapeDtypeStruct):
            return self._placement.struct(jax.ShapeDtypeStruct((array.size,), array.dtype), None)
        return array.reshape(-1)

    def _compute(
        self, whole: Any, wanted: list[Any], early: list[Any], sources: dict[Any, ir.Value]
    ) -> list[jax.Array]:
        needed, steps = set(wanted), []
        for eqn in reversed(early):
            if needed.intersection(eqn.outvars):
                steps.append(eqn)
                needed.update(v for v in eqn.invars if isinstance(v, jex.Var))
        read = [v for v in sources if v in needed]
        steps.reverse()
        arrays = [self._weights.read(sources[v]) for v in read]
        if all(map(is_numpy_step, steps)):
            results = evaluate(read, wanted, steps, arrays)
        else:
            with jax.default_device(self._placement.first):
                results = jax.jit(jex.jaxpr_as_fun(_closed(whole, read, wanted, steps)))(*arrays)
        return [self._placement.put(result) for result in results]


def _traced(function: Callable[..., Any], inputs: Sequence[Any], weights: Sequence[Any]) -> Any:
    """The program of ``function(inputs, weights, entropy)``. jax.make_jaxpr would take 15 µs more for every weight."""

    def flat(*arguments: Any) -> list[Any]:
        return function(list(arguments[: len(inputs)]), list(arguments[len(inputs) : -1]), arguments[-1])

    avals = [ShapedArray(x.shape, x.dtype) for x in (*inputs, *weights, ENTROPY)]
    jaxpr, _, consts = partial_eval.trace_to_jaxpr_dynamic(linear_util.wrap_init(flat, debug_info=_DEBUG), avals)
    return jex.ClosedJaxpr(jaxpr, consts)


def staged(closed: Any, shardings: Shardings, donated: tuple[int, ...] = ()) -> jax.stages.Traced:
    """A program as one that can be lowered for a device or mesh; `donated` as in `Preparation.split`."""
    jitted = jax.jit(
        functools.partial(_call, closed),
        in_shardings=shardings.arguments,
        out_shardings=shardings.results,
        keep_unused=False,
        donate_argnums=donated,
    )
    return jitted.trace(*(jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in closed.in_avals))


def _partition(jaxpr: Any, known: set[Any]) -> tuple[list[Any], list[Any]]:
    """The equations that can run before, and the others."""
    early: list[Any] = []
    parts: set[Any] = set()
    read_late = {v for v in jaxpr.outvars if isinstance(v, jex.Var)}
    for eqn in jaxpr.eqns:
        operands = _variables(eqn)
        before = bool(operands) and not eqn.effects and all(v in known for v in operands)
        if before and _is_small(eqn):
            known.update(eqn.outvars)
            early.append(eqn)
            if eqn.primitive.name in _PARTS or (parts & {*operands} and eqn.primitive.name != "concatenate"):
                parts.update(eqn.outvars)
        else:
            read_late.update(operands)
    # Parts of a weight run before only where they are put together again: else each would be an argument.
    kept: set[int] = set()
    for eqn in reversed(early):
        if parts & read_late.intersection(eqn.outvars):
            read_late.update(_variables(eqn))
        else:
            kept.add(id(eqn))
    return [e for e in early if id(e) in kept], [e for e in jaxpr.eqns if id(e) not in kept]


def _is_small(eqn: Any) -> bool:
    """Are the results no larger than what it reads, or those of every step of a call?"""
    if sum(map(_bytes, eqn.outvars)) <= sum(map(_bytes, _variables(eqn))):
        return True
    inner = inner_of(eqn)
    return inner is not None and all(map(_is_small, inner.eqns))


def _variables(eqn: Any) -> list[Any]:
    return [v for v in eqn.invars if isinstance(v, jex.Var)]


def _bytes(variable: Any) -> int:
    return variable.aval.size * variable.aval.dtype.itemsize


def _closed(whole: Any, inputs: list[Any], outputs: list[Any], eqns: list[Any]) -> Any:
    """A part of a program as a program."""
    debug = whole.jaxpr.debug_info._replace(arg_names=None, result_paths=None)
    jaxpr = whole.jaxpr.replace(invars=inputs, outvars=outputs, eqns=eqns, debug_info=debug)
    return jex.ClosedJaxpr(jaxpr, whole.consts)


def _call(closed: Any, *arguments: Any) -> list[Any]:
    """Run a program, as one equation: jex.jaxpr_as_fun would trace every one again."""
    return straight(closed, arguments)


class _Keys(dict[Any, str]):
    """What a variable is computed from, as a name that is the same in every trace of the model."""

    def __init__(self, producers: dict[Any, Any], sources: dict[Any, ir.Value]) -> None:
        super().__init__((v, f"weight {id(value)}") for v, value in sources.items())
        self._producers = producers

    def __missing__(self, variable: Any) -> str:
        eqn = self._producers[variable]
        operands = [repr(v.val) if isinstance(v, jex.Literal) else self[v] for v in eqn.invars]
        text = f"{eqn.primitive} {_text(eqn)} {operands} {eqn.outvars.index(variable)}"
        self[variable] = key = hashlib.sha256(text.encode()).hexdigest()
        return key


def _text(eqn: Any) -> str:
    inner = inner_of(eqn)
    return str(eqn.params) if inner is None else _text_of_program(inner)


@functools.lru_cache(256)
def _text_of_program(jaxpr: Any) -> str:
    return str(jaxpr)
