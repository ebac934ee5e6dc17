"""The committed figures of TPUs are what `pfvm bench --tpu` found, README quotes them, and they keep the promises: nets
from ONNX files take at most 1.03 times the cycles of the same by hand in JAX, and VGG-19 on a TPU v2 takes no longer
than was promised.

`python tests/test_bench_tpu_results.py` prints README's lines.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from pfvm.runtime.topology import parse_topology
from pfvm.tools.bench.tpu import cycles_text, ratio_text, time_text

ROOT = pathlib.Path(__file__).parents[1]
FILE = ROOT / "tools" / "bench" / "results" / "tpu.json"
REPORT: dict[str, Any] = json.loads(FILE.read_text()) if FILE.exists() else {"rows": []}
ROWS: list[dict[str, Any]] = REPORT["rows"]
LIMIT = 1.03
VGG19_SECONDS = {"vgg19": 0.200, "vgg19 training": 0.63}
"""Of 100 images on one core of a TPU v2: forward, and forward + backward."""

pytestmark = pytest.mark.skipif(not ROWS, reason=f"no {FILE.name}: README has the command that makes it")
each_row = pytest.mark.parametrize("row", ROWS, ids=lambda r: f"{r['title']}-{r['topology']}-{r['dtype']}")


def best(row: dict[str, Any]) -> dict[str, Any]:
    """The form by hand that counts."""
    return row["jax"]["forms"][row["jax"]["form"]]


def lines() -> Iterator[str]:
    """README's table."""
    yield "| net | TPU | batch | computed in | pfvm, cycles | time | by hand in JAX, cycles | ratio | what was chosen |"
    yield "|---" * 9 + "|"
    for row in ROWS:
        ours, by_hand, forms = row["pfvm"], best(row), row["pfvm"]["forms"]
        chosen = "; ".join([row["jax"]["form"], *([forms["chosen"]] if forms else [])])
        counted = cycles_text(by_hand) + (f": {by_hand['missing']}" if by_hand["missing"] else "")
        cells = [row["title"], row["topology"], str(row["batch"]), row["dtype"]]
        cells += [cycles_text(ours), time_text(ours), counted, ratio_text(row), chosen]
        yield f"| {' | '.join(cells)} |"


def test_readme_quotes_the_report() -> None:
    assert "\n".join(lines()) in (ROOT / "README.md").read_text()


def test_the_guide_quotes_it_in_seconds() -> None:
    """What is known of a total is rounded down: it is "more than" that."""
    guide = " ".join((ROOT / "docs" / "tpu.md").read_text().split())
    forward, training = (row for row in ROWS if row["net"] == "vgg19")

    def seconds(cycles: int) -> float:
        return cycles / forward["clock_hz"]

    ours, compiled, by_hand = (
        forward["pfvm"]["cycles"],
        forward["pfvm"]["forms"]["cycles"]["as compiled"],
        best(forward),
    )
    times = f"{seconds(ours):.3f} s ({seconds(compiled):.3f} s as compiled; by hand {seconds(by_hand['cycles']):.3f} s)"
    known = math.floor(seconds(best(training)["modelled"]) * 1000) / 1000
    assert f"{times}, and {seconds(training['pfvm']['cycles']):.3f} s (by hand more than {known} s" in guide


def test_every_net_was_compiled_by_the_same_compiler_in_one_run() -> None:
    assert {row["net"] for row in ROWS} == {"resnet50", "bert", "vgg19"}
    assert {row["dtype"] for row in ROWS} == {"float32", "bfloat16"}
    assert REPORT["effort"] == "full"
    assert {"libtpu", "jax", "pfvm"} <= set(REPORT["versions"])


@each_row
def test_it_takes_no_longer_than_by_hand(row: dict[str, Any]) -> None:
    """`modelled` is the total, and less than it where the compiler states no cycles for something."""
    forms = row["jax"]["forms"].values()
    assert row["pfvm"]["missing"] is None and row["pfvm"]["cycles"] == row["pfvm"]["modelled"]
    assert all(form["cycles"] == (None if form["missing"] else form["modelled"]) for form in forms)
    assert best(row)["modelled"] == min(form["modelled"] for form in forms)
    assert row["ratio"] == row["pfvm"]["cycles"] / best(row)["modelled"] <= LIMIT


@each_row
def test_only_the_way_back_through_a_max_pool_has_no_cycles(row: dict[str, Any]) -> None:
    wanted = "the compiler states no cycles for select-and-scatter" if row["training"] else None
    assert {form["missing"] for form in row["jax"]["forms"].values()} == {wanted}
    assert row["jax"]["at_least"] == row["training"]


@each_row
def test_both_compute_the_same_amount(row: dict[str, Any]) -> None:
    """Pairs of columns multiply a few zeros more."""
    assert 0.99 < row["pfvm"]["flops"] / best(row)["flops"] < 1.05


@each_row
def test_times_are_cycles_by_the_published_clock(row: dict[str, Any]) -> None:
    clock = parse_topology(row["topology"]).chip.clock_hz
    assert clock == row["clock_hz"]
    for each in (row["pfvm"], *row["jax"]["forms"].values()):
        assert each["time_us"] == (pytest.approx(each["cycles"] / clock * 1e6) if each["cycles"] else None)


@pytest.mark.parametrize("title", VGG19_SECONDS)
def test_vgg19_takes_no_longer_than_promised(title: str) -> None:
    (row,) = (row for row in ROWS if row["title"] == title)
    assert (row["topology"], row["batch"], row["dtype"]) == ("v2:1x1", 100, "bfloat16")
    assert row["pfvm"]["time_us"] <= VGG19_SECONDS[title] * 1e6


if __name__ == "__main__":
    print("\n".join(lines()))
