"""fuse-optimizer-update: one node for each parameter, the same numbers, shared scalars computed once."""

from __future__ import annotations

import json
from typing import Any

import onnx
import pytest
from pfvm.compiler.driver import compile_model
from pfvm.compiler.exporter import to_proto
from pfvm.compiler.importer import read_model
from pfvm.compiler.options import parse
from support import assert_same_numbers, model, ops, run_passes

PASSES = ("fuse-optimizer-update", "eliminate-dead-code")
CSE = "eliminate-common-subexpressions"
STEP = """agraph (float[3,4] x, float[4] w = {{1, 2, 3, 4}}, float[4] w_m = {{0, 1, 0, 1}}, float lr = {{0.5}},
        float mu = {{0.9}}) => (float loss, float[4] w_new, float[4] w_m_new) {{
    k = Constant <value = int64[1] {{0}}> () g = ReduceSum <keepdims = 0> (x, k)
    loss = ReduceSum <keepdims = 0> (g) {lines} }}"""
MOMENTUM = "a = Mul(w_m, mu) w_m_new = Add(a, g) b = Mul(w_m_new, lr) w_new = Sub(w, b)"


def step(lines: str, *, manifest: bool = True) -> onnx.ModelProto:
    """A step with one weight, its momentum, and two hyperparameters."""
    proto = model(STEP.format(lines=lines))
    state = [
        {"name": "w", "kind": "param", "source": "net.w", "output": "w_new"},
        {"name": "w_m", "kind": "optimizer", "source": "net.w.m", "output": "w_m_new"},
        {"name": "lr", "kind": "hyperparameter", "source": "o.lr", "output": None},
        {"name": "mu", "kind": "hyperparameter", "source": "o.mu", "output": None},
    ]
    if manifest:
        proto.metadata_props.add(key="pfvm.state", value=json.dumps({"version": 1, "state": state}))
    return proto


def test_an_update_is_one_node() -> None:
    compiled = run_passes(step(MOMENTUM), *PASSES)
    assert ops(compiled) == ["ReduceSum", "ReduceSum", "OptimizerUpdate"]
    call = compiled.graph.node[-1]
    assert list(call.input) == ["w", "g", "w_m", "mu", "lr"]
    assert list(call.output) == ["w_new", "w_m_new"]
    (function,) = compiled.functions
    assert [node.op_type for node in function.node] == ["Mul", "Add", "Mul", "Sub"]
    assert list(function.input)[:3] == ["param", "grad", "w_m"]
    assert_same_numbers(step(MOMENTUM), compiled)


def test_a_left_over_gradient_is_another_input_than_the_gradient() -> None:
    proto = step("a = Add(g, w_m) w_m_new = Sub(w_m, w_m) b = Mul(a, lr) w_new = Sub(w, b)")
    state = proto.metadata_props[0].value.replace("net.w.m", "net.w.grad")
    proto.metadata_props[0].value = state
    compiled = run_passes(proto, *PASSES)
    (function,) = compiled.functions
    assert len(set(function.input)) == len(function.input)
    assert_same_numbers(proto, compiled)


@pytest.mark.parametrize(
    ("lines", "inside"),
    [
        ("c = Mul(g, mu) w_m_new = Identity(w_m) b = Mul(c, lr) w_new = Sub(w, b)", ["Mul", "Sub"]),  # clipped
        ("c = Exp(g) w_m_new = Add(w_m, c) d = Mul(c, lr) w_new = Sub(w, d)", ["Mul", "Sub"]),
        ("a = Mul(g, g) w_m_new = Add(w_m, a) r = Div(g, w_m_new) w_new = Sub(w, r)", ["Mul", "Add", "Div", "Sub"]),
        ("e = Constant <value = float {2}> () a = Mul(w_m, e) w_m_new = Add(a, g) w_new = Sub(w, w_m_new)",
         ["Constant", "Mul", "Add", "Sub"]),
    ],
)  # fmt: skip
def test_what_is_between_the_gradient_and_the_update_goes_inside(lines: str, inside: list[str]) -> None:
    compiled = run_passes(step(lines), *PASSES)
    (function,) = compiled.functions
    assert [node.op_type for node in function.node] == inside
    assert_same_numbers(step(lines), compiled)


@pytest.mark.parametrize(
    "proto",
    [
        step(MOMENTUM, manifest=False),
        step("w_m_new = Identity(w_m) w_new = Sub(w, g)"),  # one node already
        step("w_m_new = Identity(w_m) a = Mul(g, lr) w_new = Add(a, g)"),  # not made from the old value
        step("w_m_new = Identity(w_m) n = ReduceL2 <keepdims = 0> (w) a = Div(g, n) w_new = Neg(a)"),
    ],
)
def test_what_is_no_update_stays(proto: onnx.ModelProto) -> None:
    compiled = run_passes(proto, *PASSES)
    assert not compiled.functions
    assert_same_numbers(proto, compiled)


def test_a_state_that_is_read_elsewhere_is_still_computed_once() -> None:
    lines = MOMENTUM.replace("loss", "old").replace("b = Mul", "q = ReduceMax <keepdims = 0> (w_m_new) b = Mul")
    lines = lines.replace("w_new = Sub(w, b)", "c = Mul(b, q) w_new = Sub(w, c)")
    compiled = run_passes(step(lines), *PASSES)
    assert_same_numbers(step(lines), compiled)


def test_inline_leaves_operators() -> None:
    options = parse(fused_ops="inline")
    plain = ops(to_proto(compile_model(read_model(step(MOMENTUM)), options).model))
    assert plain == ["ReduceSum", "ReduceSum", "Mul", "Add", "Mul", "Sub"]
    fused = run_passes(step(MOMENTUM))
    assert sorted(ops(to_proto(compile_model(read_model(fused), options).model))) == sorted(plain)


torch = pytest.importorskip("torch")

OPTIMIZERS = {
    "SGDUpdate": lambda p: torch.optim.SGD(p, lr=0.1),
    "MomentumUpdate": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "AdamUpdate": lambda p: torch.optim.AdamW(p),
    "AMSGradUpdate": lambda p: torch.optim.Adam(p, amsgrad=True),
    "AdamaxUpdate": lambda p: torch.optim.Adamax(p),
    "RMSpropUpdate": lambda p: torch.optim.RMSprop(p),
    "AdagradUpdate": lambda p: torch.optim.Adagrad(p),
    "OptimizerUpdate": lambda p: torch.optim.NAdam(p),
}


@pytest.mark.parametrize(("name", "make"), OPTIMIZERS.items(), ids=list(OPTIMIZERS))
def test_every_optimizer_of_pytorch(name: str, make: Any) -> None:
    from pfvm.compiler.capture.export import capture

    from .train_support import Mlp, batches, make_step

    torch.manual_seed(0)
    net = Mlp().double()
    batch = next(batches(dtype=torch.float64))
    exported = capture(make_step(net, make(net.parameters())), batch).model
    compiled = run_passes(to_proto(exported), "fold-constants", "eliminate-identity", CSE, *PASSES)
    calls = [node for node in compiled.graph.node if node.op_type == name]
    assert len(calls) == 4, "one for each parameter"
    assert len(compiled.functions) == 1, "one form for all"
    common = set.intersection(*(set(call.input) for call in calls))
    assert common, "what the parameters share is computed outside, once"
    assert_same_numbers(to_proto(exported), compiled, [{key: value.numpy() for key, value in batch.items()}])
