"""What compiling needs of the engine that runs models, imported when it is called: many models need none of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

if TYPE_CHECKING:
    from .verify import Verifier


def evaluate(model: ir.Model, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """`pfvm.runtime.ort.evaluate`."""
    from . import ort

    return ort.evaluate(model, feeds)


def make_verifier(original: ir.Model) -> Verifier:
    """`pfvm.runtime.verify.make_verifier`."""
    from . import verify

    return verify.make_verifier(original)
