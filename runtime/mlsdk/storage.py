"""Paths, as the MLSDK spells them."""

from __future__ import annotations

import os
import pathlib


def path(target: str | os.PathLike[str]) -> pathlib.Path:
    """A folder or file; `storage.path("out") / "train_step"` is one below it."""
    return pathlib.Path(target)
