"""Names of values: the user's come first, everything internal steps aside."""

from __future__ import annotations

from collections.abc import Iterable


class Names:
    """Hands out each name once."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)
        self._next: dict[str, int] = {}

    def take(self, wanted: str) -> str:
        """`wanted`, or `wanted_1`, `wanted_2`, … when it is taken."""
        name = wanted
        while name in self._taken:
            self._next[wanted] = self._next.get(wanted, 0) + 1
            name = f"{wanted}_{self._next[wanted]}"
        self._taken.add(name)
        return name
