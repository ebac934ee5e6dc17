"""Lowers a traced program to StableHLO faster than jax does.

jax makes a function of every equation that it has not met before and copies it in, which takes 0.16 ms; most equations
of a net are met once or twice. Here those of the commonest primitives are written where they stand (20 µs), with the
text that jax writes. Whatever has a form that is not covered here goes to jax.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import chlo, stablehlo
from jax.interpreters import mlir, partial_eval

# (result type, equation, operands) → the result, or None where jax is to write it.
Writer = Callable[[Any, Any, Sequence[Any]], Any]

_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "add": stablehlo.add,
    "sub": stablehlo.subtract,
    "mul": stablehlo.multiply,
    "div": stablehlo.divide,
    "max": stablehlo.maximum,
    "min": stablehlo.minimum,
    "neg": stablehlo.negate,
    "exp": stablehlo.exponential,
    "tanh": stablehlo.tanh,
    "sqrt": stablehlo.sqrt,
    "rsqrt": stablehlo.rsqrt,
    "erf": chlo.erf,
}


straight_p = jex.Primitive("straight")
straight_p.multiple_results = True


def straight(closed: jex.ClosedJaxpr, arguments: Sequence[Any]) -> list[Any]:
    """The results of a program without effects, as one equation of the trace that it is called in."""
    return straight_p.bind(*arguments, jaxpr=closed)


def traced_once(function: Callable[..., Any]) -> Callable[..., list[Any]]:
    """`function`, whose result is a list of arrays, as one equation. It is traced once for each type of its operands.

    Operands may be None, and named arguments are constants. Cheaper than a call of what jax.jit makes of it.
    """

    @functools.lru_cache(1024)
    def program(avals: tuple[Any, ...], constants: tuple[tuple[str, Any], ...]) -> jex.ClosedJaxpr:
        return jax.make_jaxpr(functools.partial(function, **dict(constants)))(*avals)

    def call(*operands: Any, **constants: Any) -> list[Any]:
        avals = tuple(None if x is None else jax.typeof(x) for x in operands)
        return straight(program(avals, tuple(constants.items())), [x for x in operands if x is not None])

    return call


def _lowering(ctx: Any, *arguments: Any, jaxpr: Any) -> Sequence[Any]:
    module = ctx.module_context
    types: dict[Any, Any] = {}
    locations: dict[tuple[str, str], Any] = {}
    env: dict[Any, Any] = dict(zip(jaxpr.jaxpr.invars, arguments))
    for variable, constant in zip(jaxpr.jaxpr.constvars, jaxpr.consts):
        env[variable] = mlir.ir_constant(constant, const_lowering=ctx.const_lowering, aval=variable.aval)

    def read(atom: Any) -> Any:
        if isinstance(atom, jex.Literal):
            return mlir.ir_constant(atom.val, const_lowering=ctx.const_lowering, aval=atom.aval)
        return env[atom]

    for eqn in jaxpr.jaxpr.eqns:
        name = eqn.primitive.name
        write, result = _WRITERS.get(name), None
        if write is not None and _is_plain(eqn):
            (aval,) = (v.aval for v in eqn.outvars)
            kind = types.get(aval)
            if kind is None:
                kind = types[aval] = mlir.aval_to_ir_type(module, aval)
            scope = str(eqn.source_info.name_stack)
            location = locations.get((scope, name))
            if location is None:  # the name that profiles of the compiled program show
                stack = "/".join(filter(None, (str(ctx.name_stack), scope, name)))
                location = locations[scope, name] = ir.Location.name(stack)
            with location:
                result = write(kind, eqn, [read(v) for v in eqn.invars])
        if result is not None:
            env[eqn.outvars[0]] = result
        else:
            env.update(zip(eqn.outvars, _by_jax(ctx, jaxpr.jaxpr, eqn, env)))
    return [read(v) for v in jaxpr.jaxpr.outvars]


def _is_plain(eqn: Any) -> bool:
    """Nothing about it needs more than its operator: real numbers on one device, of known shape."""
    context = eqn.ctx
    return not (eqn.effects or context.compute_type or context.xla_metadata) and all(
        isinstance(v.aval.dtype, np.dtype) and v.aval.dtype.kind != "c" and v.aval.sharding.mesh.empty
        for v in (*eqn.invars, *eqn.outvars)
    )


def _by_jax(ctx: Any, whole: Any, eqn: Any, env: dict[Any, Any]) -> Sequence[Any]:
    inner = eqn.params.get("jaxpr") if eqn.primitive is jex.primitives.jit_p else None
    if inner is not None and inner.jaxpr.eqns and not inner.effects:
        eqn = eqn.replace(params={**eqn.params, "jaxpr": _wrapped(inner)})
    variables = list(dict.fromkeys(v for v in eqn.invars if isinstance(v, jex.Var)))
    one = whole.replace(
        constvars=[],
        invars=variables,
        outvars=eqn.outvars,
        eqns=[eqn],
        debug_info=whole.debug_info._replace(arg_names=None, result_paths=None),
    )
    results, _ = mlir.jaxpr_subcomp(
        ctx.module_context,
        one,
        ctx.name_stack,
        ctx.tokens_in,
        (),
        *(env[v] for v in variables),
        dim_var_values=ctx.dim_var_values,
        const_lowering=ctx.const_lowering,
        outer_traceback=None,
    )
    return results


@functools.lru_cache(256)
def _wrapped(inner: jex.ClosedJaxpr) -> jex.ClosedJaxpr:
    """A function's program as a program of one equation, for `_lowering`."""
    new = jex.gensym()
    results = [new(v.aval) for v in inner.jaxpr.outvars]
    eqn = jex.new_jaxpr_eqn([*inner.jaxpr.invars], results, straight_p, {"jaxpr": inner}, jex.no_effects)
    jaxpr = inner.jaxpr.replace(constvars=[], outvars=results, eqns=[eqn])
    return jex.ClosedJaxpr(jaxpr, ())


