"""Python numbers that a step reads or changes, as inputs of the graph: learning rate, betas, step counts.

While the function is traced each number is a symbol of torch's shape environment, so that arithmetic on it becomes part
of the graph, in float64 as Python computes it. Where Python asks something of it (`if weight_decay != 0`), torch notes
a guard: the graph holds only while the answer is the same, which is checked when the number changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import sympy
import torch
from pfvm.compiler.signature import Kind
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv

from .reach import Place

Symbolic = (torch.SymInt, torch.SymFloat)


@dataclass(frozen=True)
class ReachedNumber:
    """A number, its readable path ("optimizer.lr") and where it is read at each call.

    `is_initial` says that nothing is there yet, and that `value` is where a step starts then. `later` is where the
    number of the second step and all after it is read, where the first step has another.
    """

    name: str
    value: float | int
    place: Place
    kind: Kind
    is_initial: bool = False
    later: Place | None = None

    def current(self) -> float | int:
        """The number there now, as a float where it was one. LookupError where it is gone, TypeError for no number."""
        try:
            value = self.place.get()
        except LookupError:
            if not self.is_initial:
                raise
            value = self.value
        value = value.item() if isinstance(value, np.generic) else value
        if not is_number(value):
            raise TypeError(f"{self.name} is {value!r}, which is no number")
        return type(self.value)(value)


@dataclass(frozen=True)
class NumberGuard:
    """A condition on lifted numbers that the traced path took for granted, and the source line that asked."""

    condition: Any
    symbols: Mapping[Any, str]
    where: str

    @property
    def names(self) -> frozenset[str]:
        """The numbers that it reads."""
        return frozenset(self.symbols[s] for s in self.condition.free_symbols)

    def holds(self, values: Mapping[str, float | int]) -> bool:
        """Whether the path is still the right one. A condition that cannot be decided does not hold."""
        known = {s: _as_sympy(values[self.symbols[s]]) for s in self.condition.free_symbols}
        return bool(self.condition.xreplace(known) == True)  # noqa: E712

    def __str__(self) -> str:
        named = {s: sympy.Symbol(name) for s, name in self.symbols.items()}
        return str(self.condition.xreplace(named))


def _as_sympy(value: float | int) -> Any:
    return sympy.Float(value) if isinstance(value, float) else sympy.Integer(value)


class NumberSymbols:
    """Makes the symbols of one trace, and knows which guards are about them."""

    def __init__(self, shape_env: ShapeEnv) -> None:
        self._shape_env = shape_env
        self._names: dict[Any, str] = {}

    def symbol(self, number: ReachedNumber) -> Any:
        """A SymFloat or SymInt whose hint is the number's value; no value of it, 0 and 1 included, is special."""
        source = ConstantSource(f"number_{len(self._names)}")
        expression = self._shape_env.create_unspecified_symbol(number.value, source, dynamic_dim=DimDynamic.DYNAMIC)
        self._names[expression] = number.name
        if isinstance(number.value, float):
            return self._shape_env.create_symfloatnode(expression, hint=number.value, source=source)
        return self._shape_env.create_symintnode(expression, hint=number.value, source=source)

    def is_about_numbers(self, condition: Any) -> bool:
        """Whether lifted numbers, and nothing else, decide a guard."""
        return bool(condition.free_symbols) and condition.free_symbols <= self._names.keys()

    def guards(self) -> list[NumberGuard]:
        """The conditions that the trace took for granted, each once."""
        found: dict[Any, NumberGuard] = {}
        for guard in self._shape_env.guards:
            if self.is_about_numbers(guard.expr):
                location = guard.sloc.maybe_user_loc or ""
                found.setdefault(guard.expr, NumberGuard(guard.expr, self._names, location.partition(" in ")[0]))
        return list(found.values())


def is_number(value: Any) -> bool:
    """A plain Python int or float; not a bool."""
    return type(value) in (int, float)
