"""Promise: a call with inputs that do not fit names the input and what was expected, on every backend alike."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from pfvm.errors import InputError
from pfvm.runtime.executable import TensorSpec, check_feeds, specs_of

F, I64, S, BF = ir.DataType.FLOAT, ir.DataType.INT64, ir.DataType.STRING, ir.DataType.BFLOAT16
X = TensorSpec("x", F, ("n", 3))
Y = TensorSpec("y", I64, ("n",))
W = TensorSpec("w", F, (3,))


def x(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def test_specs_separate_required_overridable_and_outputs() -> None:
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]>'
            "g (float[n,3] x, float[3] w = {1,2,3}, float[?,2] z) => (float[n,3] y) { y = Add (x, w) }"
        )
    )
    required, optional, outputs = specs_of(model)
    assert required == (TensorSpec("x", F, ("n", 3)), TensorSpec("z", F, (None, 2)))
    assert optional == (TensorSpec("w", F, (3,)),)
    assert outputs == (TensorSpec("y", F, ("n", 3)),)
    assert str(required[1]) == "float[?,2]"


def test_unnamed_dims_of_exporters_are_not_symbols() -> None:
    """Paddle writes "?" for every open dim: two of them need not be equal."""
    value = ir.Value(name="x", type=ir.TensorType(F), shape=ir.Shape(["?", -1, "", "n"]))
    model = ir.Model(ir.Graph([value], [], nodes=[], opset_imports={"": 17}), ir_version=8)
    assert specs_of(model)[0][0].shape == (None, None, None, "n")


def test_good_feeds_come_back_as_arrays_in_order() -> None:
    checked = check_feeds([X, Y], [W], {"y": [1, 2], "w": x(3), "x": x(2, 3)})
    assert list(checked) == ["x", "y", "w"]
    assert checked["y"].dtype == np.int64


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"y": np.zeros(2, np.int64)}, r"missing input 'x' \(float\[n,3\]\)"),
        (
            {"x": x(2, 3), "y": np.zeros(2, np.int64), "q": x(1)},
            "unknown input 'q': the model's inputs are 'x', 'y', 'w'",
        ),
        ({"x": np.zeros((2, 3)), "y": np.zeros(2, np.int64)}, "input 'x': expected dtype float32, got float64"),
        ({"x": x(3), "y": np.zeros(2, np.int64)}, r"input 'x': expected rank 2 .*got shape \[3\]"),
        ({"x": x(2, 4), "y": np.zeros(2, np.int64)}, r"input 'x': dim 1 must be 3 .*got shape \[2, 4\]"),
        ({"x": x(2, 3), "y": np.zeros(5, np.int64)}, "input 'y': dim 0 .'n'. is 5, but input 'x' has 'n' = 2"),
        ({"x": None, "y": np.zeros(2, np.int64)}, "input 'x' is None"),
        ({"x": x(2, 3), "y": np.zeros(2, np.int64), "w": x(4)}, "input 'w': dim 0 must be 3"),
    ],
)
def test_bad_feeds_name_the_input(feeds: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_feeds([X, Y], [W], feeds)


def test_unknown_inputs_are_not_answered_with_every_weight() -> None:
    weights = [TensorSpec(f"w{i}", F, (3,)) for i in range(100)]
    feeds = {"x": x(2, 3), "y": np.zeros(2, np.int64)}
    with pytest.raises(InputError, match=r"are 'x', 'y', and 100 weights that .*; did you mean 'w7'\?$"):
        check_feeds([X, Y], weights, {**feeds, "W7": x(3)})
    with pytest.raises(InputError, match=r"missing input 'x' .*; 'X', which was given, is no input of the model"):
        check_feeds([X, Y], weights, {"X": feeds["x"], "y": feeds["y"]})


@pytest.mark.parametrize("feeds", [None, [1], 3])
def test_feeds_are_a_mapping(feeds: object) -> None:
    with pytest.raises(InputError, match="a call takes a dict from input names to arrays, not "):
        check_feeds([X, Y], [W], feeds)  # type: ignore[arg-type]


def test_what_is_no_array_is_named() -> None:
    with pytest.raises(InputError, match="input 'x': not an array: "):
        check_feeds([X], [], {"x": [[1, 2], [3]]})


def test_sequences_and_optionals() -> None:
    sequence = TensorSpec("s", F, (None,), "sequence")
    optional = TensorSpec("o", F, (2,), "optional")
    checked = check_feeds([sequence, optional], [], {"s": [x(1), x(2)], "o": None})
    assert [v.shape for v in checked["s"]] == [(1,), (2,)]
    assert checked["o"] is None
    with pytest.raises(InputError, match="'s' is a sequence: expected a list"):
        check_feeds([sequence], [], {"s": x(1)})
    with pytest.raises(InputError, match=r"input 's'\[1\]: expected dtype float32, got float64"):
        check_feeds([sequence], [], {"s": [x(1), np.zeros(1)]})


def test_strings_and_ml_dtypes() -> None:
    check_feeds([TensorSpec("s", S, (2,))], [], {"s": np.array(["a", "b"])})
    check_feeds([TensorSpec("s", S, (2,))], [], {"s": np.array(["a", "b"], object)})
    check_feeds([TensorSpec("b", BF, (2,))], [], {"b": np.zeros(2, ml_dtypes.bfloat16)})
    with pytest.raises(InputError, match="expected dtype bfloat16, got float32"):
        check_feeds([TensorSpec("b", BF, (2,))], [], {"b": x(2)})


def test_bytes_in_the_other_order_are_the_same_numbers() -> None:
    swapped = x(2).astype(x(2).dtype.newbyteorder())
    checked = check_feeds([TensorSpec("x", ir.DataType.FLOAT, (2,))], [], {"x": swapped})["x"]
    assert checked.dtype.isnative and (checked == x(2)).all()
