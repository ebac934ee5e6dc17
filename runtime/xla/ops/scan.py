"""Scan: lax.scan over slices of its inputs; written out where an iteration must be known at compile time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.runtime.xla.apart import around
from pfvm.runtime.xla.batch_hint import as_batch
from pfvm.runtime.xla.bodies import ShapeChanges, arrays, check_counts, check_types, data_dependent, may_unroll, stack
from pfvm.runtime.xla.context import Context, MisfitError
from pfvm.runtime.xla.registry import register


@dataclasses.dataclass(eq=False)
class _Scan:
    """One Scan node with `states` state variables; its scan inputs have the sequence first."""

    ctx: Context
    body: ir.Graph
    states: int

    def step(self, t: Any, carried: Sequence[Any], elements: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Iteration `t` → (states, elements of the scan outputs). Raises MisfitError where a state changes."""
        results = self.ctx.run_body(self.body, [*carried, *elements], t)
        after = results[: self.states]
        try:
            check_types(self.ctx, self.body.inputs[: self.states], carried, after)
        except ShapeChanges as change:
            raise MisfitError(f"{self.ctx.where}: {change.why}") from None
        return after, results[self.states :]

    def run(self, initial: Sequence[Any], sequences: Sequence[Any], length: int, first: Any = 0) -> tuple[Any, Any]:
        """All iterations; `first` is the number of the first."""
        if self.ctx.force_host and length:
            return self.unrolled(initial, sequences, length)

        def step(state: tuple[Any, Any], elements: Any) -> tuple[Any, Any]:
            t, carried = state
            with self.ctx.checks.body() as findings:
                if not self.ctx.scope.iterations:
                    elements = [as_batch(x) for x in elements]
                after, scanned = self.step(t, carried, elements)
                with around():
                    return (t + 1, arrays(after)), (arrays(scanned), findings.returned())

        state = (jnp.asarray(first, jnp.int64), arrays(initial))
        (_, carried), (scanned, found) = lax.scan(step, state, arrays(sequences), length=length)
        self.ctx.checks.enter(found)
        return carried, scanned

    def unrolled(
        self, carried: Sequence[Any], sequences: Sequence[Any], length: int
    ) -> tuple[Sequence[Any], list[Any]]:
        if not may_unroll(self.body, length):
            raise data_dependent(
                self.ctx, f"its {length} iterations must be known at compile time, too many to write out"
            )
        columns = []
        for t in range(length):
            elements = [np.asarray(s[t]) if _on_host(s) else s[t] for s in sequences]
            carried, scanned = self.step(t, carried, elements)
            columns.append(scanned)
        names = self.body.outputs[self.states :]
        return carried, [stack(self.ctx, v.name, column) for v, column in zip(names, zip(*columns))]

    def ragged(self, initial: Sequence[Any], sequences: Sequence[Any], valid: Any, first: Any) -> tuple[Any, Any]:
        """Only the first `valid` iterations count: states stay, and scan outputs are zero after them."""

        def step(state: Any, elements: Any) -> tuple[Any, Any]:
            t, carried = state
            with self.ctx.checks.body() as findings:
                after, scanned = self.step(first + t, carried, elements)
                counts = t < valid
                kept = [jnp.where(counts, new, old) for new, old in zip(arrays(after), carried)]
                ys, found = (
                    [jnp.where(counts, y, jnp.zeros_like(y)) for y in each]
                    for each in (arrays(scanned), findings.returned())
                )
                return (t + 1, kept), (ys, found)

        state = (jnp.asarray(0, jnp.int64), arrays(initial))
        (_, carried), (scanned, found) = lax.scan(step, state, arrays(sequences))
        self.ctx.checks.enter(found)
        return carried, scanned


