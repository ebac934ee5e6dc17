"""Recurrent layers: one product for the inputs of all time steps, then a lax.scan over time for each direction.

Shapes inside: x is (time, batch, features), a state (batch, hidden); `layout=1` is brought to that at the rim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.ops.quantization import dynamic_quantization
from pfvm.runtime.xla.registry import register

Function = Callable[[Any], Any]
State = tuple[Any, ...]

# What each activation needs beyond its operand: defaults of (alpha, beta); None: the node must give it.
_PARAMETERS: dict[str, dict[str, float | None]] = {
    "affine": {"alpha": 1.0, "beta": 0.0},
    "elu": {"alpha": 1.0},
    "hardsigmoid": {"alpha": 0.2, "beta": 0.5},
    "leakyrelu": {"alpha": 0.01},
    "scaledtanh": {"alpha": None, "beta": None},
    "thresholdedrelu": {"alpha": 1.0},
}
_ACTIVATIONS: dict[str, Callable[..., Any]] = {
    "affine": lambda x, alpha, beta: alpha * x + beta,
    "elu": lambda x, alpha: jnp.where(x > 0, x, alpha * jnp.expm1(jnp.minimum(x, 0))),
    "hardsigmoid": lambda x, alpha, beta: jnp.clip(alpha * x + beta, 0, 1),
    "leakyrelu": lambda x, alpha: jnp.where(x >= 0, x, alpha * x),
    "relu": lambda x: jnp.maximum(x, 0),
    "scaledtanh": lambda x, alpha, beta: alpha * jnp.tanh(beta * x),
    "sigmoid": jax.nn.sigmoid,
    "softplus": lambda x: jnp.logaddexp(x, jnp.zeros((), x.dtype)),
    "softsign": lambda x: x / (1 + jnp.abs(x)),
    "tanh": jnp.tanh,
    "thresholdedrelu": lambda x, alpha: jnp.where(x > alpha, x, 0),
}


class Cell(NamedTuple):
    """One direction: what the inputs contribute at every step (time, batch, gates), and how a step goes on."""

    project: Callable[[Any], Any]
    step: Callable[[State, Any], State]


def rnn(ctx: Context, node: ir.Node, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None) -> Any:
    functions = _activations(ctx, ["Tanh"])
    x, w, r, b, h = _wide(x, w, r, b, h)

    def cell(d: int) -> Cell:
        bias = 0 if b is None else b[d].reshape(2, -1).sum(0)
        (f,) = functions[d]
        return Cell(lambda v: jnp.matmul(v, w[d].T) + bias, lambda s, inputs: (f(inputs + jnp.matmul(s[0], r[d].T)),))

    return _unroll(ctx, x, lengths, [h], r.shape[-1], cell)


def gru(ctx: Context, node: ir.Node, x: Any, w: Any, r: Any, b: Any = None, lengths: Any = None, h: Any = None) -> Any:
    """Gates z, r, h. linear_before_reset: the reset gate scales the recurrent product instead of its operand."""
    functions = _activations(ctx, ["Sigmoid", "Tanh"])
    reset_after = bool(ctx.attr("linear_before_reset", 0))
    x, w, r, b, h = _wide(x, w, r, b, h)

    def cell(d: int) -> Cell:
        f, g = functions[d]
        zero = jnp.zeros((), x.dtype)
        input_bias, state_bias = (zero, zero) if b is None else jnp.split(b[d], 2)
        gates, candidate = jnp.split(r[d], [2 * r.shape[-1]])
        if b is None or not reset_after:
            input_bias, candidate_bias = input_bias + state_bias, zero
        else:
            rest, candidate_bias = jnp.split(state_bias, [2 * r.shape[-1]])
            input_bias = input_bias.at[: rest.shape[0]].add(rest)

        def step(state: State, inputs: Any) -> State:
            (previous,) = state
            of_update, of_reset, of_candidate = jnp.split(inputs, 3, axis=-1)
            to_update, to_reset = jnp.split(jnp.matmul(previous, gates.T), 2, axis=-1)
            update, reset = f(of_update + to_update), f(of_reset + to_reset)
            if reset_after:
                inner = reset * (jnp.matmul(previous, candidate.T) + candidate_bias)
            else:
                inner = jnp.matmul(reset * previous, candidate.T)
            return ((1 - update) * g(of_candidate + inner) + update * previous,)

        return Cell(lambda v: jnp.matmul(v, w[d].T) + input_bias, step)

    return _unroll(ctx, x, lengths, [h], r.shape[-1], cell)


def lstm(
    ctx: Context,
    node: ir.Node,
    x: Any,
    w: Any,
    r: Any,
    b: Any = None,
    lengths: Any = None,
    h: Any = None,
    c: Any = None,
    peepholes: Any = None,
) -> Any:
    x, w, r, b, h, c, peepholes = _wide(x, w, r, b, h, c, peepholes)
    inputs = [lambda v, d=d: jnp.matmul(v, w[d].T) for d in range(w.shape[0])]
    states = [lambda v, d=d: jnp.matmul(v, r[d].T) for d in range(w.shape[0])]
    return _lstm(ctx, x, inputs, states, r.shape[-1], b, lengths, h, c, peepholes)


def _lstm(
    ctx: Context,
    x: Any,
    of_input: Sequence[Function],
    of_state: Sequence[Function],
    hidden: int,
    b: Any,
    lengths: Any,
    h: Any,
    c: Any,
    peepholes: Any,
) -> Any:
    """Gates i, o, f, c. `of_input` and `of_state` multiply by the weights of each direction."""
    functions = _activations(ctx, ["Sigmoid", "Tanh", "Tanh"])
    coupled = bool(ctx.attr("input_forget", 0))

    def cell(d: int) -> Cell:
        f, g, output = functions[d]
        bias = 0 if b is None else b[d].reshape(2, -1).sum(0)
        peep_i, peep_o, peep_f = (0, 0, 0) if peepholes is None else jnp.split(peepholes[d], 3)

        def step(state: State, inputs: Any) -> State:
            previous, memory = state
            gates = inputs + of_state[d](previous)
            gate_i, gate_o, gate_f, candidate = jnp.split(gates, 4, axis=-1)
            admit = f(gate_i + peep_i * memory)
            keep = 1 - admit if coupled else f(gate_f + peep_f * memory)
            memory = keep * memory + admit * g(candidate)
            return f(gate_o + peep_o * memory) * output(memory), memory

        return Cell(lambda v: of_input[d](v) + bias, step)

    return _unroll(ctx, x, lengths, [h, c], hidden, cell)


def dynamic_quantize_lstm(
    ctx: Context,
    node: ir.Node,
    x: Any,
    w: Any,
    r: Any,
    b: Any,
    lengths: Any,
    h: Any,
    c: Any,
    peepholes: Any,
    *scales_and_zeros: Any,
) -> Any:
    """Weights in 8 bits, transposed: (directions, features, gates). Inputs and state are quantized at every product."""
    w_scale, w_zero, r_scale, r_zero = scales_and_zeros
    inputs = [_quantized_product(w[d], w_scale[d], w_zero[d]) for d in range(w.shape[0])]
    states = [_quantized_product(r[d], r_scale[d], r_zero[d]) for d in range(w.shape[0])]
    return _lstm(ctx, x, inputs, states, r.shape[1], b, lengths, h, c, peepholes)


def _quantized_product(weight: Any, scale: Any, zero: Any) -> Function:
    difference = weight.astype(jnp.int32) - zero.astype(jnp.int32)

    def product(x: Any) -> Any:
        quantized, step, shift = dynamic_quantization(x)
        total = jnp.matmul(quantized.astype(jnp.int32) - shift.astype(jnp.int32), difference)
        return total.astype(jnp.float32) * (step * scale)

    return product


def _wide(*operands: Any) -> tuple[Any, ...]:
    """Half-precision operands in float32: rounding at every step would add up."""
    return tuple(
        o if o is None else o.astype(jnp.float32) if o.dtype.itemsize < 4 else jnp.asarray(o) for o in operands
    )


def _unroll(
    ctx: Context, x: Any, lengths: Any, initial: Sequence[Any], hidden: int, cell: Callable[[int], Cell]
) -> Any:
    """Y (time, directions, batch, hidden) and the last states (directions, batch, hidden), in the node's layout."""
    batch_first = bool(ctx.attr("layout", 0))
    result = ctx.operands[0].dtype
    if batch_first:
        x = jnp.swapaxes(x, 0, 1)
        initial = [None if s is None else jnp.swapaxes(s, 0, 1) for s in initial]
    if lengths is not None:  # what lies beyond every sequence must not reach a product
        longest = jnp.max(lengths, initial=0)
        x = jnp.where(jnp.arange(x.shape[0])[:, None, None] < longest, x, jnp.zeros((), x.dtype))
    outputs, finals = [], []
    for d in range(_directions(ctx)):
        state = tuple(jnp.zeros((x.shape[1], hidden), x.dtype) if s is None else s[d] for s in initial)
        backward = d == 1 or ctx.attr("direction") == "reverse"
        y, final = _over_time(cell(d), _reversed(x, lengths) if backward else x, state, lengths)
        outputs.append(_reversed(y, lengths) if backward else y)
        finals.append(final)
    y = jnp.stack(outputs, axis=1)
    last = [jnp.stack(states) for states in zip(*finals)]
    if batch_first:
        y, last = y.transpose(2, 0, 1, 3), [jnp.swapaxes(s, 0, 1) for s in last]
    return tuple(v.astype(result) for v in (y, *last))


