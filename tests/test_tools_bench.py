"""Promises of `pfvm bench`: own processes, in turns, honest figures; whatever a candidate does is reported by name."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest
from pfvm.errors import MissingExtraError, OptionError, PfvmError
from pfvm.tools.bench import capture, command, figures, machine, turns
from pfvm.tools.bench.candidates import candidates
from pfvm.tools.bench.command import Request, bench
from pfvm.tools.bench.process import Process
from pfvm.tools.bench.turns import Timing, take_turns
from pfvm.tools.cli import run_command
from pfvm.tools.console import is_quiet

TEXT = """<ir_version: 10, opset_import: ["" : 21]> g (float[n,8] x) => (float[n,8] y) <float[8] b = {1,2,3,4,5,6,7,8}>
{ a = Add (x, b)  y = Relu (a) }"""
QUICK = {"rounds": 5, "seconds": 0.005}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def net(tmp_path: Path, body: str) -> str:
    (tmp_path / "net.py").write_text(body)
    return str(tmp_path / "net.py")


# ---- figures


def test_median_and_spread() -> None:
    found = figures.figures([5.0, 1.0, 2.0, 3.0, 4.0])
    assert found == (3.0, 2.0, 1.0) and found.spread == pytest.approx(2 / 3)
    assert figures.figures([2.0]) == (2.0, 0.0, 2.0)


def test_noise_has_its_reason() -> None:
    calm, wide = figures.figures([1.0, 1.01, 1.0, 1.02, 1.0]), figures.figures([1.0, 1.4, 1.0, 1.5, 0.8])
    assert figures.noise(calm, 0.1, 2) == []
    assert figures.noise(calm, 3.0, 2) == ["load 3.0 on 2 cores before the start"]
    assert figures.noise(wide, 0.0, 2) == ["spread 40%"]


def test_turns_go_back_and_forth() -> None:
    assert [item for _, item in turns.order("ab", 3)] == ["a", "b", "b", "a", "a", "b"]


# ---- candidates


def test_candidates_are_named_as_written(tmp_path: Path) -> None:
    file = net(tmp_path, "")
    found = candidates(["pfvm:cpu"], [f"onnxruntime,jax:{file}"])
    assert [c.name for c in found] == ["pfvm:cpu", "onnxruntime", f"jax:{file}"]
    assert (found[2].function, found[2].runs_the_model, found[1].runs_the_model) == ("build", False, True)


def test_an_xla_device_is_also_measured_on_meshes() -> None:
    pytest.importorskip("jax")
    found = candidates(["pfvm:cpu", "xla:cpu"], [], meshes=["data=2", "data=2,model=2"], shard=["auto"])
    assert [c.name for c in found] == ["pfvm:cpu", "xla:cpu", "xla:cpu on data=2", "xla:cpu on data=2,model=2"]
    assert (found[2].device, found[2].spread) == ("xla:cpu", {"mesh": "data=2", "shard": ["auto"]})
    assert found[1].spread == {}
    with pytest.raises(OptionError, match="--mesh is for xla devices"):
        candidates(["pfvm:cpu"], [], meshes=["data=2"])
    with pytest.raises(OptionError, match="no axis 'model'"):
        candidates(["xla:cpu"], [], meshes=["data=2"], shard=["w=model"])


@pytest.mark.parametrize(
    ("devices", "against", "message"),
    [
        (["pfvm:tpu"], [], "unknown device 'pfvm:tpu'"),
        (["pfvm:cpu", "pfvm:cpu"], [], "'pfvm:cpu' is given twice"),
        (["pfvm:cpu"], ["tensorflow"], "--against 'tensorflow': expected one of onnxruntime"),
        (["pfvm:cpu"], ["jax:nowhere.py"], "no file 'nowhere.py'"),
        (["pfvm:cpu"], ["torch:nowhere.py"], "name the function that builds the net"),
    ],
)
def test_bad_candidates(devices: list[str], against: list[str], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        candidates(devices, against)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(PfvmError, match="--against openvino needs the package 'openvino': pip install openvino"):
        candidates([], ["openvino"])


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"rounds": 4}, "at least 5"), ({"threads": [10**6]}, "cores"), ({"threads": [0]}, "cores")],
)
def test_bad_options(model: Path, changed: dict, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        bench(Request([model], ["pfvm:cpu"], **changed))


# ---- the whole command


def test_a_run_and_its_json(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    file = net(
        tmp_path,
        "import torch\ndef mine():\n    print('noise on stdout')\n"
        "    return (lambda p, x: torch.relu(x + p)), torch.ones(8), torch.ones(2, 8)\n",
    )
    out = tmp_path / "b.json"
    code = run_command(
        f"bench {model} --device pfvm:cpu --against onnxruntime --against torch:{file}:mine --json {out}"
        " --rounds 5 --seconds 0.005 --shape x=4,8".split()
    )
    captured = capsys.readouterr()
    assert code == 0, captured.err
    report = json.loads(out.read_text())
    assert report["threads"] == [1] and report["thread_spinning"] is False and report["rounds"] == 5
    assert report["machine"]["cores"] == machine.cores() and report["versions"]["onnxruntime"]
    (measured,) = report["models"]
    assert measured["inputs"] == {"x": "float32[4,8]"}
    assert [r["candidate"] for r in measured["results"]] == ["pfvm:cpu", "onnxruntime", f"torch:{file}:mine"]
    for row in measured["results"]:
        assert row["error"] is None and row["differs"] is None
        assert len(row["rounds_seconds"]) == 5 and row["calls"] >= 15
        assert 0 < row["fastest_seconds"] <= row["median_seconds"] and row["peak_bytes"] > 10e6
        assert row["ratio"] == pytest.approx(row["median_seconds"] / measured["results"][0]["median_seconds"])
        assert row["load_seconds"] > 0 and row["first_call_seconds"] > 0
    assert "median ms" in captured.out and "1.00×" in captured.out
    assert "thread spinning off" in captured.err


def test_each_model_has_its_own_net_and_each_number_of_threads_its_table(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    file = net(tmp_path, "import torch\ndef make(name):\n    return {'m': torch.nn.ReLU()}[name], torch.ones(2, 8)\n")
    out, chart, threads = tmp_path / "b.json", tmp_path / "b.svg", sorted({1, machine.cores()})
    code = run_command(
        f"bench {model} --against onnxruntime,torch:{file}:make:{{model}} --json {out} --plot {chart} --rounds 5"
        f" --seconds 0.005 {' '.join(f'--threads {n}' for n in threads)}".split()
    )
    assert code == 0, capsys.readouterr().err
    measured = json.loads(out.read_text())["models"]
    assert [m["threads"] for m in measured] == threads
    assert measured[0]["results"][2]["candidate"] == f"torch:{file}:make:m"
    texts = [e.text for e in ElementTree.parse(chart).iter("{http://www.w3.org/2000/svg}text")]
    assert {"m", "pfvm:cpu", "onnxruntime", "torch"} <= {*texts}


def test_a_net_in_jax(model: Path, tmp_path: Path) -> None:
    pytest.importorskip("jax")
    file = net(
        tmp_path,
        "import jax\ndef build():\n"
        "    return jax.jit(lambda p, x: {'y': jax.nn.relu(x + p)}), jax.numpy.ones(8), jax.numpy.ones((2, 8))\n",
    )
    (measured,) = bench(Request([model], ["pfvm:cpu"], [f"jax:{file}"], **QUICK))["models"]
    assert measured["results"][1]["median_seconds"] > 0


def test_other_results_are_pointed_out(model: Path) -> None:
    outcome = turns.Outcome("a", 0.1, 0.1, (1.0,) * 5, 15, 1)
    assert command._differences({"a": {"y": 1.0}, "b": {"y": 2.0}, "c": None}).keys() == {"b"}
    row = command.rows([outcome, outcome._replace(name="b")], {"b": "'y': …"}, 0.0, 2)[1]
    assert row["differs"] == "'y': …" and row["noisy"] == []


# ---- candidates that go wrong


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def build():\n    raise KeyError('weights')", "KeyError: 'weights'"),
        ("def build():\n    return 3", r"build\(\) must return \(fn, params, inputs\), not int"),
        ("x = 1", "net.py has no function 'build'"),
        ("import os, signal\ndef build():\n    os.kill(os.getpid(), signal.SIGSEGV)", "ended by signal SIGSEGV"),
        ("import os, sys\ndef build():\n    print('bye', file=sys.stderr)\n    os._exit(3)", "ended with code 3: bye"),
        ("import time\ndef build():\n    time.sleep(60)", "no answer within 5 s"),
        (
            "n = [0]\ndef f(p, x):\n    n[0] += 1\n    assert n[0] < 20, 'tired'\ndef build():\n    return f, 1, 2",
            "tired",
        ),
    ],
)
def test_a_failing_candidate_is_named_and_the_others_go_on(
    model: Path, tmp_path: Path, body: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("jax")
    name = f"jax:{net(tmp_path, body)}"
    out = tmp_path / "b.json"
    # A busy machine takes seconds to import jax.
    timeout, longest = (5.0, 30) if "no answer" in message else (60.0, 300)
    start = time.monotonic()
    with pytest.raises(PfvmError, match=r"bench: 1 candidate\(s\) failed"):
        bench(Request([model], ["pfvm:cpu"], [name], out, timeout=timeout, **QUICK))
    assert time.monotonic() - start < longest
    good, bad = json.loads(out.read_text())["models"][0]["results"]
    assert good["error"] is None and len(good["rounds_seconds"]) == 5
    assert bad["error"].startswith(name)
    with pytest.raises(AssertionError, match=message):
        raise AssertionError(bad["error"])
    assert "error: jax:" in capsys.readouterr().err.replace("\n", "")


def test_a_process_is_stopped_between_its_turns() -> None:
    script = "import sys\nfor line in sys.stdin: print('{}', flush=True)"
    process = Process("me", 1, [sys.executable, "-c", script])
    try:
        process.ask({}, 10)
        assert _state(process) == "T"
        process.ask({}, 10)
        assert os.sched_getaffinity(process._process.pid) <= os.sched_getaffinity(0)
    finally:
        process.close()


def _state(process: Process) -> str:
    for _ in range(100):
        state = Path(f"/proc/{process._process.pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T":
            return state
        time.sleep(0.01)
    return state


def test_no_process_is_left_behind() -> None:
    started: list[Process] = []

    def make() -> Process:
        started.append(Process("me", 1, [sys.executable, "-c", "import time; time.sleep(60)"]))
        return started[-1]

    outcome = take_turns({"me": make}, lambda name: {"do": "load"}, Timing(5, 0.01, 0.5, 0.5))["me"]
    assert outcome.error == "me: no answer within 0.5 s"
    assert started[0]._process.returncode is not None


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
def test_a_stopped_candidate_ends_with_the_command() -> None:
    code = """
