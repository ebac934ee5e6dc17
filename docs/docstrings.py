"""Docstrings of this repository as Markdown: their lists of parameters become lists.

model: a path, or          →    - **model**: a path, or
    a ModelProto.                    a ModelProto.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

# "model: …", "params, freeze: …", "options of xla:cpu:", "threads=N: …", at the margin or one level in.
_ITEM = re.compile(r"^( {4})?([a-z_*][\w*]*(?:(?:, | and |=)[\w.*|\"]+|(?: of [\w:]+))*): ?(.*)$")


def as_markdown(text: str) -> str:
    """The same text, with a list item for each described name. What is drawn with blanks is kept as it is."""
    lines: list[str] = []
    depth = -1  # of the item that the line above belongs to; -1: none
    for line in text.splitlines():
        found = _ITEM.match(line)
        if found and (found[1] is None or depth >= 0):
            inner = found[1] is not None
            if depth < 0 and lines and lines[-1].strip():
                lines.append("")
            depth = int(inner)
            lines.append(f"{'    ' * depth}- **{found[2]}**: {found[3]}".rstrip())
        elif depth >= 0 and line.startswith("    "):
            lines.append(f"{'    ' * (depth + 1)}{line.strip()}")
        else:
            if depth >= 0 and line.strip():
                lines.append("")
            depth = -1
            lines.append(line)
    return "\n".join(lines)


class Lists(griffe.Extension):
    """Rewrites every docstring when it is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called by griffe for each module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
