"""A graph of torch.compile's, run so that every op seems to be called from the line of the program that it came from.

Capture finds the line of an op by the frames that called it, and a graph's code is generated; but its nodes remember.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any

import torch
from pfvm.compiler.capture.source import is_internal

_FRAME = re.compile(r'File "(.+)", line (\d+)')


class GraphAtLines(torch.fx.Interpreter):
    """Runs a graph; `run` is called like the graph module."""

    def run_node(self, n: torch.fx.Node) -> Any:
        """One node, called from its line."""
        place = _line_of(n.stack_trace or "")
        run = super().run_node
        return run(n) if place is None else _caller(*place)(run, n)


def _line_of(stack_trace: str) -> tuple[str, int] | None:
    """The innermost line of the user's in a node's stack trace."""
    lines = [(file, int(line)) for file, line in _FRAME.findall(stack_trace) if not is_internal(file)]
    return lines[-1] if lines else None


@functools.cache
def _caller(file: str, line: int) -> Callable[[Any, Any], Any]:
    """A function that calls another one, in a frame that says it is that line of that file."""
    source = "\n" * (line - 1) + "def call(run, node): return run(node)"
    space: dict[str, Any] = {"__name__": ""}
    exec(compile(source, file, "exec"), space)
    call: Callable[[Any, Any], Any] = space["call"]
    return call
