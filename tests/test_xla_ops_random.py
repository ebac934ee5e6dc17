"""Random operators: their distribution, seeds, and the training forms of Dropout and BatchNormalization."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("jax")

from pfvm.runtime.xla import XlaExecutable
from xla_cases import COLUMNS, case, check, f32, model_of, run, standard

pytestmark = pytest.mark.usefixtures("quick_compilation")

SHAPE = [40, 50]
DRAWS = {
    "RandomNormal": ((), {"shape": SHAPE, "mean": 2.0, "scale": 3.0}, (2.0, 3.0)),
    "RandomNormalLike": ((f32(*SHAPE),), {"mean": -1.0, "scale": 0.5}, (-1.0, 0.5)),
    "RandomUniform": ((), {"shape": SHAPE, "low": 1.0, "high": 3.0}, (2.0, 2 / 12**0.5)),
    "RandomUniformLike": ((f32(*SHAPE),), {"dtype": 11}, (0.5, 1 / 12**0.5)),
    "Bernoulli": ((np.full(SHAPE, 0.3),), {"dtype": 1}, (0.3, 0.21**0.5)),
    "Multinomial": ((np.log([[0.2, 0.8]] * 20).astype(np.float32),), {"sample_size": 300}, (0.8, 0.4)),
}


@pytest.mark.parametrize("op", DRAWS)
def test_the_numbers_have_the_distribution_asked_for(op):
    inputs, attributes, (mean, deviation) = DRAWS[op]
    (y,) = run(op, *inputs, seed=7.0, **attributes)
    assert y.dtype == {"RandomUniformLike": np.float64, "Multinomial": np.int32}.get(op, np.float32)
    assert abs(y.mean() - mean) < 0.1 * deviation
    assert abs(y.std() - deviation) < 0.1 * deviation


def test_a_seed_gives_the_same_numbers_in_every_call_and_executable():
    first, second = (run("RandomNormal", shape=[5], seed=s)[0] for s in (3.0, 3.0))
    np.testing.assert_array_equal(first, second)
    assert (run("RandomNormal", shape=[5], seed=4.0)[0] != first).all()


def test_without_a_seed_every_call_draws_anew():
    exe = XlaExecutable(ir.serde.deserialize_model(model_of("RandomNormal", [], 17, (True,), "", {"shape": [5]})))
    first, second = exe({})["y0"], exe({})["y0"]
    assert (first != second).all()
    assert exe.compilations == 1


@pytest.mark.parametrize("opset", [12, 22])
def test_dropout_in_training_keeps_the_sum(opset):
    x = np.ones((100, 100), np.float32)
    y, mask = run("Dropout", x, np.float32(0.25), np.array(True), opset=opset, outputs=(True, True), seed=1.0)
    assert mask.dtype == np.bool_ and abs(mask.mean() - 0.75) < 0.03
    np.testing.assert_allclose(y, np.where(mask, x / 0.75, 0), rtol=1e-6)


def test_dropout_before_opset_7_trains_unless_is_test():
    x = np.ones((100, 100), np.float32)
    (trained,), (tested,) = (run("Dropout", x, opset=6, ratio=0.5, is_test=t) for t in (0, 1))
    np.testing.assert_array_equal(tested, x)
    np.testing.assert_allclose(np.unique(trained), [0, 2])


IMAGE = f32(3, 4, 5, 6)
STATISTICS = (f32(4), f32(4), f32(4), np.abs(f32(4)))
TRAINING = [
    case("BatchNormalization", IMAGE, *STATISTICS, opset=15, outputs=(True,) * 3, training_mode=1),
    case("BatchNormalization", IMAGE, *STATISTICS, opset=14, outputs=(True,) * 3, training_mode=1, momentum=0.3),
    case("BatchNormalization", f32(6, 4), *STATISTICS, opset=15, outputs=(True,) * 3, training_mode=1, epsilon=0.1),
]


@pytest.mark.parametrize(COLUMNS, TRAINING)
def test_batch_normalization_in_training(op, inputs, opset, outputs, domain, attributes):
    check(op, inputs, opset, outputs, domain, attributes, oracle=standard)


@pytest.mark.parametrize("opset", [6, 7, 9])
def test_batch_normalization_before_opset_14_trains_where_it_has_more_outputs(opset):
    y, mean, var, saved_mean, saved_var = run(
        "BatchNormalization", IMAGE, *STATISTICS, opset=opset, outputs=(True,) * 5
    )
    axes = (0, 2, 3)
    np.testing.assert_allclose(saved_mean, IMAGE.mean(axes), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(saved_var, IMAGE.var(axes), rtol=1e-4)
    np.testing.assert_allclose(mean, STATISTICS[2] * 0.9 + IMAGE.mean(axes) * 0.1, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(var, STATISTICS[3] * 0.9 + IMAGE.var(axes) * 0.1, rtol=1e-4)
    np.testing.assert_allclose(
        (y.mean(axes), y.std(axes)), (STATISTICS[1], np.abs(STATISTICS[0])), rtol=1e-3, atol=1e-5
    )


def test_batch_normalization_of_each_element():
    shape = IMAGE.shape[1:]
    scale, bias, mean, var = f32(*shape), f32(*shape), f32(*shape), np.abs(f32(*shape))
    (y,) = run("BatchNormalization", IMAGE, scale, bias, mean, var, opset=7, spatial=0)
    np.testing.assert_allclose(y, (IMAGE - mean) / np.sqrt(var + 1e-5) * scale + bias, rtol=1e-4, atol=1e-5)