def _elementwise(operator: Callable[..., Any], kind: Any, eqn: Any, operands: Sequence[Any]) -> Any:
    if any(value is not None for value in eqn.params.values()):
        return None
    rank = len(kind.shape)
    full = [
        x
        if v.aval.shape == eqn.outvars[0].aval.shape
        else stablehlo.broadcast_in_dim(
            ir.RankedTensorType.get(kind.shape, x.type.element_type), x, _integers(range(rank - v.aval.ndim, rank))
        )
        for v, x in zip(eqn.invars, operands)
    ]
    return operator(*full)


def _broadcast(kind: Any, eqn: Any, operands: Sequence[Any]) -> Any:
    if len(operands) > 1:
        return None
    return stablehlo.broadcast_in_dim(kind, operands[0], _integers(eqn.params["broadcast_dimensions"]))


def _reshape(kind: Any, eqn: Any, operands: Sequence[Any]) -> Any:
    if len(operands) > 1 or eqn.params["dimensions"] is not None:
        return None
    return stablehlo.reshape(kind, operands[0])


def _squeeze(kind: Any, eqn: Any, operands: Sequence[Any]) -> Any:
    return stablehlo.reshape(kind, operands[0])


def _transpose(kind: Any, eqn: Any, operands: Sequence[Any]) -> Any:
    return stablehlo.transpose(operands[0], _integers(eqn.params["permutation"]))


def _slice(kind: Any, eqn: Any, operands: Sequence[Any]) -> Any:
    start, limit, strides = (eqn.params[name] for name in ("start_indices", "limit_indices", "strides"))
    return stablehlo.slice(operands[0], _integers(start), _integers(limit), _integers(strides or [1] * len(start)))


def _pad(kind: Any, eqn: Any, operands: Sequence[Any]) -> Any:
    return stablehlo.pad(*operands, *map(_integers, zip(*eqn.params["padding_config"])))


def _concatenate(kind: Any, eqn: Any, operands: Sequence[Any]) -> Any:
    if len(operands) > 16:
        return None  # jax makes a tree of them
    return stablehlo.concatenate(operands, mlir.i64_attr(eqn.params["dimension"]))


def _product(kind: Any, eqn: Any, operands: Sequence[Any]) -> Any:
    types = {v.aval.dtype for v in (*eqn.invars, *eqn.outvars)}
    if eqn.params["precision"] is not None or len(types) > 1:
        return None
    (left, right), (batch_left, batch_right) = eqn.params["dimension_numbers"]
    dimensions = stablehlo.DotDimensionNumbers.get(
        lhs_batching_dimensions=list(batch_left),
        rhs_batching_dimensions=list(batch_right),
        lhs_contracting_dimensions=list(left),
        rhs_contracting_dimensions=list(right),
    )
    return stablehlo.dot_general(kind, operands[0], operands[1], dimensions, precision_config=_default_precision())


