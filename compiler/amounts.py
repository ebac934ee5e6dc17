"""Counts that depend on sizes known only at run time: polynomials of symbolic dims."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir
from pfvm.passes import dims

Atom = str
"""A symbolic dim as shape inference writes it, an expression too, or a number of iterations."""


class Amount:
    """A sum of products of atoms with non-negative integer factors. Immutable."""

    __slots__ = ("terms",)

    def __init__(self, terms: Mapping[tuple[Atom, ...], int] | None = None) -> None:
        self.terms = {atoms: factor for atoms, factor in (terms or {}).items() if factor}

    @classmethod
    def of(cls, number: int | Amount) -> Amount:
        return number if isinstance(number, Amount) else cls({(): number})

    @classmethod
    def atom(cls, name: Atom) -> Amount:
        return cls({(name,): 1})

    def __add__(self, other: int | Amount) -> Amount:
        terms = dict(self.terms)
        for atoms, factor in Amount.of(other).terms.items():
            terms[atoms] = terms.get(atoms, 0) + factor
        return Amount(terms)

    def __mul__(self, other: int | Amount) -> Amount:
        terms: dict[tuple[Atom, ...], int] = {}
        for a, x in self.terms.items():
            for b, y in Amount.of(other).terms.items():
                atoms = tuple(sorted((*a, *b)))
                terms[atoms] = terms.get(atoms, 0) + x * y
        return Amount(terms)

    __radd__, __rmul__ = __add__, __mul__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, (int, Amount)) and self.terms == Amount.of(other).terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    @staticmethod
    def most(amounts: Iterable[int | Amount]) -> Amount:
        """The largest, whatever the atoms are: term by term, so it may be more than each of several."""
        terms: dict[tuple[Atom, ...], int] = {}
        for amount in amounts:
            for atoms, factor in Amount.of(amount).terms.items():
                terms[atoms] = max(terms.get(atoms, 0), factor)
        return Amount(terms)

    @property
    def atoms(self) -> list[Atom]:
        """All atoms, in order of their names."""
        return sorted({atom for atoms in self.terms for atom in atoms})

    def value(self, size_of: Callable[[Atom], int]) -> int:
        """The number for these sizes of the atoms."""
        total = 0
        for atoms, factor in self.terms.items():
            for atom in atoms:
                factor *= size_of(atom)
            total += factor
        return total

    def formula(self, most_terms: int | None = None) -> str:
        """ "2,048·batch² + 10"; terms of many atoms first, and after `most_terms` how many more there are."""
        ordered = sorted(self.terms.items(), key=lambda term: (-len(term[0]), -term[1], term[0]))
        shown = [_term(*term) for term in ordered[:most_terms]]
        if len(shown) < len(ordered):
            shown.append(f"{len(ordered) - len(shown)} more terms")
        return " + ".join(shown) or "0"


_POWERS = {1: "", 2: "²", 3: "³"}


def _term(atoms: tuple[Atom, ...], factor: int) -> str:
    parts = [f"{factor:,}"] if factor != 1 or not atoms else []
    for atom in dict.fromkeys(atoms):
        count = atoms.count(atom)
        name = atom if atom.replace("_", "").isalnum() else f"({atom})"
        parts.append(name + _POWERS.get(count, f"^{count}"))
    return "·".join(parts)


@functools.cache
def dim_amount(name: Atom) -> Amount:
    """A symbolic dim, which may be an expression: `8*floor(h/2) + 8` is 8·(floor(h/2) + 1)."""
    expression = None if dims.is_symbol(name) else ir.SymbolicDim(name)._expr  # sympy's, which has no public name
    if expression is None:
        return Amount.atom(name)
    content, rest = expression.as_content_primitive()
    if not content.is_Integer or content <= 0:
        return Amount.atom(name)
    found = Amount.of(int(content))
    for part in rest.args if rest.is_Mul else (rest,):
        base, power = part.as_base_exp()
        if not power.is_Integer or power <= 0:
            return Amount.atom(name)
        for _ in range(int(power)):
            found = found * (1 if base == 1 else Amount.atom(str(base)))
    return found


def symbols(atom: Atom) -> set[str]:
    """The symbols whose sizes an atom depends on."""
    if atom.startswith(ITERATIONS):
        return set()
    return set(dims.symbols(ir.SymbolicDim(atom)))


def atom_size(atom: Atom, sizes: Mapping[str, int]) -> int:
    """The size of an atom for these sizes of the symbols in it, 1 for others; a loop of unknown length runs once."""
    if atom.startswith(ITERATIONS):
        return 1
    if dims.is_symbol(atom):
        return max(0, sizes.get(atom, 1))
    found = ir.SymbolicDim(atom).evaluate({symbol: sizes.get(symbol, 1) for symbol in symbols(atom)})
    return max(0, found) if isinstance(found, int) else 0


ITERATIONS = "iterations of "
"""How the atom of a loop whose iterations are not known begins."""
