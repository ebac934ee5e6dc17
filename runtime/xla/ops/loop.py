"""Loop: lax.scan where the number of iterations is known, else lax.while_loop; written out where it must be."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.errors import PfvmError
from pfvm.runtime.xla.apart import around
from pfvm.runtime.xla.bodies import (
    ShapeChanges,
    arrays,
    check_counts,
    check_dtypes,
    check_types,
    data_dependent,
    may_unroll,
    stack,
)
from pfvm.runtime.xla.body_flow import follows_iteration
from pfvm.runtime.xla.context import Context, NeedsValue
from pfvm.runtime.xla.range_checks import NOTHING, earlier
from pfvm.runtime.xla.registry import register

# Exporters write a loop without a trip count as one of 2^63 - 1 trips.
_COUNTABLE = 2**31


class _MayEndEarly(Exception):
    """The body's condition is not constantly true."""


@dataclasses.dataclass(eq=False)
class _Loop:
    """One Loop node. `invariant` are the carried values that the body hands on as they are."""

    ctx: Context
    body: ir.Graph
    initial: Sequence[Any]
    invariant: Sequence[bool]

    @property
    def carried(self) -> Sequence[ir.Value]:
        return self.body.inputs[2:]

    @property
    def scanned(self) -> Sequence[ir.Value]:
        return self.body.outputs[1 + len(self.initial) :]

    def step(self, i: Any, carried: Sequence[Any]) -> tuple[Any, list[Any], list[Any]]:
        """One iteration → (continue?, carried values, elements of the scan outputs)."""
        # The body sees a true condition always: otherwise it would not run.
        inputs = [self._scalar(0, i), self._scalar(1, np.asarray(True))]
        inputs += [a if same else b for a, b, same in zip(self.initial, carried, self.invariant)]
        go, *rest = self.ctx.run_body(self.body, inputs, i)
        return go, rest[: len(self.initial)], rest[len(self.initial) :]

    def checked_step(self, i: Any, carried: Sequence[Any]) -> tuple[Any, list[Any], list[Any], list[Any]]:
        """`step` inside lax control flow, with what its checks found: nothing, or one finding."""
        with self.ctx.checks.body() as findings:
            go, after, scanned = self.step(i, carried)
            return go, after, scanned, findings.returned()

    def _scalar(self, index: int, value: Any) -> Any:
        declared = self.body.inputs[index].shape
        return value.reshape((1,) * (declared.rank() if declared is not None else 0))

    def known(self, go: Any) -> bool | None:
        """The condition that an iteration returned, where it is known at compile time."""
        value = self.ctx.host_value(self.body.outputs[0], go)
        return None if value is None else bool(value.reshape(()))

    def results(self, carried: Sequence[Any], scanned: Sequence[Any]) -> list[Any]:
        """The node's outputs; invariants stay numpy where they were."""
        return [a if same else b for a, b, same in zip(self.initial, carried, self.invariant)] + list(scanned)

    def no_iteration(self) -> list[Any]:
        if not self.scanned:
            return list(self.initial)
        elements = jax.eval_shape(lambda: arrays(self.checked_step(np.asarray(0, np.int64), self.initial)[2]))
        return [*self.initial, *(np.zeros((0, *e.shape), e.dtype) for e in elements)]

    def counted(self, trips: int) -> list[Any]:
        """Exactly `trips` iterations. Raises _MayEndEarly, ShapeChanges."""

        def step(state: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], Any]:
            i, carried = state
            go, after, scanned, found = self.checked_step(i, carried)
            if not self.known(go):
                raise _MayEndEarly
            check_types(self.ctx, self.carried, carried, after)
            with around():
                return (i + 1, arrays(after)), (arrays(scanned), found)

        (_, carried), (scanned, found) = lax.scan(
            step, (jnp.asarray(0, jnp.int64), arrays(self.initial)), None, length=trips
        )
        self.ctx.checks.enter(found)
        return self.results(carried, scanned)

    def repeated(self, trips: Any, condition: Any) -> list[Any]:
        """While the condition holds, at most `trips` iterations (None: any number). Raises ShapeChanges."""

        checked: list[Any] = []

        def may_go(state: tuple[Any, ...]) -> Any:
            i, go, *_ = state
            return go if trips is None else jnp.logical_and(go, i < trips)

        def step(state: tuple[Any, ...]) -> tuple[Any, ...]:
            i, _, carried, before = state
            go, after, _, found = self.checked_step(i, carried)
            checked.extend(found)
            check_types(self.ctx, self.carried, carried, after)
            first = earlier(before, found[0]) if found else before
            with around():
                return i + 1, jnp.asarray(go).reshape(()), arrays(after), first

        state = (jnp.asarray(0, jnp.int64), jnp.asarray(condition), arrays(self.initial), jnp.asarray(NOTHING))
        *_, carried, first = lax.while_loop(may_go, step, state)
        self.ctx.checks.enter([first] if checked else [])
        return self.results(carried, [])

    def unrolled(self, trips: int | None, error: PfvmError | None = None) -> list[Any]:
        """Written out. `error` says why XLA cannot loop, for when it cannot be written out either."""
        carried: Sequence[Any] = self.initial
        elements: list[list[Any]] = []
        for i in itertools.count():
            go, after, scanned = self.step(np.asarray(i, np.int64), carried)
            check_dtypes(self.ctx, self.carried, carried, after)
            carried = after
            elements.append(scanned)
            if i + 1 == trips:
                break
            more = self.known(go)
            if more is None:
                raise NeedsValue(self.body.outputs[0], self.ctx.node, self.ctx.scope, error)
            if not more:
                break
            if not may_unroll(self.body, i + 2):
                raise error or self.too_long()
        columns = [stack(self.ctx, value.name, column) for value, column in zip(self.scanned, zip(*elements))]
        return self.results(carried, columns)

    def unknown_length(self) -> PfvmError:
        name = self.scanned[0].name
        return data_dependent(
            self.ctx, f"scan output {name!r} has one element per iteration, a number known at run time"
        )

    def too_long(self) -> PfvmError:
        return data_dependent(self.ctx, "its iterations must be known at compile time, and are too many to write out")


