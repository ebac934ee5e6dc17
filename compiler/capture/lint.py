"""`lint`: everything in a function that cannot be captured, not only the first thing.

A refused function is run once more on tensors without values. What needs a value gets a plausible one, and is noted
with its line, so that the run goes on to the next.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree
from pfvm.errors import CaptureError
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from . import optimizers
from .aten import TABLE
from .decompose import DECOMPOSITIONS
from .dtypes import to_torch
from .export import capture
from .fake_swap import SWAP_LOCK, fake_swap
from .functional import changed_in_place
from .library_forms import library_forms
from .position import in_position
from .random import RandomStreams
from .reach import Reach, walk
from .run import DATA_DEPENDENT, DYNAMIC_SHAPE
from .settings import tracing_settings, untouched
from .source import higher_order, in_optimizer, origin
from .structure import argument_names, arguments, describe
from .surroundings import watch

_READ_NUMBER = torch.ops.aten._local_scalar_dense.default
_READS = (torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__)
_PLACE = re.compile(r"^(?P<where>(\S+:\d+|module '[^']*')): (?P<text>.*)$", re.DOTALL)


@dataclass(frozen=True)
class Finding:
    """One thing that cannot be captured: `where` is "file.py:42" ("" where no line is known), `text` says what is wrong
    and what to write instead."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text}" if self.where else self.text


def lint(
    fn: Callable[..., Any], sample: Any, *, dynamic: Mapping[str, Mapping[int, str]] | None = None
) -> list[Finding]:
    """What of `fn` cannot be captured, in the order in which it runs; nothing where it can.

    One path through the function is looked at: where Python asks for a value, the answer is 1, or True.

    fn, sample, dynamic: as for `pfvm.export`; `sample` has the shapes and dtypes that calls will have. No kernel runs,
    and nothing of the caller's changes.

    Raises nothing for what cannot be captured: each is a `Finding` with its place and what to write instead.
    """
    try:
        capture(fn, sample, dynamic=dynamic)
    except CaptureError as error:
        found = _Findings()
        with contextlib.suppress(Exception):  # whatever the function raises where its values are made up
            _run_through(fn, sample, found)
        found.add_error(error)
        return list(found.items)
    return []


class _Findings:
    """Each finding once."""

    def __init__(self) -> None:
        self.items: dict[Finding, None] = {}

    def add(self, where: str, text: str) -> None:
        self.items.setdefault(Finding(where, text))

    def add_error(self, error: CaptureError) -> None:
        """The refusal itself, unless the run through the function has met it as well."""
        match = _PLACE.match(str(error))
        finding = Finding(match["where"], match["text"]) if match else Finding("", str(error))
        if not any(f.where == finding.where for f in self.items):
            self.items.setdefault(finding)


def _run_through(fn: Callable[..., Any], sample: Any, found: _Findings) -> None:
    fn = getattr(fn, "_orig_mod", fn)
    args = arguments(sample)
    names = argument_names(fn, len(args), sample)
    inputs, given = describe(args, lambda v: isinstance(v, (torch.Tensor, np.ndarray)), "input", names)
    samples = [to_torch(v) if isinstance(v, np.ndarray) else v for v in given]
    with SWAP_LOCK:
        reach = walk(fn, watch(fn).functions)
        tensors = [t.tensor for t in (*reach.tensors, *optimizers.find(reach).tensors)]
        for tensor in tensors:
            tensor.detach()  # values that are on a device come now
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        with (
            untouched(reach),
            tracing_settings(),
            fake_swap(mode, tensors),
            mode,
            optimizers.traced_optimizers(reach, []),
            _Reads(reach, found),
            library_forms(),
            _Ops(reach, found, mode) as ops,
        ):
            fakes = {
                name: torch.empty_strided(s.size(), s.stride(), dtype=s.dtype).requires_grad_(s.requires_grad)
                for name, s in zip(inputs.tensor_names, samples)
            }
            ops.inputs = {_memory(fake): name for name, fake in fakes.items()}
            fn(*inputs.pack(fakes))


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


class _Reads(TorchFunctionMode):
    """`.numpy()` and `.tolist()`, which give an array of ones."""

    def __init__(self, reach: Reach, found: _Findings) -> None:
        super().__init__()
        self._names, self._found = reach.module_names, found

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func not in _READS:
            return func(*args, **(kwargs or {}))
        self._found.add(origin(sys._getframe(1), self._names).where, DATA_DEPENDENT)
        ones = np.ones(args[0].shape)
        return ones.tolist() if func is torch.Tensor.tolist else ones


class _Ops(TorchDispatchMode):
    """Ops that read a value, have a shape that depends on values, draw numbers in an unknown way, write to an input, or
    have no rule."""

    supports_higher_order_operators = True  # so that they are noted

    def __init__(self, reach: Reach, found: _Findings, fakes: FakeTensorMode) -> None:
        super().__init__()
        self._names, self._found, self._fakes = reach.module_names, found, fakes
        self._streams = RandomStreams(None)
        self.inputs: dict[int, str] = {}  # memory → name

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        frame = sys._getframe(1)
        if func is _READ_NUMBER:
            if in_position(frame):
                return 0
            if not in_optimizer(frame):
                self._found.add(origin(frame, self._names).where, DATA_DEPENDENT)
            return 1.0 if args[0].dtype.is_floating_point else args[0].dtype is torch.bool or 1
        if isinstance(func, torch._ops.HigherOrderOperator):  # those for control flow run their bodies here
            self._found.add(origin(frame, self._names).where, higher_order(func))
            raise CaptureError(higher_order(func))
        if func._schema.is_mutable and args and _memory(args[0]) in self.inputs:
            self._found.add(origin(frame, self._names).where, changed_in_place(self.inputs[_memory(args[0])]))
        text = self._problem(func, args)
        if text:
            self._found.add(origin(frame, self._names).where, text)
            return self._made_up(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _problem(self, func: Any, args: tuple[Any, ...]) -> str:
        if torch.Tag.dynamic_output_shape in func.tags and not _is_index_by_numbers(func, args):
            return f"{func}: {DYNAMIC_SHAPE}"
        if torch.Tag.nondeterministic_seeded in func.tags:
            return "" if self._streams.knows(func) else f"random op {func} cannot be captured; draw it from torch.rand"
        if func.namespace == "prim" or func in TABLE or func in DECOMPOSITIONS or func._schema.is_mutable:
            return ""
        return f"ATen op {func} has no translation to ONNX; write this line with other torch functions"

    def _made_up(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Tensors without values, of the shapes that the op gives for ones."""
        with _disable_current_modes():
            ones = pytree.tree_map_only(torch.Tensor, lambda t: torch.ones(t.shape, dtype=t.dtype), (args, kwargs))
            result = func(*ones[0], **ones[1])
        return pytree.tree_map_only(torch.Tensor, self._fakes.from_tensor, result)


def _is_index_by_numbers(func: Any, args: tuple[Any, ...]) -> bool:
    """x[i] with integers has the indices' shape; only masks choose how many."""
    masks = (torch.bool, torch.uint8)
    return func is torch.ops.aten.index.Tensor and not any(i is not None and i.dtype in masks for i in args[1])
