"""The operators that the emulator computes."""

from __future__ import annotations

import onnx

from .elementwise import ELEMENTWISE
from .kernels import PRODUCTS
from .reductions import REDUCTIONS

_OWN_KERNELS = (*ELEMENTWISE, *PRODUCTS, *REDUCTIONS, "Cast", "Clip", "Softmax", "LogSoftmax", "Constant")
_BODIES = ("If", "Loop", "Scan", "SequenceMap")  # resolved before there is a plan, or refused
_NO_TENSORS = ("Sequence", "Optional", "String", "Regex", "SplitToSequence", "ConcatFromSequence", "TfIdf")
_RANDOM = ("Random", "Bernoulli", "Multinomial", "Dropout", "ImageDecoder")


def supported_ops() -> dict[tuple[str, str], tuple[int, ...]]:
    """(domain, operator) → the opset versions from which it runs: those with a kernel here or in onnx.reference."""
    from onnx.reference.ops._op_list import _build_registered_operators

    reference = set(_build_registered_operators())
    found: dict[tuple[str, str], set[int]] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        name = schema.name
        excluded = name in _BODIES or name.startswith((*_NO_TENSORS, *_RANDOM))
        if schema.domain == "" and not excluded and (name in _OWN_KERNELS or name in reference):
            found.setdefault(("", name), set()).add(schema.since_version)
    return {key: tuple(sorted(found[key])) for key in sorted(found)}
