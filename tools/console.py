"""Where the command prints: results on stdout, remarks on stderr; plain wide text where there is no terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_PIPE_WIDTH = 200


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

    console = PipedConsole(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = _PIPE_WIDTH
    return console


def table(*titles: str) -> Table:
    """An unframed table whose first column, a name that one may want to copy, is never broken."""
    from rich.table import Table

    made = Table(box=None, pad_edge=False)
    for number, title in enumerate(titles):
        made.add_column(title, overflow="fold", no_wrap=number == 0)
    return made
