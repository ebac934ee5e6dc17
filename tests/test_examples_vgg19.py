"""Promise: VGG-19 of a batch of 100 is one executable for a TPU, and computes here what PyTorch computes, in the form
that TPUs are given, too."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import re
import subprocess
import sys
from types import ModuleType

import onnx_ir as ir
import pfvm
import pytest
from pfvm.compiler.exporter import to_proto
from pfvm.compiler.plan.text import parse_l3ir
from pfvm.passes.pipeline import TARGETS
from pfvm.runtime.device import load_executable
from support import ops, run_passes

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

SCRIPT = pathlib.Path(__file__).parent.parent / "examples" / "vgg19.py"


def run(*arguments: str) -> str:
    command = [sys.executable, str(SCRIPT), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("backward", [[], ["--backward"]], ids=["forward", "backward"])
def test_the_numbers_of_pytorch(backward: list[str]) -> None:
    printed = run("--device", "xla:cpu", "--batch", "2", "--size", "32", *backward)
    (apart,) = re.findall(r"largest difference (\S+) of the largest number", printed)
    assert float(apart) < 2e-5, printed


def example() -> ModuleType:
    """The script as a module."""
    spec = importlib.util.spec_from_file_location("vgg19", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.usefixtures("quick_compilation")
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_the_form_for_tpus_computes_the_same(backward: bool) -> None:
    """On xla:cpu, every output: of the model as compiled, of its form for TPUs, and of PyTorch. In double: in float32
    the last bits may decide which of two numbers is a pool's largest."""
    vgg19 = example()
    torch.manual_seed(0)
    net, batch = vgg19.vgg19(32).double(), vgg19.sample(2, 32, backward)
    batch["x"] = batch["x"].double()
    eager = (vgg19.backward_of if backward else vgg19.forward_of)(net)
    as_compiled = to_proto(pfvm.optimize(pfvm.export(eager, batch, freeze=False)))
    for_tpus = run_passes(as_compiled, *TARGETS["tpu"], "eliminate-dead-code")
    assert ops(for_tpus).count("MaxPool") < ops(as_compiled).count("MaxPool") == 5
    assert not backward or not {"MaxPool", "ScatterElements"} & {*ops(for_tpus)}
    feeds = {name: value.numpy() for name, value in batch.items()}
    wanted = {name: value.detach().numpy() for name, value in eager(batch).items()}
    before, after = (load_executable(ir.from_proto(each), "xla:cpu")(feeds) for each in (as_compiled, for_tpus))
    assert list(before) == list(after) == list(wanted) and len(wanted) == (39 if backward else 1)
    for name, value in wanted.items():
        for found, reference in ((before[name], value), (after[name], value), (after[name], before[name])):
            assert abs(found - reference).max() < 1e-11 * abs(value).max(), name


def test_estimate_publication_and_limit_are_one_line() -> None:
    report = {"time_us": 199_085.0, "least_time_us": 170_000.0, "precision": "default", "forms": None}
    report |= {"schedule": {"programs": 1}, "peak_memory": {"HBM": {"bytes_per_cell": 3 * 2**30}}}
    line = example().estimate("forward", report)
    assert line.startswith("forward: estimate 0.1991 s (default), published 0.230 s, limit 0.170 s, 1 executable, 3.00")
    report |= {"time_us": None, "cycles_missing": "a sort has no cycles"}
    assert "no estimate, a sort has no cycles" in example().estimate("forward + backward", report)


@pytest.mark.slow
@pytest.mark.tpu
@pytest.mark.parametrize("chip", ["v2", "v5e"])
def test_one_executable_for_a_tpu(chip: str, tmp_path: pathlib.Path) -> None:
    pytest.importorskip("libtpu")
    printed = run("--device", f"xla:tpu@{chip}:1x1", "--effort", "fast", "--outdir", str(tmp_path))
    assert "1 executable" in printed
    report = json.loads((tmp_path / "forward" / "report.json").read_text())
    assert report["cycles_missing"] is None
    assert report["least_time_us"] < report["time_us"]
    assert report["peak_memory"]["HBM"]["bytes_per_cell"] < report["peak_memory"]["HBM"]["size_per_cell"]
    nodes = parse_l3ir((tmp_path / "forward" / "l3ir.txt").read_text())
    stated = sum(int(flag[7:]) for node in nodes for flag in node.flags if flag.startswith("cycles="))
    assert stated == report["modelled_cycles"]
