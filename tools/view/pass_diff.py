"""What each pass removed and added: the passes of passes.json run again on model.onnx, node by node as text.

The diffs count only where the second run did what passes.json says; else the page says that there are none.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from pfvm.errors import PfvmError
from pfvm.passes.pipeline import REGISTRY

from .folder import Folder
from .outline import has_external_data


def pass_diffs(folder: Folder) -> dict[str, Any]:
    """`diffs`: "round/name" → {removed, added}: lines `Gemm(x, w) -> (y)`; `note`: why there are none, or None."""
    try:
        return _diffs(folder)
    except PfvmError as error:
        return _none(f"the passes cannot be run again: {error}")
    except (AttributeError, KeyError, TypeError, ValueError) as error:  # JSON, but of another form
        return _none(f"passes.json is not as pfvm writes it: {error!r}")


def _none(why: str) -> dict[str, Any]:
    return {"diffs": {}, "note": f"no diffs: {why}"}


def _diffs(folder: Folder) -> dict[str, Any]:
    recorded = folder.read_json("passes.json")
    content = folder.read("model.onnx")
    if recorded is None or content is None:
        return _none(f"{'passes.json' if recorded is None else 'model.onnx'} is not in this directory")
    if has_external_data(content):
        return _none("weights of model.onnx are in another file")
    unknown = dict.fromkeys(run["name"] for run in recorded["passes"] if run["name"] not in REGISTRY)
    if unknown:
        return _none(f"rules of one's own ({', '.join(unknown)}) took part, and are not in this directory")
    diffs, runs = _replay(content, recorded["passes"], recorded.get("settings", {}))
    for run in recorded["passes"]:
        if runs.get(_key(run["round"], run["name"])) != (run["matches"], run["nodes_before"], run["nodes_after"]):
            again = f"run again, {run['name']} does something else in round {run['round']}"
            return _none(f"{again} than passes.json says")
    return {"diffs": diffs, "note": None}


def _key(number: int, name: str) -> str:
    return f"{number}/{name}"


def _replay(
    content: bytes, recorded: list[dict[str, Any]], settings: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    from pfvm.compiler.importer import read_model
    from pfvm.compiler.shapes import ShapeInference
    from pfvm.passes import pipeline
    from pfvm.passes.rewriter import Rewriter
    from pfvm.runtime.ort import evaluate

    model = read_model(content)
    last = max((run["round"] for run in recorded), default=0)
    names = [run["name"] for run in recorded if run["round"] == last]
    passes = [pipeline.load(name)(**settings.get(name, {})) for name in names]
    before = _lines(model)
    diffs: dict[str, Any] = {}
    runs: dict[str, Any] = {}

    def after(current: Any, record: Any) -> None:
        nonlocal before
        key = _key(record.round, record.name)
        runs[key] = (record.matches, record.nodes_before, record.nodes_after)
        if record.changed:
            now = _lines(current)
            diffs[key] = {"removed": _without(before, now), "added": _without(now, before)}
            before = now

    pipeline.run(Rewriter(model, ShapeInference(model)), passes, {"evaluate": evaluate}, after)
    return diffs, runs


def _lines(model: Any) -> list[str]:
    """A line per node, of bodies too."""
    roots = [model.graph, *(function.graph for function in model.functions.values())]
    return [_line(node) for root in roots for node in root.all_nodes()]


def _line(node: Any) -> str:
    given = ", ".join("" if value is None else str(value.name) for value in node.inputs)
    return f"{node.op_type}({given}) -> ({', '.join(str(value.name) for value in node.outputs)})"


def _without(lines: list[str], others: list[str]) -> list[str]:
    """The lines that are not in the others, in order; equal lines count."""
    left = Counter(others)
    result = []
    for line in lines:
        if left[line] > 0:
            left[line] -= 1
        else:
            result.append(line)
    return result
