"""ai.onnx.ml's numeric operators, and the optimizers of ai.onnx.preview.training."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("jax")

from xla_cases import COLUMNS, case, check, f32, i64, ints

pytestmark = pytest.mark.usefixtures("quick_compilation")

ML = "ai.onnx.ml"
X = f32(5, 3)
HOLES = np.where(np.abs(X) < 0.6, np.nan, X).astype(np.float32)
FEATURES = [
    case("Scaler", X, domain=ML, offset=[0.5], scale=[2.0]),
    case("Scaler", ints(np.int64, 5, 3), domain=ML, offset=[0.5, 1.0, 2.0], scale=[2.0, 3.0, 4.0]),
    *(case("Normalizer", np.abs(X), domain=ML, norm=n) for n in ("MAX", "L1", "L2")),
    *(case("Normalizer", X, domain=ML, norm=n, id=f"Normalizer-signs-{n}") for n in ("MAX", "L1", "L2")),
    case("Binarizer", X, domain=ML, threshold=0.2),
    case("Imputer", HOLES, domain=ML, imputed_value_floats=[9.0], replaced_value_float=float("nan")),
    case("Imputer", i64(1, 2, 3, 1).reshape(2, 2), domain=ML, imputed_value_int64s=[8, 9], replaced_value_int64=1),
    case("ArrayFeatureExtractor", X, i64(2, 0), domain=ML),
    case("ArrayFeatureExtractor", f32(4), i64(2, 0).reshape(1, 2), domain=ML),
    case("FeatureVectorizer", X, f32(5, 2), domain=ML, inputdimensions=[3, 2]),
    case("OneHotEncoder", i64(3, 1, 7), domain=ML, cats_int64s=[1, 3, 5]),
    case("OneHotEncoder", f32(2, 3).round(), domain=ML, cats_int64s=[-1, 0, 1]),
    case("LabelEncoder", i64(3, 1, 7, 2), domain=ML, keys_int64s=[7, 3], values_int64s=[70, 30]),
    case("LabelEncoder", i64(3, 1, 7, 2), domain=ML, keys_int64s=[7, 3], values_floats=[0.7, 0.3], default_float=-5.0),
    case("LabelEncoder", np.array([1.5, np.nan, 2.0], np.float32), domain=ML, keys_floats=[float("nan"), 2.0],
         values_int64s=[1, 2], id="LabelEncoder-nan"),
]  # fmt: skip


@pytest.mark.parametrize(COLUMNS, FEATURES)
def test_features_equal_onnx_runtime(op, inputs, opset, outputs, domain, attributes):
    check(op, inputs, opset, outputs, domain, attributes)
