"""What can be wrong with a model after a pass: other numbers, an invalid file, another signature, or a crash."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import onnx
import onnx_ir as ir
from pfvm.compiler.exporter import PROTOBUF_LIMIT, to_proto, weight_bytes
from pfvm.errors import InputError, PfvmError, one_line
from pfvm.runtime.compare import Tolerance, difference, is_finite
from pfvm.runtime.executable import specs_of
from pfvm.runtime.noise import noise_note
from pfvm.runtime.oracle import Oracle
from pfvm.runtime.synthesis import Fill, workable
from pfvm.tools.check import signature_differences

Kind = Literal["numbers", "invalid", "crash"]


@dataclass(frozen=True)
class Fault:
    """What is wrong. `case` and `feeds`: the inputs that show it, for numbers. note: what rounding may have done.

    error: the type of the exception, for a crash.
    """

    kind: Kind
    message: str
    case: str = ""
    feeds: Mapping[str, Any] | None = None
    note: str = ""
    error: str = ""

    def is_like(self, other: Fault | None) -> bool:
        """Whether the other one may be the same fault, seen on a smaller graph."""
        return other is not None and self.kind == other.kind and self.error == other.error

    @classmethod
    def crash(cls, error: Exception) -> Fault:
        return cls("crash", one_line(error), error=type(error).__name__)


class Case(NamedTuple):
    """Inputs with the original's outputs. Of large inputs, what rounding explains is no fault."""

    name: str
    feeds: Mapping[str, Any]
    outputs: Mapping[str, Any]
    is_large: bool = False


_NAMES: dict[Fill, str] = {"zero": "all-zero inputs", "large": "large inputs"}


class Judge:
    """Knows the original's answers: ONNX Runtime without optimizations, else onnx.reference, as `pfvm check`.

    feeds: use these inputs; else three random draws, all zeros and large numbers are made up. Outputs that differ
    between two runs of the original are random and not compared. Raises InputError where the original runs on nothing.
    """

    def __init__(
        self,
        original: ir.Model,
        feeds: Mapping[str, Any] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        tolerance: Tolerance | None = None,
        seeds: Sequence[int] = (0, 1, 2),
    ) -> None:
        self.original = original
        self.tolerance = tolerance or Tolerance()
        self.oracle = Oracle(original)
        self.cases = self._made_up(shapes or {}, seeds) if feeds is None else [
            Case("the given inputs", feeds, self.oracle(feeds))
        ]  # fmt: skip
        self.random = {
            name
            for case in self.cases
            for name, again in self.oracle(case.feeds).items()
            if name in case.outputs and difference(name, case.outputs[name], again, self.tolerance) is not None
        }
        self._is_checked = _checker_says(original) is None

    def _made_up(self, shapes: Mapping[str, Sequence[int]], seeds: Sequence[int]) -> list[Case]:
        fills: list[tuple[int, Fill]] = [(seed, "random") for seed in seeds]
        fills = [*fills, (0, "zero"), (0, "large")] if specs_of(self.original)[0] else fills[:1]
        found, refused = [], None
        for seed, fill in fills:
            try:
                feeds, outputs = workable(self.original, self.oracle, seed, shapes, fill)
            except InputError as error:
                refused = error
                continue
            if fill == "large":
                outputs = {name: value for name, value in outputs.items() if is_finite(value)}
            found.append(Case(_NAMES.get(fill, f"seed {seed}"), feeds, outputs, fill == "large"))
        if refused is not None and not found:
            raise refused
        return found

    def fault(self, model: ir.Model) -> Fault | None:
        """The first thing that is wrong with the model; None when it does what the original does."""
        try:
            signature = signature_differences(self.original, model)
            if signature:
                return Fault("invalid", f"the signature changed: {signature[0]}")
            says = _checker_says(model) if self._is_checked else None
            if says is not None:
                return Fault("invalid", says)
            run = Oracle(model)
        except PfvmError as error:
            return Fault("invalid", f"the model no longer runs: {error}")
        for case in self.cases:
            found = self._numbers(run, case)
            if found is not None:
                return found
        return None

    def _numbers(self, run: Oracle, case: Case) -> Fault | None:
        try:
            outputs = run(case.feeds)
        except PfvmError as error:
            return Fault("invalid", f"with {case.name}, the model no longer runs: {error}", case.name, case.feeds)
        for name, expected in case.outputs.items():
            if name in self.random:
                continue
            found = difference(name, expected, outputs.get(name), self.tolerance)
            if found is not None:
                other = outputs.get(name)
                note = noise_note(name, expected, other, self.oracle, case.feeds, self.tolerance)
                if note and case.is_large:
                    continue
                return Fault("numbers", f"output {found}", case.name, case.feeds, note or "")
        return None


def _checker_says(model: ir.Model) -> str | None:
    """What onnx's checker has against a model, types and shapes included; None for nothing, or one too large for it."""
    if weight_bytes(model) > PROTOBUF_LIMIT // 2:
        return None
    proto = to_proto(model)
    try:
        onnx.checker.check_model(proto, full_check=True)
    except Exception as error:  # it raises several types, from C++ too
        return f"onnx's checker refuses the model: {one_line(error)}"
    return None
