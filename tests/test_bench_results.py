"""The committed figures are what `pfvm bench` measured, README quotes them, and they keep the promises of speed."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[1]
REPORT = json.loads((ROOT / "tools" / "bench" / "results" / "nets.json").read_text())
NETS = ("resnet50", "mobilenet_v2", "bert", "vit", "llama6", "convnext_t")
# xla:cpu's latency over another's, by (net, threads, candidate).
LIMITS = {
    **{(net, 1, "onnxruntime"): limit for net, limit in zip(NETS, (1.25, 1.5, 1.05, 1.05, 1.05, 1.05))},
    **{(net, 1, "jax"): 1.03 for net in NETS},
    ("resnet50", 2, "onnxruntime"): 1.6,
    ("resnet50", 1, "torch"): 0.9,
}


def _measured(net: str, threads: int) -> dict[str, dict[str, Any]]:
    found = next(m for m in REPORT["models"] if m["model"] == f"{net}.onnx" and m["threads"] == threads)
    return {row["candidate"].partition(":")[0]: row for row in found["results"]}


def _ratio(net: str, threads: int, other: str) -> float:
    rows = _measured(net, threads)
    return rows["xla"]["median_seconds"] / rows[other]["median_seconds"]


def _line(net: str) -> str:
    cells = [net]
    for threads in (1, 2):
        cells.append(f"{_measured(net, threads)['xla']['median_seconds'] * 1e3:.1f} ms")
        cells += [f"{_ratio(net, threads, other):.2f}" for other in ("onnxruntime", "torch", "jax")]
    return f"| {' | '.join(cells)} |"


@pytest.mark.parametrize("net", NETS)
def test_readme_quotes_the_report(net: str) -> None:
    assert _line(net) in (ROOT / "README.md").read_text()


def test_every_candidate_computed_the_same() -> None:
    rows = [row for measured in REPORT["models"] for row in measured["results"]]
    assert len(rows) == len(NETS) * 2 * 4
    assert all(row["error"] is None and row["differs"] is None for row in rows)


@pytest.mark.parametrize("net, threads, other", LIMITS)
def test_the_speed_that_was_promised(net: str, threads: int, other: str) -> None:
    assert _ratio(net, threads, other) <= LIMITS[net, threads, other]