def _over_time(cell: Cell, x: Any, state: State, lengths: Any) -> tuple[Any, State]:
    """Sequences that have ended keep their state and put out zeros. Empty ones end with zeros, as on ONNX Runtime."""

    def step(before: State, this: tuple[Any, Any]) -> tuple[State, Any]:
        inputs, time = this
        after = cell.step(before, inputs)
        if lengths is None:
            return after, after[0]
        alive = (time < lengths)[:, None]
        kept = tuple(jnp.where(alive, new, old) for new, old in zip(after, before))
        return kept, jnp.where(alive, after[0], jnp.zeros((), after[0].dtype))

    final, y = lax.scan(step, state, (cell.project(x), jnp.arange(x.shape[0])))
    if lengths is not None:
        final = tuple(jnp.where((lengths > 0)[:, None], s, jnp.zeros((), s.dtype)) for s in final)
    return y, final


def _reversed(x: Any, lengths: Any) -> Any:
    """Each sequence backwards in time, in place: what follows its end stays behind it."""
    if lengths is None:
        return jnp.flip(x, 0)
    steps = jnp.arange(x.shape[0])[:, None]
    index = jnp.where(steps < lengths, lengths - 1 - steps, steps)
    return jnp.take_along_axis(x, index[:, :, None], axis=0)


