"""Shapes that are found without arithmetic of dims hold in every run; what needs more is left to the library."""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import onnx_shape_inference as osi
import pytest
from pfvm.compiler import plain_shapes
from pfvm.passes.dims import symbols

DIMS = (0, 1, 2, 3, "n", "m")
SHAPES = [shape for rank in range(3) for shape in itertools.product(DIMS, repeat=rank)]


def inferred(op: str, *shapes: tuple[int | str, ...], **attributes: int) -> ir.Shape | None:
    operands = [ir.val(f"x{i}", ir.DataType.FLOAT, shape) for i, shape in enumerate(shapes)]
    node = ir.node(op, operands, attributes)
    context = osi.ShapeInferenceContext({"": 21}, policy="refine")
    context.reserve_symbol_names({"n", "m"})
    return node.outputs[0].shape if plain_shapes.infer(context, node) else None


def sizes(shape: tuple[int | str, ...] | ir.Shape, n: int, m: int) -> tuple[int | None, ...]:
    """In a run with these sizes; None for a symbol that stands for more."""
    given = {"n": n, "m": m}
    return tuple(dim if isinstance(dim, int) else given.get(str(dim)) for dim in shape)


def agrees(found: ir.Shape, real: tuple[int, ...], n: int, m: int) -> bool:
    return len(found) == len(real) and all(a is None or a == b for a, b in zip(sizes(found, n, m), real))


@pytest.mark.parametrize("left", SHAPES, ids=str)
def test_broadcasting_is_numpys(left: tuple[int | str, ...]) -> None:
    for right in SHAPES:
        found = inferred("Add", left, right)
        for n, m in itertools.product((0, 1, 2, 5), repeat=2):
            try:
                real = np.broadcast_shapes(sizes(left, n, m), sizes(right, n, m))  # type: ignore[arg-type]
            except ValueError:
                continue
            assert found is not None and agrees(found, real, n, m), (left, right, found, n, m)


@pytest.mark.parametrize("axis", [-2, -1, 0, 1, 2])
def test_flatten_keeps_one_symbol_and_multiplies_sizes(axis: int) -> None:
    for shape in itertools.product(DIMS, repeat=2):
        found = inferred("Flatten", shape, axis=axis)
        split = axis % 2 if axis < 0 else axis
        plain = all(
            not names or (len(names) == 1 and set(part) <= {1, *names})
            for part in (shape[:split], shape[split:])
            for names in [[dim for dim in part if isinstance(dim, str)]]
        )
        assert (found is not None) == plain, shape
        for n, m in itertools.product((0, 1, 5), repeat=2):
            if found is not None:
                whole = np.zeros(sizes(shape, n, m))  # type: ignore[arg-type]
                assert agrees(found, (int(np.prod(whole.shape[:split])), int(np.prod(whole.shape[split:]))), n, m)


def test_what_fits_in_no_run_and_integers_are_left_to_the_library() -> None:
    assert inferred("Add", (2,), (3,)) is None
    assert inferred("Flatten", (2, 3), axis=3) is None
    numbers = ir.node("Add", [ir.val(name, ir.DataType.INT64, (2,)) for name in "ab"])
    assert not plain_shapes.infer(osi.ShapeInferenceContext({"": 21}), numbers)


def test_names_in_dims() -> None:
    assert symbols(3) == symbols(ir.SymbolicDim(None)) == frozenset()
    assert symbols(ir.SymbolicDim("n")) == {"n"} and symbols(ir.SymbolicDim("n*max(m, 2)")) == {"n", "m"}
    with pytest.raises(ValueError, match="Unexpected"):
        symbols(ir.SymbolicDim("n &"))
