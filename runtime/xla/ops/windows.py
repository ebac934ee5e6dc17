"""Geometry of sliding windows: pads, output sizes and patches, shared by convolutions and pools."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from jax import lax
from pfvm.runtime.xla.context import Context, MisfitError


@dataclasses.dataclass(frozen=True)
class Window:
    """One sliding window over the spatial axes (axes 2… of N, C, spatial)."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads: tuple[tuple[int, int], ...]

    def output_size(self, size: tuple[int, ...]) -> tuple[int, ...]:
        spans = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations)]
        return tuple((n + a + b - k) // s + 1 for n, (a, b), k, s in zip(size, self.pads, spans, self.strides))

    def taps(self) -> Iterator[tuple[int, ...]]:
        """Every position inside the kernel."""
        return itertools.product(*(range(k) for k in self.kernel))

    def unpadded(self) -> Window:
        """The same over an operand that is padded already."""
        return dataclasses.replace(self, pads=((0, 0),) * len(self.kernel))

    def bounds(
        self, shape: Sequence[int], tap: tuple[int, ...], first: int
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Starts, limits and strides of the slice that `shifted` takes of an operand of `shape`."""
        last = first + len(self.kernel)
        begin, end = [0] * len(shape), list(shape)
        spans = [(k - 1) * d for k, d in zip(self.kernel, self.dilations)]
        for axis, (t, d, s, span) in enumerate(zip(tap, self.dilations, self.strides, spans), first):
            begin[axis] = t * d
            end[axis] = begin[axis] + (shape[axis] - span - 1) // s * s + 1
        return tuple(begin), tuple(end), (1,) * first + self.strides + (1,) * (len(shape) - last)

    def shifted(self, x: Any, tap: tuple[int, ...], first: int = 2) -> Any:
        """The operand (already padded) as kernel position `tap` sees it: one element for each output position.

        `first` is its first spatial axis.
        """
        return lax.slice(x, *self.bounds(x.shape, tap, first))


def read_window(ctx: Context, size: tuple[int, ...], kernel: tuple[int, ...]) -> Window:
    """The window that the node's attributes describe for an operand with spatial `size`; auto_pad is resolved."""
    rank = len(size)
    strides = tuple(ctx.attr("strides", None) or (1,) * rank)
    dilations = tuple(ctx.attr("dilations", None) or (1,) * rank)
    auto = ctx.attr("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        pads = []
        for n, k, s, d in zip(size, kernel, strides, dilations):
            total = max(0, (-(-n // s) - 1) * s + (k - 1) * d + 1 - n)
            small, large = total // 2, total - total // 2
            pads.append((small, large) if auto == "SAME_UPPER" else (large, small))
    elif auto == "VALID":
        pads = [(0, 0)] * rank
    else:
        flat = ctx.attr("pads", None) or [0] * (2 * rank)
        pads = list(zip(flat[:rank], flat[rank:]))
    return Window(tuple(kernel), strides, dilations, tuple(pads))


def check_fits(ctx: Context, size: tuple[int, ...], window: Window) -> None:
    """Raises MisfitError where the window is larger than the padded operand with spatial `size`.

    ONNX's formula gives no window then; ONNX Runtime refuses it for a convolution, too, and gives nothing for a pool.
    """
    for n, k, d, (a, b) in zip(size, window.kernel, window.dilations, window.pads):
        if (k - 1) * d + 1 > n + a + b:
            padding = f" with pads of {a} and {b}" if a or b else ""
            raise MisfitError(f"{ctx.where}: its window of {k} is larger than the input's {n}{padding}")
