"""Promises of pfvm.lint: every obstacle with its line and what to write, none in what is captured, nothing changed."""

from __future__ import annotations

import inspect
import pathlib
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
from pfvm.compiler.capture import lint as lint_module  # noqa: E402
from pfvm.runtime.mlsdk.linter import LintLevel, LintResult, lint  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import Mlp, batches, bits, make_step  # noqa: E402

X = torch.randn(4, 3)


def lines(fn: Any, *texts: str) -> list[str]:
    """ "test_lint.py:42" of the lines of `fn` that hold these texts."""
    source, first = inspect.getsourcelines(fn)
    return [f"tests/test_lint.py:{first + next(i for i, s in enumerate(source) if t in s)}" for t in texts]


def many_obstacles(x: Any) -> Any:
    if x.sum() > 0:
        x = x + 1
    scale = x.mean().item()
    chosen = x[x > 0]
    table = np.asarray(x.detach())
    q, _ = torch.linalg.qr(x)
    return q.sum() * scale + chosen.sum() + float(table.sum())


def test_every_obstacle_is_listed_with_its_line() -> None:
    before = X.clone()
    findings = pfvm.lint(many_obstacles, X)
    assert [f.where for f in findings] == lines(
        many_obstacles, "if x.sum", "scale =", "chosen =", "table =", "linalg.qr"
    )
    assert "write torch.where(condition, a, b)" in str(findings[0])
    assert "in place of x[mask]" in findings[2].text
    assert "linalg_qr" in findings[4].text and "other torch functions" in findings[4].text
    assert torch.equal(X, before)


def test_writes_to_inputs_and_control_flow_ops_are_listed() -> None:
    def function(x: Any) -> Any:
        x.mul_(2)
        y = x * x.max().item()
        return torch._higher_order_ops.map(lambda t: t + 1, y)

    findings = pfvm.lint(function, X)
    assert [f.where for f in findings] == lines(function, "x.mul_", "x.max()", "._higher_order_ops.map")
    assert "input 'x' is changed in place" in findings[0].text
    assert "map_impl cannot be captured; write a Python loop of fixed length" in findings[2].text


def test_what_is_captured_has_no_findings() -> None:
    model = Mlp()
    step = make_step(model, torch.optim.Adam(model.parameters()))
    assert pfvm.lint(step, next(batches())) == []
    assert pfvm.lint(model.linear1, torch.zeros(2, 8)) == []


class _Indexing(nn.Linear):
    def __init__(self) -> None:
        super().__init__(4, 4)

    def forward(self, x: Any) -> Any:
        return super().forward(x)[torch.tensor([0, 2, 2])][:, torch.arange(2)]


NETS = {
    "mlp": (Mlp, lambda: next(batches())),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.Dropout(), nn.Flatten()),
        lambda: torch.randn(2, 3, 8, 8),
    ),
    "encoder": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), lambda: torch.randn(2, 3, 8)),
    "index": (lambda: _Indexing(), lambda: torch.randn(3, 4)),
    "lstm": (lambda: nn.LSTM(4, 5), lambda: torch.randn(3, 2, 4)),
}


@pytest.mark.parametrize("kind", NETS)
def test_the_second_run_blames_nothing_that_is_captured(kind: str) -> None:
    make, sample = NETS[kind]
    model, found = make(), lint_module._Findings()
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        out = model(**x) if isinstance(x, dict) else model(x)
        while not isinstance(out, torch.Tensor):
            out = out["loss"] if isinstance(out, dict) else out[0]
        out.sum().backward()
        optimizer.step()
        return out

    lint_module._run_through(step, sample(), found)
    assert list(found.items) == []


def test_a_refused_step_changes_nothing() -> None:
    model = Mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen: list[float] = []

    def step(inp: Any) -> Any:
        optimizer.zero_grad()
        loss = model(**inp)["loss"]
        loss.backward()
        if loss.item() < 10:
            optimizer.step()
        seen.append(1.0)
        return {"loss": loss}

    step(next(batches()))
    before = bits((model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()]))
    state = torch.get_rng_state()
    findings = pfvm.lint(step, next(batches()))
    assert [f.where for f in findings] == lines(step, "loss.item()")
    assert bits((model.state_dict(), optimizer.state_dict(), [p.grad for p in model.parameters()])) == before
    assert seen == [1.0] and torch.equal(torch.get_rng_state(), state)


def test_what_only_the_capture_sees_is_listed_too() -> None:
    counter = {"n": 0}

    def counts(x: Any) -> Any:
        counter["n"] += 1
        return x * counter["n"]

    (finding,) = pfvm.lint(counts, X)
    assert finding.where in lines(counts, "return") and "pass it in as a tensor input" in finding.text
    (finding,) = pfvm.lint(lambda x: x.add_(1), X)
    assert "changed in place" in finding.text


def test_the_mlsdks_linter_gives_the_same(tmp_path: pathlib.Path) -> None:
    results = lint(many_obstacles, X)
    assert [str(r) for r in results] == [f"ERROR {f}" for f in pfvm.lint(many_obstacles, X)]
    assert all(isinstance(r, LintResult) and r.level is LintLevel.ERROR for r in results)
    assert lint(lambda x: x + 1, X) == []
