"""Tree ensembles against ONNX Runtime: regressors, classifiers and the form of opset 5."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import numpy_helper

pytest.importorskip("onnxruntime")
pytest.importorskip("jax")

from pfvm.errors import UnsupportedOpError
from xla_cases import check, f32, f64, run

pytestmark = pytest.mark.usefixtures("quick_compilation")

MODES = ["BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ"]
X = f32(40, 4).round(1)
HOLES = np.where(np.abs(X) < 0.2, np.nan, X).astype(np.float32)


def forest(prefix, targets, trees=3, depth=3, scored=None, positive=False, modes=("BRANCH_LEQ",)):
    """Random full trees; every leaf has a weight for each target of `scored`."""
    rng = np.random.default_rng(trees + depth)
    inner, total = 2**depth - 1, 2 ** (depth + 1) - 1
    nodes = {k: [] for k in ("treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids",
                             "missing_value_tracks_true")}  # fmt: skip
    leaves = {k: [] for k in ("treeids", "nodeids", "ids", "weights")}
    for tree in range(trees):
        for i in range(total):
            row = (tree, i, int(rng.integers(4)), float(np.float32(round(rng.normal(), 1))),
                   str(rng.choice(modes)) if i < inner else "LEAF", 2 * i + 1 if i < inner else 0,
                   2 * i + 2 if i < inner else 0, int(rng.integers(2)))  # fmt: skip
            for values, value in zip(nodes.values(), row):
                values.append(value)
        for i in range(inner, total):
            for target in range(targets) if scored is None else scored:
                weight = float(rng.normal())
                for values, value in zip(leaves.values(), (tree, i, target, abs(weight) / 3 if positive else weight)):
                    values.append(value)
    return {f"nodes_{k}": v for k, v in nodes.items()} | {f"{prefix}_{k}": v for k, v in leaves.items()}


@pytest.mark.parametrize("how", ["SUM", "AVERAGE", "MIN", "MAX"])
@pytest.mark.parametrize("targets", [1, 3])
def test_regressor(how, targets):
    attributes = forest("target", targets, modes=MODES) | {"n_targets": targets, "aggregate_function": how}
    attributes["base_values"] = [0.5] * targets
    check("TreeEnsembleRegressor", [HOLES], 17, (True,), "ai.onnx.ml", attributes)


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("targets", [1, 3])
def test_regressor_post_transform(transform, targets):
    attributes = forest("target", targets) | {"n_targets": targets, "post_transform": transform}
    check("TreeEnsembleRegressor", [X], 17, (True,), "ai.onnx.ml", attributes)


def classifier(labels, base, **options):
    attributes = forest("class", len(labels), **options) | {"classlabels_int64s": labels}
    return attributes | {"base_values": base} if base else attributes


@pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
@pytest.mark.parametrize("positive", [False, True])
@pytest.mark.parametrize(
    ("labels", "scored", "base"),
    [([1, 5, 7], None, []), ([1, 5, 7], None, [0.1, 0.2, 0.3]),
     ([4, 5], [1], []), ([4, 5], [0], []), ([4, 5], [0], [0.2])],
)  # fmt: skip
def test_classifier(transform, positive, labels, scored, base):
    attributes = classifier(labels, base, scored=scored, positive=positive) | {"post_transform": transform}
    check("TreeEnsembleClassifier", [X], 17, (True, True), "ai.onnx.ml", attributes)


@pytest.mark.parametrize(("scored", "base"), [([0, 1], []), ([1], [0.5]), ([0], [0.1, 0.2])])
def test_two_classes_on_which_the_standard_and_onnx_runtime_disagree_are_refused(scored, base):
    with pytest.raises(UnsupportedOpError, match="two classes"):
        attributes = classifier([0, 1], base, scored=scored)
        run("TreeEnsembleClassifier", X, domain="ai.onnx.ml", outputs=(True, True), **attributes)


def test_double_thresholds():
    attributes = forest("target", 1)
    for name in ("nodes_values", "target_weights"):
        attributes[f"{name}_as_tensor"] = numpy_helper.from_array(np.array(attributes.pop(name)))
    attributes["n_targets"] = 1
    check("TreeEnsembleRegressor", [f64(9, 4)], 17, (True,), "ai.onnx.ml", attributes)
