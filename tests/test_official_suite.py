"""Promise: ONNX's own tests pass on pfvm:cpu and xla:cpu, all of them but those that `pfvm ops` names."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys

import onnx
import pytest
from pfvm.compiler.importer import read_model
from pfvm.runtime.ort import OrtExecutable
from pfvm.tools.official_failures import KNOWN_FAILURES
from pfvm.tools.official_suite import Result, run_suite, summary

STATUS = (pathlib.Path(__file__).parents[1] / "docs" / "status.md").read_text(encoding="utf-8")
# The figures of docs/status.md for onnx 1.23.2; some of its tests pass by chance.
QUOTED = {
    "pfvm:cpu": {"passed": r"([\d,]+) of ONNX's 2,033 tests \("},
    "xla:cpu": {"passed": r"([\d,]+) of ONNX's 2,033 tests, ", "passed_without_host": r"([\d,]+) of them without"},
}


def quoted(pattern: str) -> int:
    """The number that the table of docs/status.md has there."""
    (number,) = re.findall(pattern, STATUS)
    return int(number.replace(",", ""))


def by_chance(device: str) -> set[str]:
    return {name for failure in KNOWN_FAILURES[device] if failure.by_chance for name in failure.tests}


@pytest.mark.parametrize("device", ["pfvm:cpu", "xla:cpu"])
def test_each_test_says_whether_it_passed_and_what_it_needed(device: str) -> None:
    if device.startswith("xla"):
        pytest.importorskip("jax")
    results: dict[str, Result] = {}
    for prefix in ("test_compress_0", "test_gradient_of_add", "test_loop1"):
        results |= run_suite(device, prefix)
    found = summary(device, results)
    assert (found["total"], found["passed"]) == (6, 4)
    assert "Gradient" in found["tests"]["test_gradient_of_add"]["failure"]
    host = {name for name, test in found["tests"].items() if test["host"]}
    if device == "xla:cpu":
        assert host == {"test_compress_0", "test_loop13_seq", "test_loop16_seq_none"}
        assert found["passed_without_host"] == 1
    else:
        assert host == set() and "passed_without_host" not in found


@pytest.mark.slow
@pytest.mark.parametrize("device", KNOWN_FAILURES)
def test_the_suite_in_full(device: str, tmp_path: pathlib.Path) -> None:
    if device.startswith("xla"):
        pytest.importorskip("jax")
    file = tmp_path / "results.json"
    # Thousands of tiny programs: XLA's optimizations would take most of the time and are not what is tested.
    environment = {**os.environ, "XLA_FLAGS": "--xla_backend_optimization_level=0", "PFVM_CACHE": "off"}
    subprocess.run([sys.executable, "-m", "pfvm.tools.official_suite", device, str(file)], env=environment, check=True)
    found = json.loads(file.read_text())
    failures = {name: test["failure"] for name, test in found["tests"].items() if test["failure"]}
    known = {name for failure in KNOWN_FAILURES[device] for name in failure.tests}
    assert {name: why for name, why in failures.items() if name not in known} == {}
    assert known - by_chance(device) - failures.keys() == set(), "these pass now: take them out of KNOWN_FAILURES"
    if onnx.__version__ == "1.23.2":
        assert found["total"] == 2033
        for count, pattern in QUOTED[device].items():
            assert 0 <= found[count] - quoted(pattern) <= len(by_chance(device)), count


@pytest.mark.slow
@pytest.mark.skipif(onnx.__version__ != "1.23.2", reason="another number of tests")
def test_what_onnx_runtime_passes_without_expansions() -> None:
    """With pfvm's reading of files and of inputs; ONNX Runtime's own backend takes fewer types from Python."""
    results = run_suite("pfvm:cpu", loading=lambda model, _: OrtExecutable(read_model(model), expand=False))
    passed = sum(not result.failure for result in results.values())
    assert 0 <= passed - quoted(r"without that ([\d,]+)") <= len(by_chance("pfvm:cpu"))
