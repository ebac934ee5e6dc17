"""Which form of a model a TPU is given: as it is, or after the passes for TPUs, by the compiler's estimate."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
from pfvm.compiler.driver import compile_model
from pfvm.compiler.importer import read_model
from pfvm.compiler.options import parse
from pfvm.errors import DeviceMemoryError
from pfvm.passes.pipeline import TARGETS
from pfvm.runtime.synthesis import input_shapes

from .ahead import AheadExecutable
from .cycles import estimate
from .tpu_report import judged

logger = logging.getLogger(__name__)
AS_IT_IS = "as compiled"


class Choice(NamedTuple):
    """The executable that was chosen, its name, and the cycles of each form by name (None: no total, or no memory).

    at_least: the cycles of what is known of the forms that have no total.
    """

    executable: AheadExecutable
    name: str
    cycles: dict[str, int | None]
    at_least: dict[str, int]

    def report(self) -> dict[str, Any] | None:
        """For report.json; None where there was nothing to choose."""
        return {"chosen": self.name, "cycles": self.cycles, "at_least": self.at_least} if self.cycles else None


def choose(executable: AheadExecutable) -> Choice:
    """Compiles the model in both forms where there are two, and takes the one of fewer cycles.

    With effort "fast" nothing is compared: its estimates do not tell what "full" makes of a program. Raises what
    compiling the model as it is raises, but for DeviceMemoryError where the other form fits.
    """
    if executable.effort != "full":
        return Choice(executable, AS_IT_IS, {}, {})
    rewritten, name = _rewritten(executable)
    if rewritten is None:
        return Choice(executable, AS_IT_IS, {}, {})
    forms = {AS_IT_IS: executable, name: rewritten}
    cycles: dict[str, int | None] = {}
    at_least: dict[str, int] = {}
    failures: dict[str, DeviceMemoryError] = {}
    for form, each in forms.items():
        try:
            found = estimate(each.program.hlo)
        except DeviceMemoryError as error:
            cycles[form], failures[form] = None, error
            continue
        cycles[form] = judged(found, each.topology.chip)[0]
        if cycles[form] is None:
            at_least[form] = found.modelled
    if len(failures) == len(forms):
        raise failures[AS_IT_IS]
    best = best_of([form for form in forms if form not in failures], cycles, at_least)
    logger.info("%s: %s of %s", executable.name, best, cycles)
    return Choice(forms[best], best, cycles, at_least)


def best_of(fitting: Sequence[str], cycles: Mapping[str, int | None], at_least: Mapping[str, int]) -> str:
    """The form of fewest cycles. One without a total loses only to what takes no more than the part that is known."""
    known = {form: total for form in fitting if (total := cycles[form]) is not None}
    best = min(known, key=known.__getitem__, default=fitting[0])
    first = fitting[0]
    return best if first in known or known.get(best, 0) <= at_least[first] else first


def _rewritten(executable: AheadExecutable) -> tuple[AheadExecutable | None, str]:
    """The executable of the model after the passes of target tpu, and which matched; None where none did."""
    options = parse(opt_level=0, passes=("infer-shapes", *TARGETS["tpu"], "eliminate-dead-code"))
    result = compile_model(_of_fixed_shapes(executable), options)
    matched = list(dict.fromkeys(r.name for r in result.passes if r.name in TARGETS["tpu"] and r.matches))
    return (executable.of(result.model), ", ".join(matched)) if matched else (None, "")


def _of_fixed_shapes(executable: AheadExecutable) -> ir.Model:
    """A copy whose inputs have the shapes that are compiled for."""
    model = read_model(executable.model)
    shapes = input_shapes(model, executable.shapes)
    for value in model.graph.inputs:
        shape = shapes.get(value.name or "")
        if shape is not None:
            value.shape = ir.Shape(shape)
    return model
