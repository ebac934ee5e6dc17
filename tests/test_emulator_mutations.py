"""Promise: a plan that is wrong in one place is caught: by an error that names the place, or by a wrong result.

Each mutant has one value's stride, address, last use or padding corrupted. What raises is named; what runs gives the
reference's outputs (the fault was harmless) or differs from them (it was wrong). What is named runs once more with the
checks off: where it gives the reference's outputs all the same, the check was only strict, and nothing harmful was
caught. Of faults that do harm 99 % must be named.
"""

from __future__ import annotations

import collections
import dataclasses
import random
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from emulator_plans import compiled_mlp, emulated, feeds_for
from pfvm.compiler.plan.layout import Layout, LayoutError, SubAxis
from pfvm.compiler.plan.mngraph import UPLOAD, values
from pfvm.compiler.plan.placement import IMMEDIATE, find_placement, place, placement_of
from pfvm.compiler.plan.planner import Plan, plan
from pfvm.errors import PfvmError
from pfvm.runtime.emulator import memory, program, steps
from pfvm.runtime.emulator import values as values_in
from pfvm.runtime.emulator.program import Program
from pfvm.runtime.emulator.reference import Reference
from test_emulator_program import ATTENTION, CNN, model_of

Mutation = tuple[str, ir.Value, object]


def movable(model: ir.Model) -> list[ir.Value]:
    """The values that have a place in a memory."""
    placed = [value for value in values(model) if find_placement(value) is not None]
    return [value for value in placed if placement_of(value).location != IMMEDIATE]


def stride(value: ir.Value, rng: random.Random, planned: Plan) -> object:
    """Another stride of one of the value's subaxes."""
    placement = placement_of(value)
    layout = placement.layout
    at = [(i, j) for i, axis in enumerate(layout.axes) for j, sub in enumerate(axis) if sub.size > 1]
    if not at:
        return None
    i, j = rng.choice(at)
    sub = layout.axes[i][j]
    wrong = rng.choice([s for s in (1, 2, 3, 4, sub.stride * 2, sub.stride + 1) if s != sub.stride])
    axis = (*layout.axes[i][:j], SubAxis(sub.size, sub.level, wrong), *layout.axes[i][j + 1 :])
    axes = (*layout.axes[:i], axis, *layout.axes[i + 1 :])
    return dataclasses.replace(placement, layout=Layout(layout.shape, axes, layout.copies))


def address(value: ir.Value, rng: random.Random, planned: Plan) -> object:
    """Another address, near or far."""
    placement = placement_of(value)
    place_of = planned.machine.memory(str(placement.location))
    step = rng.choice([1, place_of.units_per_long_word, place_of.granularity * place_of.units_per_long_word])
    return dataclasses.replace(placement, address=(placement.address or 0) + rng.choice([-2, -1, 1, 2, 5]) * step)


def last_use(value: ir.Value, rng: random.Random, planned: Plan) -> object:
    """The address of another value of the same memory, as if that one were dead."""
    placement = placement_of(value)
    others = [
        placement_of(other).address
        for other in movable(planned.model)
        if placement_of(other).location == placement.location and placement_of(other).address != placement.address
    ]
    return dataclasses.replace(placement, address=rng.choice(others)) if others else None


def padding(value: ir.Value, rng: random.Random, planned: Plan) -> object:
    """Another state of its padding."""
    placement = placement_of(value)
    if not placement.layout.is_padded:
        return None
    states = [pad for pad in ("Zero", "Dirty", "Lowest", "One") if pad != placement.pad]
    return dataclasses.replace(placement, pad=rng.choice(states))


KINDS = {"stride": stride, "address": address, "last use": last_use, "padding": padding}


CHECKS = (
    *((memory.Owners, "read"), (memory._LocalRegion, "_check_copies")),
    *((values_in.PlacedValue, "check_padding"), (values_in.PlacedValue, "_check_promise")),
    *((steps, name) for name in ("check_move", "check_slices", "check_compute")),
    *((program, name) for name in ("check_reuse", "check_concat")),
    (Program, "_check_layout"),
)


def outcome(planned: Plan, feeds: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> str:
    """ "named", "strict" (named, but harmless), "wrong" or "harmless". What cannot run unchecked either is named."""
    found = run_once(planned, feeds, expected)
    if found != "named":
        return found
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in CHECKS:
            patch.setattr(owner, name, lambda *_: None)
        try:
            unchecked = run_once(planned, feeds, expected)
        except (LayoutError, ValueError, IndexError, AssertionError):  # what the checks are before
            return "named"
    return "strict" if unchecked == "harmless" else "named"


def run_once(planned: Plan, feeds: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> str:
    """ "named", "wrong" or "harmless"."""
    try:
        got = emulated(planned, feeds)
    except PfvmError as error:
        assert str(error)
        return "named"
    equal = all(np.array_equal(got[name], expected[name]) for name in expected)
    return "harmless" if equal else "wrong"


def run_mutants(planned: Plan, count: int, seed: int) -> dict[str, collections.Counter[str]]:
    """Outcomes of `count` mutants of each kind."""
    feeds = feeds_for(planned.model)
    expected = Reference(planned.model, planned.machine)(feeds)
    assert outcome(planned, feeds, expected) == "harmless"
    rng = random.Random(seed)
    results: dict[str, collections.Counter[str]] = {}
    for kind, mutate in KINDS.items():
        results[kind] = collections.Counter()
        candidates = movable(planned.model)
        tried = 0
        while tried < count:
            value = rng.choice(candidates)
            before = placement_of(value)
            try:
                wrong = mutate(value, rng, planned)
            except PfvmError:
                continue  # no layout at all
            if wrong is None or wrong == before:
                continue
            tried += 1
            place(value, wrong)
            found = outcome(planned, feeds, expected)
            place(value, before)
            results[kind][found] += 1
    return results


def test_mutants_are_caught() -> None:
    check(run_mutants(plan(compiled_mlp(training=False), {}), 8, seed=1))


def with_spills() -> Plan:
    """A training step in so little local memory that values go to DRAM and come back."""
    planned = plan(compiled_mlp(training=True, batch=40), {"scheduler": "spill_opt", "sram_budget": 10})
    uploads = [node.outputs[0] for node in planned.model.graph if node.op_type == UPLOAD]
    assert any(copy.uses() for copy in uploads), "nothing is spilled"
    return planned


PLANS: dict[str, Callable[[], Plan]] = {
    "mlp, reuse_consecutive": lambda: plan(compiled_mlp(training=False), {}),
    "mlp, spill_opt": lambda: plan(compiled_mlp(training=False), {"scheduler": "spill_opt"}),
    "step, reuse_consecutive": lambda: plan(compiled_mlp(training=True), {}),
    "step, spill_opt": lambda: plan(compiled_mlp(training=True), {"scheduler": "spill_opt"}),
    "step, spills": with_spills,
    "cnn, spill_opt": lambda: plan(model_of(CNN), {"scheduler": "spill_opt"}),
    "attention, spill_opt": lambda: plan(model_of(ATTENTION), {"scheduler": "spill_opt"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PLANS)
def test_many_mutants_are_caught(name: str) -> None:
    check(run_mutants(PLANS[name](), 100, seed=2))


def check(results: dict[str, collections.Counter[str]]) -> None:
    total = sum(results.values(), collections.Counter())
    print({kind: dict(counts) for kind, counts in results.items()})
    harmful = total["named"] + total["wrong"]
    assert harmful > 0
    # A wrong result is caught by the comparison, too; that nearly all are named is what the emulator's checks are for.
    assert total["named"] >= 0.99 * harmful, results
