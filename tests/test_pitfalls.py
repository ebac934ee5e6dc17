"""Fifteen lessons of public bug reports (R1 to R15), three graphs each, through the whole pipeline."""

from __future__ import annotations

import onnx
import pytest
from pitfalls import PITFALLS, Pitfall
from support import assert_same_numbers, model, ops, run_passes

CASES = [pytest.param(each, id=f"{lesson}: {each.title}") for lesson, three in PITFALLS.items() for each in three]


@pytest.mark.parametrize("pitfall", CASES)
def test_the_graph_is_rewritten_only_as_far_as_it_may(pitfall: Pitfall) -> None:
    source = model(pitfall.text)
    onnx.checker.check_model(source, full_check=True)
    compiled = run_passes(source)
    onnx.checker.check_model(compiled, full_check=True)
    assert ops(compiled) == pitfall.expected.split()
    assert_same_numbers(source, compiled)


def test_every_lesson_has_three_graphs() -> None:
    assert [lesson.partition(":")[0] for lesson in PITFALLS] == [f"R{number}" for number in range(1, 16)]
    assert all(len(three) >= 3 for three in PITFALLS.values())
