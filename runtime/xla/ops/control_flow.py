"""Control flow whose outcome is known at compile time."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir
from pfvm.runtime.xla.context import Context
from pfvm.runtime.xla.registry import register


def if_(ctx: Context, node: ir.Node, condition: Any) -> Any:
    """Inlines the branch that is taken; the condition must be known at compile time."""
    taken = bool(ctx.concrete(condition).reshape(()))
    return ctx.run_graph(ctx.attr("then_branch" if taken else "else_branch"), ctx.scope)


register("If", place="control")(if_)
