"""Parts of torch that are refused by name, with what to write in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from pfvm.errors import CaptureError

FORMS: dict[Any, Callable[..., Any]] = {}


def refusal(name: str, advice: str) -> Callable[..., NoReturn]:
    """A function that raises CaptureError at the line of the user's that calls it."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        from pfvm.compiler.capture.source import here

        raise CaptureError(f"{here()}: {name} cannot be captured; {advice}")

    return refuse