def scan(ctx: Context, node: ir.Node, *operands: Any) -> Any:
    """Scan of opset 9 and later: any axis of each scan input and output, any direction."""
    count = ctx.attr("num_scan_inputs")
    this = _scan(ctx, len(operands), count)
    initial, inputs = operands[: this.states], operands[this.states :]
    axes = ctx.attr("scan_input_axes") or [0] * count
    backward = ctx.attr("scan_input_directions") or [0] * count
    sequences = [_oriented(x, axis, flip) for x, axis, flip in zip(inputs, axes, backward, strict=True)]
    carried, scanned = this.run(initial, sequences, _length(ctx, [s.shape[0] for s in sequences]))
    axes = ctx.attr("scan_output_axes") or [0] * len(scanned)
    backward = ctx.attr("scan_output_directions") or [0] * len(scanned)
    outputs = []
    for y, axis, flip in zip(scanned, axes, backward, strict=True):
        xp = np if _on_host(y) else jnp
        outputs.append(xp.moveaxis(xp.flip(y, 0) if flip else y, 0, axis))
    return [*carried, *outputs]


def scan_8(ctx: Context, node: ir.Node, lengths: Any, *operands: Any) -> Any:
    """Scan of opset 8: a batch axis 0 in states, scan inputs and outputs, the sequence on axis 1.

    A sequence is as long as `lengths` (int64[batch]) says; a backward direction starts at its last element.
    """
    count = ctx.attr("num_scan_inputs")
    this = _scan(ctx, len(operands), count)
    initial, sequences = arrays(operands[: this.states]), arrays(operands[this.states :])
    backward = ctx.attr("directions", None) or [0] * count
    length = _length(ctx, [s.shape[1] for s in sequences])
    batch = sequences[0].shape[0]
    if any(x.ndim == 0 or x.shape[0] != batch for x in (*initial, *sequences)):
        raise MisfitError(f"{ctx.where}: all of its states and scan inputs need one batch size")
    firsts = jnp.arange(batch, dtype=jnp.int64) * length  # an iteration of one batch element is none of another
    if lengths is None:
        whole = [jnp.flip(s, 1) if flip else s for s, flip in zip(sequences, backward, strict=True)]
        return _batched(ctx, lambda a, b, first: this.run(a, b, length, first), initial, whole, firsts)

    def one(states: Any, elements: Any, valid: Any, first: Any) -> Any:
        order = jnp.clip(valid - 1 - jnp.arange(length), 0, None)
        turned = [s[order] if flip else s for s, flip in zip(elements, backward, strict=True)]
        return this.ragged(states, turned, valid, first)

    return _batched(ctx, one, initial, sequences, jnp.asarray(lengths), firsts)


def _batched(ctx: Context, scan_one: Callable[..., tuple[Any, Any]], *operands: Any) -> list[Any]:
    """The states and scan outputs of every batch element."""

    def one(*elements: Any) -> tuple[list[Any], list[Any]]:
        with ctx.checks.body() as findings:
            carried, scanned = scan_one(*elements)
            return arrays([*carried, *scanned]), findings.returned()

    results, found = jax.vmap(one)(*operands)
    ctx.checks.enter(found)
    return results


def _scan(ctx: Context, given: int, count: int) -> _Scan:
    body = ctx.attr("body")
    check_counts(ctx, body, given, given - count)
    return _Scan(ctx, body, given - count)


def _oriented(x: Any, axis: int, backward: int) -> Any:
    """`x` with the sequence first and in the order of the iterations."""
    xp = np if _on_host(x) else jnp
    x = xp.moveaxis(x, axis, 0)
    return xp.flip(x, 0) if backward else x


def _length(ctx: Context, lengths: list[int]) -> int:
    if len(set(lengths)) != 1:
        raise MisfitError(f"{ctx.where}: its scan inputs have lengths {lengths}, not one length")
    return lengths[0]


def _on_host(x: Any) -> bool:
    return isinstance(x, np.ndarray)


register("Scan", since=8, place="control")(scan_8)
register("Scan", since=9, place="control")(scan)
