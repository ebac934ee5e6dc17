"""The table after a compilation: nodes, bytes and operations before and after, and what each pass did."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .console import human_bytes, human_count

if TYPE_CHECKING:
    import onnx_ir as ir
    from pfvm.compiler.driver import CompileResult
    from pfvm.compiler.flops import Flops
    from pfvm.passes.pipeline import PassRecord

_MOST_NODES = 10_000
"""Operations of larger models are left to `pfvm stats`: to count them takes as long as a pass."""


@dataclasses.dataclass
class PassSummary:
    """One pass over all its rounds. nodes: how many more there are after it; difference: the largest, with --verify."""

    name: str
    matches: int = 0
    nodes: int = 0
    seconds: float = 0.0
    difference: float | None = None

    def add(self, record: PassRecord) -> None:
        """Count one run."""
        self.matches += sum(record.matches.values())
        self.nodes += record.nodes_after - record.nodes_before
        self.seconds += record.seconds
        known = [found for found in (self.difference, record.max_difference) if found is not None]
        self.difference = max(known, default=None)


def per_pass(records: Sequence[PassRecord]) -> list[PassSummary]:
    """One entry a pass, in the order in which they run."""
    found: dict[str, PassSummary] = {}
    for record in records:
        found.setdefault(record.name, PassSummary(record.name)).add(record)
    return list(found.values())


def flops_of(model: ir.Model | None) -> Flops | None:
    """The operations of a model; None where it is too large to count them in passing."""
    from pfvm.compiler.flops import count_flops, expanded_nodes

    if model is None or expanded_nodes(model) > _MOST_NODES:
        return None
    flops = count_flops(model)
    return None if flops.note else flops


def flops_cell(flops: Flops) -> str:
    """How many, as a table shows it."""
    if flops.note:
        return "not counted"
    if flops.unknown_sizes:
        return "depends on data"
    return f"{'at least ' if flops.not_counted else ''}{human_count(flops.value())}"


def flops_json(result: CompileResult) -> dict[str, Any]:
    """ "flops": [before, after] for the sizes in "flops_at"; null where not all are counted, or only data decide."""
    before, after = flops_of(result.original), flops_of(result.model)
    if before is None or after is None or not (before.is_complete and after.is_complete):
        return {"flops": None, "flops_at": {}}
    return {"flops": [before.value(), after.value()], "flops_at": _sizes_in(before)}


class CompiledTable:
    """What `pfvm compile` prints, for a console of any width; rich leaves colours away where there is no terminal."""

    def __init__(self, result: CompileResult) -> None:
        self._summary = result.summary()
        self._passes = per_pass(result.passes)
        self._flops = [flops_of(result.original), flops_of(result.model)]

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        if self._summary["nodes"] is not None:
            yield self._sizes()
            yield self._runs()

    def _sizes(self) -> Any:
        rows = _table(("", "left"), ("before", "right"), ("after", "right"), ("", "right"))
        for title, show in (("nodes", "{:,}".format), ("bytes", human_bytes)):
            before, after = self._summary[title]
            rows.add_row(title, show(before), show(after), _change(before, after))
        before, after = self._flops
        if before is not None and after is not None:
            is_known = before.is_complete and after.is_complete
            change = _change(before.value(), after.value()) if is_known else ""
            title = "flops" if before.unknown_sizes and after.unknown_sizes else _flops_title(before)
            rows.add_row(title, flops_cell(before), flops_cell(after), change)
        return rows

    def _runs(self) -> Any:
        verified = any(each.difference is not None for each in self._passes)
        columns = [("pass", "left"), ("matches", "right"), ("nodes", "right"), ("seconds", "right")]
        rows = _table(*columns, *([("difference", "right")] if verified else []))
        for each in self._passes:
            if each.matches:
                rows.add_row(*_cells(each), *([_difference(each.difference)] if verified else []))
        idle = [each.seconds for each in self._passes if not each.matches]
        if idle:
            rows.add_row(f"{len(idle)} without a match", "", "", f"{sum(idle):.3f}", style="dim")
        total = _in_all(self._passes)
        rows.add_row(*_cells(total), *([_difference(total.difference)] if verified else []), style="bold")
        return rows


def _table(*columns: tuple[str, Any]) -> Any:
    from rich.table import Table

    rows = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title, justify in columns:
        rows.add_column(title, justify=justify, overflow="fold", no_wrap=justify == "right")
    return rows


def _in_all(passes: Sequence[PassSummary]) -> PassSummary:
    return PassSummary(
        "in all",
        sum(each.matches for each in passes),
        sum(each.nodes for each in passes),
        sum(each.seconds for each in passes),
        max((each.difference for each in passes if each.difference is not None), default=None),
    )


def _cells(each: PassSummary) -> tuple[str, ...]:
    return each.name, f"{each.matches:,}", f"{each.nodes:+,}" if each.nodes else "", f"{each.seconds:.3f}"


def _difference(found: float | None) -> str:
    return "" if found is None else f"{found:.1e}" if found else "0"


def _change(before: int, after: int) -> str:
    if before == after or not before:
        return ""
    part = (after - before) / before
    return f"{part:+.0%}" if abs(part) >= 0.1 else f"{part:+.2%}"


def _flops_title(flops: Flops) -> str:
    sizes = ", ".join(f"{name}={size}" for name, size in _sizes_in(flops).items())
    return f"flops ({sizes})" if sizes else "flops"


def _sizes_in(flops: Flops) -> dict[str, int]:
    """The sizes that the number of operations depends on."""
    from pfvm.compiler.amounts import symbols

    used = {name for atom in flops.total.atoms for name in symbols(atom)}
    return {name: size for name, size in flops.sizes.items() if name in used}
