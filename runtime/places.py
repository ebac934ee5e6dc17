"""Reading many places of a program at every call: what they have in common (modules, dictionaries) is read once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pfvm.compiler.capture.reach import Place


class Places:
    """A fixed list of places, compiled to a list of reads."""

    def __init__(self, places: Sequence[Place | None]) -> None:
        self._reads: list[tuple[Callable[[Any], Any], int]] = []
        self._index: dict[int, int] = {}
        self._wanted = [-1 if place is None else self._add(place) for place in places]
        self._kept = list(places)  # the ids in _index are theirs

    def _add(self, place: Place) -> int:
        """The position of a place behind those that lead to it."""
        index = self._index.get(id(place))
        if index is None:
            parent = -1 if place.parent is None else self._add(place.parent)
            index = self._index[id(place)] = len(self._reads)
            self._reads.append((place.read, parent))
        return index

    def get(self, missing: Any = None) -> list[Any]:
        """What hangs in each place now; `missing` where nothing does, and for None."""
        found: list[Any] = []
        for read, parent in self._reads:
            try:
                found.append(read(None if parent < 0 else found[parent]))
            except (LookupError, AttributeError, TypeError):
                found.append(missing)
        return [missing if index < 0 else found[index] for index in self._wanted]
