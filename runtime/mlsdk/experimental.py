"""`mlsdk.experimental.llm`, which is not built: every import from it says so."""

from __future__ import annotations

from typing import Any

from .names import refuse


def __getattr__(name: str) -> Any:
    if name.startswith("__") and name != "__path__":  # the path is what `import …experimental.llm` asks for
        raise AttributeError(name)
    raise refuse("call", "mlsdk.experimental.llm")
