"""A call like an earlier one goes straight to its program, and gives and refuses what every call does."""

from __future__ import annotations

import cProfile

import numpy as np
import onnx.parser
import onnx_ir as ir
import pytest

jax = pytest.importorskip("jax")

from pfvm.errors import InputError  # noqa: E402
from pfvm.runtime.xla import XlaExecutable  # noqa: E402

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
LOOKUP = """
g (float[3, 2] table, int64[N] i, float[N, 2] x, float s) => (float[N, 2] y, float[N, 2] z)
<float s = {2}> { rows = Gather(table, i)  y = Mul(rows, s)  z = Add(rows, x) }
"""
TABLE = np.arange(6, dtype=np.float32).reshape(3, 2)


def load(text: str) -> XlaExecutable:
    return XlaExecutable(ir.serde.deserialize_model(onnx.parser.parse_model(HEADER + text)))


def feeds(*rows: int, **more: np.ndarray) -> dict[str, np.ndarray]:
    return {"table": TABLE, "i": np.array(rows), "x": np.ones((len(rows), 2), np.float32), **more}


def test_values_and_shapes_may_change_from_call_to_call() -> None:
    exe = load(LOOKUP)
    for rows in [(0, 1), (1, 2), (2,), (0, 0), *[(0,) * n for n in range(3, 9)], (1, 2), (2,)]:
        results = exe(feeds(*rows))
        np.testing.assert_array_equal(results["y"], 2 * TABLE[list(rows)])
        np.testing.assert_array_equal(results["z"], 1 + TABLE[list(rows)])
    assert exe.compilations == 8


def test_results_are_the_callers_own() -> None:
    exe = load(LOOKUP)
    first = exe(feeds(0, 1))
    for _ in range(2):
        second = exe(feeds(0, 1))
        second["y"] += 1
    np.testing.assert_array_equal(first["y"], 2 * TABLE[:2])
    np.testing.assert_array_equal(exe(feeds(0, 1))["y"], 2 * TABLE[:2])


def test_a_weight_may_be_given_in_some_calls() -> None:
    exe = load(LOOKUP)
    for scale in (None, 3.0, None, 4.0, 3.0, None):
        given = feeds(1) if scale is None else feeds(1, s=np.array(scale, np.float32))
        np.testing.assert_array_equal(exe(given)["y"], (scale or 2) * TABLE[[1]])


WRONG = {
    "dtype": ({"x": np.ones((2, 2))}, "expected dtype float32"),
    "rank": ({"x": np.ones(2, np.float32)}, "expected rank 2"),
    "other size": ({"x": np.ones((3, 2), np.float32)}, "'N'"),
    "index": ({"i": np.array([0, 3])}, "the index 3"),
    "name": ({"w": np.ones(2)}, "unknown input 'w'"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_is_refused_all_the_same(wrong: dict[str, np.ndarray], message: str) -> None:
    exe = load(LOOKUP)
    for _ in range(2):
        exe(feeds(0, 1))
        with pytest.raises(InputError, match=message):
            exe(feeds(0, 1, **wrong))
    with pytest.raises(InputError, match="missing input 'x'"):
        exe({"table": TABLE, "i": np.array([0])})
    np.testing.assert_array_equal(exe(feeds(0, 1))["y"], 2 * TABLE[:2])


def test_an_input_whose_values_decide_the_program() -> None:
    exe = load("g (float[4] x, int64[2] shape) => (float[M, N] y) { y = Reshape(x, shape) }")
    x = np.arange(4, dtype=np.float32)
    for shape in ([2, 2], [4, 1], [2, 2], [1, 4], [4, 1]):
        np.testing.assert_array_equal(exe({"x": x, "shape": np.array(shape)})["y"], x.reshape(shape))


def test_a_call_costs_little_beside_its_program() -> None:
    """Calls in Python, counted: a clock depends on the machine."""
    names = [f"x{i}" for i in range(50)]
    exe = load(f"g ({', '.join(f'float[2] {n}' for n in names)}) => (float[2] y) {{ y = Sum({', '.join(names)}) }}")
    given = {name: np.ones(2, np.float32) for name in names}
    exe(given)
    profile = cProfile.Profile()
    profile.runcall(exe, given)
    assert sum(entry.callcount for entry in profile.getstats()) < 60
