"""The linter of the MLSDK's exporter (`fx2onnx.linter`), over `pfvm.lint`."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pfvm.compiler.capture.lint import lint as find


class LintLevel(enum.Enum):
    """How bad a result is; what cannot be captured is an error."""

    INFO = 0
    WARNING = 1
    ERROR = 2


@dataclass(frozen=True)
class LintResult:
    """One finding: the source line ("file.py:42", "" where unknown) and what is wrong there, and to be written."""

    level: LintLevel
    location: str
    message: str

    def __str__(self) -> str:
        return f"{self.level.name} {self.location}: {self.message}" if self.location else self.message


def lint(function: Callable[..., Any], inputs: Any) -> list[LintResult]:
    """What of a function cannot be captured for these inputs; empty where all can."""
    return [LintResult(LintLevel.ERROR, finding.where, finding.text) for finding in find(function, inputs)]
