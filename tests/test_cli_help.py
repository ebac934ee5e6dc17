"""Promise: help fits a screen and its examples are real; every command can be quiet; reports come as JSON."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main
from cli_support import Pfvm
from pfvm.tools import help as help_texts
from pfvm.tools.cli import app

ROOT = Path(__file__).parents[1]


def commands(group: Any, prefix: str = "") -> dict[str, Any]:
    """Full name → command, those of `l3ir` included."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        if not command.hidden:
            found[prefix + name] = command
            found |= commands(command, f"{prefix}{name} ") if hasattr(command, "commands") else {}
    return found


COMMANDS = commands(typer.main.get_command(app))


def test_every_command_has_its_group() -> None:
    grouped = [name for names in help_texts.GROUPS.values() for name in names]
    assert len(grouped) == len(set(grouped))
    assert {name for name in COMMANDS if " " not in name} <= set(grouped)


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_fits_a_screen_and_ends_with_examples(name: str, pfvm: Pfvm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    shown = pfvm(*name.split(), "--help")
    lines = shown.out.splitlines()
    assert shown.code == 0 and max(map(len, lines)) <= 100
    assert len(lines) <= 48
    examples = help_texts.EXAMPLES[name]
    assert 2 <= len(examples) <= 3
    assert all(f"    {example}" in lines for example in examples)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_option_is_lost_where_help_is_short(name: str, pfvm: Pfvm) -> None:
    """--help names every flag; --help-all, where there is one, describes every flag, in as many words as it has."""
    shown = pfvm(*name.split(), "--help").out
    has_more = "--help-all" in shown
    described = pfvm(*name.split(), "--help-all").out if has_more else shown
    options = [p for p in COMMANDS[name].params if p.param_type_name == "option" and not p.hidden]
    assert has_more == any(p.rich_help_panel for p in options)
    for option in options:
        for flag in (*option.opts, *option.secondary_opts):
            assert re.search(rf"{flag}\b", shown) and re.search(rf"^  .*{flag}\b", described, re.MULTILINE), flag
        assert "".join((option.help or "").split()) in "".join(described.split()), option.name


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_are_accepted_by_the_parser(name: str) -> None:
    """What they do is tested beside each command; here: the flags exist and take such values."""
    for example in help_texts.EXAMPLES[name]:
        command, *arguments = shlex.split(example.partition(" > ")[0])
        assert command == "pfvm" and " ".join(arguments).startswith(name)
        if not hasattr(COMMANDS[name], "commands"):
            COMMANDS[name].make_context(name, arguments[len(name.split()) :])


def test_exit_codes_are_in_the_help_and_in_the_readme(pfvm: Pfvm) -> None:
    shown, readme = pfvm("--help").out, " ".join((ROOT / "README.md").read_text().split())
    for code, meaning in help_texts.EXIT_CODES.items():
        assert f"    {code:<4} {meaning}" in shown
        assert f"{code} {meaning}" in readme


@pytest.mark.parametrize("place", ["before", "after"])
def test_quiet_leaves_errors_and_json(place: str, pfvm: Pfvm, model: Path, tmp_path: Path) -> None:
    def quiet(*arguments: Any) -> Any:
        return pfvm("-q", *arguments) if place == "before" else pfvm(*arguments, "--quiet")

    assert quiet("compile", model, "-o", tmp_path / "out.onnx") == (0, "", "")
    assert (tmp_path / "out.onnx").exists()
    assert quiet("run", model) == (0, "", "")
    assert quiet("check", model, tmp_path / "out.onnx") == (0, "", "")
    assert quiet("passes") == (0, "", "")
    assert json.loads(quiet("passes", "--json").out)
    assert quiet("run", model, "--device", "mncore2:emu", "--shape", "x=2,3") == (0, "", "")
    failed = quiet("run", "none.onnx")
    assert failed.code == 2 and failed.err.startswith("error: none.onnx")
    assert pfvm("run", model).out, "the next command speaks again"


def test_reports_as_json(pfvm: Pfvm, model: Path, tmp_path: Path) -> None:
    def report(*arguments: Any, code: int = 0) -> Any:
        result = pfvm(*arguments, "--json")
        assert (result.code, result.err) == (code, "")
        return json.loads(result.out)

    fold = next(each for each in report("passes") if each["name"] == "fold-constants")
    assert fold["options"]["slack"] == "1024" and fold["levels"] == [1, 2, 3] and fold["summary"]
    cpu = next(each for each in report("devices") if each["name"] == "pfvm:cpu")
    assert cpu["status"] == "ready" and cpu["advice"] == "ONNX Runtime on the CPU"
    assert any(op["domain"] == "" and op["name"] == "MatMul" and 13 in op["since"] for op in report("ops")["operators"])
    compiled = report("compile", model, "-o", tmp_path / "out.onnx")
    assert compiled["nodes"] == [3, 1] and compiled["written"] == [str(tmp_path / "out.onnx")]
    assert {"name", "seconds", "matches"} <= compiled["passes"][0].keys()
    run = report("run", model, "--shape", "x=2,3")
    assert run["inputs"]["x"]["type"] == "float32[2,3]" and run["outputs"]["y"]["values"] and run["seconds"] > 0
    assert report("check", model, tmp_path / "out.onnx")["equal"] is True
    other = tmp_path / "other.onnx"
    other.write_bytes(_another(model))
    different = report("check", model, other, code=1)
    assert different["equal"] is False and different["output"] == "y" and different["difference"]


def _another(model: Path) -> bytes:
    import onnx

    proto = onnx.load(model)
    proto.graph.node[0].op_type = "Neg"
    return proto.SerializeToString()


def test_a_plan_as_json(pfvm: Pfvm, model: Path, tmp_path: Path) -> None:
    result = pfvm("plan", model, "-o", tmp_path / "plan", "--shape", "x=2,3", "--json")
    found = json.loads(result.out)
    assert (result.code, result.err) == (0, "")
    assert found["vsm_cycles"] > 0 and found["written"] == str(tmp_path / "plan")
    assert found["machine"]["name"] == "mncore2" and found["schedule"]


def test_no_colours_where_there_is_no_terminal() -> None:
    """FORCE_COLOR would turn them on; NO_COLOR wins over it."""
    environment = {**os.environ, "FORCE_COLOR": "1", "NO_COLOR": "1", "TERM": "xterm-256color"}
    for extra in ({}, environment):
        done = subprocess.run(
            [sys.executable, "-m", "pfvm", "devices"], capture_output=True, env={**os.environ, **extra}, check=True
        )
        assert b"\x1b[3" not in done.stdout + done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_for_a_shell(shell: str) -> None:
    pfvm = str(Path(sys.executable).parent / "pfvm")
    environment = {**os.environ, "_PFVM_COMPLETE": f"source_{shell}"}
    script = subprocess.run([pfvm], capture_output=True, text=True, env=environment, check=True).stdout
    assert "_PFVM_COMPLETE" in script


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("pfvm do", "doctor"), ("pfvm run --device xla:c", "xla:cpu"), ("pfvm bench --peers", "--peers-python")],
)
def test_the_shell_completes_commands_and_devices(typed: str, offered: str) -> None:
    environment = {**os.environ, "_PFVM_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    environment["COMP_CWORD"] = str(len(typed.split()) - 1)
    pfvm = str(Path(sys.executable).parent / "pfvm")
    done = subprocess.run([pfvm], capture_output=True, text=True, env=environment)
    assert offered in done.stdout.split()
