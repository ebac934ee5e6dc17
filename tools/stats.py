"""`pfvm stats`: what is in a model, several models side by side."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from pfvm.compiler import progress
from pfvm.errors import PfvmError

from .console import human_bytes, out, print_json, table
from .summary import flops_cell
from .working import working

if TYPE_CHECKING:
    from pfvm.compiler.flops import Flops
    from pfvm.compiler.statistics import Content

_FEW_TERMS = 3
_FEW_NAMES = 6
_LONG = 240
_WIDE = 36


class Stats(NamedTuple):
    """Of one file; `error` says why there is nothing else."""

    file: str
    content: Content | None
    flops: Flops | None
    file_bytes: int
    ir_version: int
    producer: str
    error: str = ""


def stats(
    models: Annotated[list[Path], typer.Argument(help="ONNX files.", show_default=False)],
    shape: Annotated[
        list[str], typer.Option("--shape", help="Count flops for this shape of an input: x=8,3,224,224. Repeatable.")
    ] = [],  # noqa: B006 - typer copies it
    largest: Annotated[int, typer.Option("--largest", min=0, help="How many of the largest constants to list.")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Show operators, flops, parameters, dims and largest tensors.

    Control flow, too; several models stand side by side. Weights are not read. A flop is an addition or a
    multiplication; what only moves data counts nothing.
    """
    found = []
    with working("counting"):
        for number, path in enumerate(models):
            progress.report(str(path), number / len(models))
            found.append(collect(path, shape))
    if as_json:
        print_json({"version": 1, "models": [as_dict(each, largest) for each in found]})
    else:
        read = [each for each in found if not each.error]
        if read:
            out().print(_Lines(read, largest))
    failed = [each for each in found if each.error]
    if len(models) == 1 and failed:
        raise PfvmError(failed[0].error)
    for each in failed:
        print(f"error: {each.error}", file=sys.stderr)
    if failed:
        raise typer.Exit(2)


def collect(path: Path, shapes: Sequence[str] = ()) -> Stats:
    """The figures of one file. What cannot be read is `error`; OptionError for a shape that fits no input."""
    from pfvm.compiler.flops import count_flops
    from pfvm.compiler.importer import read_model
    from pfvm.compiler.statistics import content
    from pfvm.runtime.executable import specs_of
    from pfvm.runtime.synthesis import check_shapes, parse_shapes

    given = parse_shapes(shapes)
    try:
        model = read_model(path)
    except PfvmError as error:
        return Stats(str(path), None, None, 0, 0, "", str(error))
    required, optional, _ = specs_of(model)
    check_shapes([*required, *optional], given)
    producer = " ".join(filter(None, (model.producer_name, model.producer_version)))
    return Stats(
        str(path), content(model), count_flops(model, given), path.stat().st_size, model.ir_version or 0, producer
    )


# ---- JSON


def as_dict(stats: Stats, largest: int) -> dict[str, Any]:
    """The figures as JSON has them; {"file", "error"} for a file that could not be read."""
    if stats.content is None or stats.flops is None:
        return {"file": stats.file, "error": stats.error}
    held, flops = stats.content, stats.flops
    return {
        "file": stats.file,
        "file_bytes": stats.file_bytes,
        "ir_version": stats.ir_version,
        "producer": stats.producer,
        "opsets": held.opsets,
        "inputs": held.inputs,
        "outputs": held.outputs,
        "overridable_initializers": held.overridable,
        "state": held.state,
        "dynamic_dims": held.dynamic_dims,
        "nodes": held.nodes,
        "ops": held.ops,
        "control_flow": held.control_flow,
        "depth": held.depth,
        "functions": held.functions,
        "parameters": sum(tensor.elements for tensor in held.constants),
        "parameter_bytes": sum(tensor.bytes for tensor in held.constants),
        "dtypes": {
            name: {"tensors": count, "elements": elements, "bytes": size}
            for name, (count, elements, size) in held.by_dtype().items()
        },
        "largest": [tensor._asdict() for tensor in held.constants[:largest]],
        "flops": None
        if flops.note
        else {
            "value": None if flops.unknown_sizes else flops.value(),
            "unknown_sizes": flops.unknown_sizes,
            "sizes": flops.sizes,
            "formula": flops.total.formula(),
            "symbols": flops.total.atoms,
            "by_op": {op: flops.value(amount) for op, amount in _dearest(flops)},
            "one_per_element": dict(flops.one_per_element),
            "not_counted": dict(flops.not_counted),
            "dearer_branches": flops.branches,
        },
        "note": flops.note,
    }


def _dearest(flops: Flops) -> list[tuple[str, Any]]:
    counted = [(op, amount) for op, amount in flops.by_op.items() if amount.terms]
    return sorted(counted, key=lambda item: (-flops.value(item[1]), item[0]))


# ---- the table


