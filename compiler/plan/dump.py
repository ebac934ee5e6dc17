"""The text of a planned graph, l3ir.txt, from its nodes and the places of its values."""

from __future__ import annotations

import re
from collections.abc import Iterator

import onnx_ir as ir
from pfvm.errors import InvalidModelError

from .foreign import ForeignPlacement, find_foreign
from .machine import Machine
from .mngraph import DOWNLOAD, GATHERED, UPLOAD, is_move
from .placement import DRAM, IMMEDIATE, Placement, placement_of
from .text import L3Node, L3Value, format_l3ir

GATHERED_FLAG = "gathered"
_DTYPE_NAMES = {"FLOAT": "FLOAT32", "DOUBLE": "FLOAT64"}  # where a dump's name is not ONNX's


def print_l3ir(model: ir.Model, machine: Machine | None) -> str:
    """The l3ir.txt of an MNGraph: its nodes stand in scheduled order, its values have placements.

    machine: None for another compiler's program, whose values have a ForeignPlacement. Raises InvalidModelError.
    """
    return format_l3ir(l3ir_nodes(model, machine))


def l3ir_nodes(model: ir.Model, machine: Machine | None) -> list[L3Node]:
    """The blocks that `print_l3ir` prints, one per node; those of a loop's body follow the loop."""
    return [_node_block(node, machine) for node in model.graph.all_nodes()]


def l3ir_name(value: ir.Value) -> str:
    """A value's name in the text: blanks, brackets and commas, which separate names there, as %20; so are gaps."""
    return re.sub(
        r"[\s(),%…]|\.{3}", lambda match: "".join(f"%{byte:02X}" for byte in match[0].encode()), value.name or ""
    )


def _node_block(node: ir.Node, machine: Machine | None) -> L3Node:
    given = list(node.inputs)
    while given and given[-1] is None:
        given.pop()
    is_transfer = is_move(node) and node.op_type in (DOWNLOAD, UPLOAD)
    outputs = [out for out in node.outputs if out.name]
    return L3Node(
        node.op_type,
        tuple(None if value is None else _value_line(value, machine, is_transfer) for value in given),
        tuple(_value_line(value, machine, is_transfer) for value in outputs),
        tuple("" if value is None else l3ir_name(value) for value in given) + _attribute_names(node),
        tuple(l3ir_name(value) for value in outputs),
        (*((GATHERED_FLAG,) if GATHERED in node.metadata_props else ()), *_figures(node)),
    )


def _figures(node: ir.Node) -> Iterator[str]:
    """Of another compiler's program: the cycles that it states for a node, and how often a loop runs."""
    for name, shown in (("estimated_cycles", "cycles"), ("trips", "trips")):
        attribute = node.attributes.get(name)
        if attribute is not None and attribute.type == ir.AttributeType.INT and not is_move(node):
            yield f"{shown}={attribute.as_int()}"


def _attribute_names(node: ir.Node) -> tuple[str, ...]:
    """Attributes that are set; a constant's value is data, and is not listed."""
    if node.op_type == "Constant":
        return ()
    data = (ir.AttributeType.TENSOR, ir.AttributeType.TENSORS, ir.AttributeType.SPARSE_TENSOR)
    return tuple(name for name, attribute in node.attributes.items() if attribute.type not in data)


def _value_line(value: ir.Value, machine: Machine | None, is_transfer: bool) -> L3Value:
    foreign = find_foreign(value)
    if foreign is not None:
        fields = _foreign_fields(foreign)
    elif machine is not None:
        fields = _fields(placement_of(value), machine, is_transfer)
    else:
        raise InvalidModelError(f"value {value.name!r} has no place in another compiler's program, and no machine")
    lines = (("onnx_type", _type_text(value)), *fields)
    return L3Value(l3ir_name(value), tuple((key, str(text)) for key, text in lines if text is not None))


def _fields(placement: Placement, machine: Machine, is_transfer: bool) -> list[tuple[str, str | int | None]]:
    layout = placement.layout
    return [
        ("num_lw", layout.num_lw(machine.local_memories[0].granularity)),
        ("padded_shape", ",".join(map(str, layout.padded_shape))),
        ("layout", f"PadLayout{{{layout}}}"),
        ("layout_kind", "MNCore"),
        ("dtype", placement.dtype),
        ("gene", f"[{','.join(placement.gene)}]"),
        ("pad_type", placement.pad),
        ("loc_kind", None if is_transfer else _location_kind(placement.location)),
        ("loc", placement.location),
        ("addr", placement.address),
        ("parent", placement.parent),
    ]


def _location_kind(location: str | None) -> str | None:
    return location if location in (None, IMMEDIATE, DRAM) else "LM"


def _foreign_fields(placement: ForeignPlacement) -> list[tuple[str, str | int | None]]:
    return [
        ("layout", placement.layout),
        ("layout_kind", placement.kind),
        ("dtype", placement.dtype),
        ("loc_kind", placement.location),
        ("loc", placement.location),
        ("addr", placement.address),
        ("parent", placement.parent),
    ]


def _type_text(value: ir.Value) -> str | None:
    if value.dtype is None or value.shape is None:
        return None
    dims = ",".join(str(dim) for dim in value.shape)
    return f"Tensor(dtype={_DTYPE_NAMES.get(value.dtype.name, value.dtype.name)} shape={dims})"
