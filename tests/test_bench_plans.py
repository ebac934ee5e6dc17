"""Promise: `pfvm bench --plan` compares schedulers where local memory is short. Its committed figures are those of its
table and of docs/plan.md, and keep what was promised of them.

`python tests/test_bench_plans.py` writes the table, tools/bench/results/plans.md, and prints the lines of docs/plan.md.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import onnx.parser
import pytest
from pfvm.compiler.plan.plan_options import SCHEDULERS
from pfvm.tools.bench import plans
from pfvm.tools.cli import run_command

ROOT = pathlib.Path(__file__).parents[1]
RESULTS = ROOT / "tools" / "bench" / "results"
REPORT: dict[str, Any] = json.loads((RESULTS / "plans.json").read_text()) if (RESULTS / "plans.json").exists() else {}
committed = pytest.mark.skipif(not REPORT, reason="no plans.json: docs/plan.md has the command that makes it")

CHAIN = """<ir_version: 10, opset_import: ["" : 21]>
g (float[n,256] x) => (float[n,256] y) { a = Exp (x)  b = Neg (a)  c = Tanh (b)  d = Add (c, a)  e = Abs (d)
  y = Mul (e, b) }"""


def test_a_model_is_planned_by_every_scheduler(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "chain.onnx"
    onnx.save(onnx.parser.parse_model(CHAIN), model)
    files = [tmp_path / "plans.json", tmp_path / "plans.svg"]
    options = ["--shape", "x=512,256", "--search-steps", 5, "--json", files[0], "--plot", files[1]]
    assert run_command(["bench", "--plan", str(model), *map(str, options)]) == 0
    assert "geometric mean spill_opt/reuse_consecutive" in capsys.readouterr().out
    report = json.loads(files[0].read_text())
    (row,) = report["graphs"]
    assert tuple(row["schedulers"]) == SCHEDULERS and row["pressure"] <= plans.PRESSURE and not row["training"]
    assert all(row["bound"] <= figures["cycles"] for figures in row["schedulers"].values())
    assert ElementTree.parse(files[1]).getroot().tag.endswith("svg")


def test_python_files_bring_graphs(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "none.py").write_text("")
    assert run_command(["bench", "--plan", str(tmp_path / "none.py")]) == 2
    assert "no function graphs()" in capsys.readouterr().err


def lines() -> Iterator[str]:
    """The table, plans.md."""
    yield "| graph | nodes | budget | alive ÷ budget | bound | " + " | ".join(f"`{s}`" for s in SCHEDULERS) + " |"
    yield "|---" * (5 + len(SCHEDULERS)) + "|"
    for row in REPORT["graphs"]:
        figures = [f"{plans.cycles(row, scheduler):,}" for scheduler in SCHEDULERS]
        head = [row["graph"], f"{row['nodes']:,}", f"{row['budget']:,}", f"{row['pressure']:.2f}", f"{row['bound']:,}"]
        yield f"| {' | '.join([*head, *figures])} |"


def quoted() -> Iterator[str]:
    """The table of docs/plan.md: geometric means."""
    yield "| geometric mean of cycles | |"
    yield "|---|---|"
    for name, value in REPORT["geometric_means"].items():
        yield f"| {name} | {value:.3f} |"


@committed
def test_table_and_guide_quote_the_report() -> None:
    assert "\n".join(lines()) + "\n" == (RESULTS / "plans.md").read_text()
    assert "\n".join(quoted()) in (ROOT / "docs" / "plan.md").read_text()


@committed
def test_no_schedule_is_below_the_bound() -> None:
    assert len(REPORT["graphs"]) == 25 and REPORT["pressure"] == plans.PRESSURE
    for row in REPORT["graphs"]:
        assert all(row["bound"] <= plans.cycles(row, scheduler) for scheduler in SCHEDULERS), row["graph"]


@committed
def test_what_was_promised_of_the_schedulers() -> None:
    assert REPORT["geometric_means"] == plans.means(REPORT["graphs"])
    assert REPORT["geometric_means"]["spill_opt/reuse_consecutive"] <= 0.9
    assert REPORT["geometric_means"]["auto_recompute_sa/spill_opt, training"] <= 0.95


if __name__ == "__main__":
    (RESULTS / "plans.md").write_text("\n".join(lines()) + "\n")
    print("\n".join(quoted()))
