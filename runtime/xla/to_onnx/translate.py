"""Walks a jaxpr and writes an ONNX node, or a few, for every equation."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from typing import Any

import jax.extend.core as jex
import numpy as np
import onnx_ir as ir
from pfvm.compiler.grad.builder import Builder

from .dims import Dims

# rule(t, eqn, *operands) → the equation's result, or a sequence of its results
Rule = Callable[..., Any]

_RULES: dict[str, Rule] = {}
_loaded = False


class NoOnnxForm(Exception):
    """A primitive, or a form of one, that no ONNX operator expresses."""


def lowers(*primitives: str) -> Callable[[Rule], Rule]:
    """Enter one rule for these primitives of jax.lax."""

    def enter(rule: Rule) -> Rule:
        for name in primitives:
            if name in _RULES:
                raise ValueError(f"two rules for {name}")
            _RULES[name] = rule
        return rule

    return enter


class Translator:
    """Writes programs with a builder. Values of enclosing programs may be read from the bodies of loops."""

    def __init__(self, b: Builder, dims: Dims) -> None:
        self.b = b
        self.dims = dims

    def run(self, jaxpr: Any, consts: Sequence[Any], operands: Sequence[ir.Value]) -> list[ir.Value]:
        """The results of a jaxpr for these operands. Only equations that a result needs are written.

        Raises NoOnnxForm.
        """
        env: dict[Any, ir.Value] = dict(zip(jaxpr.invars, operands))
        for variable, array in zip(jaxpr.constvars, consts):
            env[variable] = array if isinstance(array, ir.Value) else self.constant(array)
        for eqn in _live(jaxpr):
            for variable, value in zip(eqn.outvars, self.equation(eqn, [self._read(v, env) for v in eqn.invars])):
                if value is not None:
                    env[variable] = value
        return [self._read(v, env) for v in jaxpr.outvars]

    def equation(self, eqn: Any, operands: list[ir.Value]) -> list[ir.Value | None]:
        """The results of one equation, with the types of the trace."""
        rule = lookup(eqn.primitive.name)
        if rule is None:
            raise NoOnnxForm(f"jax.lax primitive {eqn.primitive.name!r} has no ONNX form")
        found = rule(self, eqn, *operands)
        results = list(found) if isinstance(found, (list, tuple)) else [found]
        for variable, value in zip(eqn.outvars, results):
            if isinstance(value, ir.Value) and value.producer() is not None:
                value.type, value.shape = ir.TensorType(dtype_of(variable.aval)), shape_of(variable.aval)
        return results

    def inline(self, closed: Any, operands: Sequence[ir.Value]) -> list[ir.Value]:
        """The results of a program inside the program."""
        inner = getattr(closed, "jaxpr", closed)
        return self.run(inner, getattr(closed, "consts", ()), operands)

    def _read(self, atom: Any, env: dict[Any, ir.Value]) -> ir.Value:
        if isinstance(atom, jex.Literal):
            return self.constant(np.asarray(atom.val, atom.aval.dtype))  # type: ignore[attr-defined]
        return env[atom]

    def constant(self, array: Any) -> ir.Value:
        return self.b.constant(np.asarray(array))

    def reshape(self, value: ir.Value, sizes: Sequence[Any]) -> ir.Value:
        """To these sizes; nothing where it has them."""
        if value.shape is not None and list(_sizes(value)) == list(sizes):
            return value
        new = self.b.op("Reshape", value, self.dims.reshape_target(sizes))
        new.shape = to_shape(sizes)
        return new


def lookup(primitive: str) -> Rule | None:
    """The rule of a primitive, or None."""
    global _loaded
    if not _loaded:
        package = importlib.import_module(__package__ or "")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")
        _loaded = True
    return _RULES.get(primitive)


def _live(jaxpr: Any) -> list[Any]:
    """The equations that the results need, in order."""
    needed = {v for v in jaxpr.outvars if isinstance(v, jex.Var)}
    kept = []
    for eqn in reversed(jaxpr.eqns):
        if needed.intersection(eqn.outvars):
            kept.append(eqn)
            needed.update(v for v in eqn.invars if isinstance(v, jex.Var))
    return kept[::-1]


def dtype_of(aval: Any) -> ir.DataType:
    return ir.DataType.from_numpy(np.dtype(aval.dtype))


def shape_of(aval: Any) -> ir.Shape:
    return to_shape(aval.shape)


def to_shape(sizes: Sequence[Any]) -> ir.Shape:
    """Sizes of a trace as a shape; expressions of symbolic dims keep their text, which only equals itself."""
    return ir.Shape([int(s) if isinstance(s, (int, np.integer)) else f"traced_{s}".replace(" ", "") for s in sizes])


def _sizes(value: ir.Value) -> list[Any]:
    return [d if isinstance(d, int) else d.value for d in value.shape or ()]


def out_shape(eqn: Any, index: int = 0) -> tuple[Any, ...]:
    """The sizes of a result in the trace."""
    return tuple(eqn.outvars[index].aval.shape)


def in_shape(eqn: Any, index: int = 0) -> tuple[Any, ...]:
    """The sizes of an operand in the trace."""
    return tuple(eqn.invars[index].aval.shape)


def static(sizes: Sequence[Any], what: str) -> list[int]:
    """Sizes that must be numbers here. Raises NoOnnxForm."""
    if not all(isinstance(size, (int, np.integer)) for size in sizes):
        raise NoOnnxForm(f"{what} needs sizes that are numbers, not {tuple(map(str, sizes))}; fix the inputs' shapes")
    return [int(size) for size in sizes]
