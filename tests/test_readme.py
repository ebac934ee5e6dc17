"""Every command and program of the README runs as shown, and every file that it links to exists."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def _blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.slow
def test_the_programs_and_commands_run(tmp_path: pathlib.Path) -> None:
    environment = {**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for number, program in enumerate(_blocks("python")):
        named = re.match(r"# (\w+\.py)\n", program)
        file = tmp_path / (named[1] if named else f"program{number}.py")
        file.write_text(program)
        done = subprocess.run([sys.executable, file.name], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, f"{program}\n{done.stderr}"
    for commands in _blocks("bash"):
        for line in filter(str.strip, commands.splitlines()):
            done = subprocess.run(["bash", "-c", line], cwd=tmp_path, capture_output=True, text=True, env=environment)
            assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"


def test_links_and_make_targets_exist() -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
    for pattern in re.findall(r"`(tests/[^`]*\*[^`]*)`", README):
        assert list(ROOT.glob(pattern)), pattern
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"^    make (\S+)", README, re.MULTILINE):
        assert f"\n{target}:" in makefile, target
