"""The self-test of `pfvm doctor`: a small model, compiled and run on a device, against the same in numpy.

Each device is tested in a process of its own (`python -m pfvm.tools.selftest DEVICE`), all at once: one that crashes
its process, as a library built for another processor does, is a finding and not the end of the command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

MODEL = """<ir_version: 10, opset_import: ["" : 21]>
selftest (float[4,8] x) => (float[4,3] scores, float[4,1] y) {
  same = Identity (x)  product = MatMul (same, w1)  sum = Add (product, b1)  hidden = Relu (sum)
  scores = Gemm (hidden, w2, b2)  p = Softmax <axis = -1> (scores)  y = ReduceMax <keepdims = 1> (p, axes)
}"""
# Emulated devices compute with fewer bits; what the check must find is a wrong program, not rounding.
TOLERANCE = {"mncore2": 2e-2}
_EXACT = 1e-5


class Result(NamedTuple):
    """What became of one device. error: largest difference from numpy, as a part of max(1, largest value)."""

    device: str
    state: str  # "passed", "failed", "unfinished", or "absent": the libraries are here and the device is not
    error: float | None
    seconds: float
    note: str


def check_devices(names: Sequence[str], timeout: float) -> list[Result]:
    """Tests devices side by side, and takes at most `timeout` seconds."""
    start = time.monotonic()
    environment = {**os.environ, "PFVM_CACHE": "off", "TF_CPP_MIN_LOG_LEVEL": "3"}  # compile, do not reload
    started = {
        name: subprocess.Popen(
            [sys.executable, "-m", "pfvm.tools.selftest", name],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for name in names
    }
    try:
        return [_wait(name, process, start, timeout) for name, process in started.items()]
    finally:
        for process in started.values():
            if process.poll() is None:
                process.kill()
                process.communicate()


def _wait(name: str, process: subprocess.Popen[str], start: float, timeout: float) -> Result:
    left = max(0.01, start + timeout - time.monotonic())
    try:
        out, err = process.communicate(timeout=left)
    except subprocess.TimeoutExpired:
        note = f"no result in {timeout:g} s: the machine is busy, or the device hangs; --timeout gives it longer"
        return Result(name, "unfinished", None, timeout, note)
    seconds = time.monotonic() - start
    if process.returncode < 0:
        return Result(name, "failed", None, seconds, f"the process was ended by signal {-process.returncode}")
    try:
        found = json.loads(out.splitlines()[-1])
    except (IndexError, ValueError):
        last = (err.strip() or "nothing was printed").splitlines()[-1]
        return Result(name, "failed", None, seconds, f"exit code {process.returncode}: {last}")
    return Result(**found)


def run(device: str) -> Result:
    """Tests one device in this process."""
    from pfvm.errors import NoDeviceError, PfvmError

    start = time.perf_counter()
    try:
        error = _error(device)
    except NoDeviceError as problem:
        return Result(device, "absent", None, time.perf_counter() - start, str(problem))
    except PfvmError as problem:
        return Result(device, "failed", None, time.perf_counter() - start, str(problem))
    allowed = TOLERANCE.get(device.partition(":")[0], _EXACT)
    passed = error <= allowed
    note = (
        f"equal to numpy within {allowed:g}" if passed else f"differs from numpy by {error:.2g}, allowed: {allowed:g}"
    )
    return Result(device, "passed" if passed else "failed", error, time.perf_counter() - start, note)


def _error(device: str) -> float:
    import numpy as np
    import pfvm

    proto, feeds, expected = case()
    results: Any = pfvm.load(pfvm.optimize(proto), device=device)(feeds)
    return max(
        float(np.max(np.abs(np.asarray(results[name]) - value)) / max(1.0, np.max(np.abs(value))))
        for name, value in expected.items()
    )


def case() -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """The model, its inputs, and its outputs by numpy in float64."""
    import numpy as np
    import onnx

    draw = np.random.default_rng(0)
    shapes = {"w1": (8, 16), "b1": (16,), "w2": (16, 3), "b2": (3,)}
    weights = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    proto = onnx.parser.parse_model(MODEL)
    constants: dict[str, Any] = {**weights, "axes": np.array([1], np.int64)}
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in constants.items())
    x = draw.normal(size=(4, 8)).astype(np.float32)
    w1, b1, w2, b2 = (value.astype(np.float64) for value in weights.values())
    scores = np.maximum(x @ w1 + b1, 0) @ w2 + b2
    shifted = np.exp(scores - scores.max(axis=1, keepdims=True))
    y = (shifted / shifted.sum(axis=1, keepdims=True)).max(axis=1, keepdims=True)
    return proto, {"x": x}, {"scores": scores, "y": y}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1])._asdict()))
