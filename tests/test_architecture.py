"""The house rules that no linter knows: packages, who imports what, what starts fast."""

from __future__ import annotations

import ast
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest
from pfvm.errors import flag

ROOT = pathlib.Path(__file__).parents[1]
PARTS = ("compiler", "passes", "runtime", "tools")


def _sources() -> list[pathlib.Path]:
    return sorted(file for part in PARTS for file in (ROOT / part).rglob("*.py"))


def _imports(file: pathlib.Path) -> set[str]:
    """Top-level packages that a module imports, anywhere in it but under `if TYPE_CHECKING`."""
    tree = ast.parse(file.read_text())
    skipped = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_the_package_list_is_the_tree() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {file.parent.relative_to(ROOT) for file in _sources()}
    assert sorted(listed) == sorted({"pfvm", *(".".join(("pfvm", *folder.parts)) for folder in folders)})
    assert all((ROOT / folder / "__init__.py").exists() for folder in folders)


@pytest.mark.parametrize(
    ("framework", "homes"),
    [
        (
            "torch",
            ("compiler/capture", "runtime/torch_", "runtime/compiled.py", "runtime/mlsdk", "tools/bench/baselines"),
        ),
        ("jax", ("runtime/xla", "tools/bench/baselines")),
        ("onnxruntime", ("runtime",)),
    ],
)
def test_a_framework_is_imported_in_its_room_only(framework: str, homes: tuple[str, ...]) -> None:
    users = [str(f.relative_to(ROOT)) for f in _sources() if framework in _imports(f)]
    assert [user for user in users if not user.startswith(homes)] == []


@pytest.mark.parametrize("command", ["import pfvm", "import pfvm.tools.cli", "import pfvm.compiler.driver"])
def test_frameworks_are_not_loaded_before_they_are_needed(command: str) -> None:
    check = f"{command}; import sys; print([m for m in ('torch', 'jax', 'onnxruntime') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_loads_no_framework() -> None:
    code = (
        "import sys; sys.argv = ['pfvm', '--help']\n"
        "from pfvm.tools.cli import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print([m for m in ('torch', 'jax', 'onnxruntime') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]" and "compile" in done.stdout


def test_files_stay_readable() -> None:
    """One subject a file: 400 lines are the limit."""
    long = {str(f.relative_to(ROOT)): n for f in _sources() if (n := len(f.read_text().splitlines())) > 400}
    assert long == {}


# Where flags are what the caller wrote: the one schema, which translates its own messages; the launcher, which is a
# command; the options of the MLSDK, which are flags in a file; and data that commands make up.
_OF_FLAGS = {"compiler/options.py", "runtime/launch.py", "runtime/synthesis.py"} | {
    f"runtime/mlsdk/{name}.py" for name in ("compile_options", "names")
}


def _messages(file: pathlib.Path) -> list[str]:
    """The texts of a module that are no docstrings."""
    tree = ast.parse(file.read_text())
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in docstrings
    ]


@pytest.mark.parametrize("part", ["compiler", "passes", "runtime"])
def test_an_error_names_an_option_for_the_command_and_for_python(part: str) -> None:
    """By errors.flag, or within a whole command, `pfvm export --freeze`, or beside Python's word."""
    alone = {
        f"{file.relative_to(ROOT)}: {text}"
        for file in _sources()
        if file.is_relative_to(ROOT / part) and file.relative_to(ROOT).as_posix() not in _OF_FLAGS
        for text in _messages(file)
        if re.search(r" --[a-z]|^--[a-z]", re.sub(r"pfvm [a-z]+ --[a-z-]+|--[a-z]+ in pfvm [a-z]+", "", text))
    }
    assert alone == set()


def test_a_flag_in_a_message() -> None:
    assert flag("opset", 17) == "--opset 17 (opset=17 in Python)"
    assert flag("loss-fn", "mse") == '--loss-fn mse (loss_fn="mse" in Python)'
    assert flag("bf16", True) == "--bf16 (bf16=True in Python)"
    assert flag("params") == "--params (params= in Python)"
    assert flag("shape", "x=2", 'shapes={"x": (2,)}') == '--shape x=2 (shapes={"x": (2,)} in Python)'
