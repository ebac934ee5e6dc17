"""If: the taken branch where the condition is known at compile time, else both branches under lax.cond."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import onnx_ir as ir
from jax import lax
from pfvm.errors import InvalidModelError, PfvmError
from pfvm.runtime.xla.bodies import arrays, data_dependent
from pfvm.runtime.xla.context import Context, NeedsValue
from pfvm.runtime.xla.registry import register

_BRANCHES = ("then_branch", "else_branch")


def if_(ctx: Context, node: ir.Node, condition: Any) -> Any:
    if condition.size != 1:
        raise InvalidModelError(f"{ctx.where}: the condition has shape {list(condition.shape)}, not []")
    known = ctx.known(condition)
    if known is not None:
        return ctx.run_body(ctx.attr(_BRANCHES[0] if known.reshape(()) else _BRANCHES[1]))
    request = NeedsValue(node.inputs[0], node, ctx.scope)  # type: ignore[arg-type]
    try:
        return _cond(ctx, condition.reshape(()))
    except NeedsValue as inner:
        raise inner.or_else(request) from None
    except PfvmError as error:
        # The branch may be one that these inputs never take.
        request.error = error
        raise request from error


def _cond(ctx: Context, condition: jax.Array) -> list[Any]:
    results: dict[str, list[Any]] = {}
    checked: list[bool] = []

    def branch(name: str) -> Callable[[], tuple[list[jax.Array], jax.Array]]:
        def run() -> tuple[list[jax.Array], jax.Array]:
            with ctx.checks.body() as findings:
                results[name] = ctx.run_body(ctx.attr(name))
                checked.append(bool(findings.items))
                found = findings.first()
            if len(results) == len(_BRANCHES):
                _check(ctx, *results.values())
            return arrays(results[name]), found

        return run

    traced, found = lax.cond(condition, branch(_BRANCHES[0]), branch(_BRANCHES[1]))
    if any(checked):
        ctx.checks.enter([found])
    return [
        a if isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.array_equal(a, b) else result
        for a, b, result in zip(*results.values(), traced)
    ]


def _check(ctx: Context, first: list[Any], second: list[Any]) -> None:
    if len(first) != len(second):
        raise InvalidModelError(f"{ctx.where}: its branches have {len(first)} and {len(second)} outputs")
    for index, (a, b) in enumerate(zip(first, second)):
        types = (
            f"output {index} ({ctx.node.outputs[index].name!r}) is {a.dtype}{list(a.shape)} from {_BRANCHES[0]} and "
            f"{b.dtype}{list(b.shape)} from {_BRANCHES[1]}"
        )
        if a.dtype != b.dtype:
            raise InvalidModelError(f"{ctx.where}: {types}")
        if a.shape != b.shape:
            raise data_dependent(ctx, types)


register("If", place="control")(if_)
