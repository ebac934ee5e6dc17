"""`pfvm diff`: what is different between two files, by structure and not by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .console import out, print_json
from .working import working

if TYPE_CHECKING:
    from pfvm.compiler.difference.compare import Change, Differences, NodeChange
    from pfvm.compiler.difference.constants import ConstantChange


@dataclasses.dataclass
class Diff:
    """What `compare` found: the interface first, then the rest."""

    signature: list[str]
    differences: Differences
    with_names: bool = False

    @property
    def equal(self) -> bool:
        names_agree = not self.with_names or self.differences.same_names
        return not self.signature and self.differences.equal and names_agree


def diff(
    first: Annotated[Path, typer.Argument(help="ONNX file.", show_default=False)],
    second: Annotated[Path, typer.Argument(help="ONNX file.", show_default=False)],
    names: Annotated[bool, typer.Option("--names", help="Names inside the graph matter, too.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Lines a section at most; 0 for all that there are.")
    ] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, complete.")] = False,
) -> None:
    """Show what is different between two files.

    Exits with 1 if anything is. Compared are signature, versions, metadata, constants, and nodes by what they compute
    and how that is used, bodies and functions included. Two files that differ in the names of inner values and nodes
    alone are equal. Node metadata, doc strings of nodes and declared shapes of inner values are not compared. `pfvm
    check` compares numbers.
    """
    with working(f"comparing {first} and {second}"):
        found = compare(first, second, names)
    if as_json:
        print_json(as_dict(found))
    else:
        for line in lines(found, limit):
            out().print(line, soft_wrap=True)
    if not found.equal:
        raise typer.Exit(1)


def compare(first: Any, second: Any, with_names: bool = False) -> Diff:
    """Compare two models, given as anything that `pfvm.load` takes. Raises what reading them raises."""
    from pfvm.compiler import collector
    from pfvm.compiler.difference.compare import differences
    from pfvm.compiler.importer import read_model

    from .check import signature_differences

    with collector.paused():
        old, new = read_model(first), read_model(second)
        return Diff(signature_differences(old, new), differences(old, new), with_names)


# ---- text


def lines(diff: Diff, limit: int = 0) -> list[str]:
    """The report: the verdict first, then a section for each kind of difference; each shows `limit` lines, 0: all."""
    found = diff.differences
    sections = [
        ("signature", diff.signature),
        ("model", [_change(change) for change in found.model]),
        ("operators", [f"{op}: {a} → {b}" for op, (a, b) in found.ops.items() if a != b]),
        ("nodes", [line for node in found.nodes for line in _node(node)]),
        ("constants", [_constant(change) for change in found.constants]),
    ]
    if diff.with_names:
        renamed = [line for node in found.renamed for line in _node(node)]
        sections.append(("names", [*map(_constant, found.constants_renamed), *renamed]))
    renamed_count = len(found.renamed) + len(found.constants_renamed)
    notes = [
        f"nodes: {_counted(found.nodes_same, found.nodes)}",
        f"constants: {_counted(found.constants_same, found.constants)}",
    ]
    if renamed_count and not diff.with_names:
        notes.append(f"{renamed_count} of the same have another name (--names shows them)")
    head = "equal" if diff.equal else "not equal"
    return [f"{head}; {'; '.join(notes)}", *_sections(sections, limit)]


def _counted(same: int, others: Sequence[NodeChange | ConstantChange]) -> str:
    counts = {kind: sum(each.kind == kind for each in others) for kind in ("removed", "added", "changed")}
    return ", ".join([f"{same} same", *(f"{count} {kind}" for kind, count in counts.items() if count)])


def _sections(sections: Sequence[tuple[str, list[str]]], limit: int) -> Iterator[str]:
    for title, content in sections:
        if not content:
            continue
        yield f"{title}:"
        shown = content[: limit or None]
        yield from (f"  {line}" for line in shown)
        if len(shown) < len(content):
            yield f"  … and {len(content) - len(shown)} more lines (--limit 0 shows all)"


_SIGNS = {"removed": "-", "added": "+", "changed": "~", "renamed": "="}


def _node(node: NodeChange) -> Iterable[str]:
    name = f" {node.name!r}" if node.name else ""
    where = f"  in {node.where}" if node.where else ""
    made = f"  made by {node.rule} of {', '.join(node.sources)}" if node.rule else ""
    yield f"{_SIGNS[node.kind]} {node.op}{name} ({_listed(node.inputs)}) → ({_listed(node.outputs)}){where}{made}"
    for change in node.changes:
        yield f"    {_change(change)}"


def _change(change: Change) -> str:
    return f"{change.what}: {_one(change.old)} → {_one(change.new)}"


def _one(value: str | None) -> str:
    return "nothing" if value is None else value


def _constant(change: ConstantChange) -> str:
    if change.kind in ("removed", "added"):
        return f"{_SIGNS[change.kind]} {change.old or change.new}: {change.note}"
    name = change.old if change.old == change.new else f"{change.old} → {change.new}"
    return f"{_SIGNS[change.kind]} {name}: {change.note}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(name or "-" for name in names)


# ---- JSON


def as_dict(diff: Diff) -> dict[str, Any]:
    """Everything, as JSON has it."""
    found = diff.differences

    def records(items: Iterable[Any]) -> list[dict[str, Any]]:
        return [_plain(dataclasses.asdict(item)) for item in items]

    return {
        "version": 1,
        "equal": diff.equal,
        "signature": diff.signature,
        "model": [change._asdict() for change in found.model],
        "ops": {op: list(counts) for op, counts in found.ops.items()},
        "constants": records(found.constants),
        "constants_same": found.constants_same,
        "constants_renamed": records(found.constants_renamed),
        "nodes": records(found.nodes),
        "nodes_same": found.nodes_same,
        "nodes_renamed": records(found.renamed),
    }


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    if "changes" in record:
        record["changes"] = [dict(zip(("what", "old", "new"), change)) for change in record["changes"]]
    return record
