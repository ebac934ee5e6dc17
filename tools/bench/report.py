"""A benchmark as a table and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pfvm.tools.console import err, out, table

from .figures import figures, noise
from .turns import Outcome


def rows(
    outcomes: Sequence[Outcome], differs: Mapping[str, str], load_before: float, cores: int
) -> list[dict[str, Any]]:
    """One JSON object per candidate; `ratio` is its median over the first candidate's.

    `cpu_seconds` is what all threads computed in a call: on a busy machine it tells more than the clock on the wall.
    """
    first = figures(outcomes[0].rounds).median if outcomes[0].rounds else None
    return [_row(outcome, first, differs.get(outcome.name), load_before, cores) for outcome in outcomes]


def _row(outcome: Outcome, first: float | None, differs: str | None, load_before: float, cores: int) -> dict[str, Any]:
    row: dict[str, Any] = {"candidate": outcome.name, "error": outcome.error}
    row |= {"load_seconds": outcome.load_seconds, "first_call_seconds": outcome.first_call_seconds}
    row |= {"calls": outcome.calls, "rounds_seconds": list(outcome.rounds), "peak_bytes": outcome.peak_bytes}
    if outcome.rounds and outcome.error is None:
        found = figures(outcome.rounds)
        row |= {"median_seconds": found.median, "iqr_seconds": found.iqr, "fastest_seconds": found.fastest}
        row |= {"cpu_seconds": figures(outcome.cpu).median if outcome.cpu else None}
        row |= {"ratio": found.median / first if first else None, "noisy": noise(found, load_before, cores)}
    return row | {"differs": differs}


def print_model(model: str, results: Sequence[dict[str, Any]]) -> None:
    """The table of one model on stdout; errors and doubts below it on stderr."""
    shown = table(model, "median ms", "spread", "ratio", "cpu ms", "load s", "first call s", "peak MB", "")
    for row in results:
        shown.add_row(row["candidate"], *_cells(row))
    out().print(shown)
    for row in results:
        if row["error"]:
            err().print(f"error: {row['error']}")
        if row["differs"]:
            err().print(f"{row['candidate']}: other results than {results[0]['candidate']}: {row['differs']}")


def _cells(row: dict[str, Any]) -> list[str]:
    if row["error"]:
        return ["", "", "", "", "", "", "", "error"]
    median = row["median_seconds"]
    marks = [f"noisy: {'; '.join(row['noisy'])}"] if row["noisy"] else []
    marks += ["results differ"] if row["differs"] else []
    return [
        f"{median * 1e3:.3f}",
        f"{row['iqr_seconds'] / median:.1%}",
        "" if row["ratio"] is None else f"{row['ratio']:.2f}×",
        "" if row["cpu_seconds"] is None else f"{row['cpu_seconds'] * 1e3:.3f}",
        f"{row['load_seconds']:.2f}",
        f"{row['first_call_seconds']:.2f}",
        f"{row['peak_bytes'] / 1e6:.0f}",
        ", ".join(marks),
    ]
