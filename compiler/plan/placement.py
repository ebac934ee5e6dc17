"""Where one value of an MNGraph is: its layout, device dtype, memory, address and the state of its padding.

A placement stands in `value.meta`; on save it is written to the value's metadata as JSON, so that a file keeps it.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir
from pfvm.errors import InvalidModelError

from .layout import Layout

KEY = "pfvm.placement"

Pad = Literal["Zero", "Dirty", "Lowest", "Highest", "One"]  # what stands in the padding; Dirty: anything
IMMEDIATE, DRAM = "IMM", "DRAM"


@dataclass(frozen=True)
class Placement:
    """One value's place.

    dtype: the device's ("Half", "Float", "Int"), apart from the ONNX type. location: "IMM" (a constant inside the
    program), "DRAM" or a local memory's name; None before the schedule decides. address: in the memory's own units;
    in DRAM per cell that has one. parent: the value whose memory this one names again (a reshape). gene: what each
    axis stands for (N batch, C channel, WC a weight's channel), "" for none. pad: None where nothing is known.
    """

    layout: Layout
    dtype: str
    location: str | None = None
    address: int | None = None
    pad: Pad | None = None
    parent: str | None = None
    gene: tuple[str, ...] = ()

    def to_json(self) -> str:
        """One line of JSON that `from_json` reads."""
        return json.dumps({**dataclasses.asdict(self), "layout": str(self.layout)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Placement:
        """The placement that `to_json` wrote. Raises InvalidModelError."""
        try:
            fields = json.loads(text)
            return cls(**{**fields, "layout": Layout.parse(fields["layout"]), "gene": tuple(fields["gene"])})
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidModelError(f"metadata {KEY}: not a placement: {text!r} ({error})") from error


def placement_of(value: ir.Value) -> Placement:
    """A value's placement. Raises InvalidModelError where it has none."""
    placement = find_placement(value)
    if placement is None:
        raise InvalidModelError(f"value {value.name!r} has no placement: this is not a planned graph")
    return placement


def find_placement(value: ir.Value) -> Placement | None:
    """A value's placement, None where it has none."""
    placement = value.meta.get(KEY)
    return placement if isinstance(placement, Placement) else None


def is_in_dram(value: ir.Value) -> bool:
    """Has the value a placement, and that in DRAM?"""
    placement = find_placement(value)
    return placement is not None and placement.location == DRAM


def place(value: ir.Value, placement: Placement) -> None:
    """Sets a value's placement."""
    value.meta[KEY] = placement


def move(value: ir.Value, **changes: object) -> Placement:
    """Changes fields of a value's placement and returns the new one."""
    placement = dataclasses.replace(placement_of(value), **changes)  # type: ignore[arg-type]
    place(value, placement)
    return placement