def _directions(ctx: Context) -> int:
    return 2 if ctx.attr("direction") == "bidirectional" else 1


def _activations(ctx: Context, defaults: list[str], clipped: int = 2) -> list[list[Function]]:
    """For each direction its activations. Parameters are taken in order of need.

    `clip` bounds the operands of the first `clipped`: the gates, but, as on ONNX Runtime, not LSTM's cell state.
    """
    directions = _directions(ctx)
    names = ctx.attr("activations", None) or defaults * directions
    if len(names) != len(defaults) * directions:
        raise ctx.unsupported(f"{len(names)} activations for {directions} directions")
    given = {name: iter(ctx.attr(f"activation_{name}", None) or []) for name in ("alpha", "beta")}
    limit = ctx.attr("clip", None)
    limits = [limit if i < clipped else None for i in range(len(defaults))] * directions
    functions = [_activation(ctx, name, given, bound) for name, bound in zip(names, limits)]
    return [functions[i : i + len(defaults)] for i in range(0, len(functions), len(defaults))]


def _activation(ctx: Context, name: str, given: dict[str, Iterator[float]], limit: float | None) -> Function:
    function = _ACTIVATIONS.get(name.lower())
    if function is None:
        raise ctx.unsupported(f"activation {name!r}")
    needed = _PARAMETERS.get(name.lower(), {})
    parameters = {key: next(given[key], default) for key, default in needed.items()}
    missing = [key for key, value in parameters.items() if value is None]
    if missing:
        raise ctx.unsupported(f"activation {name!r} without activation_{missing[0]}")

    def apply(x: Any) -> Any:
        clipped = x if not limit else jnp.clip(x, -limit, limit)
        return function(clipped, **{key: np.asarray(value, x.dtype) for key, value in parameters.items()})

    return apply


register("RNN")(rnn)
register("GRU")(gru)
register("LSTM")(lstm)
register("DynamicQuantizeLSTM", domain="com.microsoft")(dynamic_quantize_lstm)
