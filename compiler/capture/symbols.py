"""Symbolic dimensions: user's names ("batch") for the symbols of torch's shape environment."""

from __future__ import annotations

import itertools
import os
import re
import traceback
from collections.abc import Mapping, Sequence
from typing import Any

import sympy
import torch
from pfvm.errors import CaptureError, did_you_mean, short
from torch._dynamo.source import ConstantSource
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, ShapeGuard

from .numbers import NumberSymbols
from .source import is_internal

_LAYOUT_OR_CHECK = re.compile(r"^(is|check)_|_check$")
_SAMPLES = (1, 2, 3, 5, 8, 17, 64, 1000, 4097)


def open_dimensions(dynamic: Any, names: Sequence[str]) -> dict[str, dict[int, str]]:
    """A user's `dynamic` argument, checked: {"x": {0: "batch"}}. `names` are those of the inputs."""
    form = 'dynamic is an input\'s name with its open dimensions, as in {"x": {0: "batch"}}'
    if dynamic is not None and not isinstance(dynamic, Mapping):
        raise CaptureError(f"{form}, not {short(dynamic)}")
    for name, dims in (dynamic or {}).items():
        if name not in names:
            known = f"{', '.join(names)}{did_you_mean(name, names)}"
            raise CaptureError(f"dynamic: there is no input {short(name)}; the inputs are {known}")
        if not isinstance(dims, Mapping):
            raise CaptureError(f"{form}; {name!r} has {short(dims)}")
        for axis, symbol in dims.items():
            if type(axis) is not int or not isinstance(symbol, str) or not symbol.isidentifier():
                raise CaptureError(f"{form}; {name!r} has {short(axis)}: {short(symbol)}")
    return {name: dict(dims) for name, dims in (dynamic or {}).items()}


class Symbols:
    """Makes fake inputs whose dynamic dimensions are symbols, one symbol per name."""

    def __init__(self, shape_env: ShapeEnv, dynamic: dict[str, dict[int, str]], numbers: NumberSymbols) -> None:
        self.shape_env = shape_env
        self._numbers = numbers
        self._dynamic = dynamic
        self._by_name: dict[str, torch.SymInt] = {}
        self._sample_size: dict[str, int] = {}

    def fake(self, name: str, sample: torch.Tensor) -> torch.Tensor:
        """A fake of the sample. Call it within the fake mode. Dynamic inputs are taken as contiguous."""
        dims = self._dynamic.get(name, {})
        if not dims:
            fake = torch.empty_strided(sample.size(), sample.stride(), dtype=sample.dtype, device=sample.device)
            return fake.requires_grad_(sample.requires_grad)
        shape: list[Any] = list(sample.shape)
        for axis, symbol in dims.items():
            if not -len(shape) <= axis < len(shape):
                raise CaptureError(f"dynamic: input {name!r} has {len(shape)} dimensions, there is no dimension {axis}")
            shape[axis] = self._symbol(name, axis, symbol, shape[axis])
        return torch.empty(shape, dtype=sample.dtype, device=sample.device, requires_grad=sample.requires_grad)

    def _symbol(self, name: str, axis: int, symbol: str, size: int) -> torch.SymInt:
        if symbol not in self._by_name:
            if size < 2:
                raise CaptureError(
                    f"dynamic: dimension {axis} of input {name!r} ({symbol!r}) is {size} in the sample; "
                    "give a sample of at least 2, because torch treats 0 and 1 as special"
                )
            source = ConstantSource(f"dynamic_{symbol}")
            expression = self.shape_env.create_symbol(size, source, dynamic_dim=DimDynamic.DYNAMIC)
            made = self.shape_env.create_symintnode(expression, hint=size, source=source)
            assert isinstance(made, torch.SymInt)
            self._by_name[symbol] = made
            self._sample_size[symbol] = size
        elif self._sample_size[symbol] != size:
            raise CaptureError(
                f"dynamic: {symbol!r} is {self._sample_size[symbol]} elsewhere "
                f"but {size} in dimension {axis} of input {name!r}"
            )
        return self._by_name[symbol]

    def check(self) -> None:
        """Refuse a symbol that the function fixed, and conditions on symbols that the graph would take for granted."""
        for name, symbol in self._by_name.items():
            expression = self.shape_env.simplify(symbol.node.expr)
            if expression.is_number:
                where = next((_line(g) for g in self.shape_env.guards if symbol.node._expr in g.expr.free_symbols), "")
                raise CaptureError(
                    f"{where}the symbolic dimension {name!r} is used as the fixed number {expression}: a shape in the "
                    "function or a weight is tied to the sample's size; take sizes from x.shape, or leave it out of "
                    "dynamic"
                )
        for guard in self.shape_env.guards:
            if self._numbers.is_about_numbers(guard.expr) or _is_harmless(guard):
                continue
            raise CaptureError(
                f"{_line(guard)}the function takes a branch on a symbolic dimension ({self._named(guard.expr)}), which "
                "only holds for some sizes; write it without that condition, or leave the dimension out of dynamic"
            )

    def dim(self, size: int | torch.SymInt) -> int | str:
        """A dimension for ONNX: a number, a user's name, or an expression of names."""
        if isinstance(size, int):
            return size
        return self._named(self.shape_env.simplify(size.node.expr))

    def _named(self, expression: Any) -> str:
        names = {s.node._expr: sympy.Symbol(n, integer=True, positive=True) for n, s in self._by_name.items()}
        return str(expression.xreplace(names)).replace(" ", "")


def _line(guard: ShapeGuard) -> str:
    """ "file.py:42: " of the line that asked, as far as torch kept it."""
    user, frame = guard.sloc.maybe_user_loc, guard.sloc.framework_loc
    if user is not None:
        return f"{user.partition(' in ')[0].rpartition('/')[2]}: "
    if not isinstance(frame, traceback.FrameSummary) or is_internal(frame.filename):
        return ""
    return f"{os.path.basename(frame.filename)}:{frame.lineno}: "


def _is_harmless(guard: ShapeGuard) -> bool:
    """Whether the graph is right even where the condition does not hold, or it always holds.

    torch's own checks of arguments and of memory layout do not decide what is computed; nor does its question whether a
    size is 0 or 1, which is about strides.
    """
    frame = guard.sloc.framework_loc
    if isinstance(frame, traceback.FrameSummary) and is_internal(frame.filename):
        file = os.path.basename(frame.filename)
        if _LAYOUT_OR_CHECK.search(frame.name) or (file, frame.name) == ("fake_impls.py", "conv"):
            return True
        if isinstance(guard.expr, sympy.Ne) and guard.expr.rhs in (0, 1):
            return True
    return _holds_for_samples(guard.expr)


def _holds_for_samples(condition: Any) -> bool:
    """True for a condition such as n // 2 <= n, which sympy does not simplify. Few symbols only."""
    symbols = sorted(condition.free_symbols, key=str)
    if len(symbols) > 3:
        return False
    trials = itertools.product(_SAMPLES, repeat=len(symbols))
    return all(condition.xreplace(dict(zip(symbols, map(sympy.Integer, t)))) == True for t in trials)  # noqa: E712
