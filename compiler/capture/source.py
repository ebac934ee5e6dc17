"""Where in the user's program an ATen op comes from: "file.py:42" and the module path, e.g. "model.linear1"."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NamedTuple

import torch
from pfvm.errors import CaptureError, short
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import traceback as fx_traceback
from torch.utils._python_dispatch import TorchDispatchMode

from .position import in_position
from .random import RandomStreams

_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
# Frames of these folders are never the user's line. The repository root is the package: examples/ is not among them.
_INTERNAL = (
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    os.path.join(_PACKAGE, "compiler") + os.sep,
    os.path.join(_PACKAGE, "passes") + os.sep,
    os.path.join(_PACKAGE, "runtime") + os.sep,
    os.path.join(_PACKAGE, "tools") + os.sep,
)
_STDLIB = sysconfig.get_paths()["stdlib"] + os.sep
_UNKNOWN = "<unknown>"
# Names of torch's operators for control flow that are captured (see control_flow.py).
CONTROL_FLOW = frozenset({"cond", "while_loop", "scan"})
_READ_NUMBER = torch.ops.aten._local_scalar_dense.default


class Origin(NamedTuple):
    """Source line ("file.py:42"), module path ("" outside any module) and the ATen op that was called there."""

    source: str
    module: str
    op: str = ""

    @property
    def known_source(self) -> str:
        """The source line, "" where no line of the user's ran."""
        return "" if self.source == _UNKNOWN else self.source

    @property
    def where(self) -> str:
        """For messages: the source line; the module path where only library code ran, as in a bare nn.Sequential."""
        return f"module {self.module!r}" if self.source == _UNKNOWN and self.module else self.source


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
        if module is None:
            module = _module_of(frame, module_names)
        frame = frame.f_back
    return Origin(source or _UNKNOWN, module or "")


def here() -> str:
    """The user's line (or module) that is running, for messages."""
    return origin(sys._getframe(1), {}).where


def origin_of_exception(error: BaseException, module_names: Mapping[int, str]) -> Origin:
    """The innermost user line and the innermost module that an exception passed through."""
    source, module = _UNKNOWN, ""
    traceback = error.__traceback__
    while traceback is not None:
        frame = traceback.tb_frame
        if not is_internal(frame.f_code.co_filename):
            source = _line(frame, traceback.tb_lineno)
        module = _module_of(frame, module_names) or module
        traceback = traceback.tb_next
    return Origin(source, module)


def _module_of(frame: FrameType, module_names: Mapping[int, str]) -> str | None:
    """The path of the module whose method this frame runs; its type where nothing led to it."""
    if not frame.f_code.co_argcount or frame.f_code.co_varnames[0] != "self":
        return None
    owner = frame.f_locals.get("self")
    return module_names.get(id(owner), type(owner).__name__) if isinstance(owner, torch.nn.Module) else None


def line_of_function(function: Any) -> str:
    """Where a function (or a module's forward) is defined; the type of a library's module."""
    owner = function
    if isinstance(function, torch.nn.Module):
        function = type(function).forward
    function = getattr(function, "__func__", function)
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    code = getattr(function, "__code__", None)
    if code is None or is_internal(code.co_filename):
        return type(owner).__name__ if isinstance(owner, torch.nn.Module) else short(function)
    return f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}"


class OriginMode(TorchDispatchMode):
    """Notes the origin of every op on the FX node that the tracer below creates, and draws random numbers in the graph.

    FX copies the key "custom" of its current metadata to each new node. Only valid under `preserve_node_meta()`.
    An optimizer may turn a tensor of its own into a number (its step count), and an index of no dimension is one: that
    becomes part of the graph.
    """

    supports_higher_order_operators = True

    def __init__(self, module_names: Mapping[int, str], fakes: FakeTensorMode, streams: RandomStreams) -> None:
        super().__init__()
        self._module_names = module_names
        self._fakes = fakes
        self._streams = streams

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        where = origin(sys._getframe(1), self._module_names)
        if isinstance(func, torch._ops.HigherOrderOperator) and func.name() not in CONTROL_FLOW:
            raise CaptureError(f"{where.where}: {higher_order(func)}")
        self._fakes.allow_scalar_outputs = func is _READ_NUMBER and _may_be_a_number(sys._getframe(1))
        fx_traceback.get_current_meta()["custom"] = {"source": where.source, "module": where.module, "op": str(func)}
        if torch.Tag.nondeterministic_seeded in getattr(func, "tags", ()):
            if not self._streams.knows(func) or _own_generator(kwargs):
                raise _random_refused(func, kwargs, where)
            return self._streams.draw(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def higher_order(func: Any) -> str:
    """What is wrong with torch's operators that take functions, except those for control flow."""
    return (
        f"{func.name()} cannot be captured; write a Python loop of fixed length, or torch.cond, torch.while_loop or "
        "torch's scan (torch._higher_order_ops.scan), which can"
    )


def in_optimizer(frame: FrameType | None) -> bool:
    """Whether the method `step` of an optimizer is running."""
    while frame is not None:
        if frame.f_code.co_name == "step" and isinstance(frame.f_locals.get("self"), torch.optim.Optimizer):
            return True
        frame = frame.f_back
    return False


def _may_be_a_number(frame: FrameType | None) -> bool:
    return in_position(frame) or in_optimizer(frame)


def _own_generator(kwargs: dict[str, Any] | None) -> bool:
    """Some operators have another overload for a generator, others take it as an argument."""
    return (kwargs or {}).get("generator") not in (None, torch.default_generator)


def _random_refused(func: Callable[..., Any], kwargs: dict[str, Any] | None, where: Origin) -> CaptureError:
    """The error for an op that draws random numbers in a way that has no form as a graph."""
    inside = f" in {where.module}" if where.module else ""
    if "generator" in str(func) or _own_generator(kwargs):
        return CaptureError(
            f"{where.where}: random numbers of a generator of your own{inside} cannot be captured; leave out "
            "generator=, so that they follow torch.manual_seed, or draw them outside and pass them in"
        )
    return CaptureError(
        f"{where.where}: random op {func}{inside} cannot be captured; build it from torch.rand or torch.randn, or draw "
        "the numbers outside and pass them in"
    )


def origin_of_node(node: torch.fx.Node) -> Origin:
    """The origin noted on an FX node; unknown for nodes that the tracer made on its own."""
    custom = node.meta.get("custom") or {}
    return Origin(custom.get("source", _UNKNOWN), custom.get("module", ""), custom.get("op") or str(node.target))
