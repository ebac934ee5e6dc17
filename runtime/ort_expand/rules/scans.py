"""Scan along other axes than the first. ONNX Runtime's kernel moves them itself, and divides by their length: where
that is 0, the process ends with a floating-point exception. Along the first axis it raises an error."""

from __future__ import annotations

from pfvm.runtime.ort_expand.node import Builder, Node

AXES = "scan_input_axes"


def _first_axis(node: Node, b: Builder) -> list[str] | None:
    """x → Transpose → Scan along axis 0, for each input whose rank is known and whose length may be 0."""
    axes = list(node.attr(AXES, ()))
    inputs = node.inputs
    first = len(inputs) - len(axes)  # carried values stand before those that are scanned
    moved = [0] * len(axes)
    for i, axis in enumerate(axes):
        shape = node.shape(first + i)
        if not axis or shape is None or shape[axis]:
            moved[i] = axis
            continue
        others = [a for a in range(len(shape)) if a != axis % len(shape)]
        inputs[first + i] = b.op("Transpose", inputs[first + i], perm=[axis % len(shape), *others])
    return None if moved == axes else b.copy(node, inputs=inputs, scan_input_axes=moved)


RULES = {("", "Scan"): _first_axis}
