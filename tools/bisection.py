"""`pfvm bisect`: the first pass, and the first match in it, that changes numbers or breaks the file."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import err, out, print_json
from .working import working

if TYPE_CHECKING:
    from pfvm.compiler.options import Options

    from .bisecting.faults import Judge
    from .bisecting.reproduce import Reproducer
    from .bisecting.search import Found


def bisect(
    model: Annotated[Path, typer.Argument(help="ONNX file.", show_default=False)],
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The directory for reproducer.onnx and reproducer.npz.")
    ] = Path("bisect"),
    opt_level: Annotated[int | None, typer.Option("-O", "--opt-level", min=0, max=3, help="As in compile.")] = None,
    passes: Annotated[list[str] | None, typer.Option("-p", "--pass", help="As in compile. Repeatable.")] = None,
    disable: Annotated[list[str] | None, typer.Option("--disable", help="As in compile. Repeatable.")] = None,
    rules: Annotated[list[str] | None, typer.Option("--rules", help="As in compile. Repeatable.")] = None,
    max_growth: Annotated[int | None, typer.Option("--max-growth", help="As in compile.")] = None,
    fused_ops: Annotated[str | None, typer.Option("--fused-ops", help="As in compile.")] = None,
    target: Annotated[str | None, typer.Option("--target", help="As in compile.")] = None,
    inputs: Annotated[Path | None, typer.Option("--inputs", help=".npz to use instead of made-up inputs.")] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="The first of three seeds of made-up inputs.")] = 0,
    shape: Annotated[list[str], typer.Option("--shape", help="Shape of an input: x=1,3,224,224. Repeatable.")] = [],  # noqa: B006 - typer copies it
    rtol: Annotated[float, typer.Option("--rtol", min=0, help="As in check.")] = 1e-3,
    atol: Annotated[float, typer.Option("--atol", min=0, help="As in check.")] = 1e-5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Find the first rewrite that changes numbers or breaks a file.

    Exits with 1 if there is one. Writes a few nodes that show it, with their inputs, and prints the command that
    repeats it. Compared is with ONNX Runtime without optimizations, as by `pfvm check`; broken is also what onnx's
    checker refuses, another signature, and a pass that crashes.
    """
    given = {"opt_level": opt_level, "passes": passes, "disable": disable, "rules": rules, "max_growth": max_growth,
             "fused_ops": fused_ops, "target": target}  # fmt: skip
    with working(f"bisecting {model}"):
        found, reproducer, judge = run(model, given, inputs, seed, shape, rtol, atol)
    if found is not None and reproducer is not None:
        _write(reproducer, output)
    if as_json:
        print_json(as_dict(found, reproducer, output, judge))
    else:
        for line in _lines(found, reproducer, output, judge):
            out().print(line, soft_wrap=True)
        if found is not None and reproducer is None:
            err().print(
                f"warning: no reproducer: {found.pass_name} alone does not do it, on the model as it was before",
                soft_wrap=True,
            )
    if found is not None:
        raise typer.Exit(1)


def run(
    source: Any,
    given: dict[str, Any],
    inputs: Path | None = None,
    seed: int = 0,
    shape: Sequence[str] = (),
    rtol: float = 1e-3,
    atol: float = 1e-5,
) -> tuple[Found | None, Reproducer | None, Judge]:
    """Search `source`, anything that `pfvm.load` takes, with these options of compile (None: not given).

    Raises InputError when no inputs can be made up, OptionError.
    """
    from pfvm.compiler import collector
    from pfvm.compiler.importer import read_model
    from pfvm.compiler.options import parse
    from pfvm.runtime.compare import Tolerance
    from pfvm.runtime.executable import specs_of
    from pfvm.runtime.synthesis import parse_shapes

    from .bisecting.faults import Judge
    from .bisecting.reproduce import reproduce
    from .bisecting.search import Search
    from .npz import read_npz

    options = parse({key: value for key, value in given.items() if value is not None})
    model = read_model(source)
    required, optional, _ = specs_of(model)
    feeds = None if inputs is None else read_npz(inputs, [*required, *optional])
    with collector.paused():
        judge = Judge(model, feeds, parse_shapes(shape), Tolerance(rtol, atol), range(seed, seed + 3))
        found = Search(model, options, judge).find()
        return found, None if found is None else reproduce(found, options, judge), judge


