"""One run of `pfvm bench --optimizers`."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from pfvm.errors import OptionError, PfvmError
from pfvm.runtime.synthesis import parse_shapes
from pfvm.tools.bench import machine
from pfvm.tools.bench.files import write
from pfvm.tools.bench.turns import Timing
from pfvm.tools.console import err

from . import latency, optimizing
from .chain import NODES_PER_BLOCK, chain
from .optimizing import BASE, FOR_ORT, OURS, PEERS, Optimizer, in_turns, result_of, row
from .plot import plot
from .report import print_chain, print_model

NETS = ("resnet50", "mobilenet_v2", "bert", "gpt2", "llama6", "vit", "convnext_t", "train_step")
CHAIN = "chain"
_ALL_NETS = "nets"
# Thousands of nodes; the last for pfvm alone.
_CHAIN_SIZES = (1, 4, 16, 64)


class OptimizersRequest(NamedTuple):
    """The command's options.

    models: names of NETS, "nets" for all of them, "chain", and ONNX files; none: nets and the chain. `timeout`: seconds
    of processor time that an optimizer may take for a file; `runs`: how often each is run.
    """

    models: Sequence[Path | str] = ()
    peers_python: Path | None = None
    json_file: Path | None = None
    plot_file: Path | None = None
    rounds: int = 7
    seconds: float = 0.5
    timeout: float = 100.0
    shapes: Sequence[str] = ()
    seed: int = 0
    command: Sequence[str] = ()
    chain_sizes: Sequence[int] = _CHAIN_SIZES
    runs: int = 3


def bench_optimizers(request: OptimizersRequest) -> dict[str, Any]:
    """Optimizes, measures, prints a table per model, writes the JSON file, and returns what is in it.

    Raises OptionError, and PfvmError (after all tables) where pfvm itself failed or computes something else.
    """
    names = [str(name) for name in request.models] or [_ALL_NETS, CHAIN]
    names = [each for name in names for each in (NETS if name == _ALL_NETS else (name,))]
    for name in names:
        if name not in (*NETS, CHAIN) and not Path(name).is_file():
            raise OptionError(f"bench --optimizers {name}: no such file; nets: {', '.join((*NETS, _ALL_NETS, CHAIN))}")
    compared, versions = optimizing.optimizers(request.peers_python)
    _say_who_is_missing(compared, request.peers_python)
    load_before = machine.load()
    report: dict[str, Any] = {
        "command": list(request.command),
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(load_before),
        "versions": {**machine.versions(["pfvm"]), "peers": dict(versions)},
        "optimizers": [OURS, FOR_ORT, *PEERS],
        "models": [],
        "chain": [],
    }
    with tempfile.TemporaryDirectory(prefix="pfvm-bench-") as folder:
        for name in names:
            if name == CHAIN:
                for size in request.chain_sizes:
                    report["chain"].append(_chain(size, compared, Path(folder), request))
                    _save(report, request)
                print_chain(report["chain"], [OURS, *PEERS])
            else:
                measured = _model(_file(name, Path(folder)), compared, Path(folder), request, load_before)
                report["models"].append(measured)
                print_model(measured, report["optimizers"])
                _save(report, request)
    if request.plot_file is not None:
        write(request.plot_file, plot(report))
    _check(report)
    return report


def _say_who_is_missing(compared: Sequence[Optimizer], peers_python: Path | None) -> None:
    missing = [name for name in PEERS if name not in {each.name for each in compared}]
    if missing:
        where = f"{peers_python} lacks them" if peers_python else "give --peers-python PATH"
        err().print(
            f"not compared: {', '.join(missing)} ({where}; "
            f"python -m venv peers && peers/bin/pip install {' '.join(PEERS)})"
        )


def _save(report: Mapping[str, Any], request: OptimizersRequest) -> None:
    if request.json_file is not None:
        write(request.json_file, json.dumps(report, indent=1) + "\n")


def _file(name: str, folder: Path) -> Path:
    """The user's file, or one of our nets, exported by a process that has torch."""
    if name not in NETS:
        return Path(name).resolve()
    command = [sys.executable, "-m", "pfvm.tools.bench.baselines.exported_nets", str(folder), name]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise PfvmError(f"{name} cannot be exported: {last[:300]}")
    return folder / f"{name}.onnx"


def _model(
    path: Path, compared: Sequence[Optimizer], folder: Path, request: OptimizersRequest, load_before: float
) -> dict[str, Any]:
    inputs = latency.inputs_of(path, folder, parse_shapes(request.shapes), request.seed)
    results = _optimized(path, compared, folder, request)
    base = results.pop(0)
    good = [each for each in results if each["error"] is None]
    files = {"input": path, **{each["optimizer"]: result_of(folder, each["optimizer"]) for each in good}}
    waits = 3 * request.timeout
    for each, differs in zip(good, latency.differences(list(files.values())[1:], path, inputs, waits), strict=True):
        each["differs"] = differs
    timing = Timing(request.rounds, request.seconds, waits, waits)
    outcomes = latency.latencies(files, inputs, timing)
    if outcomes["input"].error:
        raise PfvmError(f"{path.name} does not run on ONNX Runtime: {outcomes['input'].error}")
    for each in good:
        each |= latency.figures_of(outcomes[each["optimizer"]], outcomes["input"], load_before)
    return {
        "model": path.name,
        "nodes": optimizing.nodes(path),
        "bytes": path.stat().st_size,
        "load_save_cpu_seconds": base["cpu_seconds"],
        "load_save_seconds": base["seconds"],
        "latency_seconds": latency.figures_of(outcomes["input"], outcomes["input"], load_before)["latency_seconds"],
        "results": results,
    }


def _optimized(
    path: Path, compared: Sequence[Optimizer], folder: Path, request: OptimizersRequest
) -> list[dict[str, Any]]:
    """A row for each."""
    rows = in_turns(compared, path, folder, request.runs, request.timeout)
    return [row(each.name, runs, result_of(folder, each.name)) for each, runs in rows]


def _chain(thousands: int, compared: Sequence[Optimizer], folder: Path, request: OptimizersRequest) -> dict[str, Any]:
    """The rows of one size; the largest is for pfvm alone."""
    path = folder / "chain.onnx"
    model = chain(1000 * thousands // NODES_PER_BLOCK)
    onnx.save(model, path)
    names = (BASE, OURS) if thousands >= _CHAIN_SIZES[-1] else (BASE, OURS, *PEERS)
    results = _optimized(path, [each for each in compared if each.name in names], folder, request)
    base = results.pop(0)
    return {
        "nodes": len(model.graph.node),
        "load_save_cpu_seconds": base["cpu_seconds"],
        "results": results,
    }


def _check(report: Mapping[str, Any]) -> None:
    """Raises PfvmError where pfvm did not do its work."""
    bad: list[str] = []
    for measured, named in _rows(report):
        if named["error"] or named.get("differs"):
            bad.append(f"{measured.get('model', CHAIN)}: {named['error'] or named['differs']}")
    if bad:
        raise PfvmError(f"bench --optimizers: pfvm failed: {'; '.join(bad)}")


def _rows(report: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for measured in (*report["models"], *report["chain"]):
        yield from ((measured, each) for each in measured["results"] if each["optimizer"] in (OURS, FOR_ORT))
