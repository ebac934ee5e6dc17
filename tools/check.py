"""`pfvm check`: are two models, or one model on two devices, equal? If not, where do they differ first?"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx_ir as ir
from pfvm.compiler import progress
from pfvm.compiler.importer import read_model
from pfvm.errors import InputError, MissingExtraError, OptionError, PfvmError, describe_node
from pfvm.runtime.compare import Difference, Tolerance, difference
from pfvm.runtime.device import load_executable, parse_device
from pfvm.runtime.executable import Executable, specs_of
from pfvm.runtime.noise import noise_note
from pfvm.runtime.oracle import Oracle
from pfvm.runtime.synthesis import Fill, parse_shapes, workable

from .intermediates import common_intermediates, with_outputs
from .npz import read_npz

ORACLE = "oracle"
Run = Callable[[Mapping[str, Any]], dict[str, Any]]
Case = tuple[str, Mapping[str, Any], dict[str, Any]]  # what the inputs are, the inputs, the first model's outputs


@dataclass
class Report:
    """What a comparison found. Equal when there is no signature difference and no differing output."""

    tolerance: Tolerance
    engine_a: str = ""
    engine_b: str = ""
    cases: list[str] = field(default_factory=list)
    signature: list[str] = field(default_factory=list)
    difference: Difference | None = None
    case: str = ""  # the inputs on which it differs
    node: str | None = None  # the first node that differs, with --nodes
    node_note: str = ""  # with --nodes, why there is none
    stages: list[str] = field(default_factory=list)  # with --nodes on an emulated device, one line per comparison
    warnings: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return not self.signature and self.difference is None


@dataclass(frozen=True)
class Settings:
    """How to compare.

    device_a, device_b: a device string, or "oracle" (ONNX Runtime without optimizations, else onnx.reference).
    threads: of pfvm:* devices; one by default, like the oracle, as their number changes the order of sums and with it
        the rounding.
    exact: emulated devices do not round. mesh, shard: of xla devices (see `pfvm.load`).
    seeds: random draws to try, the all-zero inputs come on top. feeds: use exactly these instead.
    """

    device_a: str = ORACLE
    device_b: str = ORACLE
    tolerance: Tolerance = field(default_factory=Tolerance)
    seeds: Sequence[int] = (0, 1, 2)
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    nodes: bool = False
    threads: int = 1
    exact: bool = False
    mesh: str | None = None
    shard: Sequence[str] = ()
    feeds: Mapping[str, Any] | None = None
    custom_ops_library: str | os.PathLike[str] | None = None


def check(a: Any, b: Any, settings: Settings | None = None) -> Report:
    """Compares two models, given as anything that `pfvm.load` takes.

    Raises the loader's errors; InputError when no inputs can be made up for the first model.
    """
    settings = settings or Settings()
    model_a = read_model(a)
    model_b = model_a if b is a else read_model(b)
    report = Report(settings.tolerance, signature=signature_differences(model_a, model_b))
    run_a = _load(model_a, settings.device_a, settings)
    run_b = _load(model_b, settings.device_b, settings)
    report.engine_a, report.engine_b = _engine(run_a, settings.device_a), _engine(run_b, settings.device_b)
    if {s.name for s in run_a.inputs} != {s.name for s in run_b.inputs}:
        report.node_note = "not searched, as no inputs fit both models" if settings.nodes else ""
        return report
    seen: dict[str, list[Any]] = {s.name: [] for s in run_a.outputs}
    for case, feeds, reference in _cases(model_a, _for_both(run_a, run_b), settings, report):
        report.cases.append(case)
        if settings.nodes and not report.stages:
            report.stages = _stages(model_a, model_b, feeds, settings)
        for name in seen:
            seen[name].append(reference[name])
        _compare_outputs(report, case, feeds, reference, run_a, run_b)
        if report.difference is not None:
            if settings.nodes:
                _find_node(report, model_a, model_b, feeds, settings)
            return report
    report.node_note = "none, as all outputs agree" if settings.nodes else ""
    report.warnings += _constant_outputs(seen)
    return report


def check_function(target: str, sample: str, settings: Settings) -> Report:
    """A PyTorch function, called eagerly, against its graph on `device_b`.

    Raises OptionError, CaptureError, MissingExtraError.
    """
    from .export import load_function

    function, example = load_function(target, sample)
    try:
        from pfvm.runtime.torch_case import torch_case
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("pfvm check of a function", "torch") from error
    case = torch_case(function, example)
    device, tolerance = settings.device_b, settings.tolerance
    run = _load(case.model, device, settings)
    report = Report(tolerance, "torch", _engine(run, device), cases=["the sample"])
    results = run(case.feeds)
    found = (difference(name, value, results[name], tolerance) for name, value in case.outputs.items())
    report.difference = next((each for each in found if each is not None), None)
    report.case = "the sample"
    if settings.nodes and _is_emulated(device):
        from .four_way import four_way

        report.stages = [str(stage) for stage in four_way(case.model, case.feeds, case.outputs)]
    return report


def check_files(
    model: Path,
    other: Path | None,
    device_a: str,
    device_b: str,
    rtol: float,
    atol: float,
    nodes: bool,
    inputs: Path | None,
    seed: int,
    shapes: Sequence[str],
    custom_ops_library: Path | None,
    threads: int | None = None,
    sample: str = "sample",
    exact: bool = False,
    mesh: str | None = None,
    shard: Sequence[str] = (),
) -> Report:
    """`check` with what the command line gives. Raises OptionError when there is nothing to compare."""
    if exact and not any(_is_emulated(device) for device in (device_a, device_b)):
        raise OptionError("--exact is for mncore2:emu, and neither --device-a nor --device-b is that")
    if (mesh or shard) and not any(_takes_mesh(device) for device in (device_a, device_b)):
        raise OptionError("--mesh and --shard are for xla devices, and neither --device-a nor --device-b is one")
    if ".py:" in str(model):
        if other is not None or inputs is not None:
            given = "the other model" if other is not None else "--inputs"
            raise OptionError(
                f"a PyTorch function is compared with its own graph, on its own sample: leave out {given}; "
                "two files are compared by pfvm check A.onnx B.onnx"
            )
        settings = Settings(
            device_b,
            device_b,
            Tolerance(rtol, atol),
            nodes=nodes,
            threads=threads or 1,
            exact=exact,
            mesh=mesh,
            shard=shard,
        )
        return check_function(str(model), sample, settings)
    if threads is not None and not any(device.startswith("pfvm:") for device in (device_a, device_b)):
        raise OptionError("--threads is for pfvm:cpu, and neither --device-a nor --device-b is that")
    if other is None and device_a == device_b:
        raise OptionError("one model on one device has nothing to differ from: name a second model, or --device-b")
    first = read_model(model)
    specs = specs_of(first)
    settings = Settings(
        device_a,
        device_b,
        Tolerance(rtol, atol),
        seeds=range(seed, seed + 3),
        shapes=parse_shapes(shapes),
        nodes=nodes,
        feeds=None if inputs is None else read_npz(inputs, [*specs[0], *specs[1]]),
        custom_ops_library=custom_ops_library,
        threads=1 if threads is None else threads,
        exact=exact,
        mesh=mesh,
        shard=shard,
    )
    return check(first, first if other is None else other, settings)


def signature_differences(a: ir.Model, b: ir.Model) -> list[str]:
    """One line per difference in names, order, types, symbolic dims and overridable initializers."""
    lines = []
    for what, left, right in zip(("input", "overridable initializer", "output"), specs_of(a), specs_of(b)):
        names_left, names_right = [s.name for s in left], [s.name for s in right]
        lines += [f"{what} {n!r} only in the first model" for n in names_left if n not in names_right]
        lines += [f"{what} {n!r} only in the second model" for n in names_right if n not in names_left]
        if sorted(names_left) == sorted(names_right) and names_left != names_right:
            lines.append(f"{what}s in another order: {names_left} against {names_right}")
        others = {s.name: s for s in right}
        for spec in left:
            if spec.name in others and spec != others[spec.name]:
                lines.append(f"{what} {spec.name!r} is {spec} in the first model, {others[spec.name]} in the second")
    return lines


def _load(model: ir.Model, device: str, settings: Settings) -> Executable:
    if device == ORACLE:
        return Oracle(model, settings.custom_ops_library)
    target = parse_device(device)
    threads = settings.threads if target.backend == "pfvm" else None
    exact = True if settings.exact and _is_emulated(device) else None
    own: dict[str, Any] = {"threads": threads, "exact": exact, "custom_ops_library": settings.custom_ops_library}
    if _takes_mesh(device):
        own |= {"mesh": settings.mesh, "shard": settings.shard or None}
    return load_executable(model, target, **own)


def _engine(executable: Executable, device: str) -> str:
    return executable.engine if isinstance(executable, Oracle) else device


def _cases(model: ir.Model, run: Run, settings: Settings, report: Report) -> Iterator[Case]:
    """Each set of inputs, with the first model's outputs. What the first model refuses is a warning, if not all are."""
    if settings.feeds is not None:
        yield "the given inputs", settings.feeds, run(settings.feeds)
        return
    fills: list[tuple[int, Fill]] = [(seed, "random") for seed in settings.seeds]
    fills = [*fills, (0, "zero")] if specs_of(model)[0] else fills[:1]  # without inputs there is nothing to vary
    refused: InputError | None = None
    for number, (seed, fill) in enumerate(fills):
        progress.report(f"inputs {number + 1} of {len(fills)}", number / len(fills))
        case = f"seed {seed}" if fill == "random" else "all-zero inputs"
        try:
            feeds, outputs = workable(model, run, seed, settings.shapes, fill)
        except InputError as error:
            refused = refused or error
            report.warnings.append(f"{case} not tried: {error}")
            continue
        yield case, feeds, outputs
    if refused is not None and not report.cases:
        raise refused


