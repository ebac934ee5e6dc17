"""BatchNormalization in training mode. ONNX Runtime's kernel computes the running statistics in the memory of those
that it is given: of initializers, which other nodes and later calls read, and of the caller's arrays."""

from __future__ import annotations

from pfvm.runtime.ort_expand.node import Builder, Node

TRAINING_MODE = "training_mode"


def _training(node: Node, b: Builder) -> list[str] | None:
    """The statistics of the batch by reductions, and with them the normalization of inference.

    running' = running · momentum + batch · (1 − momentum), with the variance of the population.
    """
    rank, dtype = node.rank(0), node.dtype(0)
    if not node.attr(TRAINING_MODE, 0) or dtype is None or {node.dtype(i) for i in range(5)} != {dtype}:
        return None
    x, scale, bias, *running = node.inputs
    # Of unknown rank, it becomes [batch, channels, others].
    values = x if rank is not None else b.op("Reshape", x, b.ints(0, 0, -1))
    axes = [axis for axis in range(3 if rank is None else rank) if axis != 1]
    mean = b.reduce("ReduceMean", values, axes)
    centred = b.op("Sub", values, mean)
    variance = b.reduce("ReduceMean", b.op("Mul", centred, centred), axes, keepdims=0)
    batch = [b.squeeze(mean, *axes), variance]
    y = b.op("BatchNormalization", x, scale, bias, *batch, epsilon=node.attr("epsilon"))
    momentum = node.attr("momentum")
    old, new = b.scalar(momentum, dtype), b.scalar(1 - momentum, dtype)
    return [y, *(b.op("Add", b.op("Mul", r, old), b.op("Mul", s, new)) for r, s in zip(running, batch))]


RULES = {("", "BatchNormalization"): _training}
