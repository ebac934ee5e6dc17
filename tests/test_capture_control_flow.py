"""torch.cond, while_loop and scan become If, Loop and Scan: on every device what PyTorch computes, in one program."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

import pfvm  # noqa: E402
from pfvm.errors import CaptureError  # noqa: E402
from plain_control_flow import plainly  # noqa: E402
from torch import nn  # noqa: E402
from torch._higher_order_ops import map as mapped  # noqa: E402
from torch._higher_order_ops import scan, while_loop  # noqa: E402

DEVICES = ["pfvm:cpu", "xla:cpu"]
DOUBLE = torch.float64
torch.manual_seed(0)
LINEAR = nn.Linear(4, 4).double()
W = torch.randn(4, dtype=DOUBLE)


def rows(seed: int, *shape: int) -> Any:
    return torch.randn(*(shape or (3, 4)), generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def branches(x: Any) -> Any:
    y = x * 2  # read from outside, like the weights
    return torch.cond(x.sum() > 0, lambda a: torch.relu(LINEAR(a)) + y, lambda a: a * W - y, (x,))


def branches_without_operands(x: Any) -> Any:
    one = torch.cond((x.sum() > 0).reshape(1), lambda: {"p": x, "q": x}, lambda: {"p": x.sin(), "q": x.cos()})
    return {**one, "constant": torch.cond(True, torch.sin, torch.cos, (x,))}


def in_place_inside(x: Any) -> Any:
    def grow(a: Any) -> Any:
        b = a.clone()
        b.mul_(2)
        b[0] += 1
        return b

    return torch.cond(x.mean() > 0, grow, torch.neg, (x,))


def loop(x: Any) -> Any:
    y = x.exp()
    return while_loop(lambda i, a: i < W.abs().sum(), lambda i, a: (i + 1, a * 2 + y), (torch.tensor(0), x))


def loop_that_does_not_start(x: Any) -> Any:
    return while_loop(lambda i, a: i > 5, lambda i, a: (i + 1, a * 2), (0, x))[1]


def loop_of_a_structure(x: Any) -> Any:
    def body(i: Any, s: Any) -> Any:
        return i + 1, {"a": s["b"] * 0.5, "b": [s["a"], s["b"]][0] + i}

    return while_loop(lambda i, s: (s["a"].norm() > 0.1) & (i < 8), body, (0, {"a": x, "b": x.flip(0)}))[1]


def power(x: Any) -> Any:
    """Power iteration until it moves by less than 1e-9."""
    a = x.T @ x
    start = torch.ones(x.shape[1], dtype=DOUBLE)

    def step(i: Any, v: Any, moved: Any) -> Any:
        new = a @ v
        new = new / torch.linalg.vector_norm(new)
        return i + 1, new, (new - v).abs().max()

    _, v, _ = while_loop(
        lambda i, v, moved: (moved > 1e-9) & (i < 1000), step, (0, start, torch.tensor(1.0, dtype=DOUBLE))
    )
    return {"value": v @ a @ v, "vector": v}


def scanned(x: Any) -> Any:
    k = x.mean()
    c, ys = scan(lambda c, v: (c * 0.5 + v * k, torch.tanh(c) @ LINEAR.weight), torch.zeros(4, dtype=DOUBLE), x)
    return {"c": c, "ys": ys}


def scanned_backwards(x: Any) -> Any:
    def step(c: Any, v: Any) -> Any:
        return {"sum": c["sum"] + v["a"]}, (c["sum"] * v["b"], v["a"].clone())

    zero = {"sum": torch.zeros(3, dtype=DOUBLE)}
    return scan(step, zero, {"a": x, "b": x.cos()}, dim=1, reverse=True)


def nested(x: Any) -> Any:
    def body(i: Any, a: Any) -> Any:
        grown = torch.cond(a.mean() > 1, lambda v: v * 0.5, lambda v: v * W.abs() + i, (a,))
        sums, _ = scan(lambda c, v: (c + v.sum(), c), torch.zeros((), dtype=DOUBLE), grown)
        return i + 1, grown + sums * 0.01

    return while_loop(lambda i, a: (i < 5) & (a.sum() < 100), body, (torch.tensor(0), x))


def nested_the_other_way(x: Any) -> Any:
    """What the scan collects has the shape of a while_loop's result, which ONNX's inference leaves open."""

    def shrunk(v: Any) -> Any:
        return while_loop(lambda a: a.abs().max() > 0.1, lambda a: (a * 0.5,), (v,))[0]

    def step(c: Any, v: Any) -> Any:
        y = torch.cond(v.sum() > 0, shrunk, lambda v: v * 3, (v,))
        return c + y, c * y

    return scan(step, torch.zeros_like(x[0]), x)


FUNCTIONS = [
    branches, branches_without_operands, in_place_inside, loop, loop_that_does_not_start, loop_of_a_structure, power,
    scanned, scanned_backwards, nested, nested_the_other_way,
]  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_functions_equal_pytorch(function: Callable[..., Any], device: str) -> None:
    compiled = pfvm.compile(function, rows(0), device=device)
    for seed in range(3):
        with torch.no_grad(), plainly():
            expected = function(rows(seed))
        actual = compiled(rows(seed))
        torch.testing.assert_close(_tensors(actual), _tensors(expected), rtol=1e-9, atol=1e-9)
    if device == "xla:cpu":
        (segment,) = compiled.executable.segments
        assert (segment.kind, compiled.executable.compilations) == ("device", 1)


def _tensors(value: Any) -> list[Any]:
    return [torch.as_tensor(v) for v in torch.utils._pytree.tree_leaves(value)]


def test_operators_and_lines_of_the_graph() -> None:
    model = pfvm.export(nested, rows(0))
    (loop_node,) = [n for n in model.graph if n.op_type == "Loop"]
    inside = {n.op_type: n for n in loop_node.attributes["body"].as_graph()}
    assert {"If", "Scan"} <= inside.keys()
    assert "test_capture_control_flow.py:" in inside["If"].metadata_props["pfvm.source"]
    (body_node,) = [n for n in inside["If"].attributes["then_branch"].as_graph() if n.op_type == "Mul"]
    assert body_node.metadata_props["pfvm.source"] == inside["If"].metadata_props["pfvm.source"]


@pytest.mark.parametrize("device", DEVICES)
def test_weights_that_only_a_body_reads_are_state(device: str) -> None:
    layer = nn.Linear(4, 4).double()

    def function(x: Any) -> Any:
        return torch.cond(x.sum() > 0, layer, torch.neg, (x,))

    compiled = pfvm.compile(function, rows(0), device=device)
    x = rows(0).abs()
    with torch.no_grad():
        layer.weight.mul_(3)
        torch.testing.assert_close(compiled(x), layer(x))
    assert {v.name for v in compiled.exported.graph.initializers.values()} >= {"layer.weight", "layer.bias"}


@pytest.mark.parametrize("device", DEVICES)
def test_open_dimensions(device: str) -> None:
    def function(x: Any) -> Any:
        y = torch.cond(x.mean() > 0, lambda a: a * x.shape[0], torch.neg, (x,))
        return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a + y.mean(0)), (torch.tensor(0), y))[1]

    compiled = pfvm.compile(function, rows(0), device=device, dynamic={"x": {0: "n"}})
    for seed, size in enumerate((3, 7)):
        x = rows(seed, size, 4)
        with plainly():
            torch.testing.assert_close(compiled(x), function(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.scale = nn.Parameter(torch.ones(8))
        self.double()

    def either(self, x: Any, t: Any) -> Any:
        hidden = torch.relu(self.a(x))
        twice = hidden * 2
        return torch.cond(
            hidden.mean() > t,
            lambda v: torch.tanh(self.b(v)) * self.scale + twice,
            lambda v: self.c(v).sin() - twice,
            (hidden,),
        )

    def recurrent(self, xs: Any) -> Any:
        def cell(state: Any, x: Any) -> Any:
            new = torch.tanh(self.a(x) + self.b(state) * self.scale)
            return new, self.c(new)

        last, ys = scan(cell, torch.zeros(3, 8, dtype=DOUBLE), xs)
        return ys + last

    def recurrent_either(self, xs: Any) -> Any:
        def cell(state: Any, x: Any) -> Any:
            mixed = torch.tanh(self.a(x))
            new = torch.cond(
                mixed.sum() > 0, lambda p, q: p * self.scale + q, lambda p, q: self.b(p) - q, (state, mixed)
            )
            return new, new * 2

        return scan(cell, torch.zeros(3, 8, dtype=DOUBLE), xs, reverse=True)[1]

    def scaled_by_a_loop(self, x: Any) -> Any:
        with torch.no_grad():
            _, k = while_loop(lambda i, v: (v.norm() > 0.5) & (i < 20), lambda i, v: (i + 1, v * 0.9), (0, self.scale))
        return self.b(torch.relu(self.a(x))) * k


def training_step(net: Net, way: str) -> tuple[Any, list[Any]]:
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    batches = [rows(i, 3, 4) if way == "scaled_by_a_loop" else rows(i, 5, 3, 4) for i in range(3)]
    samples = [(rows(i), rows(i, 1)[0] * 0.1 + 0.4) for i in range(4)] if way == "either" else [(b,) for b in batches]

    def step(*given: Any) -> Any:
        optimizer.zero_grad()
        loss = net.d(getattr(net, way)(*given)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    def either(x: Any, t: Any) -> Any:
        return step(x, t)

    def other(x: Any) -> Any:
        return step(x)

    return either if way == "either" else other, samples


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", ["either", "recurrent", "recurrent_either", "scaled_by_a_loop"])
def test_training_steps_equal_pytorch(way: str, device: str) -> None:
    nets, runs = [], []
    for compile in (False, True):
        torch.manual_seed(0)
        nets.append(Net())
        step, samples = training_step(nets[-1], way)
        step = pfvm.compile(step, samples[0], device=device) if compile else step
        with plainly():
            losses = [step(*sample).item() for sample in samples]
        runs.append(losses)
    assert runs[1] == pytest.approx(runs[0], rel=1e-9)
    for one, other in zip(nets[0].parameters(), nets[1].parameters()):
        torch.testing.assert_close(other, one, rtol=1e-8, atol=1e-9)
    if device == "xla:cpu":
        assert [s.kind for s in step.executable.segments] == ["device"]


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_several_steps_with_control_flow_in_a_call(device: str) -> None:
    def losses(compiled: bool) -> Any:
        torch.manual_seed(0)
        step, samples = training_step(Net(), "either")
        stacked = [torch.stack(each) for each in zip(*samples)]
        if compiled:
            return pfvm.compile(step, samples[0], device=device, steps_per_call=len(samples))(*stacked)
        with plainly():
            return torch.stack([step(*sample).detach() for sample in samples])

    torch.testing.assert_close(losses(True), losses(False), rtol=1e-9, atol=1e-9)


def trains_through_a_loop(x: Any) -> Any:
    y = while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, LINEAR(a)), (torch.tensor(0), x))[1]  # here
    return torch.autograd.grad(y.sum(), [LINEAR.weight])[0]


def draws_inside(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda a: nn.functional.dropout(a, 0.5), torch.neg, (x,))  # here


NORM = nn.BatchNorm1d(4).double()


def counts_inside(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda a: NORM(a), torch.neg, (x,))  # here


def changes_an_operand(x: Any) -> Any:
    y = x * 2
    return torch.cond(x.sum() > 0, lambda a: a.add_(1), torch.neg, (y,))  # here


def different_shapes(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda a: a.sum(), torch.neg, (x,))  # here


def different_structures(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda a: (a, a), torch.neg, (x,))  # here


def changes_the_carry(x: Any) -> Any:
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a.float()), (0, x))[1]  # here


def no_condition(x: Any) -> Any:
    return while_loop(lambda i, a: a > 3, lambda i, a: (i + 1, a), (0, x))[1]  # here


def another_operator(x: Any) -> Any:
    return mapped(lambda a: a * 2, x)  # here


def asks_for_a_counter(x: Any) -> Any:
    return while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, a * 2 if i == 0 else a), (torch.tensor(0), x))  # here


def asks_for_a_value(x: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda a: a * 2 if a.max() > 1 else a, torch.neg, (x,))  # here


REFUSED = [
    (trains_through_a_loop, r"while_loop has no gradient.*scan.*no_grad"),
    (draws_inside, r"random op.*in a body of torch\.cond.*outside"),
    (counts_inside, r"changes in place a tensor from outside.*model\.eval"),
    (changes_an_operand, r"changes in place a tensor from outside"),
    (different_shapes, r"different types: \(float64\[\]\) and \(float64\[3, 4\]\)"),
    (different_structures, r"different structures"),
    (changes_the_carry, r"other types than it takes.*float64\[3, 4\].*float32\[3, 4\]"),
    (no_condition, r"condition returns bool\[3, 4\], expected one bool"),
    (another_operator, r"map.*cannot be captured.*fixed length"),
    (asks_for_a_value, r"torch\.where"),
    (asks_for_a_counter, r"body of torch\.while_loop asks for the value.*torch\.where.*index_select"),
]


@pytest.mark.parametrize(("function", "message"), REFUSED, ids=[f.__name__ for f, _ in REFUSED])
def test_what_is_refused(function: Any, message: str) -> None:
    lines, first = inspect.getsourcelines(function)
    line = first + next(i for i, text in enumerate(lines) if "# here" in text)
    with pytest.raises(CaptureError, match=rf"test_capture_control_flow\.py:{line}: .*{message}"):
        pfvm.export(function, rows(0))
    assert pfvm.lint(function, rows(0))[0].where.endswith(f"test_capture_control_flow.py:{line}")


def test_lint_looks_into_bodies() -> None:
    assert pfvm.lint(nested, rows(0)) == []

    def function(x: Any) -> Any:
        y = torch.cond(x.sum() > 0, lambda a: a * float(a.max()), torch.neg, (x,))
        return y[y > 0]

    found = pfvm.lint(function, rows(0))
    assert ["value of a tensor" in f.text or "depends on the data" in f.text for f in found] == [True, True]