def _for_both(run_a: Executable, run_b: Executable) -> Run:
    """The first model, for inputs whose batch the second one's mesh can split."""
    check_spread = getattr(run_b, "check_spread", None)
    if check_spread is None:
        return run_a

    def run(feeds: Mapping[str, Any]) -> dict[str, Any]:
        check_spread(feeds)
        return run_a(feeds)

    return run


def _compare_outputs(
    report: Report,
    case: str,
    feeds: Mapping[str, Any],
    reference: Mapping[str, Any],
    run_a: Executable,
    run_b: Executable,
) -> None:
    """Puts the first output that differs, in the order of the graph, into the report."""
    try:
        other = run_b(feeds)
    except InputError as error:
        report.difference, report.case = Difference(next(iter(reference)), f"the second model fails: {error}"), case
        return
    for name in reference:
        if name not in other:
            continue  # reported as a signature difference
        found = difference(name, reference[name], other[name], report.tolerance)
        if found is None:
            continue
        if _is_random(name, reference, run_a, feeds, report.tolerance):
            note = f"{name!r} is random: it differs between two runs of the first model, and is not compared"
            report.warnings += [note] if note not in report.warnings else []
            continue
        report.difference, report.case = found, case
        remark = noise_note(name, reference[name], other[name], run_a, feeds, report.tolerance)
        report.warnings += [remark] if remark else []
        return


