"""Promise: `make docs` builds without a warning, and every public name says what it takes, gives and raises."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pfvm
import pytest
from pfvm.compiler.plan.plan_options import PlanOptions

pytest.importorskip("mkdocs")
pytest.importorskip("torch")  # half of the public names are about PyTorch functions
pytest.importorskip("jax")

ROOT = Path(__file__).parents[1]


def load(name: str) -> ModuleType:
    """A file of docs/, which is no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


PAGES, DOCSTRINGS = load("pages"), load("docstrings")
PUBLIC = {
    f"{module}.{name}": getattr(importlib.import_module(module), name)
    for modules in PAGES.API.values()
    for module, names in modules.items()
    for name in names or PAGES._defined(module)
}


def members(value: Any) -> dict[str, Any]:
    """What users may call of a class: its own public methods and properties."""
    own = (
        {name: each for name, each in vars(value).items() if not name.startswith("_")} if inspect.isclass(value) else {}
    )
    found = {name: each.fget if isinstance(each, property) else each for name, each in own.items()}
    found = {name: getattr(each, "__func__", each) for name, each in found.items()}
    return {name: each for name, each in found.items() if inspect.isfunction(each)}


def test_the_reference_has_every_name_of_pfvm() -> None:
    assert {f"pfvm.{name}" for name in pfvm.__all__} - PUBLIC.keys() <= {"pfvm.PfvmError"}
    assert "pfvm.errors.PfvmError" in PUBLIC


@pytest.mark.parametrize("name", PUBLIC)
def test_a_public_name_says_what_it_is(name: str) -> None:
    value = PUBLIC[name]
    for full, each in {name: value, **{f"{name}.{m}": f for m, f in members(value).items()}}.items():
        text = inspect.getdoc(each) or ""
        assert len(text.split()) >= 4, f"{full}: {text!r} is no docstring"


@pytest.mark.parametrize("name", [name for name in pfvm.__all__ if inspect.isfunction(getattr(pfvm, name))])
def test_a_function_of_pfvm_says_what_it_raises(name: str) -> None:
    function = getattr(pfvm, name)
    assert not inspect.signature(function).parameters or "Raises" in (inspect.getdoc(function) or "")


FUNCTIONS = {name: value for name, value in PUBLIC.items() if inspect.isfunction(value)} | {
    f"{name}.{member}": each
    for name, value in PUBLIC.items()
    if inspect.isclass(value)
    for member, each in members(value).items()
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_public_function_names_its_parameters_its_errors_and_what_its_arrays_are(name: str) -> None:
    """Errors: those that its own lines raise; what it calls may raise more."""
    function = FUNCTIONS[name]
    text, signature = inspect.getdoc(function) or "", inspect.signature(function)
    silent = [p for p in signature.parameters if p not in ("self", "cls") and not re.search(rf"\b{p}\b", text)]
    assert not silent, f"{name} does not say what {silent} are"
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    raised = {n.exc.func.id for n in ast.walk(tree) if isinstance(n, ast.Raise) and isinstance(n.exc, ast.Call)
              and isinstance(n.exc.func, ast.Name)}  # fmt: skip
    assert [each for each in raised if hasattr(pfvm.errors, each) and each not in text] == []
    if re.search(r"ndarray|Tensor\b|\bArrays?\b", f"{signature}"):
        assert re.search(r"shape|dtype|type|array|tensor|\[", text), f"{name} does not say what its arrays are"


@pytest.mark.parametrize("options", [pfvm.Options, PlanOptions])
def test_every_option_says_what_it_is(options: Any) -> None:
    assert [name for name, field in options.model_fields.items() if len((field.description or "").split()) < 2] == []


def test_lists_of_parameters_become_lists() -> None:
    text = """Loads.

model: a path, or
    bytes.
options of xla:cpu:
    threads=N: how many.
        More.

Raises E.
    x   y"""
    assert DOCSTRINGS.as_markdown(text).splitlines() == [
        *("Loads.", "", "- **model**: a path, or", "    bytes.", "- **options of xla:cpu**:"),
        *("    - **threads=N**: how many.", "        More.", "", "Raises E.", "    x   y"),
    ]


def test_links_of_the_readme_lead_to_pages_or_say_the_file() -> None:
    picture = "view/train-plan.png"
    assert PAGES.linked(f"[a](CONTRIBUTING.md) ![b](docs/{picture})") == f"[a](contributing.md) ![b]({picture})"
    assert PAGES.linked("[a](tpu.md) [b](../README.md)", ROOT / "docs") == "[a](tpu.md) [b](index.md)"
    assert 'title="tests/test_docs.py::test_x"' in PAGES.linked('[yes](tests/test_docs.py "test_x")')
    with pytest.raises(FileNotFoundError, match=r"none\.py"):
        PAGES.linked("[a](none.py)")


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    pages = {page.name: page.read_text(encoding="utf-8") for page in tmp_path.glob("*.html")}
    assert {
        "index.html",
        "api.html",
        "cli.html",
        "passes.html",
        "devices.html",
        "l3ir.html",
        "tour.html",
    } <= pages.keys()
    assert 'id="pfvm.compile"' in pages["api.html"] and "pfvm doctor" in pages["cli.html"]
    assert "fuse-matmul-bias" in pages["passes.html"] and "mncore2:emu" in pages["devices.html"]
    for name, page in pages.items():  # it can be read where there is no network
        assert not re.findall(r'(?:src|rel="stylesheet" href)="https?://[^"]+"', page), name
