"""`pfvm export file.py:fn`: a PyTorch function out of a user's file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from pfvm.errors import MissingExtraError, OptionError, did_you_mean

from .sources import keep


def export(target: str, output: Path, sample: str, freeze: bool | None = None, dynamic: Sequence[str] = ()) -> str:
    """Exports `fn` of `file.py:fn` with the example inputs that the file calls `sample`. Returns a line that says so.

    Raises OptionError (no such file or name, or the file fails), MissingExtraError (it imports torch, which is not
    installed), CaptureError, PfvmError when writing fails.
    """
    axes = parse_dynamic(dynamic)
    keep("-o", output, [Path(target.rpartition(":")[0])])
    function, example = load_function(target, sample)
    from pfvm import export as capture_export  # which, without torch, says what to install

    model = capture_export(function, example, output, freeze=freeze, dynamic=axes)
    return f"{output}: {sum(1 for _ in model.graph.all_nodes())} nodes"


def load_function(target: str, sample: str) -> tuple[Any, Any]:
    """`fn` of `file.py:fn` and its example inputs. Raises OptionError, MissingExtraError."""
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name:
        raise OptionError(f"{target!r}: expected FILE.py:FUNCTION")
    module = _load(Path(file))
    function = _attribute(module, file, name)
    example = _attribute(module, file, sample, "; --sample names the example inputs, or a function that makes them")
    return function, _made(example, file) if callable(example) else example


def parse_dynamic(texts: Iterable[str]) -> dict[str, dict[int, str]]:
    """ "x:0=batch" → {"x": {0: "batch"}}. Raises OptionError."""
    found: dict[str, dict[int, str]] = {}
    for text in texts:
        place, equals, symbol = text.rpartition("=")
        name, colon, axis = place.rpartition(":")
        if not (equals and colon and name and symbol) or not axis.removeprefix("-").isdecimal():
            raise OptionError(f"--dynamic {text!r}: expected INPUT:DIMENSION=NAME, as in x:0=batch")
        found.setdefault(name, {})[int(axis)] = symbol
    return found


def _attribute(module: ModuleType, file: str, dotted: str, hint: str = "") -> Any:
    found: Any = module
    for part in dotted.split("."):
        if not hasattr(found, part):
            names = [n for n in vars(module) if not n.startswith("_")]
            has = f"it has: {', '.join(names)}"
            raise OptionError(f"{file} has no {dotted!r}{did_you_mean(dotted, names)}; {has}{hint}")
        found = getattr(found, part)
    return found


def _load(path: Path) -> ModuleType:
    """Runs the file as a module; its own folder is importable from it, as when Python runs it."""
    if not path.is_file():
        raise OptionError(f"{path}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise MissingExtraError(f"{path}, which imports torch,", "torch") from error
        raise _failed(path, error) from error
    return module


def _made(sample: Callable[[], Any], file: str) -> Any:
    """What a function of the file gives as example inputs."""
    try:
        return sample()
    except Exception as error:
        raise _failed(Path(file), error) from error


def _failed(path: Path, error: Exception) -> OptionError:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
    where = f"{path}:{frames[-1].lineno}" if frames else str(path)
    return OptionError(f"{where}: {type(error).__name__}: {error}")
