"""Promise: what is captured with an open first dimension computes what eager PyTorch computes, at other sizes too."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from capture_cases import FUNCTIONS  # noqa: E402
from capture_modules import MODULES, seeded  # noqa: E402
from pfvm.compiler.capture.dtypes import to_numpy  # noqa: E402
from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.runtime.ort import evaluate  # noqa: E402

SYMBOLIC = [
    "add_alpha",
    "int_floor_by_negative",
    "pow",
    "compare",
    "where",
    "masked_fill",
    "clamp",
    "softmax",
    "sum_of_bool",
    "mean",
    "var_std",
    "max_pair",
    "arg",
    "any_all",
    "prod_norm",
    "logsumexp",
    "cumsum",
    "normalize",
    "cosine",
    "transposes",
    "joins",
    "splits",
    "slices",
    "pads",
    "pad_modes",
    "triangles",
    "diagonal",
    "unfold",
    "several_indices",
    "topk_sort",
    "index_add",
    "matmuls",
    "einsum",
    "attention",
    "attention_causal",
    "cross_entropy",
    "cross_entropy_2d",
    "losses",
    "max_pool",
    "max_pool_indices",
    "avg_pool",
    "adaptive",
    "interpolate_nearest",
    "interpolate_bilinear",
    "grid_sample",
    "instance_norm",
    "inplace_add",
    "repeat_interleave",
    "creation",
    "one_hot",
    "gru",
    "resnet",
    "causal_decoder",
    "group_norm",
    "multihead_attention",
    "transformer_encoder",
    "conv_transpose",
]


NEEDS_TWO = ("slices", "several_indices", "index_add")  # they read element 1


@pytest.mark.parametrize("name", SYMBOLIC)
def test_symbolic_first_dimension(name: str) -> None:
    """Captured at one size, right at others."""
    make, args = MODULES[name] if name in MODULES else FUNCTIONS[name]
    fn = seeded(make) if name in MODULES else make
    size = args[0].shape[0]
    inputs = capture(fn, args).inputs.tensor_names
    dynamic = {n: {0: "n"} for n, a in zip(inputs, args) if a.shape[0] == size}
    exported = capture(fn, args, dynamic=dynamic)
    for n in (3 if name in NEEDS_TWO else 1, 5):
        resized = tuple(torch.cat([a] * 5)[:n] if i in dynamic else a for i, a in zip(inputs, args))
        results = evaluate(exported.model, {i: to_numpy(a) for i, a in zip(inputs, resized)})
        with torch.no_grad():
            expected = exported.outputs.unpack(fn(*resized))
        for key, want in expected.items():
            np.testing.assert_allclose(results[key], to_numpy(want), rtol=1e-4, atol=1e-4, err_msg=f"{key} at {n}")