def _convolution(kind: Any, eqn: Any, operands: Sequence[Any]) -> Any:
    params = eqn.params
    if params["precision"] is not None:
        return None
    data, kernel, result = params["dimension_numbers"]
    rank = len(kernel) - 2
    dimensions = stablehlo.ConvDimensionNumbers.get(
        input_batch_dimension=data[0],
        input_feature_dimension=data[1],
        input_spatial_dimensions=list(data[2:]),
        kernel_output_feature_dimension=kernel[0],
        kernel_input_feature_dimension=kernel[1],
        kernel_spatial_dimensions=list(kernel[2:]),
        output_batch_dimension=result[0],
        output_feature_dimension=result[1],
        output_spatial_dimensions=list(result[2:]),
    )
    if not rank:
        return None
    return stablehlo.convolution(
        kind,
        operands[0],
        operands[1],
        dimension_numbers=dimensions,
        feature_group_count=mlir.i64_attr(params["feature_group_count"]),
        batch_group_count=mlir.i64_attr(params["batch_group_count"]),
        window_strides=_integers(params["window_strides"]),
        padding=mlir.dense_int_elements(params["padding"]),
        lhs_dilation=_integers(params["lhs_dilation"]),
        rhs_dilation=_integers(params["rhs_dilation"]),
        window_reversal=ir.DenseBoolArrayAttr.get([False] * rank),
        precision_config=_default_precision(),
    )


def _default_precision() -> Any:
    return ir.ArrayAttr.get([stablehlo.PrecisionAttr.get("DEFAULT")] * 2)


def _integers(values: Sequence[int]) -> Any:
    return ir.DenseI64ArrayAttr.get(list(values))


_WRITERS: dict[str, Writer] = {
    **{name: functools.partial(_elementwise, operator) for name, operator in _ELEMENTWISE.items()},
    "broadcast_in_dim": _broadcast,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "slice": _slice,
    "pad": _pad,
    "concatenate": _concatenate,
    "dot_general": _product,
    "conv_general_dilated": _convolution,
}


def _abstract(*avals: Any, jaxpr: Any) -> Sequence[Any]:
    return jaxpr.out_avals


def _run(*arguments: Any, jaxpr: Any) -> list[Any]:
    return jex.jaxpr_as_fun(jaxpr)(*arguments)


def _without_dead(used_results: list[bool], eqn: Any) -> tuple[list[bool], Any]:
    """The equation with nothing that only unused results need: as jax asks for it (see `partial_eval.dce_rules`)."""
    closed = eqn.params["jaxpr"]
    if not any(used_results):
        return [False] * len(eqn.invars), None
    if all(used_results):  # the usual case; what is dead inside of it, the compiler finds
        body = closed.jaxpr
        read = {v for atoms in (body.outvars, *(each.invars for each in body.eqns)) for v in _variables(atoms)}
        used = [v in read for v in body.invars]
        body = (
            body
            if all(used)
            else body.replace(
                invars=[v for v in body.invars if v in read],
                debug_info=body.debug_info._replace(arg_names=None, result_paths=None),
            )
        )
    else:
        body, used = partial_eval.dce_jaxpr(closed.jaxpr, used_results)
    operands, results = _kept(eqn.invars, used), _kept(eqn.outvars, used_results)
    params = {"jaxpr": jex.ClosedJaxpr(body, closed.consts)}
    return used, jex.new_jaxpr_eqn(operands, results, straight_p, params, eqn.effects, eqn.source_info, eqn.ctx)


def _variables(atoms: Sequence[Any]) -> list[Any]:
    return [v for v in atoms if isinstance(v, jex.Var)]


def _kept(items: Sequence[Any], keep: Sequence[bool]) -> list[Any]:
    return [item for item, wanted in zip(items, keep) if wanted]


straight_p.def_abstract_eval(_abstract)
straight_p.def_impl(_run)
mlir.register_lowering(straight_p, _lowering, cacheable=False)
partial_eval.dce_rules[straight_p] = _without_dead
