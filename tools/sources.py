"""What a command reads, it does not overwrite with something of another kind."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pfvm.errors import OptionError


def keep(flag: str, output: Path | None, sources: Iterable[Path | None]) -> None:
    """Raises OptionError where the file to write, as `flag` names it, is one of those to read."""
    if output is not None and any(source is not None and _is_same(output, source) for source in sources):
        raise OptionError(f"{flag} {output}: that is a file to read, and would be lost; give another name")


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # one of them is not there
        return False
