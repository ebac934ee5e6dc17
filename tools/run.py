"""`pfvm run`: one call of a model, with given or made-up inputs, and a summary of what comes out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pfvm.compiler.importer import read_model
from pfvm.compiler.signature import read_manifest
from pfvm.errors import InvalidModelError, OptionError
from pfvm.runtime.device import load_executable
from pfvm.runtime.executable import Executable
from pfvm.runtime.portable import is_portable, load_portable, made_up
from pfvm.runtime.synthesis import parse_shapes, workable

from .console import err, out, print_json, table
from .npz import read_npz, write_npz
from .sources import keep
from .working import working


def run(
    model: Path,
    device: str,
    inputs: Path | None,
    outputs: Path | None,
    seed: int,
    shapes: Sequence[str],
    options: Mapping[str, Any],
    buckets: Sequence[str] = (),
    as_json: bool = False,
    steps: int = 1,
) -> None:
    """Prints one line per output, or JSON (see `_report`).

    `model` is an ONNX file or the folder of a portable program. `options` are those of `pfvm.load`; None stands for one
    that was not given. `steps`: so many calls with the same inputs, each on the state that the one before left.
    Raises the errors of `pfvm.load` and of the call.
    """
    wanted = parse_shapes(shapes)
    keep("--outputs", outputs, [model, inputs])
    with working(f"running {model} on {device}"):
        executable, updates, make_up = _loaded(model, device, {**options, "bucket": parse_buckets(buckets) or None})
        if steps > 1 and not updates:
            raise OptionError(f"--steps {steps}: no output of {model} updates state, so every step would be the first")
        if inputs is None:
            feeds = make_up(seed, wanted)
        else:
            feeds = read_npz(inputs, [*executable.inputs, *executable.optional_inputs])
        start = time.perf_counter()
        results = executable(feeds)
        for _ in range(steps - 1):
            results = executable({**feeds, **{name: results[output] for name, output in updates.items()}})
        seconds = (time.perf_counter() - start) / steps
    if outputs is not None:
        write_npz(outputs, results)
    if as_json:
        print_json(_report(executable, device, seconds, feeds, results))
        return
    _print_inputs(feeds, f"made up, seed {seed}" if inputs is None else str(inputs), device, seconds)
    for line in compiled_lines(executable):
        err().print(line)
    _print_outputs(results)


def _loaded(
    model: Path, device: str, options: Mapping[str, Any]
) -> tuple[Executable, Mapping[str, str], Callable[[int, Mapping[str, Any]], dict[str, Any]]]:
    """An executable, the state that its outputs update, and what makes inputs up from a seed and shapes."""
    if is_portable(model):
        portable = load_portable(model, device, options)
        return portable, portable.updates, lambda seed, shapes: made_up(portable, seed, shapes)
    if model.is_dir():
        raise InvalidModelError(
            f"{model} is a folder, and no portable program: it has no manifest.json; give an ONNX file, or the folder "
            "that pfvm compile --export stablehlo -o FOLDER writes"
        )
    loaded = read_model(model)
    executable = load_executable(loaded, device, **options)
    updates = {entry.name: entry.output for entry in read_manifest(loaded) if entry.output}
    return executable, updates, lambda seed, shapes: workable(loaded, executable, seed, shapes)[0]


def _report(
    executable: Any, device: str, seconds: float, feeds: Mapping[str, Any], results: Mapping[str, Any]
) -> dict[str, Any]:
    """{"device", "seconds" of the call, "compilations" (None where nothing is compiled), "inputs" and "outputs":
    {name: {"type": "float32[1,3]", "values": up to eight of them or their range, mean and NaN, as text}}}.
    """

    def described(values: Mapping[str, Any]) -> dict[str, dict[str, str]]:
        return {name: {"type": kind(value), "values": summary(value)} for name, value in values.items()}

    return {
        "device": device,
        "seconds": seconds,
        "compilations": getattr(executable, "compilations", None),
        "inputs": described(feeds),
        "outputs": described(results),
    }


def parse_buckets(texts: Sequence[str]) -> dict[str, list[int]]:
    """["batch=1,8"] → {"batch": [1, 8]}. Raises OptionError."""
    found: dict[str, list[int]] = {}
    for text in texts:
        name, _, sizes = text.partition("=")
        if not name or not all(size.isdigit() for size in sizes.split(",")):
            raise OptionError(f"--bucket {text!r} is not of the form batch=1,8,32")
        found[name] = [int(size) for size in sizes.split(",")]
    return found


def compiled_lines(executable: Any) -> list[str]:
    """What was compiled to make a call, on devices that compile."""
    count = getattr(executable, "compilations", None)
    if count is None:
        return []
    spread = [executable.spread] if getattr(executable, "spread", None) else []
    segments = executable.segments
    on_host = [s for s in segments if s.kind == "host"]
    where = f"; {len(on_host)} of {len(segments)} segments on the host: {'; '.join(s.reason for s in on_host)}"
    reloads = f" ({executable.reloads} reloaded from disk)" if executable.reloads else ""
    return [*spread, f"{count} compilation{'' if count == 1 else 's'}{reloads}{where if on_host else ''}"]


def _print_inputs(feeds: Mapping[str, Any], origin: str, device: str, seconds: float) -> None:
    listed = ", ".join(f"{name} {kind(value)}" for name, value in feeds.items())
    err().print(f"{device}: {seconds * 1e3:.2f} ms; inputs ({origin}): {listed or 'none'}")


def _print_outputs(results: Mapping[str, Any]) -> None:
    rows = table("output", "type", "values")
    for name, value in results.items():
        rows.add_row(name, kind(value), summary(value))
    out().print(rows)


def kind(value: Any) -> str:
    """ "float32[1,3]"; "absent" for an empty optional; "sequence of 2"."""
    if value is None:
        return "absent"
    if isinstance(value, (list, tuple)):
        return f"sequence of {len(value)}" + (f": {kind(value[0])}" if value else "")
    if isinstance(value, dict):
        return f"map of {len(value)}"
    array = np.asarray(value)
    name = "string" if array.dtype.kind in "OUST" else array.dtype.name
    return f"{name}[{','.join(map(str, array.shape))}]"


def summary(value: Any) -> str:
    """Up to eight values whole, else the range, the mean and the number of NaN."""
    if value is None or isinstance(value, dict):
        return str(value or "")
    if isinstance(value, (list, tuple)):
        return "; ".join(summary(v) for v in value[:4])
    array = np.asarray(value)
    if array.size <= 8 or array.dtype.kind in "OUSTcb":
        shown = ", ".join(str(v) for v in array.reshape(-1)[:8])
        return shown + (", …" if array.size > 8 else "")
    wide = array.astype(np.float64)
    missing = int(np.isnan(wide).sum())
    if missing == wide.size:
        return "all NaN"
    text = f"min {np.nanmin(wide):.6g}, max {np.nanmax(wide):.6g}, mean {np.nanmean(wide):.6g}"
    return text + (f", {missing} NaN" if missing else "")
