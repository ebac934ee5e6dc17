"""The laws of the layout algebra, on two machines: nothing is lost in text, in places, in memory or at a reshape."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pfvm.compiler.plan.layout import ADDRESS, LANE, Copies, Layout, LayoutError, SubAxis
from plan_support import MACHINES, MNCORE2, indices, layouts

on_both = pytest.mark.parametrize("machine", MACHINES)
law = settings(max_examples=40, deadline=None)
HALF = {**MNCORE2, LANE: 4}


def drawn(data, machine: str) -> Layout:
    levels, lanes = MACHINES[machine]
    return data.draw(layouts(levels, lanes))


@on_both
@given(st.data())
@law
def test_text(machine, data):
    layout = drawn(data, machine)
    assert Layout.parse(str(layout)) == layout


@on_both
@given(st.data())
@law
def test_an_element_is_where_it_is_located(machine, data):
    layout = drawn(data, machine)
    index = data.draw(indices(layout))
    place = layout.locate(index)
    assert layout.element(place) == index
    assert place[ADDRESS] < layout.num_lw()
    levels, lanes = MACHINES[machine]
    assert all(place.get(level, 0) < size for level, size in {**levels, LANE: lanes}.items())


@on_both
@given(st.data())
@law
def test_no_two_elements_share_a_place(machine, data):
    layout = drawn(data, machine)
    one, other = data.draw(indices(layout)), data.draw(indices(layout))
    assert (layout.locate(one) == layout.locate(other)) == (one == other)


@on_both
@given(st.data())
@law
def test_levels_are_used_exactly_once(machine, data):
    levels, lanes = MACHINES[machine]
    layout = drawn(data, machine)
    layout.check({**levels, LANE: lanes})
    layout.normalized({**levels, LANE: lanes}).check({**levels, LANE: lanes})
    steps = [i for i, copy in enumerate(layout.copies) if copy.size is None or copy.size > 1]
    if steps:
        missing = data.draw(st.sampled_from(steps))
        broken = Layout(layout.shape, layout.axes, layout.copies[:missing] + layout.copies[missing + 1 :])
        with pytest.raises(LayoutError, match=f"level {layout.copies[missing].level} has"):
            broken.check({**levels, LANE: lanes})


@on_both
@given(st.data())
@law
def test_a_transposed_tensor_lies_where_it_lay(machine, data):
    layout = drawn(data, machine)
    perm = data.draw(st.permutations(range(len(layout.shape))))
    index = data.draw(indices(layout))
    assert layout.transposed(perm).locate([index[i] for i in perm]) == layout.locate(index)


@on_both
@given(st.data())
@law
def test_a_reshaped_tensor_lies_where_it_lay_or_it_is_an_error(machine, data):
    layout = drawn(data, machine)
    size = math.prod(layout.shape)
    shape = data.draw(factors_with_ones(size))
    try:
        reshaped = layout.reshaped(shape)
    except LayoutError:
        return
    assert reshaped.shape == tuple(shape)
    flat = data.draw(st.integers(0, size - 1))
    old, new = np.unravel_index(flat, layout.shape or ()), np.unravel_index(flat, tuple(shape) or ())
    assert without_zeros(reshaped.locate(new)) == without_zeros(layout.locate(old))


@on_both
@given(st.data())
@law
def test_axes_of_size_one_come_and_go(machine, data):
    layout = drawn(data, machine)
    assume(layout.shape and not any(size == 1 < room for size, room in zip(layout.shape, layout.padded_shape)))
    at = data.draw(st.integers(0, len(layout.shape)))
    wide = layout.reshaped([*layout.shape[:at], 1, *layout.shape[at:]])
    assert wide.reshaped(layout.shape).is_same_as(layout)


@on_both
@given(st.data())
@law
def test_merged_subaxes_are_the_same_layout(machine, data):
    layout = drawn(data, machine)
    index = data.draw(indices(layout))
    assert without_zeros(layout.merged().locate(index)) == without_zeros(layout.locate(index))
    halves = tuple(tuple(part for sub in axis for part in halved(sub)) for axis in layout.axes)
    again = Layout(layout.shape, halves, layout.copies)
    assert again.is_same_as(layout)
    assert again.num_lw() == layout.num_lw()


@on_both
@given(st.data())
@law
def test_memory_holds_what_was_written_in_every_copy(machine, data):
    levels, lanes = MACHINES[machine]
    layout = drawn(data, machine)
    block = np.full((layout.num_lw(), *levels.values(), lanes), -1.0)
    padded = np.arange(math.prod(layout.padded_shape), dtype=float).reshape(layout.padded_shape)
    layout.write(block, levels, padded)
    assert (layout.read(block, levels) == padded).all()
    cells = block[np.asarray([layout.locate((0,) * len(layout.shape))[ADDRESS]])]
    assert (cells >= 0).all() or layout.extent(ADDRESS) > 1  # every cell has a copy or an element of the first word
    place = {level: data.draw(st.integers(0, size - 1)) for level, size in {**levels, LANE: lanes}.items()}
    place[ADDRESS] = data.draw(st.integers(0, layout.num_lw() - 1))
    here = block[(place[ADDRESS], *(place[level] for level in levels), place[LANE])]
    element = layout.element(place)
    assert here == (-1 if element is None else padded[element])


@on_both
@given(st.data())
@law
def test_an_operand_that_broadcasts_has_what_each_cell_needs(machine, data):
    levels, lanes = MACHINES[machine]
    layout = drawn(data, machine)
    lead = data.draw(st.integers(0, len(layout.shape)))
    shape = [data.draw(st.sampled_from([1, size])) for size in layout.shape[lead:]]
    operand = layout.for_operand(shape)
    operand.check({**levels, LANE: lanes})
    index = data.draw(indices(layout))
    wanted = tuple(0 if size == 1 else i for size, i in zip(shape, index[lead:]))
    cell = {**layout.locate(index), ADDRESS: operand.locate(wanted)[ADDRESS]}
    found = operand.element(cell)
    assert found is not None
    valid = tuple(0 if size == 1 else i for size, i in zip(shape, found))
    assert valid == wanted


def test_published_layouts():
    x = Layout.parse("(125,1,32,32)/((8_L2B:1, 8_L1B:1, 2:1), (), (16_MAB:1, 2:4), (2:2, 4_W:1, 4_PE:1))")
    x.check(HALF)
    assert (x.padded_shape, x.num_lw()) == ((128, 1, 32, 32), 8)
    view = Layout.parse("(125,1024)/((8_L2B:1, 8_L1B:1, 2:1), (16_MAB:1, 4:2, 4_W:1, 4_PE:1))")
    assert x.reshaped((125, 1024)) == view
    bias = Layout.parse("(256)/((16_MAB:1, 2:1, 2_W:1, 4_PE:1); B@[L1B,L2B])")
    bias.check({**MNCORE2, LANE: 2})
    assert bias.num_lw() == 2


def test_copies_read_as_in_published_dumps():
    layout = Layout(
        (10,), ((SubAxis(4, LANE), SubAxis(4, "PE")),), (Copies("L2B"), Copies("L1B", 8), Copies("MAB", 16))
    )
    assert str(layout.normalized(HALF)) == "(10)/((4_W:1, 4_PE:1); B@[MAB,L1B,L2B])"
    parts = Layout(
        (2,), ((SubAxis(2, "MAB"),),), (Copies("MAB", 4, 4), Copies("MAB", 2, 2), Copies("PE"), Copies(LANE))
    )
    assert str(parts.normalized(HALF)) == "(2)/((2_MAB:1); B@[PE,W,8_MAB:2])"


def test_an_unsqueezed_axis_may_be_padded():
    layout = Layout.parse("(125)/((8_L2B:1, 8_L1B:1, 2:1))")
    assert str(layout.reshaped((1, 125, 1))) == "(1,125,1)/((), (8_L2B:1, 8_L1B:1, 2:1), ())"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nonsense", "no layout"),
        ("(8)/((8-PE:1))", "is no subaxis"),
        ("(8,2)/((8_PE:1))", "1 axes for the 2"),
        ("(9)/((8_PE:1))", "an axis of 9 does not fit"),
        ("(8)/((8:1); B@[8 PE])", "is no level to copy over"),
    ],
)
def test_a_text_that_is_no_layout_is_an_error(text, message):
    with pytest.raises(LayoutError, match=message):
        Layout.parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(8)/((8_L2B:1); B@[PE,W,MAB])", "level L1B has 8 indices, its subaxes and copies are nothing"),
        ("(8)/((8_L2B:1); B@[PE,W,MAB,L1B,L2B])", "level L2B has 8 indices"),
        ("(2)/((2_L2B:4); B@[PE,W,MAB,L1B,2_L2B:1])", "level L2B has 8 indices"),
        ("(8)/((8_Core:1); B@[PE,W,MAB,L1B,L2B])", "the machine has no level Core"),
    ],
)
def test_a_layout_that_does_not_cover_the_machine_is_an_error(text, message):
    with pytest.raises(LayoutError, match=message):
        Layout.parse(text).check(HALF)


def test_elements_that_would_have_to_move_are_an_error():
    padded = Layout.parse("(4,3)/((4:1), (4_PE:1))")
    with pytest.raises(LayoutError, match="padding inside a group"):
        padded.reshaped((12,))
    with pytest.raises(LayoutError, match="does not split"):
        Layout.parse("(6)/((6:1))").reshaped((3, 2, 1)).reshaped((6,)).reshaped((2, 3)).transposed((1, 0)).reshaped(
            (2, 3)
        )
    with pytest.raises(LayoutError, match="does not broadcast"):
        padded.for_operand((2, 3))
    with pytest.raises(LayoutError, match="cannot be reshaped"):
        padded.reshaped((5,))


def without_zeros(place: dict[str, int]) -> dict[str, int]:
    return {level: index for level, index in place.items() if index}


def halved(sub: SubAxis) -> list[SubAxis]:
    if sub.size % 2:
        return [sub, SubAxis(1, ADDRESS, 1)]
    return [SubAxis(2, sub.level, sub.stride * (sub.size // 2)), SubAxis(sub.size // 2, sub.level, sub.stride)]


@st.composite
def factors_with_ones(draw: st.DrawFn, size: int) -> list[int]:
    result = []
    while size > 1:
        divisors = [d for d in range(2, size + 1) if size % d == 0]
        result.append(draw(st.sampled_from(divisors)))
        size //= result[-1]
    for _ in range(draw(st.integers(0, 2))):
        result.insert(draw(st.integers(0, len(result))), 1)
    return result


def test_two_elements_of_a_cell_have_two_addresses() -> None:
    layout = Layout.parse("(4,4)/((4:2), (4:1); B@[PE,W,MAB,L1B,L2B])")
    with pytest.raises(LayoutError, match="4:2 comes to addresses that another subaxis reaches"):
        layout.check({"L2B": 8, "L1B": 8, "MAB": 16, "PE": 4, "W": 4})
