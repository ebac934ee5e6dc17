"""One run of `pfvm bench`."""

from __future__ import annotations

import datetime
import functools
import importlib.util
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx_ir as ir
from pfvm.compiler.importer import read_model
from pfvm.errors import MissingExtraError, OptionError, PfvmError, UnsupportedOpError
from pfvm.runtime.compare import Tolerance, difference
from pfvm.runtime.executable import specs_of
from pfvm.runtime.ort import OrtExecutable
from pfvm.runtime.synthesis import parse_shapes, synthesize, workable
from pfvm.tools.console import err
from pfvm.tools.npz import read_npz, write_npz
from pfvm.tools.run import kind

from . import capture, machine, training
from .candidates import Candidate, candidates
from .engines import Settings
from .files import write
from .plot import plot
from .process import Process
from .report import print_model, rows
from .turns import Outcome, Timing, take_turns

_LEAST_ROUNDS = 5


class Request(NamedTuple):
    """The command's options; `seconds` is the length of one turn. Everything is measured once for each of `threads`."""

    models: Sequence[Path | str]
    devices: Sequence[str]
    against: Sequence[str] = ()
    json_file: Path | None = None
    threads: Sequence[int] = (1,)
    rounds: int = 7
    seconds: float = 0.5
    timeout: float = 600.0
    shapes: Sequence[str] = ()
    seed: int = 0
    spinning: bool = False
    command: Sequence[str] = ()
    plot_file: Path | None = None
    train: bool = False  # `models` are yardsticks of training, NAME or NAME:K
    steps_per_call: int = 1
    meshes: Sequence[str] = ()  # xla devices are measured on each of these, too
    shard: Sequence[str] = ()


def bench(request: Request) -> dict[str, Any]:
    """Measures, prints a table per model, writes the JSON file, and returns what is in it.

    Raises OptionError, the errors of reading a model, and PfvmError (after all tables) where a candidate failed.
    """
    _check(request)
    jobs = _jobs(request)
    load_before = machine.load()
    report: dict[str, Any] = {
        "command": list(request.command),
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(load_before),
        "versions": machine.versions(c.engine for _, each, _ in jobs for c in each),
        "threads": list(request.threads),
        "thread_spinning": request.spinning,
        "rounds": request.rounds,
        "turn_seconds": request.seconds,
        "models": [],
    }
    spins = "on" if request.spinning else "off"
    for threads in request.threads:
        err().print(f"{threads} thread(s), ONNX Runtime's thread spinning {spins}, {request.rounds} rounds")
        for path, each, of_this in jobs:
            measured = (_training if request.train else _model)(path, each, of_this, threads, load_before)
            report["models"].append(measured)
            print_model(measured["model"], measured["results"])
            _save(report, request)
    if request.train and training.CAPTURE in map(str, request.models):
        report["capture"] = capture.measure_all(request.timeout)
        capture.print_all(report["capture"])
        _save(report, request)
    if request.plot_file is not None:
        write(request.plot_file, plot(report))
    failed = [r["candidate"] for m in report["models"] for r in m["results"] if r["error"]]
    if failed:
        raise PfvmError(f"bench: {len(failed)} candidate(s) failed: {', '.join(dict.fromkeys(failed))}; see above")
    return report


def _check(request: Request) -> None:
    if request.rounds < _LEAST_ROUNDS:
        raise OptionError(f"--rounds {request.rounds}: at least {_LEAST_ROUNDS} are needed for a median and a spread")
    if request.steps_per_call < 1 or (request.steps_per_call > 1 and not request.train):
        raise OptionError(f"--steps-per-call {request.steps_per_call}: at least 1, and with --train only")
    if request.train and importlib.util.find_spec("torch") is None:
        raise MissingExtraError("bench --train", "torch")
    for threads in request.threads:
        if not 1 <= threads <= machine.cores():
            raise OptionError(f"--threads {threads}: this machine has {machine.cores()} cores")


def _jobs(request: Request) -> list[tuple[Path, list[Candidate], Request]]:
    """What is measured, the candidates, and the request as it is for this one."""
    if not request.train:
        files = [Path(model) for model in request.models]
        return [
            (file, candidates(request.devices, request.against, file.stem, request.meshes, request.shard), request)
            for file in files
        ]
    names = [str(name) for name in request.models if str(name) != training.CAPTURE]
    return [
        (
            each.file,
            training.candidates(each.file, request.devices, request.against, request.meshes, request.shard),
            request._replace(steps_per_call=each.steps),
        )
        for each in training.yardsticks(names, request.steps_per_call)
    ]


