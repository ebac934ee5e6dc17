"""What the tests of the plan share: a second machine, and random layouts for any machine."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping

from hypothesis import strategies as st
from pfvm.compiler.plan.layout import ADDRESS, LANE, Copies, Layout, SubAxis

# Another depth, other names than MN-Core's, one local memory, other lanes.
TWO_LEVELS = """
name = "pond"
title = "A small machine with one local memory"
long_word_bits = 128
clock_mhz = 1000.0
[[levels]]
name = "Chip"
count = 1
indexed = false
source = "test"
[[levels]]
name = "Tile"
count = 6
parent = "Chip"
source = "test"
[[levels]]
name = "Core"
count = 4
parent = "Tile"
source = "test"
[dtypes.Half]
lanes = 8
exponent = 5
mantissa = 10
bias = 15
source = "test"
[dtypes.Float]
lanes = 4
exponent = 8
mantissa = 23
bias = 127
source = "test"
[dtypes.Int]
lanes = 4
source = "test"
[matrix_unit]
level = "Core"
load = 1.0
source = "test"
[matrix_unit.modes.Half]
inputs = 8
outputs = 8
block = 8
block_mantissa = 10
[matrix_unit.modes.Float]
inputs = 4
outputs = 4
block = 4
block_mantissa = 23
[vector_unit]
level = "Core"
source = "test"
[vector_unit.rate]
Half = 8
Float = 4
Int = 4
[[memories]]
name = "DRAM"
level = "Chip"
size = 16777216
address_unit = "long_word"
granularity = 64
spill_top = 16000000
source = "test"
[[memories]]
name = "SRAM"
level = "Core"
size = 4096
address_unit = "long_word"
granularity = 1
source = "test"
[[paths]]
name = "DRAM→Tile"
source_memory = "DRAM"
target_memory = "Tile"
mode = "distribute"
level = "Chip"
rate = 12.0
resource = "DRAM"
source = "test"
[[paths]]
name = "Tile→Core"
source_memory = "Tile"
target_memory = "Core"
mode = "distribute"
level = "Tile"
rate = 4.0
resource = "Tile"
source = "test"
[[paths]]
name = "Tile→Core"
source_memory = "Tile"
target_memory = "Core"
mode = "broadcast"
level = "Tile"
rate = 1.0
resource = "Tile"
source = "test"
[[paths]]
name = "Core→Tile"
source_memory = "Core"
target_memory = "Tile"
mode = "collect"
level = "Tile"
rate = 4.0
resource = "Tile"
source = "test"
[[paths]]
name = "Tile→DRAM"
source_memory = "Tile"
target_memory = "DRAM"
mode = "collect"
level = "Chip"
rate = 12.0
resource = "DRAM"
source = "test"
"""

MNCORE2 = {"L2B": 8, "L1B": 8, "MAB": 16, "PE": 4}
POND = {"Tile": 6, "Core": 4}
MACHINES = {"mncore2": (MNCORE2, 4), "pond": (POND, 8)}  # index levels, lanes of Half


def write_pond(folder: pathlib.Path) -> pathlib.Path:
    """The second machine's file."""
    path = folder / "pond.toml"
    path.write_text(TWO_LEVELS, encoding="utf-8")
    return path


@st.composite
def layouts(draw: st.DrawFn, levels: Mapping[str, int], lanes: int) -> Layout:
    """A layout that uses every level exactly once, for a shape of up to 3 axes and some padding."""
    rank = draw(st.integers(0, 3))
    axes: list[list[SubAxis]] = [[] for _ in range(rank)]
    copies: list[Copies] = []
    for level, size in {**levels, LANE: lanes}.items():
        stride = 1
        for factor in draw(factors(size)):
            axis = draw(st.integers(-1, rank - 1))
            if axis < 0:
                whole = factor == size and draw(st.booleans())
                copies.append(Copies(level) if whole else Copies(level, factor, stride))
            else:
                axes[axis].append(SubAxis(factor, level, stride))
            stride *= factor
    stride = 1
    for _ in range(draw(st.integers(0, 2)) if rank else 0):
        size = draw(st.integers(1, 4))
        axes[draw(st.integers(0, rank - 1))].append(SubAxis(size, ADDRESS, stride))
        stride *= size
        if draw(st.integers(0, 4)) == 0:
            stride += draw(st.integers(0, 3))  # a hole
    shuffled = tuple(tuple(draw(st.permutations(axis))) for axis in axes)
    shape = tuple(draw(st.integers(1, math.prod(sub.size for sub in axis))) for axis in shuffled)
    if draw(st.booleans()):
        shape = tuple(math.prod(sub.size for sub in axis) for axis in shuffled)
    return Layout(shape, shuffled, tuple(draw(st.permutations(copies))))


@st.composite
def factors(draw: st.DrawFn, size: int) -> list[int]:
    """Numbers above 1 whose product is size, in some order."""
    result = []
    while size > 1:
        divisors = [d for d in range(2, size + 1) if size % d == 0]
        result.append(draw(st.sampled_from(divisors)))
        size //= result[-1]
    return result


def indices(layout: Layout) -> st.SearchStrategy[tuple[int, ...]]:
    """An element of a layout's tensor."""
    return st.tuples(*(st.integers(0, size - 1) for size in layout.shape))


# The evaluation step of the MNIST example: images of 32x32, 1024 → 256 → 10, how many are right.
MNIST_EVAL = """<ir_version: 10, opset_import: ["" : 21]>
g (float[125,1,32,32] x, int64[125] t) => (int64[] right) <int64[2] shape = {-1, 1024}>
{ view = Reshape (x, shape)  hidden = Gemm<transB=1> (view, w0, b0)  act = Relu (hidden)
  logits = Gemm<transB=1> (act, w1, b1)  guess = ArgMax<axis=1, keepdims=0> (logits)  same = Equal (guess, t)
  ones = Cast<to=7> (same)  right = ReduceSum<keepdims=0> (ones) }"""
MNIST_WEIGHTS = {"w0": (256, 1024), "b0": (256,), "w1": (10, 256), "b1": (10,)}
