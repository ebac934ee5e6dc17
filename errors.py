"""Every error that pfvm raises on purpose.

Each message is one line that names the node, tensor or file, says what was expected and what to do about it. The
command line prints the message and exits with 2; anything else that escapes is a bug in pfvm.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnx_ir as ir


def flag(name: str, value: Any = None, keyword: str | None = None) -> str:
    """An option in a message, as the command takes it and as Python does: `--opset 17 (opset=17 in Python)`.

    value: what to give, True for a switch, None where the message leaves it open.
    keyword: Python's form, where it has another name or another kind of value.
    """
    if keyword is None:
        shown = "" if value is None else repr(value) if isinstance(value, (bool, int, float)) else f'"{value}"'
        keyword = f"{name.replace('-', '_')}={shown}"
    given = "" if value is None or value is True else f" {value}"
    return f"--{name}{given} ({keyword} in Python)"


class PfvmError(Exception):
    """Base of all errors raised on purpose."""


class InvalidModelError(PfvmError):
    """The model file or graph is not valid ONNX, or refers to data that is not there."""


class UnsupportedOpError(PfvmError, NotImplementedError):
    """An operator, or a form of it, that the chosen device or stage cannot handle. Names the node."""


class InputError(PfvmError, ValueError):
    """A call was made with a missing, unknown or ill-typed input. Names the input."""


class SizeError(InputError):
    """An input has a size that a mesh cannot split, or that is above all buckets. Names the input and the size."""


class StaleWeightError(InputError):
    """A weight changed after it was compiled in as a constant, or no longer fits. Names the weight."""


class OptionError(PfvmError, ValueError):
    """An option, flag or device string that does not exist or has a bad value."""


class NotBuiltError(PfvmError, NotImplementedError):
    """A documented option or device that this version does not implement yet."""


class MissingExtraError(PfvmError, ImportError):
    """A feature needs an optional dependency. The message carries the pip command."""

    def __init__(self, feature: str, extra: str) -> None:
        super().__init__(f"{feature} needs the {extra!r} extra: pip install 'pfvm[{extra}]'")


class NoDeviceError(PfvmError, RuntimeError):
    """A known device that is not here: no such hardware, driver or library. The message says what it needs."""


class DeviceMemoryError(PfvmError, MemoryError):
    """A program needs more memory than its device has. The message says how much of which, and what has more."""


class CompilerCrashError(PfvmError, RuntimeError):
    """A device's compiler, which runs in a process of its own, died or did not end in time. Says what it said last."""


class CaptureError(PfvmError):
    """A PyTorch function cannot be captured as a graph. Names the source line and what to write instead."""


class PythonEffectWarning(UserWarning):
    """A captured function sets Python values (counters, logs, attributes), which a compiled call leaves as they are."""


class RuleError(PfvmError):
    """A user's file of rules, or a rule in it, fails. Names the file and line, the rule and the node."""


class MismatchError(PfvmError):
    """Two models, or a model before and after a pass, do not agree."""


def describe_node(node: ir.Node) -> str:
    """How messages name a node: "Gemm 'fc1' from model.py:42", or "Gemm (→ 'scores')" where it has no name.

    The source line is there where capture recorded it.
    """
    domain = f"{node.domain}::" if node.domain else ""
    outputs = [value.name for value in node.outputs if value.name]
    name = f" {node.name!r}" if node.name else f" (→ {outputs[0]!r})" if outputs else ""
    source = node.metadata_props.get("pfvm.source")
    return f"{domain}{node.op_type}{name}" + (f" from {source}" if source else "")


def did_you_mean(word: Any, known: Iterable[str]) -> str:
    """ "; did you mean 'fold-constants'?" for the nearest known word, "" where none is near."""
    import difflib

    plain = {_plain(name): name for name in known}
    wanted = _plain(str(word))
    near = [name for name in plain if len(wanted) > 2 and wanted in name] or difflib.get_close_matches(wanted, plain, 1)
    return f"; did you mean {plain[near[0]]!r}?" if near else ""


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def short(value: Any, longest: int = 60) -> str:
    """A value in a message: its repr, cut to the longest length; the type's name where it has several lines."""
    text = repr(value)
    if "\n" in text:
        return f"a {type(value).__module__}.{type(value).__qualname__}".replace("builtins.", "")
    return text if len(text) <= longest else text[: longest - 1] + "…"


def one_line(error: Exception) -> str:
    """Another library's error in a message: its type and text in one line, cut at 200 characters."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]
