"""Where the command prints: results on stdout, remarks on stderr; plain wide text where there is no terminal.

At most errors and JSON with --quiet; rich leaves colours away where NO_COLOR is set or there is no terminal.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pfvm.compiler import progress

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

_PIPE_WIDTH = 200
_NARROW = 28  # of a column that is wrapped
_GAP = "  "
_quiet = False


def set_quiet(quiet: bool) -> None:
    """Whether this process prints errors and JSON only."""
    global _quiet
    _quiet = quiet
    progress.silence(quiet)


def is_quiet() -> bool:
    """Whether only errors and JSON are printed."""
    return _quiet


def print_json(content: Any) -> None:
    """What --json asks for, on stdout. JSON has no NaN and no infinity: they become null."""
    content = _finite(content)
    text = json.dumps(content, indent=1, ensure_ascii=False)
    try:
        text.encode((sys.stdout and sys.stdout.encoding) or "utf-8")
    except UnicodeEncodeError:  # a terminal that is not UTF-8, or a file name that is no text
        text = json.dumps(content, indent=1)
    print(text)


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content


def any_encoding() -> None:
    """What the terminal's encoding has no character for is printed as its code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def flush() -> None:
    """Writes what is printed, so that a full disk or a closed pipe is known now."""
    if sys.stdout is not None:
        sys.stdout.flush()


def drop_output() -> None:
    """stdout cannot be written: what is left of it goes nowhere, without another error at exit."""
    if sys.stdout is sys.__stdout__ and sys.stdout is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def out() -> Console:
    """The console for results."""
    return _console(stderr=False)


def err() -> Console:
    """The console for remarks."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    from rich.console import Console

    class PipedConsole(Console):
        def on_broken_pipe(self) -> None:
            """rich itself would exit with 1, which here means that a check found a difference."""
            raise BrokenPipeError

    console = PipedConsole(stderr=stderr, quiet=_quiet, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


class Table:
    """An unframed table of text, without trailing spaces; only its last column is wrapped, by words.

    Where too little room is left for the last column, it follows on lines of its own.
    """

    def __init__(self, *titles: str) -> None:
        self._rows = [titles]

    def add_row(self, *cells: str) -> None:
        """One cell a title."""
        self._rows.append(cells)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        for line in self.lines(options.max_width):
            yield Text(line, no_wrap=True, overflow="ignore")

    def lines(self, width: int) -> Iterator[str]:
        """The table as text of this width, names and numbers excepted, which are never broken."""
        sizes = [max(map(len, column)) for column in list(zip(*self._rows))[:-1]]
        start = sum(size + len(_GAP) for size in sizes)
        longest = max(len(row[-1]) for row in self._rows)
        is_below = start + longest > width and width - start < _NARROW
        for row in self._rows:
            left = _GAP.join(cell.ljust(size) for cell, size in zip(row, sizes))
            indent = len(_GAP) * 2 if is_below else start
            rest = textwrap.wrap(row[-1], max(width - indent, _NARROW), break_long_words=False) or [""]
            if is_below:
                yield from (left.rstrip(), *(" " * indent + line for line in rest if line))
            else:
                yield f"{left}{_GAP if sizes else ''}{rest[0]}".rstrip()
                yield from (" " * indent + line for line in rest[1:])


def table(*titles: str) -> Table:
    """A table with these column titles."""
    return Table(*titles)


def human_count(number: int) -> str:
    """4,089,284,608 → "4.09 G"."""
    size = float(number)
    for unit in ("", " k", " M", " G", " T"):
        if size < 999.5:
            return f"{number}" if not unit else f"{size:.3g}{unit}"
        size /= 1000
    return f"{size:.3g} P"


def human_bytes(count: int) -> str:
    """1536 → "1.5 KiB"."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
