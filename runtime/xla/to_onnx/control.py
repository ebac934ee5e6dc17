"""Calls, scans, loops and branches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
from pfvm.compiler.importer import DECLARED_SHAPE
from pfvm.passes.view import constant

from .translate import NoOnnxForm, Translator, dtype_of, lowers, shape_of

_CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint", "custom_jvp_call",
          "custom_vjp_call", "custom_vjp_call_jaxpr", "custom_lin")  # fmt: skip


@lowers(*_CALLS)
def _call(t: Translator, eqn: Any, *operands: ir.Value) -> list[ir.Value]:
    for name in ("jaxpr", "call_jaxpr", "fun_jaxpr"):
        if name in eqn.params:
            return t.inline(eqn.params[name], operands)
    raise NoOnnxForm(f"{eqn.primitive.name} without a program has no ONNX form")


def _formals(t: Translator, variables: Sequence[Any], hint: str) -> list[ir.Value]:
    made = [t.b.input(f"{hint}_in", dtype_of(v.aval), list(shape_of(v.aval))) for v in variables]  # type: ignore[arg-type]
    for value in made:
        _declare(value)
    return made


def _declare(value: ir.Value) -> None:
    """Say the shape in the file even where inference will not find it: ONNX Runtime's Scan asks for one."""
    if value.shape is not None:
        dims = [d if isinstance(d, int) else ir.SymbolicDim(None) for d in value.shape]
        value.meta[DECLARED_SHAPE] = ir.Shape(dims)


def _close(t: Translator, graph: ir.Graph, results: Sequence[ir.Value]) -> None:
    """Make the results the outputs of a body: each computed there, and once."""
    own = {out for node in graph for out in node.outputs}
    seen: set[ir.Value] = set()
    for value in results:
        final = value if value in own and value not in seen else t.b.op("Identity", value)
        final.type, final.shape = value.type, value.shape
        _declare(final)
        seen.add(final)
        graph.outputs.append(final)


@lowers("scan")
def _scan(t: Translator, eqn: Any, *operands: ir.Value) -> Any:
    p, b = eqn.params, t.b
    closed, constants, carries = p["jaxpr"], p["num_consts"], p["num_carry"]
    outer, carried, scanned = (
        operands[:constants],
        operands[constants : constants + carries],
        operands[constants + carries :],
    )
    variables = closed.jaxpr.invars[constants:]
    with b.body("step") as graph:
        formals = _formals(t, variables, "step")
        counter = [] if scanned else [b.input("step_number", ir.DataType.INT64, [])]
        results = t.inline(closed, [*outer, *formals])
        _close(t, graph, results)
    numbers = [] if scanned else [_numbers(t, p["length"])]
    stacked = len(results) - carries
    backwards = int(p["reverse"])
    return b.ops(
        len(results),
        "Scan", *carried, *scanned, *numbers, body=graph,
        num_scan_inputs=len(scanned) + len(counter),
        scan_input_directions=[backwards] * (len(scanned) + len(counter)) if backwards else None,
        scan_output_directions=[backwards] * stacked if backwards and stacked else None,
    )  # fmt: skip


def _numbers(t: Translator, length: Any) -> ir.Value:
    if isinstance(length, (int, np.integer)):
        return t.constant(np.arange(length, dtype=np.int64))
    zero, one = t.b.constant(np.int64(0)), t.b.constant(np.int64(1))
    return t.b.op("Range", zero, t.b.op("Squeeze", t.dims.vector([length])), one)


@lowers("while")
def _while(t: Translator, eqn: Any, *operands: ir.Value) -> Any:
    p, b = eqn.params, t.b
    nc, nb = p["cond_nconsts"], p["body_nconsts"]
    for_cond, for_body, carried = operands[:nc], operands[nc : nc + nb], operands[nc + nb :]
    (first,) = t.inline(p["cond_jaxpr"], [*for_cond, *carried])
    with b.body("iteration") as graph:
        b.input("iteration_number", ir.DataType.INT64, [])
        b.input("continues", ir.DataType.BOOL, [])
        formals = _formals(t, p["body_jaxpr"].jaxpr.invars[nb:], "iteration")
        results = t.inline(p["body_jaxpr"], [*for_body, *formals])
        (again,) = t.inline(p["cond_jaxpr"], [*for_cond, *results])
        _close(t, graph, [again, *results])
    return b.ops(len(results), "Loop", None, first, *carried, body=graph)


@lowers("cond")
def _cond(t: Translator, eqn: Any, which: ir.Value, *operands: ir.Value) -> Any:
    branches = eqn.params["branches"]
    known = 0 if len(branches) == 1 else constant(which)
    if known is not None:
        return t.inline(branches[min(max(int(known), 0), len(branches) - 1)], operands)

    def make(index: int) -> Callable[[], list[ir.Value]]:
        if index == len(branches) - 1:
            return lambda: t.inline(branches[index], operands)
        return lambda: _if(t, _equal(t, which, index), lambda: t.inline(branches[index], operands), make(index + 1))

    return make(0)()


@lowers("platform_index")
def _platform_index(t: Translator, eqn: Any) -> ir.Value:
    """Which branch of a lax.platform_dependent is taken: the default one, ONNX being no platform of XLA's."""
    platforms = list(eqn.params["platforms"])
    return t.constant(np.int32(platforms.index(None) if None in platforms else len(platforms) - 1))


def _equal(t: Translator, which: ir.Value, index: int) -> ir.Value:
    if which.dtype == ir.DataType.BOOL:
        return t.b.op("Not", which) if index == 0 else which
    limit = t.b.like(index, which)
    return t.b.op("LessOrEqual" if index == 0 else "Equal", which, limit)


def _if(
    t: Translator, condition: ir.Value, then: Callable[[], list[ir.Value]], other: Callable[[], list[ir.Value]]
) -> list[ir.Value]:
    graphs = []
    for name, write in (("then", then), ("else", other)):
        with t.b.body(name) as graph:
            results = write()
            _close(t, graph, results)
        graphs.append(graph)
    return list(t.b.ops(len(results), "If", condition, then_branch=graphs[0], else_branch=graphs[1]))
