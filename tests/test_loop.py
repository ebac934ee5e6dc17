"""Promise: `pfvm loop` makes K steps one call, with the numbers, names and state of K calls of the step."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pfvm
import pytest
from onnx import helper
from pfvm.compiler.signature import read_manifest
from pfvm.errors import InvalidModelError, OptionError, UnsupportedOpError
from pfvm.tools import cli

K = 4
STEP = """<ir_version: 10, opset_import: ["" : 18]>
step (double[b,3] x, double[b] t, double lr, double[3] w, double[3] m, int64 step, uint32[2] seed, double[3] frozen)
  => (double loss, double[3] w_new, double[3] m_new, int64 step_new, int64 before, double[3] same, uint32[2] drawn)
<double[3] w = {1,2,3}, double[3] m = {0,0,0}, double half = {0.5}, int64 one = {1}, uint32[2] seed = {7,9},
 double[3] frozen = {1,1,1}>
{ wf = Mul (w, frozen)  y = MatMul (x, wf)  d = Sub (y, t)  sq = Mul (d, d)  s = ReduceMean <keepdims=0> (sq)
  loss = Mul (half, s)  g = MatMul (d, x)  mm = Mul (m, half)  m_new = Add (mm, g)  u = Mul (lr, m_new)
  w_new = Sub (w, u)  step_new = Add (step, one)  before = Identity (step)  same = Identity (frozen)
  drawn = Identity (seed) }"""
STATE = [
    {"name": "w", "kind": "param", "source": "model.w", "output": "w_new"},
    {"name": "m", "kind": "optimizer", "source": "", "output": "m_new"},
    {"name": "lr", "kind": "hyperparameter", "source": "", "output": None},
    {"name": "step", "kind": "hyperparameter", "source": "", "output": "step_new"},
    {"name": "seed", "kind": "rng", "source": "", "output": None},
    {"name": "frozen", "kind": "param", "source": "", "output": None},
]


def step_model(text: str = STEP, state: list[dict[str, Any]] = STATE) -> onnx.ModelProto:
    proto = onnx.parser.parse_model(text)
    helper.set_model_props(proto, {"pfvm.state": json.dumps({"version": 1, "state": state})})
    return proto


def feeds() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    stacked = {"x": rng.standard_normal((K, 5, 3)), "t": rng.standard_normal((K, 5))}
    return stacked | {"lr": np.array(0.1), "step": np.array(7)}


def one_by_one(device: str, is_met: Callable[[Any], bool] = lambda loss: False) -> list[dict[str, Any]]:
    """What each step gives, in a call of its own, until the loss meets the condition or K are done."""
    one, given, results = pfvm.load(step_model(), device), feeds(), []
    state = {"step": given["step"], "seed": np.array([7, 9], np.uint32)}
    for i in range(K):
        out = one({"x": given["x"][i], "t": given["t"][i], "lr": given["lr"], **state})
        seed = state["seed"] + np.uint32(1)
        state = {"w": out["w_new"], "m": out["m_new"], "step": out["step_new"], "seed": seed}
        results.append(out)
        if is_met(out["loss"]):
            break
    return results


@pytest.mark.parametrize("device", ["pfvm:cpu", "xla:cpu"])
def test_one_call_is_k_calls(device: str) -> None:
    many = pfvm.load(pfvm.loop(step_model(), K), device)(feeds())
    results = one_by_one(device)
    for name in ("loss", "before", "same", "drawn"):
        np.testing.assert_array_equal(many[name], np.stack([out[name] for out in results]), err_msg=name)
    for name in ("w_new", "m_new", "step_new"):
        np.testing.assert_allclose(many[name], results[-1][name], rtol=1e-12, err_msg=name)


def test_the_interface_is_that_of_the_step_with_a_leading_axis() -> None:
    step = step_model()
    many = pfvm.loop(step, K)
    onnx.checker.check_model(many, full_check=True)
    model, before = ir.from_proto(many), ir.from_proto(step)
    assert read_manifest(model) == read_manifest(before)
    for new, old in zip((*model.graph.inputs, *model.graph.outputs), (*before.graph.inputs, *before.graph.outputs)):
        stacked = new.name in ("x", "t", "loss", "before", "same", "drawn")
        assert (new.name, new.dtype) == (old.name, old.dtype)
        assert list(new.shape) == [*([K] if stacked else []), *old.shape]
    assert [node.op_type for node in many.graph.node] == ["Scan"]
    assert {"w", "m", "half", "frozen"} <= {tensor.name for tensor in many.graph.initializer}
    assert pfvm.load(pfvm.optimize(many))(feeds())["loss"].shape == (K,)


def test_a_step_without_batches_and_with_nested_bodies() -> None:
    text = """<ir_version: 10, opset_import: ["" : 18]>
    step (double[2] w) => (double[2] w_new, double total) <double[2] w = {1,2}, double two = {2}>
    { total = ReduceSum <keepdims=0> (w)  big = Greater (total, two)
      w_new = If (big) <then_branch = a () => (double[2] p) { p = Div (w, two) },
                        else_branch = b () => (double[2] q) { q = Mul (w, w) }> }"""
    step = step_model(text, [{"name": "w", "kind": "param", "source": "", "output": "w_new"}])
    w, totals = np.array([1.0, 2.0]), []
    for _ in range(3):
        totals.append(w.sum())
        w = w / 2 if w.sum() > 2 else w * w
    many = pfvm.loop(step, 3)
    onnx.checker.check_model(many, full_check=True)
    for device in ("pfvm:cpu", "xla:cpu"):
        out = pfvm.load(many, device)({})
        np.testing.assert_array_equal(out["total"], totals)
        np.testing.assert_array_equal(out["w_new"], w)


def test_what_is_no_step_is_a_named_error() -> None:
    plain = onnx.parser.parse_model(STEP)
    with pytest.raises(InvalidModelError, match="no state manifest"):
        pfvm.loop(plain, 2)
    with pytest.raises(InvalidModelError, match="optimizer state 'm' has no output"):
        pfvm.loop(step_model(state=[STATE[0], {**STATE[1], "output": None}]), 2)
    with pytest.raises(InvalidModelError, match="not a training step"):
        pfvm.loop(step_model(state=STATE[4:]), 2)
    with pytest.raises(InvalidModelError, match="'w_new' updates two inputs"):
        pfvm.loop(step_model(state=[STATE[0], {**STATE[1], "output": "w_new"}]), 2)
    with pytest.raises(InvalidModelError, match="already runs 2 steps"):
        pfvm.loop(pfvm.loop(step_model(), 2), 2)
    with pytest.raises(UnsupportedOpError, match="opset 8"):
        pfvm.loop(step_model(STEP.replace(": 18", ": 8")), 2)
    for steps in (0, -1, 2.0, True):
        with pytest.raises(OptionError, match="at least 1"):
            pfvm.loop(step_model(), steps)  # type: ignore[arg-type]


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "step.onnx", tmp_path / "loop.onnx"
    onnx.save(step_model(), source)
    assert cli.run_command(["loop", str(source), "-k", "3", "-o", str(target)]) == 0
    assert pfvm.load(target)({k: v[:3] if v.ndim else v for k, v in feeds().items()})["loss"].shape == (3,)
    with pytest.raises(OptionError, match="output=PATH"):
        pfvm.loop(source, 3)
    assert pfvm.loop(source, 2, output=target) == target
    capsys.readouterr()
    assert cli.run_command(["loop", str(source), "-k", "0", "-o", str(target)]) == 2
    assert "at least 1" in capsys.readouterr().err
