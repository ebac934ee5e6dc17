"""Everything that the page shows of one directory, as one JSON object. A part that cannot be read says why."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pfvm.errors import PfvmError

from .folder import Folder
from .outline import outline
from .plan_data import plan_data


def directory_data(folder: Folder, label: str) -> dict[str, Any]:
    """`label`, `stages`, `passes`, `report`, `plan`, `log` and `errors` (part → message)."""
    errors: dict[str, str] = {}

    def part(name: str, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except PfvmError as error:
            errors[name] = str(error)
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # JSON, but of another form
            errors[name] = f"the files of this part are not as pfvm writes them: {error!r}"
        return None

    passes = part("passes", lambda: folder.read_json("passes.json"))
    report = part("report", lambda: folder.read_json("report.json"))
    plan = part("plan", lambda: plan_data(folder, report))
    return {
        "label": label,
        "stages": [_with_plan(outline(folder, stage), plan) for stage in folder.stages],
        "passes": passes,
        "report": report,
        "plan": plan,
        "log": part("log", lambda: _log(folder, passes, report)) or [],
        "errors": errors,
    }


def _with_plan(stage: dict[str, Any], plan: dict[str, Any] | None) -> dict[str, Any]:
    """The planned stage with the Python lines of l3ir_index.json; where there is no graph, as l3ir.txt lists it."""
    if stage["key"] != "planned" or plan is None:
        return stage
    if stage["missing"]:
        blank: dict[str, Any] = {"scope": "", "rule": None, "from": []}
        nodes = [{**blank, **node, "name": ""} for node in plan["nodes"]]
        return {**stage, "nodes": nodes, "tensors": _types(plan), "error": None, "drawn": False}
    known = {out: node for node in plan["nodes"] for out in node["out"]}
    for node in stage["nodes"]:
        planned = known.get(next(iter(node["out"]), ""), {})
        node["source"] = node["source"] or planned.get("source")
        node["module"] = node["module"] or planned.get("module")
    return stage


def _types(plan: dict[str, Any]) -> dict[str, str]:
    """FLOAT32[2,3] of every value whose shape is known."""
    return {
        value["name"]: f"{value['onnx_dtype']}[{','.join(map(str, value['shape']))}]"
        for value in plan["values"]
        if value["shape"] is not None
    }


def _log(folder: Folder, passes: dict[str, Any] | None, report: dict[str, Any] | None) -> list[list[str]]:
    """Lines with where they come from: *.log files, what passes and report say in words, the text of the plan."""
    lines = [[name, line] for name in folder.logs() for line in _lines(folder, name)]
    for run in (passes or {}).get("passes", []):
        head = f"round {run.get('round')} {run.get('name')}"
        lines += [["passes.json", f"{head}: {rule} ×{count}"] for rule, count in (run.get("matches") or {}).items()]
        lines += [["passes.json", f"{head}: not done: {why} ×{n}"] for why, n in (run.get("rejected") or {}).items()]
    lines += [["report.json", str(note)] for note in (report or {}).get("notes", [])]
    lines += [["l3ir.txt", line] for line in _lines(folder, "l3ir.txt")]
    return lines


def _lines(folder: Folder, name: str) -> list[str]:
    """Of a log that any program may have written: what is no UTF-8 is replaced, and the rest shown."""
    return (folder.read(name) or b"").decode(errors="replace").splitlines()
