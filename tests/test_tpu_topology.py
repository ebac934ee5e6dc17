"""The published figures of TPU chips: each has a source, clocks follow from them, what is not known is not said."""

from __future__ import annotations

import pytest
from pfvm.runtime.topology import chips, examples, parse_topology
from pfvm.tools.topologies import print_topologies

CLOCKS = {"v2": 701.9, "v3": 938.4, "v4": 1049.0, "v5e": 1503.0, "v5p": 1750.9}  # MHz


@pytest.mark.parametrize("chip", chips().values(), ids=lambda chip: chip.name)
def test_every_figure_has_a_source(chip) -> None:
    assert {"devices", "cells", "units_per_device", "hbm_gib", "hbm_gb_s"} <= set(chip.figures)
    for name, figure in chip.sources().items():
        assert figure["value"] > 0, name
        assert any(word in figure["source"] for word in ("https://", "CACM", "JAX", "libtpu")), name


@pytest.mark.parametrize("chip", chips().values(), ids=lambda chip: chip.name)
def test_a_clock_is_the_peak_by_cells_and_units_or_none_with_the_reason(chip) -> None:
    if chip.name not in CLOCKS:
        assert chip.clock_hz is None and "would beat the published peak" in chip.formula
        return
    cells, units = chip.figures["cells"].value, chip.figures["units_per_device"].value
    assert chip.clock_hz == pytest.approx(chip.peaks["bf16"].value * 1e12 / chip.devices / (2 * cells * units))
    assert chip.clock_hz / 1e6 == pytest.approx(CLOCKS[chip.name], abs=0.05)
    assert str(int(cells)) in chip.formula


def test_a_type_has_the_peak_of_its_rate() -> None:
    v5e = chips()["v5e"]
    assert v5e.peak_for("f32") == v5e.peak_for("bf16") == 197e12
    assert v5e.peak_for("s8") == 393e12
    assert chips()["v2"].peak_for("s8") == 23e12  # not published: products of bytes are no faster
    assert chips()["tpu7x"].peak_for("f8e4m3fn") == 2307e12


@pytest.mark.parametrize(("bf16", "kind"), [(False, "precision high"), (True, "bfloat16")])
def test_a_table_of_topologies_says_the_precision(bf16: bool, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    made = {"precision": "high", "bf16": bf16, "effort": "fast", "vsm_cycles": 1_503_000, "cycles_missing": None}
    made |= {"time_us": 1000.0, "least_time_us": 0.5, "peak_memory": {"HBM": {"bytes_per_cell": 1, "size_per_cell": 2}}}
    print_topologies({"xla:tpu@v2:1x1": {"error": "too large", "out_of_memory": True}, "xla:tpu@v5e:1x1": made})
    printed = capsys.readouterr().out
    assert f"{kind}, effort fast; cycles as XLA's compiler estimates them" in printed
    assert "1,503,000" in printed and "xla:tpu@v2:1x1: too large" in printed


def test_a_topology_counts_chips_and_devices() -> None:
    assert (parse_topology("v2:2x2").chips, parse_topology("v2:2x2").devices) == (4, 8)
    assert (parse_topology("v5p:2x2x1").name, parse_topology("v5p:2x2x1").devices) == ("v5p:2x2x1", 4)
    assert [parse_topology(text).name for text in examples()] == examples()