def _write(reproducer: Reproducer, folder: Path) -> None:
    from pfvm.compiler.exporter import make_directory, write_model
    from pfvm.compiler.importer import read_model

    from .npz import write_npz

    make_directory(folder)
    write_npz(folder / "reproducer.npz", reproducer.feeds)
    write_model(read_model(reproducer.proto), folder / "reproducer.onnx")


def command(options: Options, folder: Path) -> str:
    """What repeats the fault on the reproducer."""
    words = ["pfvm", "bisect", str(folder / "reproducer.onnx"), "--inputs", str(folder / "reproducer.npz"),
             f"-O{options.opt_level}"]  # fmt: skip
    words += [word for spec in options.passes for word in ("-p", spec)]
    words += [word for file in options.rules for word in ("--rules", str(file))]
    if options.max_growth is not None:
        words += ["--max-growth", str(options.max_growth)]
    if options.target is not None:
        words += ["--target", options.target]
    return shlex.join([*words, "-o", str(folder / "again")])


# ---- what is printed


def _lines(found: Found | None, reproducer: Reproducer | None, folder: Path, judge: Judge) -> Iterator[str]:
    cases = ", ".join(case.name for case in judge.cases)
    if found is None:
        yield f"nothing found: after every pass the model does what the original does, on {cases}"
    else:
        yield f"{found.pass_name}: {_VERBS[found.fault.kind]}"
        yield f"  {found.fault.message}" + (f" (with {found.fault.case})" if found.fault.case else "")
        yield f"  pass: {found.pass_name}, run {found.run} of a pass, in round {found.round}"
        if found.match is not None:
            of = max(found.matches, found.match.number)
            yield f"  match: {found.match.number} of {of}, by rule {found.match.rule}"
            yield f"  node: {found.match.node}"
        else:
            yield f"  match: {found.note}"
        if found.fault.note:
            yield f"  {found.fault.note}"
        if reproducer is not None:
            nodes = len(reproducer.proto.graph.node)
            yield f"  reproducer: {folder / 'reproducer.onnx'}, {nodes} node{'s' * (nodes != 1)}"
            yield f"    {reproducer.fault.message}"
            yield f"  repeat: {command(reproducer.options, folder)}"
    yield f"  compared with: {judge.oracle.engine}, on {cases}"
    yield f"  tolerance: {judge.tolerance}"
    if judge.random:
        yield f"  not compared, as they are random: {', '.join(sorted(judge.random))}"


_VERBS = {"numbers": "changes numbers", "invalid": "breaks the model", "crash": "crashes"}


def as_dict(found: Found | None, reproducer: Reproducer | None, folder: Path, judge: Judge) -> dict[str, Any]:
    """The report as JSON has it."""
    report: dict[str, Any] = {
        "version": 1,
        "found": found is not None,
        "engine": judge.oracle.engine,
        "cases": [case.name for case in judge.cases],
        "tolerance": {"rtol": judge.tolerance.rtol, "atol": judge.tolerance.atol},
        "random_outputs": sorted(judge.random),
    }
    if found is None:
        return report
    report |= {
        "pass": found.pass_name,
        "run": found.run,
        "round": found.round,
        "kind": found.fault.kind,
        "message": found.fault.message,
        "case": found.fault.case,
        "note": found.fault.note or found.note,
        "match": None
        if found.match is None
        else {"rule": found.match.rule, "node": found.match.node, "number": found.match.number},
        "reproducer": None
        if reproducer is None
        else {
            "model": str(folder / "reproducer.onnx"),
            "inputs": str(folder / "reproducer.npz"),
            "nodes": len(reproducer.proto.graph.node),
            "message": reproducer.fault.message,
            "command": command(reproducer.options, folder),
        },
    }
    return report
