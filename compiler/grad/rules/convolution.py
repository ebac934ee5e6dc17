"""Convolutions: each gradient is a convolution, too.

The pads of a window that leaves the last rows unread (their number is the remainder of a stride) are put right
afterwards, by Pad, so that sizes need not be known.
"""

from __future__ import annotations

import onnx_ir as ir
from pfvm.compiler.grad.builder import Builder
from pfvm.compiler.grad.registry import ForwardNode, Gradients, NotCovered, gradient_of
from pfvm.passes.dims import static_shape

V = ir.Value


class _Window:
    """Strides, dilations, pads and groups of a convolution whose data has `rank` spatial axes."""

    def __init__(self, n: ForwardNode, kernel: V, data: V) -> None:
        shape = static_shape(kernel)
        if shape is None:
            raise NotCovered
        self.kernel = shape[2:]
        rank = len(self.kernel)
        self.strides = list(n.attr("strides", (1,) * rank))
        self.dilations = list(n.attr("dilations", (1,) * rank))
        self.group = n.attr("group")
        self.pads = list(n.attr("pads", (0,) * 2 * rank))
        auto = n.attr("auto_pad", "NOTSET")
        if auto.startswith("SAME"):
            self.pads = self._same(data, auto)
        elif auto == "VALID":
            self.pads = [0] * 2 * rank

    def _same(self, data: V, auto: str) -> list[int]:
        sizes = [d for d in list(data.shape or ())[2:] if isinstance(d, int)]
        if len(sizes) != len(self.kernel):
            raise NotCovered
        before, after = [], []
        for size, k, s, d in zip(sizes, self.kernel, self.strides, self.dilations):
            total = max((-(-size // s) - 1) * s + (k - 1) * d + 1 - size, 0)
            small, large = total // 2, total - total // 2
            before.append(small if auto == "SAME_UPPER" else large)
            after.append(large if auto == "SAME_UPPER" else small)
        return before + after


def _grad_data(b: Builder, dy: V, kernel: V, x: V, w: _Window) -> V:
    """Of a convolution's data: the transposed convolution, with the rows that the last window left out."""
    rank = len(w.kernel)
    head, tail = w.pads[:rank], w.pads[rank:]
    if not any(w.kernel[i] > 1 or w.strides[i] > 1 for i in range(rank)) and not any(w.pads):
        return b.op("ConvTranspose", dy, kernel, group=w.group)
    given = {"strides": w.strides, "dilations": w.dilations, "group": w.group}
    if all(s == 1 for s in w.strides):
        return b.op("ConvTranspose", dy, kernel, **given, pads=w.pads)
    sizes, out = list(x.shape or ())[2:], list(dy.shape or ())[2:]
    if sizes and all(isinstance(d, int) for d in (*sizes, *out)):
        rest = [
            int(n) + p + q - ((int(o) - 1) * s + (k - 1) * d + 1)
            for n, o, p, q, k, s, d in zip(sizes, out, head, tail, w.kernel, w.strides, w.dilations)
        ]
        if all(0 <= r < s for r, s in zip(rest, w.strides)):
            return b.op("ConvTranspose", dy, kernel, **given, pads=w.pads, output_padding=rest)
    full = b.op("ConvTranspose", dy, kernel, **given, pads=[*head, *[0] * rank])
    missing = b.sub(b.shape(x, 2), b.op("Shape", full, start=2))
    pads = b.op("Concat", b.ints(*[0] * (rank + 4)), missing, axis=0)
    return b.op("Pad", full, pads, b.like(0, full))


def _grad_kernel(b: Builder, x: V, dy: V, kernel: V, w: _Window) -> V:
    """Of a convolution's kernel: data and gradient convolved with batch and channels exchanged."""
    rank = len(w.kernel)
    a, g = b.transpose(x, [1, 0, *range(2, rank + 2)]), b.transpose(dy, [1, 0, *range(2, rank + 2)])
    if w.group > 1:
        # [G·C, N, …] → [C, G·N, …]: group by group along the channel axis.
        spatial = b.shape(x, 2)
        split = b.op("Concat", b.ints(w.group, -1), b.shape(x, 0, 1), spatial, axis=0)
        parted = b.transpose(b.op("Reshape", a, split), [1, 0, *range(2, rank + 3)])
        joined = b.op("Concat", b.ints(int(kernel.shape[1]), -1), spatial, axis=0)  # type: ignore[index, arg-type]
        a = b.op("Reshape", parted, joined)
    found = b.op("Conv", a, g, strides=w.dilations, dilations=w.strides, pads=w.pads, group=w.group)
    axes = b.ints(*range(2, rank + 2))
    cut = b.op("Slice", found, b.ints(*[0] * rank), b.ints(*w.kernel), axes)
    return b.transpose(cut, [1, 0, *range(2, rank + 2)])


def _grad_bias(b: Builder, dy: V) -> V:
    return b.sum(dy, [0, *range(2, b.rank(dy))], keepdims=False)


@gradient_of("Conv")
def _conv(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    window = _Window(n, n.x(1), n.x())
    dx = _grad_data(b, dy, n.x(1), n.x(), window) if n.wants(0) else None
    dw = _grad_kernel(b, n.x(), dy, n.x(1), window) if n.wants(1) else None
    return [dx, dw, _grad_bias(b, dy) if n.wants(2) else None][: n.count]


@gradient_of("ConvTranspose")
def _conv_transpose(b: Builder, n: ForwardNode, dy: V) -> Gradients:
    if n.view.attr("output_shape") is not None or n.attr("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        raise NotCovered
    w = _Window(n, n.x(1), n.x())
    given = {"strides": w.strides, "dilations": w.dilations, "group": w.group, "pads": w.pads}
    dx = b.op("Conv", dy, n.x(1), **given) if n.wants(0) else None
    dw = _grad_kernel(b, dy, n.x(), n.x(1), w) if n.wants(1) else None
    return [dx, dw, _grad_bias(b, dy) if n.wants(2) else None][: n.count]
