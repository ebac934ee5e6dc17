"""`--verify`: after every pass that changed something, the model still computes what the original did."""

from __future__ import annotations

from typing import Any, NamedTuple

import onnx_ir as ir
from pfvm.errors import InputError, MismatchError, PfvmError

from .compare import Tolerance, difference, is_finite, scaled_error
from .noise import noise_note
from .oracle import Oracle
from .synthesis import Fill, workable

_CASES: tuple[tuple[int, Fill], ...] = ((0, "random"), (1, "random"), (0, "zero"), (0, "large"))


def make_verifier(original: ir.Model) -> Verifier:
    """A verifier that compares with `original`. Raises InputError when no data can be made up for it."""
    return Verifier(original)


class Case(NamedTuple):
    """Inputs, and the original's outputs. Large inputs saturate what is bounded; a passing overflow says nothing."""

    feeds: dict[str, Any]
    outputs: dict[str, Any]
    is_large: bool


class Verifier:
    """Holds the original's answers for a few made-up inputs; called with the model after each pass.

    What an ill-conditioned model makes of rounding is no fault of a pass: see `noise`.
    """

    def __init__(self, original: ir.Model, tolerance: Tolerance | None = None) -> None:
        self._tolerance = tolerance or Tolerance()
        self.oracle = Oracle(original)
        self._cases = self._made_up(original)
        # A random op answers differently every time: such outputs are only compared in kind.
        self._random = {
            name
            for case in self._cases
            for name, again in self.oracle(case.feeds).items()
            if name in case.outputs and difference(name, case.outputs[name], again, self._tolerance) is not None
        }

    def _made_up(self, original: ir.Model) -> list[Case]:
        """The cases that the original accepts: all zeros are not for every model."""
        cases, refused = [], None
        for seed, fill in _CASES:
            try:
                feeds, outputs = workable(original, self.oracle, seed, fill=fill)
            except InputError as error:
                refused = error
                continue
            if fill == "large":
                outputs = {name: value for name, value in outputs.items() if is_finite(value)}
            cases.append(Case(feeds, outputs, fill == "large"))
        if refused is not None and not cases:
            raise refused
        return cases

    def __call__(self, model: ir.Model, pass_name: str) -> float:
        """Largest error, relative to each output's scale. Raises MismatchError that names the pass and the output."""
        try:
            executable = Oracle(model)
            results = [executable(case.feeds) for case in self._cases]
        except PfvmError as error:
            raise MismatchError(f"after pass {pass_name} the model no longer runs: {error}") from error
        return max(self._compare(case, got, pass_name) for case, got in zip(self._cases, results))

    def _compare(self, case: Case, outputs: dict[str, Any], pass_name: str) -> float:
        largest = 0.0
        for name, expected in case.outputs.items():
            if name in self._random:
                continue
            found = difference(name, expected, outputs.get(name), self._tolerance)
            if found is not None and not self._is_noise(name, case, outputs.get(name)):
                raise MismatchError(f"pass {pass_name} changed output {found} (allowed: {self._tolerance})")
            largest = max(largest, 0.0 if case.is_large else scaled_error(expected, outputs[name]))
        return largest

    def _is_noise(self, name: str, case: Case, other: Any) -> bool:
        """Whether the original itself moves about as far when its inputs move a little.

        What has no distance (integers, bools, strings) may differ for large inputs only.
        """
        expected = case.outputs[name]
        if noise_note(name, expected, other, self.oracle, case.feeds, self._tolerance) is None:
            return False
        return case.is_large or scaled_error(expected, other) > 0
