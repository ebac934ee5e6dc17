"""Indices that are known only while a program runs are checked there: the program returns the first that is wrong.

XLA's gathers clamp an index that is out of range, and a program cannot raise. So every check leaves its finding, and a
program with checks has one result more: a pair of the check's number (0: nothing is wrong) and the index. Bodies of lax
control flow hand their findings out as results, so that a branch that is not taken, or an iteration that does not run,
finds nothing.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx_ir as ir
from pfvm.errors import InputError

from .apart import around

# A finding is int64[2].
NOTHING = np.zeros(2, np.int64)


@dataclasses.dataclass(eq=False)
class Findings:
    """What the checks of one body, or of the whole program, have found: one finding for each check."""

    items: list[jax.Array] = dataclasses.field(default_factory=list)

    def first(self) -> jax.Array:
        """The first finding, or NOTHING."""
        with around():
            found = jnp.asarray(NOTHING)
            for item in self.items:
                found = earlier(found, item)
            return found

    def returned(self) -> list[jax.Array]:
        """What a body has to return besides its results: the first finding, nothing where it checks nothing."""
        return [self.first()] if self.items else []


def earlier(first: Any, second: Any) -> jax.Array:
    """The first of two findings that is one."""
    with around():
        return jnp.where(first[0] != 0, first, second)


class RangeChecks:
    """The checks of one trace.

    judged: nodes whose indices are known to be right before the program starts; active: False checks nothing.
    messages: those of a program that was traced earlier, to judge its findings.
    """

    def __init__(self, judged: Container[ir.Node] = (), active: bool = True, messages: Iterable[str] = ()) -> None:
        self._judged = judged
        self._active = active
        self._messages = list(messages)
        self._bodies = [Findings()]
        # Arguments of the program → the finding, where it is known before the program runs (see `early_checks`).
        self.early: Callable[[Sequence[Any]], Any] | None = None

    @property
    def messages(self) -> list[str]:
        """What a finding means, by its number, from 1."""
        return list(self._messages)

    @property
    def total(self) -> Findings:
        """The findings of the whole program."""
        return self._bodies[0]

    @contextlib.contextmanager
    def body(self) -> Iterator[Findings]:
        """While a body of lax control flow is traced: its findings, which the body must return, for `enter`."""
        findings = Findings()
        self._bodies.append(findings)
        try:
            yield findings
        finally:
            self._bodies.pop()

    def enter(self, returned: Sequence[Any]) -> None:
        """Take over what a body returned (see `Findings.returned`), from all iterations along any leading axes."""
        with around():
            rows = [found.reshape(-1, 2) for found in returned]
            self._bodies[-1].items += [each[jnp.argmax(each[:, 0] != 0)] for each in rows if each.shape[0]]

    def expect(self, node: ir.Node, where: str, indices: Any, size: int, axis: str, lowest: int | None = None) -> None:
        """Every index must be in [lowest, size), by default [-size, size).

        where: how the message names the node; axis: what is indexed.
        """
        lowest = -size if lowest is None else lowest
        if not self._active or node in self._judged or not math.prod(indices.shape):
            return
        allowed = f"expected {lowest} to {size - 1}" if size else "it has no elements"
        message = f"{where}: the index {{}} is out of range for {axis} of size {size}: {allowed}"
        if isinstance(indices, np.ndarray) and indices.min() >= lowest and indices.max() < size:
            return
        self._messages.append(message.replace("{}", "\0"))
        with around():
            wide = jnp.asarray(indices).astype(jnp.int64)
            low, high = jnp.min(wide), jnp.max(wide)
            number = jnp.where((low < lowest) | (high >= size), len(self._messages), 0)
            self._bodies[-1].items.append(jnp.stack([number, jnp.where(high >= size, high, low)]).astype(jnp.int64))

    def judge(self, found: Any) -> None:
        """Raises InputError where a program's finding is one."""
        number, index = np.asarray(found).tolist()
        if number:
            raise InputError(self._messages[number - 1].replace("\0", str(index)))
