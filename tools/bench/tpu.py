"""`pfvm bench --tpu`: what nets take on a TPU as ONNX files through pfvm, and by hand in JAX.

Nothing runs: both are compiled by libtpu at full effort, in one run, and both totals are the same estimate of cycles
(runtime/xla/cycles.py). Of the forms by hand (baselines/tpu_nets.py) the one of fewest cycles counts. A form by hand
that has no total, as XLA states no cycles for something in it, counts with those that are known: it takes more, so the
ratio is at most what it says.
"""

from __future__ import annotations

import datetime
import functools
import importlib.metadata
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pfvm.compiler.options import parse
from pfvm.errors import MissingExtraError, OptionError, PfvmError
from pfvm.runtime.api import compile_source
from pfvm.runtime.topology import parse_topology
from pfvm.tools.console import err, out, table

from . import machine
from .files import write

Forms = Callable[[], Mapping[str, Any]]


class Yardstick(NamedTuple):
    """A net, the topology that it is compiled for, its batch, and what it is computed in.

    dtype: "float32" (products in a TPU's default precision) or "bfloat16".
    training: the loss of the net and its gradients with respect to all parameters, not its results.
    """

    net: str
    topology: str
    batch: int
    dtype: str
    training: bool = False

    @property
    def title(self) -> str:
        """As it is shown."""
        return f"{self.net} training" if self.training else self.net

    @property
    def file(self) -> str:
        """Its name in baselines/exported_nets.py."""
        return f"{self.net}_training" if self.training else self.net

    @property
    def shape(self) -> str:
        """Of its input, as --shape has it."""
        return f"x={self.batch},128" if self.net == "bert" else f"x={self.batch},3,224,224"


YARDSTICKS = (
    Yardstick("resnet50", "v5e:1x1", 8, "bfloat16"),
    Yardstick("bert", "v5e:1x1", 8, "bfloat16"),
    Yardstick("vgg19", "v2:1x1", 100, "bfloat16"),
    Yardstick("vgg19", "v2:1x1", 100, "bfloat16", training=True),
    Yardstick("bert", "v5e:1x1", 8, "float32"),
    Yardstick("resnet50", "v5e:1x1", 8, "float32"),
)


class TpuRequest(NamedTuple):
    """The command's options. nets: names of yardsticks, none: all."""

    nets: Sequence[Path | str] = ()
    json_file: Path | None = None
    effort: str = "full"
    timeout: float = 3600.0
    command: Sequence[str] = ()


def bench_tpu(request: TpuRequest) -> dict[str, Any]:
    """Compiles, prints a table, writes the JSON file after each net, and returns what is in it.

    Raises OptionError for a net that there is not, MissingExtraError without libtpu, what compiling raises, and
    PfvmError (after the table) where a net through pfvm has no total.
    """
    names = [str(net) for net in request.nets]
    known = list(dict.fromkeys(each.net for each in YARDSTICKS))
    for name in names:
        if name not in known:
            raise OptionError(f"bench --tpu {name}: no such net; there are {', '.join(known)}")
    report: dict[str, Any] = {
        "command": list(request.command),
        "when": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {**machine.versions(["pfvm", "jax", "torch"]), "libtpu": _libtpu()},
        "effort": request.effort,
        "rows": [],
    }
    with tempfile.TemporaryDirectory(prefix="pfvm-bench-") as folder:
        for each in YARDSTICKS:
            if names and each.net not in names:
                continue
            file = _exported(each.file, Path(folder))
            measured = compare(file, each, functools.partial(_forms, each), request)
            report["rows"].append({"title": each.title, **each._asdict(), **measured})
            _save(report, request)
    _print(report)
    lacking = [row["title"] for row in report["rows"] if row["ratio"] is None]
    if lacking:
        raise PfvmError(f"bench --tpu: no total of {', '.join(dict.fromkeys(lacking))}; see above")
    return report


def compare(file: Path, each: Yardstick, forms: Forms, request: TpuRequest) -> dict[str, Any]:
    """One row: an ONNX file compiled by pfvm, and the forms by hand (name → what `tpu_compiler.compile_for` takes).

    "at_least": the form that counts has no total, its cycles and so the ratio are bounds.
    """
    err().print(f"{each.title} for {each.topology} in {each.dtype}")
    ours = _ours(file, each, request)
    by_hand = {name: _by_hand(form, each.topology, request) for name, form in forms().items()}
    known = {name: found["modelled"] for name, found in by_hand.items()}  # the total where there is one
    best = min(known, key=known.__getitem__)
    at_least = by_hand[best]["cycles"] is None
    ratio = ours["cycles"] / known[best] if ours["cycles"] is not None and known[best] else None
    clock = parse_topology(each.topology).chip.clock_hz
    return {
        "clock_hz": clock,
        "pfvm": ours,
        "jax": {"form": best, "at_least": at_least, "forms": by_hand},
        "ratio": ratio,
    }


