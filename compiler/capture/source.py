"""Where in the user's program an ATen op comes from: "file.py:42" and the module path, e.g. "model.linear1"."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NamedTuple

import torch
from pfvm.errors import CaptureError
from torch.fx import traceback as fx_traceback
from torch.utils._python_dispatch import TorchDispatchMode

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Frames of these folders are never the user's line. The repository root is the package: examples/ is not among them.
_INTERNAL = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.join(_PACKAGE, "compiler") + os.sep,
    os.path.join(_PACKAGE, "runtime") + os.sep,
)
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_UNKNOWN = "<unknown>"


class Origin(NamedTuple):
    """Source line ("file.py:42"), module path ("" outside any module) and the ATen op that was called there."""

    source: str
    module: str
    op: str = ""


def is_internal(filename: str) -> bool:
    if filename.startswith("<"):
        return not filename.startswith(("<stdin>", "<ipython"))
    return filename.startswith(_INTERNAL) or (filename.startswith(_STDLIB) and "site-packages" not in filename)


def _line(frame: FrameType, lineno: int) -> str:
    """The file as far as its dotted module name reaches: the text does not depend on where a project lies."""
    filename = frame.f_code.co_filename
    parts = filename.split(os.sep)
    depth = str(frame.f_globals.get("__name__", "")).count(".") + 1
    if parts[-1] == "__init__.py":
        depth += 1
    dotted = str(frame.f_globals.get("__name__", "")).replace(".", "/")
    path = "/".join(parts[-depth:])
    return f"{path if path.startswith(dotted) else parts[-1]}:{lineno}"


def origin(frame: FrameType | None, module_names: Mapping[int, str]) -> Origin:
    """The innermost user line above `frame`, and the innermost nn.Module whose method is running."""
    source = module = None
    while frame is not None and (source is None or module is None):
        if source is None and not is_internal(frame.f_code.co_filename):
            source = _line(frame, frame.f_lineno)
        if module is None and frame.f_code.co_argcount and frame.f_code.co_varnames[0] == "self":
            owner = frame.f_locals.get("self")
            if isinstance(owner, torch.nn.Module):
                module = module_names.get(id(owner), type(owner).__name__)
        frame = frame.f_back
    return Origin(source or _UNKNOWN, module or "")


def line_of_exception(error: BaseException) -> str:
    """The innermost user line that an exception passed through."""
    found = _UNKNOWN
    traceback = error.__traceback__
    while traceback is not None:
        if not is_internal(traceback.tb_frame.f_code.co_filename):
            found = _line(traceback.tb_frame, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def line_of_function(function: Any) -> str:
    """Where a function (or a module's forward) is defined."""
    if isinstance(function, torch.nn.Module):
        function = type(function).forward
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else repr(function)


class OriginMode(TorchDispatchMode):
    """Notes the origin of every op on the FX node that the tracer below creates, and refuses random ops.

    FX copies the key "custom" of its current metadata to each new node. Only valid under `preserve_node_meta()`.
    `backward_line` is where the user's line first ran a backward pass.
    """

    supports_higher_order_operators = True  # so that they reach the refusal below

    def __init__(self, module_names: Mapping[int, str]) -> None:
        super().__init__()
        self._module_names = module_names
        self.backward_line: str | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        where = origin(sys._getframe(1), self._module_names)
        if isinstance(func, torch._ops.HigherOrderOperator):
            raise CaptureError(
                f"{where.source}: {func.name()} is not captured yet; write torch.where or a Python loop of fixed length"
            )
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            _refuse_random(func, where)
        if self.backward_line is None and torch._C._current_graph_task_id() != -1:
            self.backward_line = where.source
        fx_traceback.get_current_meta()["custom"] = {"source": where.source, "module": where.module, "op": str(func)}
        return func(*args, **(kwargs or {}))


def _refuse_random(func: Callable[..., Any], where: Origin) -> None:
    """Raise for an op that draws random numbers."""
    inside = f" in {where.module}" if where.module else ""
    raise CaptureError(
        f"{where.source}: random op {func}{inside} cannot be captured: random ops in captured functions come with the "
        "training half; call model.eval() before, or draw the numbers outside and pass them in"
    )


def origin_of_node(node: torch.fx.Node) -> Origin:
    """The origin noted on an FX node; unknown for nodes that the tracer made on its own."""
    custom = node.meta.get("custom") or {}
    return Origin(custom.get("source", _UNKNOWN), custom.get("module", ""), custom.get("op") or str(node.target))
