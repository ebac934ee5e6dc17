"""TPU topologies ("v5e:2x2") and the published figures of their chips. Loads neither jax nor libtpu.

What XLA's compiler estimates is in cycles; a time needs the clock, which Google publishes for two chips only. The
others' follows from what is published: a matrix unit does one multiply-add a cell and cycle at its peak, so
clock = peak / (2 · cells · units). Nothing is fitted to estimates; without a clock there is no time.
"""

from __future__ import annotations

import functools
import itertools
import math
import pathlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pfvm.errors import OptionError, did_you_mean

_EXAMPLES = {2: ("1x1", "2x2", "2x4", "4x4"), 3: ("1x1x1", "2x2x1", "2x2x2")}
# The peak that counts for operands of an XLA type: products of float32 are made of bf16 ones.
_RATES = {
    **dict.fromkeys(("f16", "bf16", "f32", "f64"), "bf16"),
    **dict.fromkeys(("s4", "u4", "s8", "u8"), "int8"),
}


class Figure(NamedTuple):
    """A published figure and where it is published."""

    value: float
    source: str


@dataclass(frozen=True)
class Chip:
    """One generation of TPUs. `figures` by name as in tpu_chips.toml, `peaks` in TFLOP/s of a chip by dtype.

    kind: its name in XLA. dims: of its topologies. clock_unknown: why there is no clock, None where there is one.
    """

    name: str
    kind: str
    dims: int
    figures: Mapping[str, Figure]
    peaks: Mapping[str, Figure]
    clock_unknown: str | None = None

    @property
    def devices(self) -> int:
        """How many devices of XLA a chip is."""
        return int(self.figures["devices"].value)

    @property
    def peak_flops(self) -> float:
        """Operations a second of one device at bf16, 2 a multiply-add."""
        return self.peaks["bf16"].value * 1e12 / self.devices

    def peak_for(self, xla_type: str) -> float:
        """The peak of one device for products of this XLA type; the largest of all where none is published for it."""
        rate = _RATES.get(xla_type, "fp8" if xla_type.startswith("f8") else "")
        known = self.peaks.get(rate)
        best = max(figure.value for figure in self.peaks.values()) if known is None else known.value
        return best * 1e12 / self.devices

    @property
    def clock_hz(self) -> float | None:
        """Cycles a second, None where it is not known."""
        if self.clock_unknown is not None:
            return None
        return self.peak_flops / (2 * self.figures["cells"].value * self.figures["units_per_device"].value)

    @property
    def formula(self) -> str:
        """How the clock follows from published figures, or why it does not."""
        if self.clock_unknown is not None:
            return self.clock_unknown
        cells, units = int(self.figures["cells"].value), int(self.figures["units_per_device"].value)
        return f"clock = peak / (2 · cells · units) = {self.peak_flops / 1e12:g} TFLOP/s / (2 · {cells} · {units})"

    @property
    def hbm_bytes(self) -> int:
        """Memory of one device."""
        return int(self.figures["hbm_gib"].value * 2**30) // self.devices

    @property
    def bandwidth(self) -> float:
        """Bytes a second between one device and its memory."""
        return self.figures["hbm_gb_s"].value * 1e9 / self.devices

    def sources(self) -> dict[str, dict[str, Any]]:
        """Every figure with its source, for reports."""
        peaks = {f"peak_tflops.{dtype}": figure for dtype, figure in self.peaks.items()}
        return {name: figure._asdict() for name, figure in {**self.figures, **peaks}.items()}


@dataclass(frozen=True)
class Topology:
    """Chips of one kind in a mesh: v5e:2x2."""

    chip: Chip
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """As in a device string."""
        return f"{self.chip.name}:{'x'.join(map(str, self.shape))}"

    @property
    def chips(self) -> int:
        """How many chips it has."""
        return math.prod(self.shape)

    @property
    def devices(self) -> int:
        """How many devices of XLA it has."""
        return self.chips * self.chip.devices


@functools.cache
def chips() -> dict[str, Chip]:
    """Every known chip by name."""
    table = tomllib.loads(pathlib.Path(__file__).with_name("tpu_chips.toml").read_text(encoding="utf-8"))
    return {name: _chip(name, row) for name, row in table.items()}


def _chip(name: str, row: Mapping[str, Any]) -> Chip:
    peaks = {dtype: Figure(**figure) for dtype, figure in row["peak_tflops"].items()}
    figures = {
        key: Figure(**value) for key, value in row.items() if isinstance(value, Mapping) and key != "peak_tflops"
    }
    return Chip(name, row["kind"], row["dims"], figures, peaks, row.get("clock_unknown"))


def parse_topology(text: str) -> Topology:
    """The topology that "v5e:2x2" names. Raises OptionError, with the nearest one that there is."""
    name, _, dims = text.partition(":")
    chip = chips().get(name)
    if chip is None:
        near = did_you_mean(text, examples()) or did_you_mean(name, chips())
        raise OptionError(f"topology {text!r}: no chip {name!r}{near}; chips: {', '.join(chips())}")
    sizes = dims.split("x")
    if len(sizes) != chip.dims or not all(size.isdigit() and int(size) > 0 for size in sizes):
        near = did_you_mean(text, (each for each in examples() if each.startswith(f"{name}:")))
        form = "x".join("XYZ"[: chip.dims])
        raise OptionError(
            f"topology {text!r}: {name} has {chip.dims} dimensions, {name}:{form}{near}; as "
            f"{', '.join(f'{name}:{shape}' for shape in _EXAMPLES[chip.dims])}"
        )
    return Topology(chip, tuple(map(int, sizes)))


def examples() -> list[str]:
    """Topologies to suggest."""
    pairs = ([f"{chip.name}:{shape}" for shape in _EXAMPLES[chip.dims]] for chip in chips().values())
    return list(itertools.chain.from_iterable(pairs))
