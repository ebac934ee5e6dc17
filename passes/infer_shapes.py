"""infer-shapes: know the type and (symbolic) shape of every value."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

from .rewriter import Rewriter


@dataclasses.dataclass(frozen=True)
class InferShapes:
    """Infer types and shapes from the inputs alone; declared shapes of intermediate values are not believed.

    before:  x[batch,3] ─ Relu ─ y[?]
    after:   x[batch,3] ─ Relu ─ y[batch,3]
    """

    name: ClassVar[str] = "infer-shapes"

    def run(self, rw: Rewriter) -> None:
        rw.shapes.infer_model()
