"""Names of values: the user's come first, everything internal steps aside."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


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


def short_names(states: Iterable[Any]) -> dict[str, str]:
    """Names of a training step's state without the module's variable, where there is one module only.

    "model.linear1.weight" → "linear1.weight". Hyperparameters keep the optimizer's: "optimizer.lr".
    """
    states = [s for s in states if s.kind not in ("hyperparameter", "rng")]
    heads = {s.name.partition(".")[0] for s in states if "." in s.name}
    if len(heads) != 1:
        return {}
    prefix = f"{heads.pop()}."
    return {s.name: s.name.removeprefix(prefix) for s in states if s.name.startswith(prefix)}
