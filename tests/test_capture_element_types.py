"""Promise: what torch computes in a dtype that ONNX's operator does not take is computed in a wider one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnx  # noqa: E402
import onnx_ir as ir  # noqa: E402
import pfvm  # noqa: E402
from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.errors import CaptureError  # noqa: E402

X = torch.tensor([[1, 0, 3, 2], [5, 2, 0, 1], [0, 1, 4, 4]])
PLACES = torch.tensor([[0, 1], [2, 0], [1, 1]])


def extremes(x: Any) -> Any:
    return *x.max(1), *x.min(0)


def whole(x: Any) -> Any:
    return x.floor(), x.ceil(), x.round()


def ranks(x: Any) -> Any:
    return x.topk(2, 1).values, x.kthvalue(2, 1).values, x.median(1).values


def scattered(x: Any) -> Any:
    return (
        x.scatter_add(1, PLACES, x),
        x.index_add(0, torch.tensor([0, 0]), x[1:]),
        x.scatter_reduce(1, PLACES, x, "amax"),
        x.scatter_reduce(1, PLACES, x, "prod"),
    )


def arithmetic(x: Any) -> Any:
    return -x, x**2, x.square(), x @ x.T, x[0].dot(x[1])


CASES = {
    "bool": (torch.bool, (extremes, scattered, torch.sign)),
    "uint8": (torch.uint8, (arithmetic, extremes, whole)),
    "int8": (torch.int8, (arithmetic, whole)),
    "int16": (torch.int16, (arithmetic, whole)),
    "int64": (torch.int64, (whole,)),
    "float16": (torch.float16, (scattered,)),
    "bfloat16": (torch.bfloat16, (ranks, scattered, whole, lambda x: x // 3)),
}


@pytest.mark.parametrize("device", ["pfvm:cpu", "xla:cpu"])
@pytest.mark.parametrize("name", CASES)
def test_equals_eager(name: str, device: str) -> None:
    dtype, functions = CASES[name]
    x = X.to(dtype)

    def all_of_them(x: Any) -> Any:
        return [f(x) for f in functions]

    torch.testing.assert_close(pfvm.compile(all_of_them, x, device=device)(x), all_of_them(x))


def test_the_file_is_valid() -> None:
    model = capture(lambda x: (extremes(x), scattered(x)), X.bool()).model
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_what_no_wider_type_holds_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"test_capture_element_types\.py:\d+: ONNX has no Add of complex64.*\.to"):
        capture(lambda x: x + x, torch.ones(2, dtype=torch.complex64))


def test_an_integer_keeps_all_its_digits() -> None:
    x = torch.tensor([2**62 + 1])
    assert np.array_equal(pfvm.compile(torch.floor, x)(x), x)
