"""One operator as a model, run on xla:cpu and compared with ONNX Runtime (optimizations off) or onnx.reference."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from pfvm.runtime.xla import XlaExecutable

RNG = np.random.default_rng(0)
COLUMNS = ("op", "inputs", "opset", "outputs", "domain", "attributes")


def f32(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def f64(*shape):
    return RNG.standard_normal(shape)


def i64(*values):
    return np.array(values, np.int64)


def i32(*values):
    return np.array(values, np.int32)


def ints(dtype, *shape, low=-9, high=10):
    return RNG.integers(max(low, np.iinfo(dtype).min), high, shape).astype(dtype)


def case(op, *inputs, opset=17, outputs=(True,), domain="", id=None, **attributes):
    """One row for `COLUMNS`. An input None is left out; an output False is left out."""
    label = id or "-".join([op, str(opset), *(f"{k}={v}" for k, v in attributes.items())])[:70]
    return pytest.param(op, inputs, opset, outputs, domain, attributes, id=label)


def model_of(op, inputs, opset, outputs, domain, attributes):
    names = ["" if x is None else f"x{i}" for i, x in enumerate(inputs)]
    results = [f"y{i}" if keep else "" for i, keep in enumerate(outputs)]
    node = helper.make_node(op, names, results, domain=domain, name="node", **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for n, x in zip(names, inputs)
            if n
        ],
        [helper.make_empty_tensor_value_info(r) for r in results if r],
    )
    versions = {"": opset, "com.microsoft": 1, "ai.onnx.ml": 5 if opset >= 23 else 4 if opset >= 20 else 3}
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*v) for v in versions.items()], ir_version=10)


def reference(model, feeds):
    """ONNX Runtime's answer, with optimizations off."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feeds)


def standard(model, feeds):
    """The answer of onnx.reference, for what ONNX Runtime has no kernel for."""
    return ReferenceEvaluator(model).run(None, feeds)


def run(op, *inputs, opset=17, outputs=(True,), domain="", **attributes):
    """The outputs of one node on xla:cpu."""
    arrays = [None if x is None else np.asarray(x) for x in inputs]
    model = model_of(op, arrays, opset, outputs, domain, attributes)
    feeds = {f"x{i}": x for i, x in enumerate(arrays) if x is not None}
    return list(XlaExecutable(ir.serde.deserialize_model(model))(feeds).values())


def check(op, inputs, opset, outputs, domain, attributes, oracle=reference):
    """xla:cpu gives what the oracle gives."""
    arrays = [None if x is None else np.asarray(x) for x in inputs]
    model = model_of(op, arrays, opset, outputs, domain, attributes)
    feeds = {f"x{i}": x for i, x in enumerate(arrays) if x is not None}
    got = XlaExecutable(ir.serde.deserialize_model(model))(feeds)
    for value, want in zip(got.values(), oracle(model, feeds), strict=True):
        assert_equal(value, want)


def assert_equal(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
        return
    finite = np.isfinite(want)
    scale = max(1.0, float(np.abs(want[finite]).max())) if finite.any() else 1.0
    slack = 1e-2 if want.dtype == np.float16 else 1.0
    rtol, atol = (1e-2, 1e-2) if slack != 1.0 else (1e-3, 1e-5 * scale)
    np.testing.assert_allclose(got, want, rtol=rtol, atol=atol)
