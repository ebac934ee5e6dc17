"""Writing operators that ONNX Runtime alone has."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .rewriter import Rewriter

DOMAIN = "com.microsoft"


def contrib(rw: Rewriter, op_type: str, *inputs: ir.Value | None, at: ir.Node, **attributes: Any) -> ir.Node:
    """Insert an operator of com.microsoft before `at`, whose scope then imports that domain."""
    assert at.graph is not None
    rw.root(at.graph).opset_imports.setdefault(DOMAIN, 1)
    given = [ir.convenience.convert_attribute(name, value) for name, value in attributes.items()]
    return rw.op(op_type, *inputs, at=at, domain=DOMAIN, attributes=given)
