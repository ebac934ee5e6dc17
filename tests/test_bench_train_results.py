"""The committed figures of training steps are what `pfvm bench --train` measured, README quotes them, and they keep the
promises of speed. `python tests/test_bench_train_results.py` prints README's lines."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FILE = ROOT / "tools" / "bench" / "results" / "train.json"
REPORT: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {}
MANY = ", 50 steps a call"
STEPS = ("mlp", f"mlp{MANY}", "small", f"small{MANY}", "transformer", "resnet18")
OURS = ("xla:cpu", "pfvm:cpu")
OTHERS = ("torch", "torch.compile", "jax")
# (step, ours, other): our time over the other's.
LIMITS = {
    ("mlp", "xla:cpu", "jax"): 1.05,
    (f"mlp{MANY}", "xla:cpu", "jax"): 1.05,
    ("mlp", "best", "torch"): 0.92,  # half of a call is overhead
    ("mlp", "best", "torch.compile"): 0.88,
    (f"mlp{MANY}", "xla:cpu", "torch"): 1 / 1.6,
    (f"mlp{MANY}", "xla:cpu", "torch.compile"): 1 / 1.6,
    ("transformer", "xla:cpu", "torch.compile"): 1 / 0.97,
    ("resnet18", "xla:cpu", "torch"): 1 / 0.97,
    ("resnet18", "pfvm:cpu", "torch"): 1 / 0.7,
}

pytestmark = pytest.mark.skipif(not REPORT, reason=f"no {FILE.name}: README has the command that measures it")


def seconds(step: str) -> dict[str, float]:
    """Of one step, by candidate."""
    found = next(m for m in REPORT["models"] if m["model"] == f"training {step}" and m["threads"] == 2)
    times = {row["candidate"]: row["median_seconds"] for row in found["results"]}
    return {**times, "best": min(times[name] for name in OURS)}


def lines() -> Iterator[str]:
    """README's two tables."""
    yield "| training step | xla:cpu | pfvm:cpu | " + " | ".join(f"xla:cpu ÷ {other}" for other in OTHERS) + " |"
    yield "|---" * 6 + "|"
    for step in STEPS:
        times = seconds(step)
        cells = [f"{times[name] * 1e3:.3g} ms" for name in OURS]
        cells += [f"{times['xla:cpu'] / times[other]:.2f}" for other in OTHERS]
        yield f"| {step} | {' | '.join(cells)} |"
    yield ""
    yield "| capture of a GPT's step | parameters | nodes | time |"
    yield "|---" * 4 + "|"
    for row in REPORT["capture"]:
        millions = f"{row['parameters'] / 1e6:.0f} M"
        yield f"| {row['layers']} layers | {millions} | {row['nodes']} | {row['seconds']:.1f} s |"


def test_readme_quotes_the_report() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "\n".join(lines()) in readme
    alone, together = seconds("mlp"), seconds("mlp, 50 steps a call")
    overhead = f"`mlp` is {1 - together['xla:cpu'] / alone['xla:cpu']:.0%} overhead".replace("%", " %")
    faster = f"it is {together['torch'] / together['xla:cpu']:.1f} times as fast as PyTorch"
    assert f"{overhead}: with 50 steps a call {faster}." in " ".join(readme.split())


def test_every_candidate_computed_the_same() -> None:
    rows = [row for measured in REPORT["models"] for row in measured["results"]]
    assert len(rows) == len(STEPS) * (len(OURS) + len(OTHERS))
    assert all(row["error"] is None and row["differs"] is None for row in rows)


@pytest.mark.parametrize("step, ours, other", LIMITS)
def test_the_speed_that_was_promised(step: str, ours: str, other: str) -> None:
    times = seconds(step)
    assert times[ours] / times[other] <= LIMITS[step, ours, other]


def test_many_steps_a_call_pay_for_a_small_net() -> None:
    assert seconds("small")["xla:cpu"] >= 4 * seconds(f"small{MANY}")["xla:cpu"]


def test_capture_is_fast_and_linear_in_layers() -> None:
    three, six, twelve = REPORT["capture"]
    assert twelve["parameters"] > 90e6 and twelve["seconds"] < 30
    assert twelve["cpu_seconds"] - six["cpu_seconds"] < 1.5 * 2 * (six["cpu_seconds"] - three["cpu_seconds"])


if __name__ == "__main__":
    print("\n".join(lines()))
