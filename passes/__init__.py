"""Graph passes, one a file, over onnx_ir graphs. Nothing here runs a model or imports a framework.

What a file of rules (`pfvm compile --rules`) needs is here by name: `from pfvm.passes import rule, constant`. Names are
loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dims import same_dims
    from .effects import Effect
    from .rewriter import Rewriter
    from .rules import forward, rule
    from .view import RUNTIME, constant

__all__ = ["RUNTIME", "Effect", "Rewriter", "constant", "forward", "rule", "same_dims"]

_HOME = {
    "RUNTIME": "view",
    "Effect": "effects",
    "Rewriter": "rewriter",
    "constant": "view",
    "forward": "rules",
    "rule": "rules",
    "same_dims": "dims",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'pfvm.passes' has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value
