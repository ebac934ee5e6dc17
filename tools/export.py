"""`pfvm export file.py:fn`: a PyTorch function out of a user's file."""

from __future__ import annotations

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from pfvm.errors import OptionError


def export(target: str, output: Path, sample: str) -> str:
    """Exports `fn` of `file.py:fn` with the example inputs that the file calls `sample`. Returns a line that says so.

    Raises OptionError (no such file or name, or the file fails), CaptureError, PfvmError when writing fails.
    """
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name:
        raise OptionError(f"{target!r}: expected FILE.py:FUNCTION")
    module = _load(Path(file))
    function = _attribute(module, file, name)
    example = _attribute(module, file, sample)
    if callable(example):
        example = example()
    from pfvm.compiler.capture.export import export as capture_export

    model = capture_export(function, example, output)
    return f"{output}: {sum(1 for _ in model.graph.all_nodes())} nodes"


def _attribute(module: ModuleType, file: str, dotted: str) -> Any:
    found: Any = module
    for part in dotted.split("."):
        if not hasattr(found, part):
            names = ", ".join(n for n in vars(module) if not n.startswith("_"))
            raise OptionError(f"{file} has no {dotted!r}; it has: {names}")
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
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(path)]
        where = f"{path}:{frames[-1].lineno}" if frames else str(path)
        raise OptionError(f"{where}: {type(error).__name__}: {error}") from error
    return module
