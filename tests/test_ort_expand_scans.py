"""A Scan along an axis of length 0 is an error that names it; ONNX Runtime's kernel ends the process."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import onnx_ir as ir
import pytest
from pfvm.runtime.ort import OrtExecutable

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[3,n] x, float[n,3] u, float[3] s) => (float[3] f, float[3,n] y) {
  f, y = Scan <num_scan_inputs = 2, scan_input_axes = [AXIS, 0], scan_output_axes = [1], body =
    b (float[3] a, float[3] e, float[3] d) => (float[3] c, float[3] o) { c = Sum (a, e, d)  o = Mul (c, e) }> (s, x, u)
}"""


@pytest.mark.parametrize("axis", [1, -1])
@pytest.mark.parametrize("expand", [True, False])
def test_results_along_another_axis(axis: int, expand: bool) -> None:
    x, u, s = (np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in ((3, 4), (4, 3), 3))
    results = OrtExecutable(ir.from_onnx_text(MODEL.replace("AXIS", str(axis))), expand=expand)(
        {"x": x, "u": u, "s": s}
    )
    states = s + np.cumsum(x.T + u, axis=0)
    np.testing.assert_allclose(results["f"], states[-1], rtol=1e-5)
    np.testing.assert_allclose(results["y"], (states * x.T).T, rtol=1e-5)


@pytest.mark.parametrize("expand", [True, False])
def test_no_elements_along_another_axis(expand: bool) -> None:
    code = f"""
import numpy as np, onnx_ir as ir, pfvm
from pfvm.runtime.ort import OrtExecutable
executable = OrtExecutable(ir.from_onnx_text({MODEL.replace("AXIS", "1")!r}), expand={expand})
try:
    executable({{"x": np.zeros((3, 0), "f"), "u": np.zeros((0, 3), "f"), "s": np.zeros(3, "f")}})
except pfvm.errors.InputError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("pfvm:cpu: Scan (→ 'f') failed on these inputs: ")
