"""Promise: the tour runs from the first chapter to the last, with JAX and without, and stays readable."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOUR = Path(__file__).parents[1] / "examples" / "tour.py"
WITHOUT_JAX = """
import importlib.util, runpy, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name.startswith("jax") else find(name, package)
sys.modules["jax"] = None
runpy.run_path(sys.argv.pop(1), run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("has_jax", [True, False])
def test_every_chapter_runs(has_jax: bool) -> None:
    if has_jax and importlib.util.find_spec("jax") is None:
        pytest.skip("without jax")
    how = [str(TOUR)] if has_jax else ["-c", WITHOUT_JAX, str(TOUR)]
    done = subprocess.run([sys.executable, *how], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    chapters = re.findall(r"^(\d(?:, \d)*) ", done.stdout, re.MULTILINE)
    assert list(dict.fromkeys(chapters)) == ["1, 2", "3", "4", "5", "6", "7", "8", "9"]
    assert ("without JAX" in done.stdout) is not has_jax
    assert ("xla:cpu: " in done.stdout) is has_jax and "pfvm:cpu: " in done.stdout


def test_it_is_a_text() -> None:
    """Chapters in order, none without prose before its code, in about 500 lines of code."""
    text = TOUR.read_text()
    code = [line for line in text.splitlines() if line.strip() and not line.startswith("# ")]
    assert len(code) <= 530
    titles = re.findall(r"^# (\d)\. .+\n#\n((?:# .+\n)+)", text, re.MULTILINE)
    assert [number for number, _ in titles] == [str(n) for n in range(1, 10)]
    assert all(len(prose.split()) > 30 for _, prose in titles)


def test_every_part_that_it_names_exists() -> None:
    table = TOUR.read_text().partition("where it is in pfvm:")[2]
    paths = re.findall(r"(?:compiler|passes|runtime)/[\w/*.]*", table)
    assert len(paths) >= 8
    for path in paths:
        assert list(TOUR.parents[1].glob(path)), path
