"""Attention on xla:cpu: float operands by a rule of its own, other forms by the schema's function; as ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from onnx import helper
from pfvm.runtime.device import load_executable
from pfvm.runtime.ort import evaluate

pytest.importorskip("jax")
from pfvm.runtime.xla.registry import lookup

pytestmark = pytest.mark.usefixtures("quick_compilation")
RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def attention(
    operands: list[np.ndarray | None], opset: int, **attributes: Any
) -> tuple[ir.Model, dict[str, np.ndarray]]:
    feeds = {f"x{i}": x for i, x in enumerate(operands) if x is not None}
    names = [f"x{i}" if x is not None else "" for i, x in enumerate(operands)]
    types = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for n, x in feeds.items()
    ]
    result = helper.make_tensor_value_info("y", types[0].type.tensor_type.elem_type, None)
    node = helper.make_node("Attention", names, ["y"], **attributes)
    graph = helper.make_graph([node], "g", types, [result])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return ir.from_proto(proto), feeds


Q, K, V = floats(2, 4, 3, 8), floats(2, 4, 5, 8), floats(2, 4, 5, 6)
Q3, K3, V3 = floats(2, 3, 32), floats(2, 5, 32), floats(2, 5, 24)
HEADS = {"q_num_heads": 4, "kv_num_heads": 4}
SOME = RNG.random((2, 1, 3, 5)) < 0.6
SOME[0, 0, 1] = False  # a query without a key
HIDDEN = np.where(SOME, 0, -np.inf).astype(np.float32)


@pytest.mark.parametrize("opset", [23, 24])
@pytest.mark.parametrize(
    ("operands", "attributes"),
    [
        ([Q, K, V], {}),
        ([Q, K, V, floats(3, 5)], {"scale": 0.3}),
        ([Q, K, V, floats(2, 1, 3, 5)], {"is_causal": 1}),
        ([Q, K, V, SOME], {}),
        ([Q, K, V, HIDDEN], {"is_causal": 1}),
        ([Q, K[:, :2], V[:, :2]], {"scale": 0.3}),
        ([Q3, K3, V3, SOME], HEADS),
        ([Q3, K3[..., :8], V3[..., :6]], {"q_num_heads": 4, "kv_num_heads": 1, "is_causal": 1}),
        ([Q, K, V], {"softcap": 2.0}),
        ([Q.astype(np.float16), K.astype(np.float16), V.astype(np.float16)], {}),
    ],
)  # fmt: skip
def test_as_onnx_runtime(operands: list[np.ndarray], attributes: dict[str, Any], opset: int) -> None:
    model, feeds = attention(operands, opset, **attributes)
    expected, found = evaluate(model, feeds)["y"], load_executable(model, "xla:cpu")(feeds)["y"]
    tolerance = 3e-3 if operands[0].dtype == np.float16 else 1e-5
    np.testing.assert_allclose(np.float64(found), np.float64(expected), rtol=tolerance, atol=tolerance)
    rule = lookup("", "Attention", opset)
    assert rule is not None
    own = operands[0].dtype == np.float32 and "softcap" not in attributes
    assert rule.takes(model.graph[0], operands) == own
