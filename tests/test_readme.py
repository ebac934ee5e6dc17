"""Every command and program of the README and of the guide runs as shown; every file that they link to exists."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from pfvm.tools.check import Settings, check
from pfvm.tools.cli import app
from pfvm.tools.report import check_lines
from pfvm.tools.summary import per_pass
from typer.testing import CliRunner

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]  # in one folder, the README first


def _blocks(language: str) -> list[str]:
    return [block for page in PAGES for block in re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)]


def _commands(language: str) -> list[str]:
    lines = [line for block in _blocks(language) for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.strip()]


@pytest.mark.slow
def test_the_programs_and_commands_run(tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for number, program in enumerate(_blocks("python")):
        named = re.match(r"# (\w+\.py)\n", program)
        file = tmp_path / (named[1] if named else f"program{number}.py")
        file.write_text(program)
        done = subprocess.run([sys.executable, file.name], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{program}\n{done.stderr}"
    for line in _commands("bash"):
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_the_flags_and_files_of_commands_that_take_minutes_exist() -> None:
    """What they do is tested beside their modules, on small models."""
    for line in _commands("bash minutes"):
        words = shlex.split(line, comments=True)
        if words[0] == "pfvm":
            shown = CliRunner().invoke(app, [words[1], "--help"], env={"COLUMNS": "200"}).output
            assert all(flag in shown for flag in words if flag.startswith("--")), line
        elif words[1] == "-m":
            assert words[0] == "python" and importlib.util.find_spec(words[2]), line
        else:
            assert words[0] == "python", line
            assert all(f'"{flag}"' in (ROOT / words[1]).read_text() for flag in words if flag.startswith("--")), line
        for file in re.findall(r"[\w/{}]+\.py", line):
            for name in ("resnet50", "convnext_t") if "{model}" in file else ("",):
                assert (ROOT / file.format(model=name)).exists(), file


def test_the_first_example_prints_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes, matches and the comparison; seconds and differences are of one run."""
    pytest.importorskip("jax")
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    from compile_file import made_up_net
    from pfvm.compiler.driver import compile_model
    from pfvm.compiler.importer import read_model
    from pfvm.compiler.options import Options
    from pfvm.runtime.ort import evaluate

    result = compile_model(read_model(made_up_net()), Options(), evaluate=evaluate)
    shown = re.search(r"```\n(\$ pfvm compile.*?)```", README, re.DOTALL)
    assert shown is not None
    nodes = result.summary()["nodes"]
    assert f"{nodes[0]} → {nodes[1]} nodes" in shown[1]
    for each in per_pass(result.passes):
        if each.matches:
            assert re.search(rf"^{each.name} +{each.matches} ", shown[1], re.MULTILINE), each
    report = check(made_up_net(), result.model, Settings(device_b="xla:cpu"))
    assert shown[1].endswith("xla:cpu\n" + "\n".join(check_lines(report)) + "\n")


def test_links_and_make_targets_exist() -> None:
    for page in PAGES:
        text = page.read_text()
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
            assert link.startswith("https://") or (page.parent / link).exists(), f"{page.name}: {link}"
        for pattern in re.findall(r"`(tests/[^`]*\*[^`]*)`", text):
            assert list(ROOT.glob(pattern)), f"{page.name}: {pattern}"
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\S+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile, target


def test_every_row_beside_other_tools_names_a_test_that_exists() -> None:
    """The title of a link into tests/ is the name of the test function that proves the row."""
    table = README.partition("\n## Beside other tools\n")[2].partition("\n## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 30
    for row in rows:
        proofs = re.findall(r"\[\w+\]\((tests/\w+\.py) \"(test_\w+)\"\)", row.split("|")[2])
        assert proofs, row
        for file, test in proofs:
            assert re.search(rf"^def {test}\(", (ROOT / file).read_text(), re.MULTILINE), f"{file} has no {test}"
