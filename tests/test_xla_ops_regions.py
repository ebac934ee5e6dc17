"""Regions of interest, deformable convolutions, linear attention, and operators that the standard has dropped."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("jax")

from xla_cases import COLUMNS, RNG, case, check, f32, i32, i64, run, standard

pytestmark = pytest.mark.usefixtures("quick_compilation")

IMAGES = f32(2, 3, 9, 8)
ROIS = np.array([[0, 0, 7, 8], [1.3, 2.2, 5.9, 6.4], [-2, -1, 12, 15], [3, 3, 3.2, 3.1]], np.float32)
BATCH = i64(0, 1, 1, 0)
POOLS = np.concatenate([BATCH[:, None].astype(np.float32), ROIS], 1)
UNIT = RNG.uniform(-0.2, 1.2, (4, 4)).astype(np.float32)
CONTRIB = "com.microsoft"
REGIONS = [
    *(case("RoiAlign", IMAGES, ROIS, BATCH, opset=16, output_height=3, output_width=2, sampling_ratio=r, mode=m,
           coordinate_transformation_mode=t)
      for r in (0, 2) for m in ("avg", "max") for t in ("half_pixel", "output_half_pixel")),
    case("RoiAlign", IMAGES, ROIS, BATCH, opset=10, output_height=2, output_width=2, spatial_scale=0.5),
    case("MaxRoiPool", IMAGES, POOLS, pooled_shape=[3, 2]),
    case("MaxRoiPool", IMAGES, POOLS, pooled_shape=[2, 2], spatial_scale=0.5),
    *(case("CropAndResize", IMAGES, UNIT, i32(0, 1, 1, 0), i32(3, 4), domain=CONTRIB, mode=m, extrapolation_value=2.0)
      for m in ("bilinear", "nearest")),
]  # fmt: skip

DEFORMED = [
    case("DeformConv", IMAGES, f32(4, 3, 3, 3), f32(2, 18, 9, 8), opset=19, pads=[1, 1, 1, 1]),
    case("DeformConv", f32(1, 4, 6, 7), f32(4, 2, 2, 2), f32(1, 16, 3, 3), f32(4), f32(1, 8, 3, 3), opset=22, group=2,
         offset_group=2, strides=[2, 2], id="DeformConv-groups-mask-bias"),
]  # fmt: skip

X = f32(2, 3, 4, 5)
LEGACY = [
    case("ImageScaler", X, opset=7, bias=[0.1, 0.2, 0.3], scale=2.0),
    case("Crop", X, opset=7, border=[1, 0, 2, 1]),
    case("Crop", X, opset=7, border=[1, 1, 0, 0], scale=[2, 3]),
    case("Affine", X, opset=7, alpha=2.0, beta=0.5),
    case("ScaledTanh", X, opset=7, alpha=2.0, beta=0.5),
    case("ParametricSoftplus", X, opset=7, alpha=2.0, beta=0.5),
    case("ThresholdedRelu", X, opset=7, alpha=0.3),
    case("MeanVarianceNormalization", X, opset=7, across_channels=1),
    case("MeanVarianceNormalization", X, opset=7, normalize_variance=0),
    case("DynamicSlice", X, i64(0, 1), i64(1, 4), i64(0, 2), opset=7),
    case("LayerNormalization", X, f32(5), f32(5), opset=11),
]


@pytest.mark.parametrize(COLUMNS, [*REGIONS, *LEGACY])
def test_rule_equals_onnx_runtime(op, inputs, opset, outputs, domain, attributes):
    check(op, inputs, opset, outputs, domain, attributes)


@pytest.mark.parametrize(COLUMNS, DEFORMED)
def test_deformable_convolution_equals_the_standard(op, inputs, opset, outputs, domain, attributes):
    check(op, inputs, opset, outputs, domain, attributes, oracle=standard)


@pytest.mark.parametrize("rule", ["linear", "gated", "delta", "gated_delta"])
def test_linear_attention_equals_the_standard(rule):
    inputs = [f32(2, 5, 4 * 3), f32(2, 5, 2 * 3), f32(2, 5, 2 * 4), f32(2, 2, 3, 4)]
    decay = -np.abs(f32(2, 5, 2)) if "gated" in rule else None
    beta = np.abs(f32(2, 5, 1)) if "delta" in rule else None
    attributes = {"q_num_heads": 4, "kv_num_heads": 2, "update_rule": rule}
    check("LinearAttention", [*inputs, decay, beta], 27, (True, True), "", attributes, oracle=standard)


def test_an_empty_set_of_regions():
    (y,) = run("RoiAlign", IMAGES, ROIS[:0], BATCH[:0], opset=16, output_height=2, output_width=2)
    assert y.shape == (0, 3, 2, 2)


def test_tensors_filled_from_attributes():
    np.testing.assert_array_equal(run("ConstantFill", opset=7, shape=[2, 3], value=1.5)[0], np.full((2, 3), 1.5))
    filled = run("ConstantFill", i64(2), opset=7, input_as_shape=1, extra_shape=[3], value=2.0, dtype=7)[0]
    np.testing.assert_array_equal(filled, np.full((2, 3), 2))
    given = run("GivenTensorFill", opset=7, shape=[2, 2], values=[1.0, 2.0, 3.0, 4.0])[0]
    np.testing.assert_array_equal(given, [[1, 2], [3, 4]])