def _ours(file: Path, each: Yardstick, request: TpuRequest) -> dict[str, Any]:
    device = f"xla:tpu@{each.topology}"
    reports: dict[str, Any] = {}
    start = time.perf_counter()
    options = parse(
        device=device,
        shape=each.shape,
        bf16=each.dtype == "bfloat16",
        effort=request.effort,
        timeout=request.timeout,
    )
    compile_source(file, options, reports)
    report = reports[device]
    return {
        "cycles": report["vsm_cycles"],
        "time_us": report["time_us"],
        "missing": report["cycles_missing"],
        "modelled": report["modelled_cycles"],
        "flops": report["flops"],
        "hbm_bytes": report["peak_memory"]["HBM"]["bytes_per_cell"],
        "forms": report["forms"],
        "seconds": round(time.perf_counter() - start, 1),
    }


def _by_hand(form: Any, topology: str, request: TpuRequest) -> dict[str, Any]:
    from pfvm.runtime.xla.cycles import estimate
    from pfvm.runtime.xla.tpu_compiler import check_effort, compile_for
    from pfvm.runtime.xla.tpu_report import judged

    chosen = parse_topology(topology)
    program = compile_for(chosen, form, check_effort(request.effort), request.timeout)
    found = estimate(program.hlo)
    cycles, missing = judged(found, chosen.chip)
    clock = chosen.chip.clock_hz
    return {
        "cycles": cycles,
        "time_us": cycles / clock * 1e6 if cycles is not None and clock else None,
        "missing": missing,
        "modelled": found.modelled,
        "flops": found.total_flops,
        "hbm_bytes": program.memory.get("peak_memory_in_bytes"),
        "seconds": round(program.seconds, 1),
    }


def _forms(each: Yardstick) -> Mapping[str, Any]:
    from .baselines import tpu_nets

    forms = tpu_nets.NETS[each.net](each.batch, each.dtype)
    return {name: tpu_nets.lowered(tpu_nets.training(form) if each.training else form) for name, form in forms.items()}


def _exported(name: str, folder: Path) -> Path:
    """The ONNX file, written by a process that has torch."""
    path = folder / f"{name}.onnx"
    if not path.exists():
        command = [sys.executable, "-m", "pfvm.tools.bench.baselines.exported_nets", str(folder), name]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise PfvmError(f"{name} cannot be exported: {last[:300]}")
    return path


def _libtpu() -> str:
    try:
        return importlib.metadata.version("libtpu")
    except importlib.metadata.PackageNotFoundError:
        raise MissingExtraError("bench --tpu", "tpu") from None


def _save(report: Mapping[str, Any], request: TpuRequest) -> None:
    if request.json_file is not None:
        write(request.json_file, json.dumps(report, indent=1) + "\n")


def _print(report: Mapping[str, Any]) -> None:
    shown = table("net", "TPU", "batch", "dtype", "pfvm, cycles", "time", "JAX, cycles", "its form", "ratio")
    for row in report["rows"]:
        ours, form = row["pfvm"], row["jax"]["form"]
        cells = (cycles_text(ours), time_text(ours), cycles_text(row["jax"]["forms"][form]), form, ratio_text(row))
        shown.add_row(row["title"], row["topology"], str(row["batch"]), row["dtype"], *cells)
    out().print(shown)
    for row in report["rows"]:
        for name, each in {"pfvm": row["pfvm"], **row["jax"]["forms"]}.items():
            if each["missing"]:
                err().print(f"{row['title']}, {row['dtype']}, {name}: no total: {each['missing']}", soft_wrap=True)


def cycles_text(found: Mapping[str, Any]) -> str:
    """The total, or what is known of it."""
    return f"more than {found['modelled']:,}" if found["cycles"] is None else f"{found['cycles']:,}"


def time_text(found: Mapping[str, Any]) -> str:
    """Four digits, - where there is no total or the chip's clock is not known."""
    return "-" if found["time_us"] is None else f"{found['time_us'] / 1e3:#.4g} ms"


def ratio_text(row: Mapping[str, Any]) -> str:
    """With what is known of a form that has no total, the ratio is a bound."""
    if row["ratio"] is None:
        return "-"
    return f"at most {math.ceil(row['ratio'] * 1000) / 1000:.3f}" if row["jax"]["at_least"] else f"{row['ratio']:.3f}"
