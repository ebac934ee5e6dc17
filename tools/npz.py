"""Feeds and results as .npz files, for element types that numpy's format does not know, too.

A tensor is stored under its name; bfloat16, float8, int4 … as raw bytes of the same size (numpy's void type), which the
model's signature turns back. Element i of a sequence is stored as "name[i]"; an absent optional is left out.
"""

from __future__ import annotations

import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from pfvm.compiler import exporter
from pfvm.errors import InputError
from pfvm.runtime.executable import TensorSpec

_ELEMENT = re.compile(r"^(?P<name>.*)\[(?P<index>\d+)\]$")


def read_npz(path: str | os.PathLike[str], specs: Iterable[TensorSpec]) -> dict[str, Any]:
    """Feeds from a file. Raises InputError when it cannot be read; whether they fit is the executable's check."""
    by_name = {spec.name: spec for spec in specs}
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            example = next(iter(by_name), "x")
            raise InputError(
                f"{path}: one array without a name (.npy); save it with its input's name: "
                f"np.savez('inputs.npz', **{{{example!r}: array}})"
            )
        with loaded as file:
            stored = dict(file)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from error
    except (ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        # numpy takes whatever is no zip file for a pickle, and advises to load it "unsafely".
        why = "save one with np.savez('inputs.npz', x=array)" if "pickle" in str(error) else str(error)
        raise InputError(f"{path}: not an .npz file of arrays ({why})") from error
    feeds: dict[str, Any] = {}
    for key, array in stored.items():
        element = _ELEMENT.match(key)
        if key not in by_name and element is not None and element["name"] in by_name:
            feeds.setdefault(element["name"], {})[int(element["index"])] = _typed(array, by_name[element["name"]])
        else:
            feeds[key] = _typed(array, by_name.get(key))
    return {k: [v[i] for i in sorted(v)] if isinstance(v, dict) else v for k, v in feeds.items()}


def _typed(array: np.ndarray, spec: TensorSpec | None) -> np.ndarray:
    if array.dtype.kind == "V" and spec is not None and spec.dtype is not None:
        dtype = spec.dtype.numpy()
        if dtype.itemsize == array.dtype.itemsize:
            return array.view(dtype)
    return array


def write_npz(path: str | os.PathLike[str], results: Mapping[str, Any]) -> None:
    """Results to a file, whole or not at all. Raises PfvmError when it cannot be written."""
    target = Path(path)
    arrays: dict[str, Any] = {}
    for name, value in results.items():
        if isinstance(value, (list, tuple)):
            arrays.update({f"{name}[{i}]": _plain(v) for i, v in enumerate(value)})
        elif value is not None:
            arrays[name] = _plain(value)
    with exporter.staged(target) as folder, open(folder / target.name, "wb") as file:
        _write_arrays(file, arrays)


def _write_arrays(file: IO[bytes], arrays: Mapping[str, np.ndarray]) -> None:
    """np.savez, which has parameters of its own and so cannot store an array of the name "file"."""
    with zipfile.ZipFile(file, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)


def _plain(value: Any) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind in "OT":
        return array.astype(str)
    return array.view(f"V{array.dtype.itemsize}") if array.dtype.isbuiltin == 2 else array
