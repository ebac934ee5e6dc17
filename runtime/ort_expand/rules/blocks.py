"""Col2Im with dilations, which ONNX Runtime (1.32) leaves out but for two spatial axes: two axes at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pfvm.errors import UnsupportedOpError
from pfvm.runtime.ort_expand.node import Builder, Node, Rule


def _col2im(node: Node, b: Builder) -> list[str] | None:
    dilations = list(node.attr("dilations", ()))
    rank = len(dilations)
    if rank == 2 or all(d == 1 for d in dilations):
        return None
    strides, pads = node.attr("strides", [1] * rank), node.attr("pads", [0] * 2 * rank)
    if rank == 1:
        image, block = (b.op("Concat", b.ints(1), node.input(i), axis=0) for i in (1, 2))
        folded = _fold(node.input(0), image, block, [1, *dilations], [1, *strides], [0, pads[0], 0, pads[1]], b)
        return [b.squeeze(folded, 2)]
    image_shape, block_shape = node.constant(1), node.constant(2)
    if image_shape is None or block_shape is None:
        raise UnsupportedOpError(
            f"node {node.proto.name or node.proto.output[0]!r} (Col2Im): with dilations and {rank} spatial axes, "
            "image_shape and block_shape must be constants on this device; make them initializers"
        )
    sizes, kernel = [int(n) for n in image_shape], [int(k) for k in block_shape]
    padded = [n + p + q for n, p, q in zip(sizes, pads[:rank], pads[rank:])]
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, d, k, s in zip(padded, dilations, kernel, strides)]
    # One axis after the other: [N, C, *kernel, *counts] → [N, C, *kernel without the last, *counts without it, size] …
    x = b.op("Reshape", node.input(0), b.ints(0, -1, *kernel, *counts))
    for axis in reversed(range(rank)):
        done = rank - 1 - axis
        last = [2 + axis, 2 + axis + 1 + axis]  # its places in the kernel and its windows
        others = [i for i in range(2 + 2 * (axis + 1) + done) if i not in last]
        x = b.op("Transpose", x, perm=[*others, *last])
        rest = [*kernel[:axis], *counts[:axis], *sizes[axis + 1 :]]
        dims = b.op("Concat", b.dims(x, 0, 2), b.ints(*rest, sizes[axis]), axis=0)
        x = b.op("Reshape", x, b.ints(-1, kernel[axis], counts[axis]))
        steps = [1, dilations[axis]], [1, strides[axis]], [0, pads[axis], 0, pads[rank + axis]]
        x = b.op("Reshape", _fold(x, b.ints(1, sizes[axis]), b.ints(1, kernel[axis]), *steps, b), dims)
        # The axis comes before those that were done: the order of the image.
        first = 2 + 2 * axis
        x = b.op("Transpose", x, perm=[*range(first), first + done, *range(first, first + done)])
    return [x]


def _fold(
    x: str, image: str, block: str, dilations: Sequence[int], strides: Sequence[int], pads: Sequence[int], b: Builder
) -> str:
    """Col2Im over two axes."""
    return b.op("Col2Im", x, image, block, dilations=list(dilations), strides=list(strides), pads=list(pads))


RULES: Mapping[tuple[str, str], Rule] = {("", "Col2Im"): _col2im}
