"""The opset of a whole model moved to where ONNX Runtime has kernels.

ONNX Runtime reads every node of a file at one opset, model-local functions included. So an operator whose newest form
it lacks is had by lowering the whole model, which is right only where no operator in it changed its meaning.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import onnx
from pfvm.passes import schema

from .functions import all_nodes
from .kernels import has_kernel, kernels_at

# Below this ONNX Runtime has hardly any kernel; ONNX's own converter knows the way up.
_FIRST_OPSET = 7
# Same operands and attributes, another meaning: never lowered across these versions.
_MEANING_CHANGED = frozenset(
    {
        ("Softmax", 13),
        ("LogSoftmax", 13),
        ("Hardmax", 13),
        ("Cast", 9),
        ("AveragePool", 19),
        ("AveragePool", 22),
        ("MaxPool", 22),
        ("Mod", 28),
        ("Resize", 13),
        ("Resize", 19),
        ("RoiAlign", 16),
        ("GroupNormalization", 21),
        ("ScatterElements", 16),
        ("ScatterND", 16),
        ("Cast", 19),
        ("TopK", 11),
        ("Upsample", 9),
        ("Mod", 13),
        ("BatchNormalization", 14),
        ("BatchNormalization", 9),
        ("GridSample", 20),
        ("DFT", 20),
        ("CastLike", 19),
    }
)


def lowest_kernel(op_type: str, since_version: int, types: Mapping[str, str]) -> int | None:
    """The newest older schema version of an ai.onnx operator with the same meaning and a kernel for these types."""
    version = since_version
    while version > 1:
        newer, older = schema.find("", op_type, version), schema.find("", op_type, version - 1)
        if newer is None or older is None or not _same_meaning(op_type, newer, older):
            return None
        version = older.since_version
        if has_kernel("", op_type, version, types):
            return version
    return None


@functools.cache
def lowers_to(op_type: str, opset: int, target: int) -> bool:
    """Does an ai.onnx operator mean the same at `target` as at `opset`?"""
    newer = schema.find("", op_type, opset)
    while newer is not None and newer.since_version > target:
        older = schema.find("", op_type, newer.since_version - 1)
        if older is None or not _same_meaning(op_type, newer, older):
            return False
        newer = older
    return newer is not None


def _same_meaning(op_type: str, newer: Any, older: Any) -> bool:
    return (op_type, newer.since_version) not in _MEANING_CHANGED and _signature(newer) == _signature(older)


def _signature(found: Any) -> tuple:
    """Operands and attributes with their defaults; the list of element types is not part of it."""
    attributes = {
        (name, a.type.value, a.required, a.default_value.SerializeToString()) for name, a in found.attributes.items()
    }
    operands = [[(f.name, f.type_str, f.option) for f in formals] for formals in (found.inputs, found.outputs)]
    return operands, attributes


def lower(model: onnx.ModelProto, target: int) -> bool:
    """Lowers the import of ai.onnx to `target`; False, and no change, where an operator would mean something else."""
    imports = default_import(model)
    opset = imports.version
    nodes = [n for n in all_nodes(model.graph.node) if not n.domain]
    functions = [f for f in model.functions if any(o.version == opset for o in f.opset_import if not o.domain)]
    nodes += [n for f in functions for n in all_nodes(f.node) if not n.domain]
    if not all(lowers_to(op_type, opset, target) for op_type in {n.op_type for n in nodes}):
        return False
    imports.version = target
    for function in functions:
        for each in function.opset_import:
            if not each.domain:
                each.version = target
    return True


def default_import(model: onnx.ModelProto) -> onnx.OperatorSetIdProto:
    """The import of ai.onnx."""
    return next(o for o in model.opset_import if not o.domain)


def is_too_old(model: onnx.ModelProto) -> bool:
    """Is it of opset 1 to 6 and holds an operator that has no kernel there?"""
    opset = default_import(model).version
    return opset < _FIRST_OPSET and _has_gap(all_nodes(model.graph.node), opset)


def raise_old(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model of opset 1 to 6 at opset 7, by ONNX's converter; the model itself where that fails."""
    stripped = onnx.ModelProto()
    stripped.CopyFrom(model)
    del stripped.graph.initializer[:]  # the converter would drop what lies outside the file
    given = {v.name for v in stripped.graph.input}
    stripped.graph.input.extend(
        onnx.helper.make_tensor_value_info(t.name, t.data_type, t.dims)
        for t in model.graph.initializer
        if t.name not in given
    )
    try:
        converted = onnx.version_converter.convert_version(stripped, _FIRST_OPSET)
    except Exception:  # no converter for an operator in it: ONNX Runtime's own message follows
        return model
    del converted.graph.input[:]
    converted.graph.input.extend(model.graph.input)
    converted.graph.initializer.extend(model.graph.initializer)
    return converted


def _has_gap(nodes: Iterable[onnx.NodeProto], opset: int) -> bool:
    for node in nodes:
        found = schema.find(node.domain, node.op_type, opset)
        if found is not None and not kernels_at(node.domain, node.op_type, found.since_version):
            return True
    return False