def loop(ctx: Context, node: ir.Node, trips: Any = None, condition: Any = None, *initial: Any) -> Any:
    """The condition that the body returns ends the loop also where the node is given none, as in ONNX Runtime."""
    body = ctx.attr("body")
    check_counts(ctx, body, 2 + len(initial), 1 + len(initial))
    this = _Loop(ctx, body, initial, [_passes(body, k) for k in range(len(initial))])
    limit = None if trips is None else trips.reshape(())
    start = np.asarray(True) if condition is None else condition.reshape(())
    known_limit = None if trips is None else ctx.known(trips)
    known_start = start if condition is None else ctx.known(condition)
    if (known_start is not None and not known_start) or (known_limit is not None and known_limit <= 0):
        return this.no_iteration()
    unknown = _unknown(ctx, trips if known_limit is None else None, condition if known_start is None else None)
    if unknown is None:
        count = None if known_limit is None else int(known_limit.reshape(()))
        return _started(this, count)
    if this.scanned:
        length = f"scan output {this.scanned[0].name!r} has one element for each iteration"
        raise NeedsValue(
            unknown, node, ctx.scope, data_dependent(ctx, f"{length}, and {unknown.name!r} is run-time data")
        )
    if ctx.force_host:
        raise NeedsValue(unknown, node, ctx.scope)
    try:
        return this.repeated(limit, start)
    except ShapeChanges as change:
        raise NeedsValue(unknown, node, ctx.scope, data_dependent(ctx, change.why)) from None


def _started(this: _Loop, trips: int | None) -> list[Any]:
    """A loop that runs at least once; `trips` is None where only the body's condition ends it."""
    if this.ctx.force_host or trips == 1:
        return this.unrolled(trips)
    try:
        # Where the condition hardly is constant, the body need not be traced twice to learn it.
        worth = this.scanned or not follows_iteration(this.body, this.body.outputs[0])
        if trips is not None and trips < _COUNTABLE and worth:
            try:
                return this.counted(trips)
            except _MayEndEarly:
                pass
        if not this.scanned:
            return this.repeated(None if trips is None else np.asarray(trips, np.int64), np.asarray(True))
    except ShapeChanges as change:
        return this.unrolled(trips, data_dependent(this.ctx, change.why))
    return this.unrolled(trips, this.unknown_length())


def _unknown(ctx: Context, *operands: Any) -> ir.Value | None:
    """The first of the node's operands that is not None, as the value that it stands for."""
    found = next((operand for operand in operands if operand is not None), None)
    return None if found is None else next(v for v, o in zip(ctx.node.inputs, ctx.operands) if o is found)


def _passes(body: ir.Graph, index: int) -> bool:
    """Does the body hand on carried value `index` as it is?"""
    value: ir.Value | None = body.outputs[1 + index]
    while value is not None and (producer := value.producer()) is not None and _is_identity(producer):
        value = producer.inputs[0]
    return value is body.inputs[2 + index]


def _is_identity(node: ir.Node) -> bool:
    return node.op_type == "Identity" and node.domain == ""


register("Loop", place="control")(loop)
