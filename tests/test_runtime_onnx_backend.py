"""Promise: ONNX's own backend tests drive a pfvm device through the standard interface."""

from __future__ import annotations

import collections
import functools
import unittest

import numpy as np
import onnx
import onnx.backend.test
import pfvm.runtime.onnx_backend as backend
import pytest
from pfvm.errors import InputError, MissingExtraError, NoDeviceError

pytestmark = [
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # making ONNX's test data divides by zero
    pytest.mark.filterwarnings("ignore::pytest.PytestUnknownMarkWarning"),  # and marks its tests for its own reports
]

TEXT = '<ir_version: 10, opset_import: ["" : 21]> g (float[2] x, float[2] w = {1,2}) => (float[2] y) { y = Mul (x, w) }'
ONES = np.ones(2, np.float32)


def mul() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


def test_prepare_and_run() -> None:
    prepared = backend.prepare(mul())
    assert prepared.run([ONES]).y.tolist() == [1, 2]
    assert prepared.run([ONES, 3 * ONES])[0].tolist() == [3, 3]
    assert prepared.run({"x": ONES}).y.tolist() == [1, 2]
    assert backend.run_model(mul(), ONES).y.tolist() == [1, 2]
    assert backend.run(mul(), {"x": ONES})[0].tolist() == [1, 2]
    with pytest.raises(InputError, match="3 inputs given, the model has 2"):
        prepared.run([ONES, ONES, ONES])


def test_run_node() -> None:
    node = onnx.helper.make_node("Add", ["a", "b"], ["c"])
    assert backend.run_node(node, [ONES, ONES])[0].tolist() == [2, 2]
    old = onnx.helper.make_node("ReduceSum", ["a"], ["c"], axes=[0], keepdims=0)
    assert backend.run_node(old, [ONES], opset_version=9)[0].tolist() == 2
    with pytest.raises(InputError, match="1 inputs given, the node has 2"):
        backend.run_node(node, [ONES])


def test_compatibility_and_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert backend.is_compatible(mul())
    assert not backend.is_compatible(onnx.parser.parse_model(TEXT.replace("Mul", "Foo")))
    assert backend.supports_device("CPU")
    assert not backend.supports_device("CUDA:0")
    monkeypatch.setenv("PFVM_DEVICE", "pfvm:cuda")
    assert backend.supports_device("CUDA:0")
    monkeypatch.setenv("PFVM_DEVICE", "xla:tpu")
    with pytest.raises((NoDeviceError, MissingExtraError), match="xla:tpu"):
        backend.prepare(mul())


@functools.cache
def _suite() -> dict[str, type[unittest.TestCase]]:
    """The official suite, with the models that have to be downloaded left out."""
    suite = onnx.backend.test.BackendTest(backend, __name__)
    suite.exclude("OnnxBackendRealModelTest")
    return suite.enable_report().test_cases


def _outcomes(pattern: str) -> collections.Counter[str]:
    counts: collections.Counter[str] = collections.Counter()
    for group in _suite().values():
        for name in unittest.TestLoader().getTestCaseNames(group):
            if name.endswith("_cuda") or not name.startswith(pattern) or "RealModel" in group.__name__:
                continue
            result = unittest.TestResult()
            group(name).run(result)
            counts["pass" if result.wasSuccessful() and not result.skipped else "other"] += 1
    return counts


def test_a_part_of_the_official_suite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFVM_DEVICE", "pfvm:cpu")
    for pattern in ("test_gather", "test_sequence", "test_if", "test_lstm_defaults"):
        assert set(_outcomes(pattern)) == {"pass"}, pattern
