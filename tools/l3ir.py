"""`pfvm l3ir show|diff|check`: programs as l3ir.txt, ours and a vendor's, also where text was left out of them."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pfvm.errors import PfvmError

if TYPE_CHECKING:
    from pfvm.compiler.plan.text import L3Node, L3Value

app = typer.Typer(help="Read, compare and check the text of a plan, l3ir.txt.", rich_markup_mode=None)

File = Annotated[Path, typer.Argument(help="An l3ir.txt, or the artifacts directory that has one.", show_default=False)]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
MachineName = Annotated[str, typer.Option("--machine", help="A machine that is shipped, or a TOML file.")]


@app.command()
def show(
    file: File,
    op: Annotated[list[str], typer.Option("--op", help="Only nodes of this operator. Repeatable.")] = [],  # noqa: B006
    name: Annotated[
        str | None, typer.Option("--name", help="Only nodes that read or make a value with this in its name.")
    ] = None,
    machine: MachineName = "mncore2",
    as_json: AsJson = False,
) -> None:
    """Print a program as a table.

    What each node makes, how that is laid out, and where it is.
    """
    from .console import out, print_json, table

    nodes = read(file)
    chosen = [
        (number, node)
        for number, node in enumerate(nodes)
        if (not op or node.op in op) and (name is None or any(name in value.name for value in node.values()))
    ]
    if as_json:
        print_json([_as_dict(number, node) for number, node in chosen])
        return
    if nodes and not chosen:
        out().print(f"no such node; its operators are {', '.join(sorted({node.op for node in nodes}))}", soft_wrap=True)
        return
    rows = table("", "operator", "makes", "dtype", "words", "place", "pad", "layout")
    for number, node in chosen:
        for value in node.outputs:
            if value is not None:
                rows.add_row(str(number), _operator(node), value.name, value.get("dtype") or "-",
                             str(value.num_lw or "-"), _place(value), value.get("pad_type") or "-",
                             _layout(value))  # fmt: skip
    out().print(rows)
    out().print(_summary(nodes, machine), soft_wrap=True)


@app.command()
def diff(file: File, other: File, as_json: AsJson = False) -> None:
    """Compare two programs; exit with 1 if they differ.

    Nodes that only one has, and values whose layout, dtype or place differ.
    """
    from .console import out, print_json

    changes = compare(read(file), read(other))
    if as_json:
        print_json(changes)
    else:
        for change in changes:
            out().print(_change_line(change), soft_wrap=True)
        out().print(f"{len(changes)} differences" if changes else "no difference", soft_wrap=True)
    if changes:
        raise typer.Exit(1)


@app.command()
def check(file: File, machine: MachineName = "mncore2", as_json: AsJson = False) -> None:
    """Check that a program is possible on a machine; exit with 1 if not.

    Layouts, sizes, places, lifetimes.
    """
    from pfvm.compiler.plan.l3check import check_l3ir
    from pfvm.compiler.plan.machine import load_machine

    from .console import out, print_json

    nodes = read(file)
    findings = check_l3ir(nodes, load_machine(machine))
    errors = sum(finding.severity == "error" for finding in findings)
    if as_json:
        print_json([finding._asdict() for finding in findings])
    else:
        for each in findings:
            subject = f" {each.value}" if each.value else ""
            out().print(f"line {each.line}: {each.severity}: {each.node}:{subject} {each.message}", soft_wrap=True)
        values = sum(len(list(node.values())) for node in nodes)
        warnings = len(findings) - errors
        out().print(f"{len(nodes)} nodes, {values} value lines: {errors} errors, {warnings} warnings", soft_wrap=True)
    if errors:
        raise typer.Exit(1)


def read(file: Path) -> list[L3Node]:
    """The nodes of a file, or of the l3ir.txt in a directory. Raises PfvmError, naming the file."""
    from pfvm.compiler.plan.text import L3irError, parse_l3ir

    path = file / "l3ir.txt" if file.is_dir() else file
    try:
        return parse_l3ir(path.read_text(encoding="utf-8"), tolerant=True)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        advice = "; pfvm plan, or pfvm compile --device xla:cpu --artifacts, writes one" if file.is_dir() else ""
        raise PfvmError(f"cannot read {path}: {reason}{advice}") from error
    except L3irError as error:
        raise PfvmError(f"{path}: {error}") from error


# ---- show


def _operator(node: L3Node) -> str:
    return f"{node.op} [{', '.join(node.flags)}]" if node.flags else node.op


def _place(value: L3Value) -> str:
    address = "" if value.addr is None else f" {value.addr}"
    parent = value.get("parent")
    return f"{value.get('loc') or '-'}{address}{f' = {parent}' if parent else ''}"


def _layout(value: L3Value) -> str:
    return str(value.layout) if value.layout is not None else value.get("layout") or "-"


def _summary(nodes: Sequence[L3Node], machine: str) -> str:
    from pfvm.compiler.plan.liveness import blocks, peaks
    from pfvm.compiler.plan.machine import load_machine

    made = load_machine(machine)
    most = peaks(blocks(nodes, made))
    parts = []
    for memory in made.memories:
        if memory.name in most:
            words = most[memory.name] // memory.units_per_long_word
            parts.append(f"{memory.name} at most {words} of {memory.size} long words a cell")
    moves = sum(node.op.startswith("MNCore") for node in nodes)
    return f"{len(nodes)} nodes, {moves} of them moves{''.join('; ' + part for part in parts)}"


def _as_dict(number: int, node: L3Node) -> dict[str, Any]:
    def of(value: L3Value | None) -> dict[str, str] | None:
        return None if value is None else {"name": value.name, **{k: text for k, text in value.fields if k}}

    return {
        "index": number,
        "line": node.line,
        "op": node.op,
        "attributes": list(node.attributes),
        "flags": list(node.flags),
        "inputs": [of(value) for value in node.inputs],
        "outputs": [of(value) for value in node.outputs],
    }


# ---- diff


def compare(old: Sequence[L3Node], new: Sequence[L3Node]) -> list[dict[str, Any]]:
    """Differences in the new program's order: {"kind": "removed" | "added" | "moved" | "changed", "node", …}."""
    before, after = [_key(node) for node in old], [_key(node) for node in new]
    present = set(after)
    matcher = difflib.SequenceMatcher(a=before, b=after, autojunk=False)
    kept = {key for tag, i, j, _, _ in matcher.get_opcodes() if tag == "equal" for key in before[i:j]}
    old_of = dict(zip(before, old))
    changes: list[dict[str, Any]] = [
        {"kind": "removed", "node": node.name, "op": node.op, "line": node.line}
        for key, node in zip(before, old)
        if key not in present
    ]
    for key, node in zip(after, new):
        base = {"node": node.name, "op": node.op, "line": node.line}
        if key not in old_of:
            changes.append({"kind": "added", **base})
            continue
        if key not in kept:
            changes.append({"kind": "moved", **base})
        changes += [{"kind": "changed", **base, **change} for change in _fields(old_of[key], node)]
    return changes


def _key(node: L3Node) -> tuple[str, str]:
    return node.op, node.name


def _fields(old: L3Node, new: L3Node) -> list[dict[str, Any]]:
    changes: list[dict[str, Any]] = []
    if old.arguments != new.arguments:
        changes.append({"field": "operands", "old": ", ".join(old.arguments), "new": ", ".join(new.arguments)})
    for mine, theirs in zip(old.outputs, new.outputs):
        if mine is None or theirs is None:
            continue
        keys = dict.fromkeys(key for key, _ in (*mine.fields, *theirs.fields) if key)
        changes += [
            {"value": theirs.name, "field": key, "old": mine.get(key), "new": theirs.get(key)}
            for key in keys
            if mine.get(key) != theirs.get(key)
        ]
    return changes


def _change_line(change: dict[str, Any]) -> str:
    subject = f"{change['op']} → {change['node']}"
    if change["kind"] != "changed":
        return f"{change['kind']}: {subject} (line {change['line']})"
    value = f" of {change['value']}" if "value" in change else ""
    return f"changed: {subject}: {change['field']}{value}: {change['old'] or '-'} → {change['new'] or '-'}"
