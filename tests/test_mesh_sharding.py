"""What a mesh splits and what it leaves whole; errors name the input, weight or rule; everything else works as on one
device."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import onnx
import pytest
from pfvm.compiler.importer import read_model
from pfvm.compiler.mesh import auto_spec
from pfvm.errors import InputError, OptionError

pytest.importorskip("jax")

import jax
import pfvm
from pfvm.runtime.xla.sharding import sharding_of

MESH = {"data": 4, "model": 2}


def model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model('<ir_version: 8, opset_import: ["" : 18]> ' + text)


ONES = ",".join("1" * 48)
PRODUCT = model(f"g (float[n,8] x) => (float[n,6] y) <float[8,6] w = {{{ONES}}}> {{ y = MatMul (x, w) }}")


def specs(text: str, shard: Any = None, axes: dict[str, int] | None = None) -> dict[str | None, Any]:
    """What is split, by name: (("data",),) is the first dimension over data."""
    return {v.name: s for v, s in sharding_of(read_model(model(text)), axes or MESH, shard).specs.items()}


def test_the_batch_is_dimension_0_of_the_first_input_wherever_it_stands() -> None:
    assert specs("g (float[n,3] x, float[5,n] u, float[m] v) => (float[n,3] y) { y = Identity (x) }") == {
        "x": (("data",),),
        "u": ((), ("data",)),
    }
    assert specs("g (float x, float[8,3] z, float[8] t, float[3,8] m) => (float y) { y = Identity (x) }") == {
        "z": (("data",),),
        "t": (("data",),),
    }
    assert specs("g (float[8] x) => (float[8] y) { y = Identity (x) }", axes={"model": 2}) == {}


def test_a_rule_for_an_input_goes_before() -> None:
    text = "g (float[6,8] table, float[8,3] x, float[8] t) => (float[8] y) { y = Identity (t) }"
    assert specs(text, ["table=None", "x=data+model"]) == {"x": (("data", "model"),), "t": (("data",),)}
    assert specs(text, ["x=None", "table=None"]) == {"t": (("data",),)}
    assert specs(text, ["t=None", "*=None", "t=data"])["t"] == (("data",),)  # the last one counts


def test_auto_splits_the_largest_dimension_that_divides() -> None:
    text = """g (float[n] x) => (float[n] y)
    <float[32,64] a = {%s}, float[33,64] b = {%s}, float[64,64] c = {%s}, float[2048] d = {%s}, float[4,4] e = {%s}>
    { y = Identity (x) }"""
    filled = text % tuple(",".join("0" * count) for count in (2048, 2112, 4096, 2048, 16))
    found = specs(filled, "auto")
    assert found == {"x": (("data",),), **dict.fromkeys("abc", ((), ("model",)))}
    assert specs(filled, "auto", {"data": 8})["a"] == ((), ("data",))  # without an axis model, over data
    assert auto_spec((32, 32), {"model": 2}) == ((), ("model",)) and auto_spec((32, 31), {"model": 2}) == ()


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        ("weight=model", "'weight=model' matches no input, state or weight of the model; it has: x, w "),
        ("w=model,None,data", r"it names 3 dimensions, and 'w' has 2: \[8,6\]"),
        ("w=None,data", r"dimension 1 of 'w' \[8,6\] cannot be split over data: 6 is not a multiple of 4"),
        ("w=modle", "has no axis 'modle'.* did you mean 'model'"),
    ],
)
def test_rules_that_do_not_fit_are_named(shard: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        pfvm.load(PRODUCT, "xla:cpu", mesh="data=4,model=2", shard=shard)


def test_a_batch_that_does_not_divide_is_named() -> None:
    run = pfvm.load(PRODUCT, "xla:cpu", mesh="data=4,model=2")
    with pytest.raises(InputError, match=r"'x' \[6, 8\]: its batch, dimension 0, .* 6 is not a multiple of data=4"):
        run({"x": np.ones((6, 8), np.float32)})
    assert run({"x": np.ones((8, 8), np.float32)})["y"].shape == (8, 6)
    with pytest.raises(InputError, match=r"'x' .* 10 is not a multiple of data=4"):
        pfvm.load(model("g (float[10] x) => (float[10] y) { y = Relu (x) }"), "xla:cpu", mesh="data=4")
    with pytest.raises(OptionError, match="nothing to split over without a mesh"):
        pfvm.load(PRODUCT, "xla:cpu", shard="auto")
    with pytest.raises(OptionError, match="device pfvm:cpu has no option 'mesh'"):
        pfvm.load(PRODUCT, "pfvm:cpu", mesh="data=2")


def test_weights_lie_where_the_rule_says() -> None:
    run: Any = pfvm.load(PRODUCT, "xla:cpu", mesh="data=4,model=2", shard="w=None,model")
    run({"x": np.ones((8, 8), np.float32)})
    (program,) = run.programs()
    (weight,) = program.weights
    assert weight.addressable_shards[0].data.shape == (8, 3)
    assert len(weight.sharding.device_set) == 8
    assert run.spread == "mesh data=4,model=2: w split over model; x split over data; all else whole on each device"


def test_the_users_jax_is_left_alone() -> None:
    """A mesh needs no flag before jax starts, and starts nothing in the user's jax."""
    pfvm.load(PRODUCT, "xla:cpu", mesh="data=8")({"x": np.ones((8, 8), np.float32)})
    assert jax.device_count("cpu") == 1


def test_many_threads_may_call() -> None:
    run = pfvm.load(PRODUCT, "xla:cpu", mesh="data=8")
    results: list[Any] = []

    def call(value: int) -> None:
        x = np.full((16, 8), value, np.float32)
        results.extend((value, run({"x": x})["y"]) for _ in range(5))

    threads = [threading.Thread(target=call, args=(value,)) for value in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 20
    for value, y in results:
        np.testing.assert_array_equal(y, np.full((16, 6), 8 * value, np.float32))


def test_what_runs_on_the_host_and_shapes_by_data() -> None:
    text = """g (float[8,4] x) => (int64[2,m] where, float[k] double, float[8,4] z)
    { h = Relu (x)  where = NonZero (h)  t = Transpose (where)  f = GatherND (h, t)
      double = Add (f, f)  z = Neg (h) }"""
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    expected = pfvm.load(model(text), "xla:cpu")({"x": x})
    results = pfvm.load(model(text), "xla:cpu", mesh="data=4")({"x": x})
    for name, value in expected.items():
        np.testing.assert_array_equal(results[name], value)


def test_an_index_out_of_range_is_an_error_there_too() -> None:
    text = """g (float[8,4] x, int64[8] i) => (float[4,8] y)
    { j = Abs (i)  t = Transpose (x)  y = Gather <axis=1> (t, j) }"""
    run = pfvm.load(model(text), "xla:cpu", mesh="data=4")
    x = np.ones((8, 4), np.float32)
    assert run({"x": x, "i": np.zeros(8, np.int64)})["y"].shape == (4, 8)
    with pytest.raises(InputError, match="index 9 is out of range"):
        run({"x": x, "i": np.full(8, -9, np.int64)})


def test_random_operators_give_the_numbers_of_one_device() -> None:
    text = "g (float[8,4] x) => (float[8,4] y) { r = RandomUniformLike <seed = 5.0> (x)  y = Add (x, r) }"
    x = np.zeros((8, 4), np.float32)
    expected = pfvm.load(model(text), "xla:cpu")({"x": x})["y"]
    np.testing.assert_array_equal(pfvm.load(model(text), "xla:cpu", mesh="data=4,model=2")({"x": x})["y"], expected)
