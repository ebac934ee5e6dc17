"""The MLSDK's ways to steer a compilation, as options of pfvm; what has no meaning here is a named warning."""

from __future__ import annotations

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pfvm.compiler.options import from_args
from pfvm.errors import OptionError, short

from .names import BY_NAME, warn

# option_json files that come with that SDK → our level; where there is no such file here, its name is enough.
_PRESETS = {"O0": 0, "O1": 1, "O2": 2, "O3": 3, "O4": 3, "debug": 2}
_FLOAT_DTYPES = ("float", "mixed")
_ON = ("1", "true", "on", "yes")


@dataclass(frozen=True)
class CacheOptions:
    """Where that SDK keeps what it compiled. Here `xla:*` devices keep programs anyway: see PFVM_CACHE."""

    path: str | os.PathLike[str]
    enable_app_cache: bool = True
    enable_onnx_cache: bool = True
    enable_codegen_cache: bool = True
    enable_gpfn2obj_cache: bool = True


def translate(options: Mapping[str, Any] | None) -> tuple[dict[str, Any], bool]:
    """The `options` argument of Context.compile as options of pfvm.compile, and whether it asks for `backprop`.

    Raises OptionError for a file that is not there and a value that the MLSDK does not have either.
    """
    if options is not None and not isinstance(options, Mapping):
        raise OptionError(f"options are a dict such as {{'option_json': PATH}}, not {short(options)}")
    given = dict(options or {})
    ours = _from_file(given.pop("option_json", None))
    if given.get("float_dtype", "float") not in _FLOAT_DTYPES:
        raise OptionError(f"float_dtype is one of {', '.join(_FLOAT_DTYPES)}, not {short(given['float_dtype'])}")
    if given.pop("float_dtype", "float") == "mixed":
        warn("option", "float_dtype", "'mixed' computes in the function's own dtypes; use torch.autocast in it")
    ours.update(_variables(given.pop("envs", None)))
    backprop = bool(given.pop("backprop", False))
    for name, value in given.items():
        row = BY_NAME.get(("option", name))
        if row is not None and row.status == "warning":
            warn("option", name)
        else:
            ours[name] = value
    return ours, backprop


def _from_file(path: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Flags of an option_json file, without those of the board's compiler."""
    if path is None:
        return {}
    file = pathlib.Path(path)
    if not file.exists() and file.stem in _PRESETS:
        level = _PRESETS[file.stem]
        warn("preset", file.stem, f"{file} is not here: --opt-level={level} in its place")
        return {"opt_level": level}
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise OptionError(f"option file {path}: {error.strerror}") from error
    except ValueError as error:
        raise OptionError(f"option file {path} is not JSON: {error}") from error
    if not isinstance(data, dict):
        raise OptionError(f'option file {path} must hold an object such as {{"args": ["--opt-level=2"]}}')
    args = data.get("args", ())
    return from_args(_without_ignored(args) if isinstance(args, list) else args)


def _without_ignored(args: list[Any]) -> list[Any]:
    kept = []
    for arg in args:
        name = str(arg).partition("=")[0].replace("-", "_").strip("_")
        rows = [BY_NAME.get(("flag", f"--{name}")), BY_NAME.get(("option", name))]
        ignored = next((row for row in rows if row is not None and row.status == "warning"), None)
        if ignored is None:
            kept.append(arg)
        else:
            warn(ignored.kind, ignored.name)
    return kept


def _variables(envs: Mapping[str, str] | None) -> dict[str, Any]:
    """Variables in `envs`, and those of the process that the MLSDK reads."""
    known = {name for kind, name in BY_NAME if kind == "variable"}
    found = {name: value for name, value in os.environ.items() if name in known}
    found.update(envs or {})
    ours: dict[str, Any] = {}
    for name, value in found.items():
        if name == "MNCORE_USE_EXTERNAL_DATA_FORMAT":
            ours["external_data"] = str(value).lower() in _ON
        elif name in known:
            warn("variable", name)
        else:
            raise OptionError(f"envs: the MLSDK has no variable {name!r} (`python -m pfvm.runtime.mlsdk` lists them)")
    return ours


def warn_of_keywords(
    cache_options: CacheOptions | None,
    num_compiler_threads: int | None,
    export_kwargs: Mapping[str, Any] | None,
    optimizers: Sequence[Any] | None,
    backprop: bool,
) -> None:
    """Name the keywords of Context.compile that change nothing here."""
    if cache_options is not None:
        warn("keyword", "cache_options")
    if num_compiler_threads not in (None, -1):
        warn("keyword", "num_compiler_threads")
    for name, value in (export_kwargs or {}).items():
        if name != "use_fx2onnx" or not value:
            warn("keyword", "export_kwargs", f"{name}={value!r}: there is one exporter")
    if optimizers and not backprop:
        warn("keyword", "optimizers", "the function itself holds its optimizers, unless options={'backprop': True}")
