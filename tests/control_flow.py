"""What the tests of If, Loop and Scan on xla:cpu share: models from text, and the comparison with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
from pfvm.runtime.ort import OrtExecutable
from pfvm.runtime.xla import XlaExecutable
from xla_cases import assert_equal

X = np.array([1.0, -2.0, 3.0], np.float32)
TRUE, FALSE = np.array(True), np.array(False)


def model(text: str, opset: int = 17) -> onnx.ModelProto:
    header = f'<ir_version: 8, opset_import: ["" : {opset}, "local" : 1, "com.unknown" : 1]>\n'
    return onnx.parser.parse_model(header + text)


def load(text: str, opset: int = 17, **options: bool) -> XlaExecutable:
    return XlaExecutable(ir.serde.deserialize_model(model(text, opset)), **options)


def check(text: str, *calls: dict[str, np.ndarray], opset: int = 17, compilations: int | None = None) -> XlaExecutable:
    """Every call gives what ONNX Runtime gives, from `compilations` executables."""
    proto = model(text, opset)
    exe = XlaExecutable(ir.serde.deserialize_model(proto))
    oracle = OrtExecutable(ir.serde.deserialize_model(proto), optimize=False)
    for feeds in calls:
        got = exe(feeds)
        for name, want in oracle(feeds).items():
            assert_equal(got[name], want)
    if compilations is not None:
        assert exe.compilations == compilations
    return exe


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def int_(value: int) -> np.ndarray:
    return np.array(value, np.int64)
