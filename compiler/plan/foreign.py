"""Where a value of another compiler's program is: its layout as that compiler writes it, its memory, its address.

XLA's scheduled programs are read into the same graphs, texts and reports as ours; what they do not say is None.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass

import onnx_ir as ir

KEY = "pfvm.foreign_placement"


@dataclass(frozen=True)
class ForeignPlacement:
    """kind: whose layout it is ("XLA"). layout: its raw text (`{1,0:T(8,128)}`). dtype: as that compiler names it.

    parent: the value whose memory this one names again (a bitcast).
    """

    kind: str
    layout: str | None = None
    dtype: str | None = None
    location: str | None = None
    address: int | None = None
    parent: str | None = None

    def to_json(self) -> str:
        """One line of JSON, of what is known."""
        known = {key: value for key, value in dataclasses.asdict(self).items() if value is not None}
        return json.dumps(known, separators=(",", ":"))


def find_foreign(value: ir.Value) -> ForeignPlacement | None:
    """A value's place in another compiler's program, None where it has none."""
    placement = value.meta.get(KEY)
    return placement if isinstance(placement, ForeignPlacement) else None


def place_foreign(value: ir.Value, placement: ForeignPlacement) -> None:
    """Sets a value's place in another compiler's program."""
    value.meta[KEY] = placement