def _save(report: Mapping[str, Any], request: Request) -> None:
    if request.json_file is not None:
        write(request.json_file, json.dumps(report, indent=1) + "\n")


def _training(
    path: Path, compared: Sequence[Candidate], request: Request, threads: int, load_before: float
) -> dict[str, Any]:
    """Seconds are those of one step; losses of the first call are compared."""
    steps = request.steps_per_call
    with tempfile.TemporaryDirectory(prefix="pfvm-bench-") as folder:
        calls = _measure(path, Path(folder), compared, request, threads)
        results = {c.name: _losses(Path(folder) / f"{i}.npz") for i, c in enumerate(compared)}
    outcomes = [
        call._replace(rounds=tuple(r / steps for r in call.rounds), cpu=tuple(c / steps for c in call.cpu))
        for call in calls
    ]
    return {
        "model": training.Yardstick(path, steps).title,
        "steps_per_call": steps,
        "threads": threads,
        "results": rows(outcomes, _differences(results), load_before, machine.cores()),
    }


def _losses(path: Path) -> Mapping[str, Any] | None:
    return read_npz(path, ()) if path.exists() else None


def _model(
    path: Path, compared: Sequence[Candidate], request: Request, threads: int, load_before: float
) -> dict[str, Any]:
    model = read_model(path)
    feeds = _inputs(model, request)
    with tempfile.TemporaryDirectory(prefix="pfvm-bench-") as folder:
        write_npz(Path(folder) / "inputs.npz", feeds)
        outcomes = _measure(path, Path(folder), compared, request, threads)
        results = {c.name: _results(Path(folder) / f"{i}.npz", model) for i, c in enumerate(compared)}
    return {
        "model": path.name,
        "threads": threads,
        "inputs": {name: kind(value) for name, value in feeds.items()},
        "results": rows(outcomes, _differences(results), load_before, machine.cores()),
    }


def _inputs(model: ir.Model, request: Request) -> dict[str, Any]:
    """Inputs that the model accepts, found by running it once here; made up unseen where that cannot be done."""
    shapes = parse_shapes(request.shapes)
    try:
        return workable(model, OrtExecutable(model, threads=1), request.seed, shapes)[0]
    except UnsupportedOpError:
        return synthesize(model, request.seed, shapes)


def _measure(path: Path, folder: Path, compared: Sequence[Candidate], request: Request, threads: int) -> list[Outcome]:
    from rich.progress import Progress

    steps = request.steps_per_call if request.train else 0
    settings = Settings(str(path.resolve()), str(folder / "inputs.npz"), threads, request.spinning, steps)
    by_name = {c.name: (number, c) for number, c in enumerate(compared)}

    def load_request(name: str) -> dict[str, Any]:
        number, candidate = by_name[name]
        compares = request.train or candidate.runs_the_model
        outputs = str(folder / f"{number}.npz") if compares else ""
        return {"do": "load", "candidate": candidate._asdict(), "settings": settings._asdict(), "outputs": outputs}

    start = {name: functools.partial(Process, name, threads) for name in by_name}
    timing = Timing(request.rounds, request.seconds, request.timeout, request.timeout)
    console = err()
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(path.name, total=len(compared) * (1 + request.rounds))

        def step(name: str, what: str) -> None:
            bar.update(task, advance=1, description=f"{path.name}: {what} {name}")

        return list(take_turns(start, load_request, timing, step).values())


def _results(path: Path, model: ir.Model) -> Mapping[str, Any] | None:
    return read_npz(path, specs_of(model)[2]) if path.exists() else None


def _differences(results: Mapping[str, Mapping[str, Any] | None]) -> dict[str, str]:
    """Why a candidate's outputs are not the first one's. A fast wrong answer is no result."""
    given = {name: outputs for name, outputs in results.items() if outputs is not None}
    reference = next(iter(given.values()), {})
    found: dict[str, str] = {}
    for name, outputs in given.items():
        for key in reference:
            worst = difference(key, reference[key], outputs.get(key), Tolerance(rtol=1e-2, atol=1e-3))
            if worst is not None:
                found.setdefault(name, str(worst))
    return found