import os
from pfvm.tools.bench.process import Process
process = Process("me", 1)
process.ask({"do": "peak"}, 30)
print(process._process.pid, flush=True)
os._exit(1)
"""
    pid = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout)
    for _ in range(200):
        if not _is_running(pid):
            return
        time.sleep(0.01)
    pytest.fail("the candidate's process is still there")


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


# ---- training


YARDSTICK = """import numpy as np, torch
def batch(): return {"x": np.ones((4, 3), np.float32)}
def torch_step():
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def step(batch):
        optimizer.zero_grad()
        loss = model(batch["x"]).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss}
    return model, step
def jax_step(weights):
    import jax
    def loss(p, batch): return ((batch["x"] @ p[0].T + p[1]) ** 2).mean()
    def step(state, batch):
        value, slope = jax.value_and_grad(loss)(state, batch)
        return jax.tree.map(lambda p, g: p - 0.1 * g, state, slope), value
    return step, (weights["weight"], weights["bias"])
"""


def test_training_steps_are_measured_per_step_and_compared(tmp_path: Path) -> None:
    for package in ("torch", "jax"):
        pytest.importorskip(package)
    file = net(tmp_path, YARDSTICK)
    request = Request([f"{file}:3"], ["pfvm:cpu", "xla:cpu"], ["torch,jax"], train=True, **QUICK)
    (measured,) = bench(request)["models"]
    assert (measured["model"], measured["steps_per_call"]) == ("training net, 3 steps a call", 3)
    assert [row["candidate"] for row in measured["results"]] == ["pfvm:cpu", "xla:cpu", "torch", "jax"]
    for row in measured["results"]:
        assert row["differs"] is None and min(row["cpu_seconds"], row["median_seconds"]) > 0
    with pytest.raises(OptionError, match="no such yardstick; there are mlp, resnet18"):
        bench(request._replace(models=["nothing"]))
    with pytest.raises(OptionError, match=r"with --train expected one of torch, torch.compile, jax"):
        bench(request._replace(against=["onnxruntime"]))
    with pytest.raises(OptionError, match="with --train only"):
        bench(request._replace(train=False, steps_per_call=3))


def test_the_time_of_a_capture_is_measured_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(capture, "LAYERS", (1,))
    (measured,) = bench(Request(["capture"], [], train=True, **QUICK))["capture"]
    assert measured["layers"] == 1 and measured["parameters"] > 7e6 and measured["nodes"] > 100
    assert 0 < measured["cpu_seconds"] < 10 * measured["seconds"]


def test_training_without_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest))
    with pytest.raises(MissingExtraError, match=r"bench --train needs the 'torch' extra: pip install 'pfvm\[torch\]'"):
        bench(Request(["mlp"], ["pfvm:cpu"], [], train=True, **QUICK))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--plan", "m.onnx", "--device", "xla:cpu"), "--device changes nothing with --plan"),
        (("--tpu", "--optimizers"), "--tpu changes nothing with --optimizers"),
        (("--train", "mlp", "--runs", "3"), "--runs changes nothing with --train"),
        (("m.onnx", "--machine", "mncore2"), "--machine changes nothing without --plan; leave it out"),
        (("m.onnx", "--peers-python", "python"), "--peers-python changes nothing without --optimizers; leave it out"),
    ],
)
def test_a_flag_that_would_change_nothing_is_an_error(
    arguments: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["bench", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("kind", [(), ("--plan",), ("--optimizers",), ("--train",)])
def test_a_file_that_cannot_be_written_is_an_error_at_once(
    kind: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for option, said in (("--json", "no such folder"), ("--plot", "no such folder")):
        assert run_command(["bench", *kind, "m.onnx", option, str(tmp_path / "none" / "file.svg")]) == 2
        assert said in capsys.readouterr().err
    assert run_command(["bench", *kind, "m.onnx", "--plot", str(tmp_path / "chart.png")]) == 2
    assert "ends in .svg" in capsys.readouterr().err


def test_quiet_belongs_to_every_kind(capsys: pytest.CaptureFixture[str]) -> None:
    for kind in ((), ("--plan",), ("--optimizers",), ("--train",), ("--tpu",)):
        assert run_command(["bench", *kind, "none.onnx", "-q"]) == 2
        assert "none.onnx" in capsys.readouterr().err
        assert not is_quiet(), "of one command, and not of the process"
