"""The files that `pfvm bench` writes."""

from __future__ import annotations

import os
from pathlib import Path

from pfvm.errors import PfvmError


def write(path: Path, text: str) -> None:
    """Writes a file whole or not at all. Raises PfvmError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text)
        os.replace(temporary, path)
    except OSError as error:
        raise PfvmError(f"cannot write {path}: {error.strerror or error}") from error
