"""Addresses: live values never overlap, stay inside their memory, and are aligned."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pfvm.compiler.plan.addresses import Arena, Lifetime, assign, assign_downward, assign_upward

lifetimes = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 8), st.integers(1, 30)), min_size=1, max_size=25).map(
    lambda rows: [Lifetime(i, begin, begin + length, size) for i, (begin, length, size) in enumerate(rows)]
)
granularities = st.sampled_from([1, 2, 4, 16])


def overlaps(lives: list[Lifetime], starts: dict, granularity: int) -> list[tuple[Lifetime, Lifetime]]:
    def room(life: Lifetime) -> range:
        return range(starts[life.key], starts[life.key] + -(-life.size // granularity) * granularity)

    return [
        (a, b)
        for a, b in itertools.combinations(lives, 2)
        if a.begin <= b.end and b.begin <= a.end and set(room(a)) & set(room(b))
    ]


@given(lifetimes, granularities, st.sampled_from(["first", "best", "last"]))
def test_live_values_do_not_overlap(lives: list[Lifetime], granularity: int, fit: str) -> None:
    starts = assign(lives, 4096, granularity, fit)
    assert not overlaps(lives, starts, granularity)
    assert all(start % granularity == 0 for start in starts.values())
    assert all(0 <= starts[life.key] <= 4096 - life.size for life in lives)


@given(lifetimes, granularities)
def test_spills_lie_below_the_top(lives: list[Lifetime], granularity: int) -> None:
    top = 4099
    starts = assign_downward(lives, top, granularity)
    assert not overlaps(lives, starts, granularity)
    assert all((top - start) % granularity == 0 for start in starts.values())
    assert all(0 <= starts[life.key] <= top - life.size for life in lives)
    first = min(lives, key=lambda life: (life.begin, life.end))
    assert starts[first.key] == top - -(-first.size // granularity) * granularity


@given(lifetimes)
def test_what_does_not_fit_is_named(lives: list[Lifetime]) -> None:
    live_at = [sum(life.size for life in lives if life.begin <= time <= life.end) for time in range(30)]
    with pytest.raises(MemoryError):
        assign(lives, max(live_at) - 1)


def test_room_is_used_again() -> None:
    lives = [Lifetime("a", 0, 1, 8), Lifetime("b", 2, 3, 8), Lifetime("c", 3, 4, 4)]
    assert assign(lives, 16) == {"a": 0, "b": 0, "c": 8}


def test_upward_without_reuse() -> None:
    assert assign_upward([("t", 16), ("x", 8192)], 0, 1024) == ({"t": 0, "x": 1024}, 9216)


@st.composite
def arenas(draw: st.DrawFn) -> tuple[Arena, dict[int, float]]:
    arena = Arena(64, 2)
    for key in range(draw(st.integers(1, 20))):
        size = draw(st.integers(1, 12))
        if key and draw(st.integers(0, 2)) == 0:
            gone = draw(st.integers(0, key - 1))
            if gone in arena:
                arena.release(gone)
        start = arena.find(size, draw(st.sampled_from(["first", "best", "last"])))
        if start is not None:
            arena.place(key, size, start)
    weights = {block.key: draw(st.sampled_from([0.0, 1.0, 2.0, 5.0, float("inf")])) for block in arena}
    return arena, weights


@given(arenas(), st.integers(1, 64))
def test_an_arena_knows_its_free_room(case: tuple[Arena, dict[int, float]], size: int) -> None:
    arena, _ = case
    blocks = list(arena)
    assert all(a.end <= b.start for a, b in itertools.pairwise(blocks))
    assert arena.free == 64 - sum(block.end - block.start for block in blocks)
    found = arena.find(size)
    assert (found is not None) == (arena.rounded(size) <= arena.largest_hole)


@given(arenas(), st.integers(1, 64))
def test_the_cheapest_window_makes_room_at_least_weight(case: tuple[Arena, dict[int, float]], size: int) -> None:
    arena, weights = case
    if arena.find(size) is not None:
        return
    blocks = list(arena)
    edges = [(0, 0), *((block.start, block.end) for block in blocks), (64, 64)]
    possible = [
        sum(weights[block.key] for block in blocks[first : last + 1])
        for first, last in itertools.combinations_with_replacement(range(len(blocks)), 2)
        if edges[last + 2][0] - edges[first][1] >= arena.rounded(size)
    ]
    best = min(possible, default=float("inf"))
    window = arena.cheapest_window(size, lambda key: weights[key])
    if best == float("inf"):
        assert window is None
        return
    assert window is not None and window[0] == best
    for key in window[1]:
        arena.release(key)
    assert arena.find(size) is not None
