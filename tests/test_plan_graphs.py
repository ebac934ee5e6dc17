"""Promise: 25 graphs (plan_graphs.py) run on the emulator as they are planned, by every scheduler.

Bit by bit: what the emulator computes through layouts, addresses, spills and time slices is what the same dtypes give
on plain tensors, from the graph as it was before any schedule.

Exact, without rounding: the relative L2 distance ‖a − b‖ / ‖b‖ to PyTorch in float64 (a step: its loss and all of its
new state; a real model: xla:cpu in float64) is at most 1e-5, 2e-5 for a training step. Once over all outputs as one
vector, and for each output by itself, where an output may instead be as near to float64 as PyTorch's own float32 is.
That is for values that are rounding alone: the gradient of a bias before batch normalization, or of the bias of keys,
is zero, and what Adam or momentum make of its noise has no digit that two programs share.

Rounded, to the device's formats: the distance is printed. Of images that a net has not seen, its best score is that of
float64 for 99 %; these run on plain tensors, which is the same and takes less time.
"""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

from emulator_plans import emulated
from pfvm.compiler.plan.plan_options import SCHEDULERS
from pfvm.compiler.plan.planner import lay_out, plan
from pfvm.runtime.emulator.reference import Reference
from pfvm.runtime.ort import evaluate
from pfvm.tools.four_way import relative_l2
from plan_graphs import GRAPHS, SMALL_ONES, Feeds, Net, Real, shapes

SEARCH_STEPS = 10
IMAGES = 100  # at least, of which best scores are compared
BY_CLASS = {"magika": "target_label", "ppocr cls": "save_infer_model/scale_0.tmp_1"}


def distance(expected: Feeds, got: Feeds) -> float:
    """Relative L2 over all outputs, as one vector."""
    assert set(expected) == set(got)
    one = [
        np.concatenate([np.asarray(each[name], np.float64).ravel() for name in expected]) for each in (expected, got)
    ]
    return relative_l2(*one)


def check_exact(graph: Net | Real, got: Feeds) -> None:
    limit = 2e-5 if graph.optimizer else 1e-5
    found = distance(graph.expected, got)
    print(f"exact: relative L2 {found:.1e} of all outputs")
    assert found <= limit
    for name, value in graph.expected.items():
        apart = relative_l2(value, got[name])
        allowed = relative_l2(value, graph.in_float32[name]) if isinstance(graph, Net) else 0.0
        assert apart <= max(limit, allowed), name


def same_best(a: np.ndarray, b: np.ndarray) -> list[bool]:
    """Of each row."""
    return list(np.argmax(a, -1).ravel() == np.argmax(b, -1).ravel())


def check_rounded(name: str, graph: Net | Real, got: Feeds, on_plain_tensors: Reference) -> None:
    print(f"rounded: relative L2 {distance(graph.expected, got):.1e} of all outputs")
    same: list[bool] = []
    if name in BY_CLASS:
        same = same_best(graph.expected[BY_CLASS[name]], got[BY_CLASS[name]])
    elif isinstance(graph, Net) and "y" in got:
        for number in range(-(-IMAGES // graph.batch)):
            same += same_best(graph.scores(number), on_plain_tensors(graph.more(number))["y"])
    if same:
        print(f"rounded: the best score of {sum(same)} of {len(same)} is the same")
        assert sum(same) >= 0.99 * len(same)


def check(name: str, graph: Net | Real) -> None:
    options = {"shapes": shapes(graph)}
    laid_out = lay_out(graph.model, options, evaluate)
    plain = Reference(laid_out.model, laid_out.machine)
    expected = plain(graph.feeds)
    for scheduler in SCHEDULERS:
        planned = plan(graph.model, {**options, "scheduler": scheduler, "search_steps": SEARCH_STEPS}, evaluate)
        got = emulated(planned, graph.feeds)
        for output, value in expected.items():
            assert np.array_equal(got[output], value), (scheduler, output)
    exact = emulated(planned, graph.feeds, exact=True)
    for output, value in Reference(laid_out.model, laid_out.machine, exact=True)(graph.feeds).items():
        assert np.array_equal(exact[output], value), output
    check_exact(graph, exact)
    check_rounded(name, graph, expected, plain)


@pytest.mark.parametrize("name", SMALL_ONES)
def test_a_small_graph(name: str) -> None:
    check(name, SMALL_ONES[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph(name: str) -> None:
    graph = GRAPHS[name]
    if isinstance(graph, Real) and not graph.path.exists():
        pytest.skip("needs the test models in ../shared")
    check(name, graph)


def test_there_are_25() -> None:
    assert len(GRAPHS) == 25
