"""What the optimizers' files are worth: latency on ONNX Runtime, in turns, and whether they still compute the same."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir
from pfvm.compiler.importer import read_model
from pfvm.runtime.compare import Tolerance, difference
from pfvm.runtime.executable import specs_of
from pfvm.runtime.ort import OrtExecutable
from pfvm.runtime.synthesis import workable
from pfvm.tools.bench import machine
from pfvm.tools.bench.candidates import Candidate
from pfvm.tools.bench.engines import Settings
from pfvm.tools.bench.figures import figures, noise
from pfvm.tools.bench.process import CandidateError, Process
from pfvm.tools.bench.turns import Outcome, Timing, take_turns
from pfvm.tools.npz import read_npz, write_npz

_THREADS = 1
_TOLERANCE = Tolerance(rtol=1e-3, atol=1e-4)


class Inputs(NamedTuple):
    """The original model, the file that holds inputs for it, and a folder for results.

    overridden: inputs with other numbers for those that have a default, as a training step gets its state; None where
    no input has one.
    """

    model: ir.Model
    feeds: Path
    folder: Path
    overridden: Path | None = None


def latencies(files: Mapping[str, Path], inputs: Inputs, timing: Timing) -> dict[str, Outcome]:
    """Each file in a session of its own process, with ONNX Runtime's own optimizations; one thread."""
    requests = {name: _request("onnxruntime", path, inputs, "") for name, path in files.items()}
    start = {name: functools.partial(Process, name, _THREADS) for name in files}
    return take_turns(start, requests.__getitem__, timing)


def figures_of(outcome: Outcome, base: Outcome, load_before: float) -> dict[str, Any]:
    """Of a row: `latency_ratio` is to the original's latency, `base`, both in processor time: on one thread that is the
    latency, less what other programs take.
    """
    if not outcome.rounds:
        return {"latency_error": outcome.error}
    found = figures(outcome.rounds)
    used = figures(outcome.cpu).median
    return {
        "latency_seconds": found.median,
        "latency_cpu_seconds": used,
        "latency_ratio": used / figures(base.cpu).median if base.cpu else None,
        "latency_rounds": list(outcome.rounds),
        "noisy": noise(found, load_before, machine.cores()),
    }


def differences(files: Sequence[Path], original: Path, inputs: Inputs, timeout: float) -> list[str | None]:
    """How each file's results differ from the original's, both as written: without ONNX Runtime's optimizations.

    A file that no longer takes all inputs, those with a default included, differs. None where they agree. Raises
    CandidateError where the original does not run.
    """
    cases = [inputs] + ([] if inputs.overridden is None else [inputs._replace(feeds=inputs.overridden)])
    expected = [_results(original, each, timeout) for each in cases]
    return [_difference(path, cases, expected, timeout) for path in files]


def _difference(
    path: Path, cases: Sequence[Inputs], expected: Sequence[Mapping[str, Any]], timeout: float
) -> str | None:
    if lost := _lost_inputs(path, cases[0].model):
        return f"it no longer takes {lost[0]}" + (f" and {len(lost) - 1} other inputs" if lost[1:] else "")
    for case, right in zip(cases, expected, strict=True):
        try:
            results = _results(path, case, timeout)
        except CandidateError as error:
            return str(error)
        worst = [difference(name, right[name], results.get(name), _TOLERANCE) for name in right]
        if found := next((str(each) for each in worst if each is not None), None):
            return found if case is cases[0] else f"with other numbers for inputs that have a default, {found}"
    return None


def _lost_inputs(path: Path, original: ir.Model) -> list[str]:
    kept = {each.name for each in onnx.load(path, load_external_data=False).graph.input}
    return [each.name or "" for each in original.graph.inputs if each.name not in kept]


def _results(path: Path, inputs: Inputs, timeout: float) -> Mapping[str, Any]:
    """Computed in a process of its own, which a bad file may end."""
    written = inputs.folder / "results.npz"
    process = Process(path.stem, _THREADS)
    try:
        process.ask(_request("as-written", path, inputs, str(written)), timeout)
    finally:
        process.close()
    return read_npz(written, specs_of(inputs.model)[2])


def _request(engine: str, path: Path, inputs: Inputs, outputs: str) -> dict[str, Any]:
    settings = Settings(str(path), str(inputs.feeds), _THREADS, spinning=False)
    candidate = Candidate(path.stem, engine)
    return {"do": "load", "candidate": candidate._asdict(), "settings": settings._asdict(), "outputs": outputs}


def inputs_of(path: Path, folder: Path, shapes: Mapping[str, Sequence[int]], seed: int) -> Inputs:
    """Inputs that the original accepts: those in the .npz file of its name beside it, else made up, into the folder."""
    model = read_model(path)
    feeds = path.with_suffix(".npz")
    if not feeds.is_file():
        feeds = folder / "inputs.npz"
        write_npz(feeds, workable(model, OrtExecutable(model, threads=_THREADS), seed, shapes)[0])
    return Inputs(model, feeds, folder, _overridden(model, feeds, folder, seed))


def _overridden(model: ir.Model, feeds: Path, folder: Path, seed: int) -> Path | None:
    """The inputs, and other numbers for those that have a default of floats: equal defaults are then no longer so."""
    required, optional, _ = specs_of(model)
    defaults = {each.name: model.graph.initializers[each.name].const_value for each in optional}
    random = np.random.default_rng(seed)
    others = {
        name: _near(tensor.numpy(), random)
        for name, tensor in defaults.items()
        if tensor is not None and tensor.dtype.is_floating_point()
    }
    if not others:
        return None
    path = folder / "overridden.npz"
    write_npz(path, {**read_npz(feeds, required), **others})
    return path


def _near(numbers: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """0.9 to 1 times each number, and 0 to 1 for a zero: a rate below 1 stays one, a sum of squares positive."""
    factors = random.uniform(0.9, 1, numbers.shape)
    return np.where(numbers == 0, random.uniform(0, 1, numbers.shape), numbers * factors).astype(numbers.dtype)
