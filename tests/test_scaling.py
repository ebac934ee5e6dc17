"""Promise: compiling takes time that grows as the graph does, and a chain of shape computations collapses."""

from __future__ import annotations

from collections.abc import Callable

import pfvm
import pytest
from growth import assert_linear
from pfvm.tools.bench.optimizers.chain import chain


def optimizing(blocks: int) -> Callable[[], None]:
    model = chain(blocks)

    def work() -> None:
        compiled = pfvm.optimize(model)
        assert [node.op_type for node in compiled.graph.node] == ["Gemm", "Relu"] * blocks

    return work


@pytest.mark.slow
def test_four_times_the_blocks_take_four_times_as_long() -> None:
    assert_linear(optimizing, 500, limit=6)


def test_quadratic_work_is_found() -> None:
    with pytest.raises(AssertionError, match="300: "):
        assert_linear(lambda n: lambda: [None for _ in range(n * n)], 300)
