"""Linear models and support vector machines against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("jax")

from xla_cases import check, f32, ints

pytestmark = pytest.mark.usefixtures("quick_compilation")

X = f32(6, 3)
LABELED = (True, True)


def numbers(*shape):
    return f32(*shape).ravel().tolist()


@pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_linear_models(count, transform):
    attributes = {"coefficients": numbers(count, 3), "intercepts": numbers(count), "post_transform": transform}
    labels = [4, 5] if count == 1 else list(range(3, 3 + count))
    check("LinearRegressor", [X], 17, (True,), "ai.onnx.ml", attributes | {"targets": count})
    check("LinearClassifier", [X], 17, LABELED, "ai.onnx.ml", attributes | {"classlabels_ints": labels})


def test_linear_classifier_of_integers():
    attributes = {"coefficients": numbers(3, 3), "intercepts": numbers(3), "classlabels_ints": [0, 1, 2]}
    check("LinearClassifier", [ints(np.int64, 6, 3)], 17, LABELED, "ai.onnx.ml", attributes)


KERNELS = [
    ("LINEAR", [0.0, 0.0, 0.0]),
    ("POLY", [0.5, 1.0, 2.0]),
    ("RBF", [0.3, 0.0, 0.0]),
    ("SIGMOID", [0.4, 0.1, 0.0]),
]


@pytest.mark.parametrize(("kernel", "parameters"), KERNELS)
@pytest.mark.parametrize("one_class", [0, 1])
def test_svm_regressor(kernel, parameters, one_class):
    attributes = {"coefficients": numbers(4), "support_vectors": numbers(4, 3), "n_supports": 4, "rho": [0.3],
                  "kernel_type": kernel, "one_class": one_class}  # fmt: skip
    attributes["kernel_params"] = parameters
    check("SVMRegressor", [X], 17, (True,), "ai.onnx.ml", attributes)


def test_svm_regressor_without_vectors():
    attributes = {"coefficients": numbers(3), "rho": [0.3], "n_supports": 0, "kernel_params": [0.0] * 3}
    check("SVMRegressor", [X], 17, (True,), "ai.onnx.ml", attributes)


@pytest.mark.parametrize(("kernel", "parameters"), KERNELS)
@pytest.mark.parametrize("sizes", [[2, 3], [2, 3, 2], [1, 2, 2, 3]])
@pytest.mark.parametrize("probabilities", [False, True])
def test_svm_classifier(kernel, parameters, sizes, probabilities):
    count, total = len(sizes), sum(sizes)
    pairs = count * (count - 1) // 2
    attributes = {"coefficients": numbers(count - 1, total), "support_vectors": numbers(total, 3),
                  "rho": numbers(pairs), "vectors_per_class": sizes, "classlabels_ints": list(range(5, 5 + count)),
                  "kernel_type": kernel}  # fmt: skip
    attributes["kernel_params"] = parameters
    if probabilities:
        attributes |= {"prob_a": [-1.5] * pairs, "prob_b": numbers(pairs)}
    check("SVMClassifier", [X], 17, LABELED, "ai.onnx.ml", attributes)
