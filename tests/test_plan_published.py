"""The published example, planned: the sample's blocks to the letter, and the guide's table of what it takes."""

import json
import pathlib
import re

import numpy as np
import onnx
import pfvm
import pytest
from pfvm.compiler.importer import read_model
from pfvm.compiler.plan.artifacts import files_of, write_artifacts
from pfvm.compiler.plan.l3check import check_l3ir
from pfvm.compiler.plan.plan_options import SCHEDULERS
from pfvm.compiler.plan.planner import Plan, plan
from pfvm.compiler.plan.text import L3Node, parse_l3ir
from plan_support import MNIST_EVAL, MNIST_WEIGHTS

ROOT = pathlib.Path(__file__).parents[1]
PUBLISHED = ROOT.parent / "shared" / "facts" / "l3ir-sample.txt"
NAMES = {"shape": "val_1_fx2onnx", "view": "view_fx2onnx", "hidden": "addmm_fx2onnx", "w0": "attr_0", "b0": "attr_1"}


def planned(folder: pathlib.Path, scheduler: str) -> tuple[Plan, list[L3Node]]:
    """The plan of the evaluation step at batch 125 with the names that its values have there, and its text."""
    text = re.sub(r"\b(shape|view|hidden|w0|b0)\b", lambda match: NAMES[match[0]], MNIST_EVAL)
    proto = onnx.parser.parse_model(text)
    for name, shape in MNIST_WEIGHTS.items():
        weight = onnx.numpy_helper.from_array(np.zeros(shape, np.float32), NAMES.get(name, name))
        proto.graph.initializer.append(weight)
    made = plan(read_model(proto), {"scheduler": scheduler})
    write_artifacts(made, folder)
    return made, parse_l3ir((folder / "l3ir.txt").read_text(encoding="utf-8"))


@pytest.mark.skipif(not PUBLISHED.is_file(), reason="the published sample is not here")
def test_the_default_scheduler_writes_the_published_blocks_to_the_letter(tmp_path):
    _, nodes = planned(tmp_path, "reuse_consecutive")
    ours = [node for node in nodes if node.results != ("b1",)]  # a small bias is a constant of the program here
    published = parse_l3ir(PUBLISHED.read_text(encoding="utf-8"))
    assert 0 < len(published) <= len(ours)
    for mine, theirs in zip(ours, published):
        assert list(mine.lines()) == list(theirs.lines())


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_schedule_is_possible_and_not_below_the_bound(tmp_path, scheduler):
    made, nodes = planned(tmp_path, scheduler)
    assert check_l3ir(nodes, made.machine) == []
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["lower_bound"]["cycles"] <= report["vsm_cycles"] == report["schedule"]["cycles"]
    assert report["vsm_cycles"] <= report["cycles"]["serial"]
    assert report["peak_memory"]["LM0"]["bytes_per_cell"] > 0


def test_spilling_by_next_use_keeps_the_labels_and_takes_fewer_cycles(tmp_path):
    first, _ = planned(tmp_path / "a", "reuse_consecutive")
    second, nodes = planned(tmp_path / "b", "spill_opt")
    assert second.report["vsm_cycles"] < first.report["vsm_cycles"]
    moved = [node.results[0] for node in nodes if node.op in ("MNCoreDownload", "MNCoreUpload")]
    assert sum(name.startswith("t_") for name in moved) == 1


def test_two_plans_are_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        planned(tmp_path / name, "auto_recompute_sa")
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_the_guide_has_these_figures(monkeypatch):
    """Of the evaluation step as examples/mnist.py compiles it, with its weights as state."""
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    import mnist_data
    import mnist_infer

    sample = {"x": torch.zeros(125, 1, 32, 32), "t": torch.zeros(125, dtype=torch.int64)}
    model = pfvm.compile(mnist_infer.make_eval_step(mnist_data.Mlp()), sample).model
    page = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8")
    for scheduler in ("reuse_consecutive", "spill_opt"):
        report = json.loads(files_of(plan(model, {"scheduler": scheduler}))["report.json"])
        readings = report["readings"][0]["readings"]
        busy = report["cycles"]["by_path"]
        cells = [readings[name][kind] for name in ("per group", "in all") for kind in ("vsm_cycles", "serial")]
        cells += [report["lower_bound"]["cycles"]]
        cells += [busy[name] for name in ("DRAM→L2BM", "L2BM→L1BM", "L1BM→PE", "matrix", "matrix load", "vector")]
        row = " | ".join(f"{cell:,}" for cell in cells)
        assert f"| `{scheduler}` | {row} |" in page, row
        assert f"{report['flops']:,} operations" in page
