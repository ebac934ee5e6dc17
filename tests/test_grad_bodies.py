"""Promise: gradients go through Scan, Loop and If; a loop without a known end has none, and says so."""

from __future__ import annotations

import numpy as np
import onnx
import pfvm
import pytest
from onnx import numpy_helper
from pfvm.errors import UnsupportedOpError

HEADER = '<ir_version: 8, opset_import: ["" : 18]>\n'
SCAN = """g (double[5,3] x) => (double loss) <double[3] w = {0.1,0.2,0.3}, double[3] h0 = {0.4,0.5,0.6}>
{ hN, ys = Scan <num_scan_inputs=1, body = b (double[3] h, double[3] xi) => (double[3] hn, double[3] y)
    { p = Mul (h, w) s = Add (p, xi) hn = Tanh (s) y = Mul (hn, hn) }> (h0, x)
  a = ReduceSum <keepdims=0> (ys) c = ReduceSum <keepdims=0> (hN) loss = Add (a, c) }"""
LOOP = """g (double[3] x) => (double loss) <double[3] w = {0.1,0.2,0.3}, int64 n = {4}, bool yes = {1}>
{ h, ys = Loop <body = b (int64 i, bool c, double[3] h) => (bool c2, double[3] hn, double[3] y)
    { c2 = Identity (c) p = Mul (h, w) hn = Tanh (p) y = Exp (hn) }> (n, yes, x)
  a = ReduceSum <keepdims=0> (ys) d = ReduceSum <keepdims=0> (h) loss = Add (a, d) }"""
IF = """g (double[3] x, bool c) => (double loss) <double[3] w = {0.1,0.2,0.3}>
{ h = If (c) <then_branch = t () => (double[3] p) { p = Mul (x, w) },
              else_branch = e () => (double[3] q) { z = Mul (w, w) q = Mul (z, x) }>
  loss = ReduceSum <keepdims=0> (h) }"""


@pytest.mark.parametrize(
    ("text", "more"), [(SCAN, {}), (LOOP, {}), (IF, {"c": np.array(True)}), (IF, {"c": np.array(False)})]
)
def test_gradients_go_through_bodies(text: str, more: dict[str, np.ndarray]) -> None:
    model = onnx.parser.parse_model(HEADER + text)
    step = pfvm.grad(model, "loss", lr=1.0)
    onnx.checker.check_model(step, full_check=True)
    feeds = {"x": np.random.default_rng(0).standard_normal((5, 3) if text == SCAN else 3), **more}
    old = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for device in ("pfvm:cpu", "xla:cpu"):
        run = pfvm.load(step, device)
        out = run(feeds)
        for name in (name for name in old if f"{name}.new" in out):
            direction = np.array([1.0, -0.5, 0.25])
            up, down = (run({**feeds, name: old[name] + size * direction})["loss"] for size in (1e-6, -1e-6))
            found = ((old[name] - out[f"{name}.new"]) * direction).sum()
            np.testing.assert_allclose(found, (up - down) / 2e-6, rtol=1e-6, atol=1e-8, err_msg=name)


def test_a_loop_without_a_known_end_is_named() -> None:
    text = LOOP.replace("g (double[3] x)", "g (double[3] x, int64 n)").replace("int64 n = {4}, ", "")
    with pytest.raises(UnsupportedOpError, match=r"Loop .*needs the value of 'n'"):
        pfvm.grad(onnx.parser.parse_model(HEADER + text), "loss")
