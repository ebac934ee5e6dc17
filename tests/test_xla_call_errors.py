"""Bad input at call time on xla:cpu is an error that names the input, never a wrong answer."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

pytest.importorskip("jax")

from pfvm.errors import InputError
from pfvm.runtime.api import load

pytestmark = pytest.mark.usefixtures("quick_compilation")


def exe(text: str):
    return load(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'), "xla:cpu")


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


PLAIN = "g (float[N, 2] x, int64[N] i) => (float[N, 2] y) { y = Exp(x) }"


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({"x": np.ones((1, 2), "f")}, "missing input 'i'"),
        ({"x": np.ones(2, "f"), "i": i64(0)}, "input 'x': expected rank 2"),
        ({"x": np.ones((1, 2)), "i": i64(0)}, "input 'x': expected dtype float32, got float64"),
        ({"x": np.ones((1, 3), "f"), "i": i64(0)}, "input 'x': dim 1 must be 2"),
        ({"x": np.ones((1, 2), "f"), "i": i64(0, 1)}, "input 'i': dim 0 .'N'. is 2"),
        ({"x": np.ones((1, 2), "f"), "i": i64(0), "z": i64(0)}, "unknown input 'z'"),
    ],
)
def test_feeds_that_do_not_fit(feeds: dict[str, np.ndarray], message: str):
    with pytest.raises(InputError, match=message):
        exe(PLAIN)(feeds)


TABLE = "<float[4, 2] w = {0, 1, 2, 3, 4, 5, 6, 7}, int64[2] two = {-1, 1}>"


@pytest.mark.parametrize(
    "nodes",
    [
        "y = Gather(w, i)",
        "j = Cast<to = 6>(i) k = Reshape(j, two) y = Gather(w, k)",
        "v = Neg(w) k = Reshape(i, two) y = GatherElements(v, k)",
    ],
)
@pytest.mark.parametrize("wrong", [4, -5, 1 << 40])
def test_an_index_out_of_range_names_the_input(nodes: str, wrong: int):
    loaded = exe(f"g (int64[N] i) => (float y) {TABLE} {{ {nodes} }}")
    loaded({"i": i64(3, -4, 0)})
    message = f"input 'i' holds the index {wrong}, out of range .*of size 4 .*expected -4 to 3"
    with pytest.raises(InputError, match=message):
        loaded({"i": i64(0, wrong)})


def test_the_size_may_be_that_of_another_input():
    loaded = exe("g (float[N, 3] x, int64[M] i) => (float[M, 3] y) { y = Gather<axis = 0>(x, i) }")
    assert loaded({"x": np.ones((5, 3), "f"), "i": i64(4, -5)})["y"].shape == (2, 3)
    with pytest.raises(InputError, match="input 'i' holds the index 4, out of range for axis 0 of size 2 of 'x'"):
        loaded({"x": np.ones((2, 3), "f"), "i": i64(0, 4)})


def test_columns_of_n_dimensional_indices():
    loaded = exe("g (float[N, 3] x, int64[M, 2] i) => (float[M] y) { y = GatherND(x, i) }")
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert loaded({"x": x, "i": np.array([[1, 2], [-2, -3]])})["y"].tolist() == [5, 0]
    with pytest.raises(InputError, match="input 'i' holds the index 2, out of range for axis 0 of size 2"):
        loaded({"x": x, "i": np.array([[2, 2]])})
    with pytest.raises(InputError, match="input 'i' holds the index 3, out of range for axis 1 of size 3"):
        loaded({"x": x, "i": np.array([[1, 3]])})


def test_indices_that_the_graph_computes_are_judged_as_it_computed_them():
    loaded = exe(
        f"g (int64[N] i) => (float[N, 2] y) {TABLE} {{ j = Mod(i, four) y = Gather(w, j) }}".replace(
            "int64[2] two", "int64 four = {4}, int64[2] two"
        )
    )
    assert loaded({"i": i64(9)})["y"].tolist() == [[2, 3]]
