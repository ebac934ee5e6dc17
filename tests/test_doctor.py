"""Promise: `pfvm doctor` says what is installed and whether each device computes right, in ten seconds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_support import Pfvm
from pfvm.runtime.device import Device
from pfvm.tools import doctor, selftest, surroundings
from pfvm.tools.selftest import Result


def test_everything_that_a_report_needs(pfvm: Pfvm) -> None:
    result = pfvm("doctor", "--json", "--timeout", "100")
    found = json.loads(result.out)
    assert result.code == 0 and found["ok"]
    assert found["versions"]["pfvm"] and found["versions"]["onnxruntime"] and "libtpu" in found["versions"]
    states = {device["name"]: device for device in found["devices"]}
    assert states["pfvm:cpu"]["state"] == "present" and states["mncore2:emu"]["state"] == "emulated"
    for device in found["devices"]:
        if device["state"] in ("present", "emulated"):
            assert device["self_test"]["state"] == "passed", device
        assert device["advice"]
    assert found["machine"]["cores"] >= 1 and {"torch", "xla", "view"} <= found["extras"].keys()
    assert found["cache"] == {"folder": None, "writable": False, "files": 0, "bytes": 0}, "off in the tests"
    assert found["environment"]["PFVM_CACHE"] == "off"


def test_a_user_without_a_home_and_a_cache_that_others_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PFVM_CACHE", str(tmp_path))
    (tmp_path / "gone.xla").symlink_to("dropped meanwhile")
    assert surroundings.cache() == {"folder": str(tmp_path), "writable": True, "files": 0, "bytes": 0}
    monkeypatch.setenv("PFVM_CACHE", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home directory")))
    assert surroundings.cache()["folder"] is None


def test_the_text_says_the_same(pfvm: Pfvm) -> None:
    shown = pfvm("doctor", "--no-self-test")
    assert shown.code == 0
    lines = [line.split() for line in shown.out.splitlines() if line.strip()]
    assert ["package", "version"] in lines
    assert any(line[:2] == ["pfvm:cpu", "present"] for line in lines)
    assert "no fault found" in shown.out and "bug report" in shown.out


def test_a_device_that_computes_wrong_is_a_failure(pfvm: Pfvm, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(names: Any, timeout: float) -> list[Result]:
        return [Result(name, "failed", 0.5, 0.1, "differs from numpy by 0.5, allowed: 1e-05") for name in names]

    monkeypatch.setattr(selftest, "check_devices", wrong)
    shown = pfvm("doctor")
    assert shown.code == 1
    assert "self-test failed: pfvm:cpu" in shown.out and "differs from numpy by 0.5" in shown.out


def test_a_device_without_its_hardware_is_absent_and_no_failure() -> None:
    device = Device("pfvm:cuda", "pfvm", "cuda", "a GPU")
    row = doctor._device(device, Result("pfvm:cuda", "absent", None, 0.1, "no GPU"))
    assert row["state"] == "absent" and row["self_test"]["state"] == "absent"


def test_a_process_that_crashes_or_hangs_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def instead(program: str) -> Any:
        return lambda command, **given: start([sys.executable, "-c", program], **given)

    for program, expected in (
        ("import os; os.kill(os.getpid(), 11)", "signal 11"),
        ("import time; time.sleep(60)", "no result in 1 s"),
        ("raise ImportError('libfoo.so: not found')", "libfoo.so: not found"),
    ):
        monkeypatch.setattr(subprocess, "Popen", instead(program))
        (result,) = selftest.check_devices(["pfvm:cpu"], 1.0 if "sleep" in program else 10.0)
        assert result.state == ("unfinished" if "sleep" in program else "failed") and expected in result.note


def test_the_self_test_finds_a_wrong_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert selftest.run("pfvm:cpu").state == "passed"
    proto, feeds, expected = selftest.case()
    monkeypatch.setattr(selftest, "case", lambda: (proto, feeds, {**expected, "y": expected["y"] + 0.01}))
    found = selftest.run("pfvm:cpu")
    assert found.state == "failed" and found.error == pytest.approx(0.01, rel=1e-3)


def test_without_extras(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not installed is said, with what to type."""
    import importlib.metadata

    version = importlib.metadata.version

    def without(name: str) -> str:
        if name in ("torch", "jax", "jaxlib", "netron"):
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without)
    assert surroundings.versions()["torch"] is None
    assert surroundings.extras()["torch"] == ["torch"]
    assert surroundings.extras()["xla"] == ["jax", "jaxlib"]
    found = doctor.examine(selftest=False)
    assert found["ok"] and found["extras"]["view"] == ["netron"]


def test_it_starts_without_a_framework() -> None:
    code = """
import sys
from pfvm.tools.cli import run_command
run_command(["doctor", "--no-self-test"])
assert not {"torch", "jax", "onnxruntime", "onnx", "numpy"} & sys.modules.keys(), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