def _stages(a: ir.Model, b: ir.Model, feeds: Mapping[str, Any], settings: Settings) -> list[str]:
    """The comparisons of a model on an emulated device, stage by stage."""
    models = [m for m, d in ((a, settings.device_a), (b, settings.device_b)) if _is_emulated(d)]
    if not models:
        return []
    from .four_way import four_way

    return [str(stage) for stage in four_way(models[0], feeds)]


def _takes_mesh(device: str) -> bool:
    return device != ORACLE and parse_device(device).backend == "xla"


def _is_emulated(device: str) -> bool:
    return device != ORACLE and parse_device(device).backend == "mncore2"


def _find_node(report: Report, a: ir.Model, b: ir.Model, feeds: Mapping[str, Any], settings: Settings) -> None:
    """Puts the first node whose value differs into the report: the values that both models name, as extra outputs."""
    watched = common_intermediates(a, b)
    try:
        results_a = _load(with_outputs(a, watched), settings.device_a, settings)(feeds)
        results_b = _load(with_outputs(b, watched), settings.device_b, settings)(feeds)
    except PfvmError as error:
        report.node_note = f"not found, as the models do not run with intermediate values as outputs ({error})"
        return
    for value in [*watched, *a.graph.outputs]:
        name = value.name or ""
        if name not in results_b:
            continue
        found = difference(name, results_a[name], results_b[name], report.tolerance)
        if found is not None:
            producer = value.producer()
            report.node = f"{f'value {name!r}' if producer is None else describe_node(producer)}: {found}"
            return
    report.node_note = (
        f"none: with the {len(watched)} values that both models name as outputs, all of them and the outputs agree; "
        "a fusion that these prevent makes the difference"
    )


def _is_random(
    name: str, reference: Mapping[str, Any], run: Executable, feeds: Mapping[str, Any], tolerance: Tolerance
) -> bool:
    try:
        again = run(feeds)
    except PfvmError:
        return False
    return difference(name, reference[name], again[name], tolerance) is not None


def _constant_outputs(seen: Mapping[str, Sequence[Any]]) -> list[str]:
    exact = Tolerance(rtol=0.0, atol=0.0)
    return [
        f"output {name!r} was the same for all {len(values)} inputs tried: this comparison says little about it"
        for name, values in seen.items()
        if len(values) > 1 and all(difference(name, values[0], v, exact) is None for v in values[1:])
    ]
