"""The committed figures of TPUs are what `pfvm bench --tpu` found, README quotes them, and they keep the promise: a net
from an ONNX file takes at most 1.03 times the cycles of the same by hand in JAX.

`python tests/test_bench_tpu_results.py` prints README's lines.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FILE = ROOT / "tools" / "bench" / "results" / "tpu.json"
REPORT: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {"rows": []}
ROWS: list[dict[str, Any]] = REPORT["rows"]
LIMIT = 1.03

pytestmark = pytest.mark.skipif(not ROWS, reason=f"no {FILE.name}: README has the command that makes it")
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['net']}-{r['topology']}-{r['dtype']}")


def best(row: dict[str, Any]) -> dict[str, Any]:
    """The form by hand that counts."""
    return row["jax"]["forms"][row["jax"]["form"]]


def lines() -> Iterator[str]:
    """README's table."""
    yield "| net | TPU | batch | computed in | pfvm, cycles | by hand in JAX | ratio | what was chosen |"
    yield "|---" * 8 + "|"
    for row in ROWS:
        ours, forms = row["pfvm"], row["pfvm"]["forms"]
        chosen = "; ".join([row["jax"]["form"], *([forms["chosen"]] if forms else [])])
        cells = [row["net"], row["topology"], str(row["batch"]), row["dtype"]]
        cells += [f"{ours['cycles']:,}", f"{best(row)['cycles']:,}", f"{row['ratio']:.3f}", chosen]
        yield f"| {' | '.join(cells)} |"


def test_readme_quotes_the_report() -> None:
    assert "\n".join(lines()) in (ROOT / "README.md").read_text()


def test_every_net_was_compiled_by_the_same_compiler_in_one_run() -> None:
    assert {row["net"] for row in ROWS} == {"resnet50", "bert", "vgg19"}
    assert ("vgg19", "v2:1x1") in {(row["net"], row["topology"]) for row in ROWS}
    assert {row["dtype"] for row in ROWS} == {"float32", "bfloat16"}
    assert REPORT["effort"] == "full"
    assert {"libtpu", "jax", "pfvm"} <= set(REPORT["versions"])


@each_row
def test_it_takes_no_longer_than_by_hand(row: dict[str, Any]) -> None:
    assert row["pfvm"]["missing"] is None
    assert all(form["missing"] is None for form in row["jax"]["forms"].values())
    assert best(row)["cycles"] == min(form["cycles"] for form in row["jax"]["forms"].values())
    assert row["ratio"] == row["pfvm"]["cycles"] / best(row)["cycles"] <= LIMIT


@each_row
def test_both_compute_the_same_amount(row: dict[str, Any]) -> None:
    """Pairs of columns multiply a few zeros more."""
    assert 0.99 < row["pfvm"]["flops"] / best(row)["flops"] < 1.05


if __name__ == "__main__":
    print("\n".join(lines()))
