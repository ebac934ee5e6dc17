"""What passes ask about shapes; the compiler answers."""

from __future__ import annotations

from typing import Protocol

import onnx_ir as ir

from .dims import Dims


class ShapeInference(Protocol):
    """What the compiler hands in to know shapes: see compiler/shapes.py."""

    def infer_model(self) -> None:
        """Infer every value of the model."""

    def infer_node(self, node: ir.Node) -> None:
        """Infer the outputs of one new node from its inputs."""

    def contents(self, value: ir.Value) -> Dims | None:
        """Elements of a 0-d or 1-d integer tensor as ints and symbolic dims, when they are known."""


class NoShapes:
    """Stands in when a pass is used alone on a model without shape inference: nothing is known but what is there."""

    def infer_model(self) -> None: ...
    def infer_node(self, node: ir.Node) -> None: ...
    def contents(self, value: ir.Value) -> Dims | None:
        return None