class _Lines:
    """Rows of figures, a column a model; then what needs a line of its own, model by model."""

    def __init__(self, models: Sequence[Stats], largest: int) -> None:
        self._models, self._largest = models, largest

    def __rich_console__(self, console: Any, options: Any) -> Any:
        rows = table("", *_titles([each.file for each in self._models]))
        for title, cells in self._rows():
            if any(cell not in ("", "-") for cell in cells):
                rows.add_row(title, *(map(_cut, cells) if len(cells) > 1 else cells))
        yield rows
        for each in self._models:
            yield from _remarks(each, self._largest, named=len(self._models) > 1)

    def _rows(self) -> list[tuple[str, list[str]]]:
        def row(title: str, cell: Callable[[Any, Any], str]) -> tuple[str, list[str]]:
            return title, [cell(each.content, each) for each in self._models]

        def counts(prefix: str, of: Callable[[Any], Mapping[str, int]]) -> list[tuple[str, list[str]]]:
            total: dict[str, int] = {}
            for each in self._models:
                for name, count in of(each.content).items():
                    total[name] = total.get(name, 0) + count
            names = sorted(total, key=lambda name: (-total[name], name))
            return [row(f"{prefix}{name}", lambda c, _, n=name: _count(of(c).get(n))) for name in names]  # type: ignore[misc]

        return [
            row("file", lambda c, s: human_bytes(s.file_bytes)),
            row("producer", lambda c, s: s.producer),
            row("IR version", lambda c, s: str(s.ir_version)),
            *counts("opset ", lambda c: c.opsets),
            row("inputs", lambda c, s: _few(f"{n} {t}" for n, t in c.inputs.items())),
            row("overridable", lambda c, s: _few(f"{n} {t}" for n, t in c.overridable.items())),
            row("outputs", lambda c, s: _few(f"{n} {t}" for n, t in c.outputs.items())),
            row("dynamic dims", lambda c, s: _few(c.dynamic_dims) or "none"),
            *counts("state: ", lambda c: c.state),
            row("parameters", lambda c, s: f"{sum(t.elements for t in c.constants):,}"),
            row("  bytes", lambda c, s: human_bytes(sum(t.bytes for t in c.constants))),
            *counts("  of ", lambda c: {dtype: size[1] for dtype, size in c.by_dtype().items()}),
            row("flops", lambda c, s: f"{flops_cell(s.flops)}{' *' if s.flops.total.atoms else ''}"),
            *self._flops_rows(),
            row("functions", lambda c, s: _count(len(c.functions))),
            row("depth of bodies", lambda c, s: _count(c.depth)),
            row("nodes", lambda c, s: f"{c.nodes:,}"),
            *counts("  ", lambda c: c.ops),
        ]

    def _flops_rows(self) -> list[tuple[str, list[str]]]:
        """The operators that take more than a hundredth in some model."""
        shares: list[dict[str, float]] = []
        for each in self._models:
            assert each.flops is not None
            total = each.flops.value()
            shares.append({op: each.flops.value(n) / total for op, n in _dearest(each.flops)} if total else {})
        names = {op for share in shares for op, part in share.items() if part >= 0.01}
        ordered = sorted(names, key=lambda op: (-max(share.get(op, 0) for share in shares), op))
        return [(f"  in {op}", [f"{s[op]:.1%}" if op in s else "-" for s in shares]) for op in ordered]


def _titles(files: Sequence[str]) -> list[str]:
    """File names, with as many folders as tell them apart."""
    paths = [Path(file) for file in files]
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-depth:]) for path in paths]
        if len(set(names)) == len(set(files)):
            return names
    return list(files)


def _remarks(stats: Stats, largest: int, named: bool) -> list[str]:
    """Lines under the table: the formula, what it leaves out, the largest constants."""
    content, flops = stats.content, stats.flops
    assert content is not None and flops is not None
    lines = []
    if flops.note:
        lines.append(f"flops {flops.note}")
    if flops.total.atoms:
        formula = flops.total.formula(_FEW_TERMS)
        text = formula if len(formula) <= _LONG else "a formula of their sizes, which --json has"
        lines.append(f"flops: {text}; {_assumed(flops)}")
    if flops.branches:
        lines.append(f"flops: of {flops.branches} If nodes, the dearer branch counts")
    if flops.one_per_element:
        lines.append(f"flops: without a rule, one per element: {_few(_times(flops.one_per_element))}")
    if flops.not_counted:
        lines.append(f"flops: not counted, as shapes are unknown: {_few(_times(flops.not_counted))}")
    for name, where in content.dynamic_dims.items():
        lines.append(f"dynamic dim {name}: {_few(where)}")
    for name, calls in content.functions.items():
        lines.append(f"function {name}: called {calls} times")
    for tensor in content.constants[:largest]:
        dims = ",".join(map(str, tensor.shape))
        lines.append(f"constant {tensor.name!r}: {tensor.dtype}[{dims}], {human_bytes(tensor.bytes)}")
    if not lines:
        return []
    head = f"\n{stats.file}" if named else ""
    return [head, *(f"  {line}" if named else line for line in lines)]


def _assumed(flops: Flops) -> str:
    """What the number in the table takes for what is not known."""
    from pfvm.compiler.amounts import ITERATIONS

    parts = []
    if flops.sizes:
        sizes = _few(f"{name} = {size}" for name, size in flops.sizes.items())
        parts.append(f"in the table with {sizes} (--shape gives others)")
    if flops.unknown_sizes:
        parts.append(f"{_few(flops.unknown_sizes)}: only data decide these sizes")
    if any(atom.startswith(ITERATIONS) for atom in flops.total.atoms):
        parts.append("loops of unknown length run once")
    return ", ".join(parts)


def _cut(cell: str) -> str:
    return cell if len(cell) <= _WIDE else f"{cell[: _WIDE - 1]}…"


def _times(counts: Mapping[str, int]) -> list[str]:
    return [f"{count} {name}" for name, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))]


def _few(names: Any) -> str:
    listed = list(names)
    more = f", and {len(listed) - _FEW_NAMES} more" if len(listed) > _FEW_NAMES else ""
    return ", ".join(listed[:_FEW_NAMES]) + more


def _count(number: int | None) -> str:
    return f"{number:,}" if number else "-"
