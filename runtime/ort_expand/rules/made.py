"""Operators whose results have the type that an attribute names: diagonals, windows, random numbers."""

from __future__ import annotations

from collections.abc import Mapping

from onnx import TensorProto
from pfvm.runtime.ort_expand.kernels import kernels_at
from pfvm.runtime.ort_expand.node import Builder, Node, Rule

_T = TensorProto


def _in_float(node: Node, b: Builder) -> list[str] | None:
    """In float, and cast. ONNX Runtime's own casts around a kernel of float16 leave the attribute as it is."""
    name = "output_datatype" if node.op_type.endswith("Window") else "dtype"
    dtype = node.attr(name) or node.dtype(0)
    if node.schema is None or not dtype or _makes(node, node.schema.outputs[0].type_str, dtype):
        return None
    return [b.cast(b.copy(node, **{name: _T.FLOAT})[0], dtype)]


def _eye_like(node: Node, b: Builder) -> list[str] | None:
    """Of a matrix in float, as only its shape counts."""
    given, dtype = node.dtype(0), node.attr("dtype") or node.dtype(0)
    if not given or (_makes(node, "T1", given) and _makes(node, "T2", dtype)):
        return None
    ones = b.copy(node, inputs=[b.cast(node.input(0), _T.FLOAT)], dtype=_T.FLOAT)[0]
    return [b.cast(ones, dtype)]


def _makes(node: Node, parameter: str, dtype: int) -> bool:
    """Whether a kernel has this type, no cast around it."""
    text = f"tensor({_T.DataType.Name(dtype).lower()})"
    kernels = kernels_at("", node.op_type, node.since_version)
    return any(text in kernel.types.get(parameter, ()) for kernel in kernels)


_TYPED = ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
_WINDOWS = ("BlackmanWindow", "HammingWindow", "HannWindow")

RULES: Mapping[tuple[str, str], Rule] = {
    ("", "EyeLike"): _eye_like,
    **{("", name): _in_float for name in (*_TYPED, *_WINDOWS)},
}
