"""Promise: the emulator names what is wrong with a plan: value, node, and place."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from emulator_plans import compiled_mlp, emulated, feeds_for
from pfvm.compiler.plan.layout import Layout
from pfvm.compiler.plan.machine import load_machine
from pfvm.compiler.plan.mngraph import REFILL, values
from pfvm.compiler.plan.placement import Placement, move, placement_of
from pfvm.compiler.plan.planner import Plan, plan
from pfvm.runtime.emulator.errors import (
    AddressError,
    CopiesError,
    EmulatorError,
    LocalityError,
    OverwrittenError,
    PaddingError,
    UnwrittenError,
)
from pfvm.runtime.emulator.memory import POISON, Dram, LocalMemory, is_poison

MACHINE = load_machine()
ROWS = Layout.parse("(5,10)/((8_L2B:1), (4_W:1, 4_PE:1); B@[MAB,L1B])")


@pytest.fixture
def local() -> LocalMemory:
    return LocalMemory(MACHINE, MACHINE.local_memories[0])


def tensor() -> np.ndarray:
    padded = np.full(ROWS.padded_shape, POISON)
    padded[:5, :10] = np.arange(50).reshape(5, 10)
    return padded


def at(address: int, layout: Layout = ROWS, dtype: str = "Half", location: str = "LM0") -> Placement:
    return Placement(layout, dtype, location, address)


@pytest.mark.parametrize("kind", ["local", "DRAM"])
def test_a_memory_gives_back_what_it_was_given(kind: str) -> None:
    memory = LocalMemory(MACHINE, MACHINE.local_memories[0]) if kind == "local" else Dram(MACHINE)
    for dtype, text in (
        ("Half", str(ROWS)),
        ("Float", "(5,10)/((8_L2B:1, 2:1), (2_W:1, 4_PE:1, 2:4); B@[MAB,L1B])"),
        ("Int", "()/(; B@[PE,W,MAB,L1B,L2B])"),
    ):
        layout = Layout.parse(text)
        region = memory.region(dtype, at(4096 if kind == "DRAM" else 8, layout, dtype), None)
        padded = np.random.default_rng(0).standard_normal(layout.padded_shape)
        region.store(padded, "writer")
        assert np.array_equal(region.load("reader"), padded)


def test_poison_survives_memory(local: LocalMemory) -> None:
    region = local.region("x", at(0), None)
    region.store(tensor(), "writer")
    assert is_poison(region.load("reader")).sum() == 8 * 16 - 50
    assert not is_poison(np.array([np.nan])).any()


def test_addresses(local: LocalMemory) -> None:
    with pytest.raises(AddressError, match="'x': address 2 of LM0 is no multiple of 4"):
        local.region("x", at(2), None)
    with pytest.raises(AddressError, match=r"'x': long words 2048…2049 are not all in LM0, which has 2048"):
        local.region("x", at(4096), None)
    with pytest.raises(AddressError, match="not scheduled"):
        local.region("x", dataclasses.replace(at(0), address=None), None)


def test_owners(local: LocalMemory) -> None:
    x, y = local.region("x", at(0), None), local.region("y", at(0), None)
    with pytest.raises(UnwrittenError, match=r"reader reads 'x' from LM0 long words 0…1, where it was never written"):
        x.load("reader")
    x.store(tensor(), "first")
    y.store(tensor(), "second")
    with pytest.raises(OverwrittenError, match=r"reader reads 'x' .*, but 'y' \(second\) was written over it"):
        x.load("reader")
    moved = local.region("y", at(4), None)
    with pytest.raises(AddressError, match=r"'y' from LM0 long words 2…3, but it was written to 0…1"):
        moved.load("reader")
    other = local.region("y", at(0, Layout.parse("(5,10)/((8_L1B:1), (4_W:1, 4_PE:1); B@[MAB,L2B])")), None)
    with pytest.raises(UnwrittenError, match=r"in layout .*, but it was written as Half in layout"):
        other.load("reader")


def test_copies_that_differ(local: LocalMemory) -> None:
    region = local.region("x", at(0), None)
    region.store(tensor(), "writer")
    local.cells[0, 0, 3, 0, 0, 0] += 1
    with pytest.raises(CopiesError, match=r"its copies in layout .* are not equal"):
        region.load("reader")


def planned() -> Plan:
    return plan(compiled_mlp(training=False), {})


def run(planned: Plan) -> None:
    emulated(planned, feeds_for(planned.model))


def named(plan: Plan, name: str):
    return next(value for value in values(plan.model) if value.name == name)


def test_padding_that_nobody_filled() -> None:
    wrong = planned()
    refill = next(node for node in wrong.model.graph if node.op_type == REFILL)
    refill.outputs[0].replace_all_uses_with(refill.inputs[0])
    with pytest.raises(PaddingError, match=r"Gemm .* 'relu': it needs 0 there and finds what nobody set \(pad Dirty"):
        run(wrong)


def test_padding_that_is_called_something_else() -> None:
    wrong = planned()
    gemm = next(node for node in wrong.model.graph if node.op_type == "Gemm")
    move(gemm.outputs[0], pad="Zero")
    with pytest.raises(PaddingError, match=r"Gemm .* cannot leave its padding Zero"):
        run(wrong)


def test_an_operand_in_other_cells() -> None:
    wrong = planned()
    relu = next(node for node in wrong.model.graph if node.op_type == "Relu")
    layout = placement_of(relu.outputs[0]).layout
    assert len(layout.axes) == 2
    swapped = str(layout).replace("L1B", "?").replace("L2B", "L1B").replace("?", "L2B")
    move(relu.outputs[0], layout=Layout.parse(swapped))
    with pytest.raises(LocalityError, match=r"Relu .* are not all in the (L1B|L2B) that needs them"):
        run(wrong)


def test_a_memory_that_is_read_and_written() -> None:
    wrong = planned()
    relu = next(node for node in wrong.model.graph if node.op_type == "Relu")
    source = placement_of(relu.inputs[0])
    move(relu.outputs[0], location=source.location, address=64)
    with pytest.raises(LocalityError, match=r"Relu .* reads and writes LM\d, which one instruction cannot do"):
        run(wrong)


def test_a_view_of_other_memory() -> None:
    wrong = plan(compiled_mlp(training=True), {})
    view = next(v for v in values(wrong.model) if placement_of(v).parent is not None)
    move(view, address=(placement_of(view).address or 0) + 8)
    with pytest.raises(EmulatorError, match=f"{view.name!r} is to be the memory of"):
        run(wrong)
