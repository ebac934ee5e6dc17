"""Where compiled programs are kept on disk. Loads no framework."""

from __future__ import annotations

import os
import pathlib
import sys


def cache_folder() -> pathlib.Path | None:
    """The folder of the cache: PFVM_CACHE, by default `pfvm` in the user's cache folder; None where it is "off".

    None, too, for a user without a home, as in a container that runs under a number of its own.
    """
    setting = os.environ.get("PFVM_CACHE", "")
    if setting.lower() in ("off", "0"):
        return None
    try:
        return pathlib.Path(setting) if setting else _user_folder()
    except RuntimeError:  # of pathlib.Path.home
        return None


def _user_folder() -> pathlib.Path:
    if sys.platform == "darwin":
        return pathlib.Path.home() / "Library" / "Caches" / "pfvm"
    if sys.platform == "win32":
        return pathlib.Path(os.environ.get("LOCALAPPDATA") or pathlib.Path.home()) / "pfvm" / "cache"
    return pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "pfvm"
