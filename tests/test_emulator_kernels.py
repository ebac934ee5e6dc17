"""Promise: without rounding the emulator's kernels are ONNX's operators, in every form they take here."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.helper
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator
from pfvm.compiler.plan.machine import load_machine
from pfvm.runtime.emulator.arithmetic import Arithmetic
from pfvm.runtime.emulator.calls import call_of
from pfvm.runtime.emulator.kernels import kernel_of

EXACT = Arithmetic(load_machine(), exact=True)
RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


CASES = [
    ("Conv", {"pads": [1, 0, 2, 1], "strides": [2, 1]}, [normal(2, 3, 9, 8), normal(4, 3, 3, 2), normal(4)]),
    ("Conv", {"group": 2, "dilations": [2, 1]}, [normal(1, 4, 9, 8), normal(6, 2, 3, 2)]),
    ("Conv", {"auto_pad": "SAME_LOWER", "strides": [2]}, [normal(2, 3, 9), normal(4, 3, 4)]),
    (
        "ConvTranspose",
        {"strides": [2, 1], "pads": [1, 0, 0, 1], "output_padding": [1, 0]},
        [normal(2, 3, 5, 4), normal(3, 4, 3, 2), normal(4)],
    ),
    ("ConvTranspose", {"dilations": [2]}, [normal(1, 4, 6), normal(4, 3, 3)]),
    ("ConvTranspose", {"pads": [3, 3]}, [normal(1, 2, 6), normal(2, 3, 3)]),
    ("MaxPool", {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}, [normal(2, 3, 9, 8)]),
    ("MaxPool", {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}, [normal(1, 2, 8, 8)]),
    ("AveragePool", {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}, [normal(2, 3, 9, 8)]),
    ("AveragePool", {"kernel_shape": [3], "pads": [1, 1], "count_include_pad": 1}, [normal(2, 3, 9)]),
    ("GlobalAveragePool", {}, [normal(2, 3, 5)]),
    ("Gemm", {"transA": 1, "alpha": 0.5, "beta": 2.0}, [normal(4, 3), normal(4, 5), normal(1, 5)]),
    ("MatMul", {}, [normal(2, 1, 3, 4), normal(5, 4, 6)]),
    ("MatMul", {}, [normal(4), normal(3, 4, 2)]),
    ("Pad", {"mode": "reflect"}, [normal(4, 5), np.array([1, 2, 0, 1])]),
    ("Pad", {}, [normal(4, 5), np.array([2, 1]), np.array(3.0), np.array([-1])]),
    ("ArgMax", {"axis": -1, "select_last_index": 1}, [np.array([[1.0, 3.0, 3.0], [2.0, 2.0, 1.0]])]),
    ("ReduceMean", {"keepdims": 0}, [normal(2, 3, 4), np.array([0, -1])]),
    ("ReduceL2", {}, [normal(2, 3)]),
    ("LogSoftmax", {"axis": 1}, [normal(2, 5, 3) * 20]),
    ("GatherElements", {"axis": 1}, [normal(2, 5), np.array([[0, -1, 2], [1, 1, 0]])]),
    ("Erf", {}, [normal(10)]),
    ("Mod", {"fmod": 0}, [np.array([5, -5, 7]), np.array([3, 3, -4])]),
    ("Div", {}, [np.array([7, -7, 7]), np.array([2, 2, -2])]),
    ("Expand", {}, [normal(3, 1), np.array([2, 1, 4])]),
]


@pytest.mark.parametrize(("op", "attributes", "inputs"), CASES, ids=[f"{i}-{case[0]}" for i, case in enumerate(CASES)])
def test_a_kernel_is_its_operator(op: str, attributes: dict[str, object], inputs: list[np.ndarray]) -> None:
    names = [f"i{k}" for k in range(len(inputs))]
    proto = onnx.helper.make_node(op, names, ["y"], **attributes)
    expected = ReferenceEvaluator(proto, opsets={"": 21}).run(None, dict(zip(names, inputs)))[0]
    call = call_of(ir.from_proto(proto), {}, {"": 21})
    got = kernel_of(call, EXACT, [None] * len(inputs))(inputs)[0]
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1e-9)


def test_a_negative_pad_cuts() -> None:
    proto = onnx.helper.make_node("Pad", ["x", "pads"], ["y"])
    kernel = kernel_of(call_of(ir.from_proto(proto), {}, {"": 21}), EXACT, [None, None])
    x = np.arange(5.0)
    assert kernel([x, np.array([-1, 2])])[0].tolist() == [1, 2, 3, 4, 0, 0]


def test_a_transposed_convolution_in_groups_is_one_of_each() -> None:
    x, w = normal(1, 4, 6), normal(4, 3, 3)  # onnx.reference fails on this form

    def run(group: int, x: np.ndarray, w: np.ndarray) -> np.ndarray:
        proto = onnx.helper.make_node("ConvTranspose", ["x", "w"], ["y"], group=group, strides=[2])
        return kernel_of(call_of(ir.from_proto(proto), {}, {"": 21}), EXACT, [None, None])([x, w])[0]

    parts = [run(1, x[:, :2], w[:2]), run(1, x[:, 2:], w[2:])]
    np.testing.assert_allclose(run(2, x, w), np.concatenate(parts, axis=1))
