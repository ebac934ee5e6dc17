"""`pfvm check --nodes` on an emulated device: where along PyTorch → pfvm:cpu → exact → rounded does a result turn?

Each stage is compared with the one before it, value by value in the order of the planned graph, so that the first node
that differs is the one to look at: a fault of capture or of a pass, of the plan or the emulator, or of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from pfvm.compiler.plan.planner import Plan, plan
from pfvm.errors import describe_node
from pfvm.runtime.compare import Tolerance, difference
from pfvm.runtime.emulator.executable import as_onnx
from pfvm.runtime.emulator.program import Program
from pfvm.runtime.emulator.reference import Reference
from pfvm.runtime.oracle import Oracle

from .intermediates import common_intermediates, with_outputs

Values = dict[str, Any]


@dataclass(frozen=True)
class Stage:
    """One comparison. node: the first that differs, with what differs; None where all `compared` values agree."""

    left: str
    right: str
    rule: str
    compared: int
    node: str | None = None
    note: str = ""

    def __str__(self) -> str:
        verdict = f"{self.compared} values agree" if self.node is None else f"first: {self.node}"
        return f"{self.left} against {self.right} ({self.rule}): {verdict}{self.note}"


def four_way(
    model: ir.Model,
    feeds: Mapping[str, Any],
    torch_outputs: Mapping[str, Any] | None = None,
    planned: Plan | None = None,
) -> list[Stage]:
    """The stages for one set of inputs. torch_outputs: what PyTorch gives, by output name.

    Raises what planning and running raise; an EmulatorError names the fault of a plan by itself.
    """
    open_shapes = {str(v.name): np.shape(feeds[str(v.name)]) for v in model.graph.inputs if v.name in feeds}
    planned = planned or plan(model, {"shapes": open_shapes})
    exact, rounded = _emulated(planned, feeds, exact=True), _emulated(planned, feeds, exact=False)
    watched = common_intermediates(model, planned.model)
    host = Oracle(with_outputs(model, watched))(feeds)
    reference: Values = {}
    Reference(planned.model, planned.machine)(feeds, _collector(reference))
    nodes = [node for node in planned.model.graph if any(out.name in exact for out in node.outputs)]
    stages = []
    if torch_outputs is not None:
        stages.append(_stage("torch", "pfvm:cpu", _STATED, torch_outputs, host, nodes, _within))
    stages.append(_stage("pfvm:cpu", "exact", _STATED, host, exact, nodes, _within))
    stages.append(_stage("plan without layouts", "rounded", "bit by bit", reference, rounded, nodes, _equal_bits))
    stages.append(_rounding(exact, rounded, nodes))
    return stages


def _emulated(planned: Plan, feeds: Mapping[str, Any], exact: bool) -> Values:
    """Every value that a node computes."""
    program = Program(planned.model, planned.machine, exact)
    program.place_weights()
    for name, value in feeds.items():
        program.put(name, np.asarray(value))
    found: Values = {}
    program.run(_collector(found))
    return found


def _collector(found: Values) -> Callable[[ir.Node, list[np.ndarray]], None]:
    def collect(node: ir.Node, results: list[np.ndarray]) -> None:
        found.update(zip((str(out.name) for out in node.outputs if out.name), results))

    return collect


def _stage(
    left: str,
    right: str,
    rule: str,
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    nodes: list[ir.Node],
    apart: Callable[[str, Any, Any], str | None],
) -> Stage:
    compared = 0
    for node, out in _values_of(nodes):
        name = str(out.name)
        if name not in a or name not in b:
            continue
        compared += 1
        reason = apart(name, _typed(a[name], out), _typed(b[name], out))
        if reason is not None:
            return Stage(left, right, rule, compared, f"{describe_node(node)}: {reason}")
    return Stage(left, right, rule, compared)


def _values_of(nodes: list[ir.Node]) -> Iterator[tuple[ir.Node, ir.Value]]:
    for node in nodes:
        for out in node.outputs:
            if out.name:
                yield node, out


def _typed(x: Any, value: ir.Value) -> np.ndarray:
    """At its ONNX type where it is an integer; floats stay float64, or what the host computed."""
    array = np.asarray(x)
    return as_onnx(array, value.dtype) if array.dtype.kind in "iub" and value.dtype is not None else array


_TOLERANCE = Tolerance()  # these stages compute the same numbers in the order of their own sums
_STATED = f"rtol {_TOLERANCE.rtol:g}, atol {_TOLERANCE.atol:g}"


def _within(name: str, a: Any, b: Any) -> str | None:
    other = b.astype(a.dtype) if a.dtype.kind == "f" else b
    found = difference(name, a, other, _TOLERANCE)
    return None if found is None else str(found)


def _equal_bits(name: str, a: Any, b: Any) -> str | None:
    if a.shape == b.shape and np.array_equal(a, b):
        return None
    count = int((a != b).sum()) if a.shape == b.shape else a.size
    return f"{name!r}: {count} of {a.size} elements are other numbers"


_LARGE = 1e-2  # relative L2 from which rounding is no longer that of one node


def _rounding(exact: Values, rounded: Values, nodes: list[ir.Node]) -> Stage:
    """How much rounding makes: relative L2 of each value; the first above 1 %, and the largest."""
    first, worst, largest, compared = None, "", 0.0, 0
    for node, out in _values_of(nodes):
        a = np.asarray(exact.get(str(out.name), 0.0))
        if a.dtype.kind != "f" or str(out.name) not in rounded:
            continue
        compared += 1
        error = relative_l2(a, rounded[str(out.name)])
        if error > largest:
            worst, largest = f"{describe_node(node)} {error:.1e}", error
        if error > _LARGE and first is None:
            first = f"{describe_node(node)}: relative L2 {error:.1e}"
    note = f"; largest: {worst}" if worst else ""
    return Stage("exact", "rounded", f"relative L2 <= {_LARGE:g}", compared, first, note)


def relative_l2(reference: Any, other: Any) -> float:
    """‖reference - other‖ / ‖reference‖; of a reference that is 0, ‖other‖. Infinities that agree count as equal."""
    a, b = (np.asarray(x, np.float64).reshape(-1) for x in (reference, other))
    kept = ~((a == b) & ~np.isfinite(a))
    size = float(np.linalg.norm(a[kept]))
    return float(np.linalg.norm(a[kept] - b[kept])) / (size or 1.0)
