"""Promise: compiling takes time that grows as the graph does, and a chain of shape computations collapses."""

from __future__ import annotations

import time

import pfvm
import pytest
from pfvm.tools.bench.optimizers.chain import chain


def seconds(blocks: int) -> float:
    model = chain(blocks)
    start = time.process_time()
    compiled = pfvm.optimize(model)
    used = time.process_time() - start
    assert [node.op_type for node in compiled.graph.node] == ["Gemm", "Relu"] * blocks
    return used


@pytest.mark.slow
def test_four_times_the_blocks_take_four_times_as_long() -> None:
    seconds(10)
    few = min(seconds(500) for _ in range(2))
    assert min(seconds(2000) for _ in range(2)) <= 6 * few  # quadratic work would take sixteen times as long
