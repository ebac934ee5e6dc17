"""Promise: the tables of passes, operators and devices say what there is, in 80 columns."""

from __future__ import annotations

import pytest
from cli_support import Pfvm


def test_listings(pfvm: Pfvm) -> None:
    from pfvm.passes import pipeline

    passes = pfvm("passes").out
    assert all(name in passes for name in pipeline.REGISTRY)
    assert "slack=1024" in passes
    assert passes.split("\n")[0].split() == ["pass", "when", "options", "what", "it", "does"]
    assert all(line == line.rstrip() for line in passes.splitlines())
    devices = pfvm("devices").out
    assert "pfvm:cpu" in devices
    assert "emulated" in devices
    ops = pfvm("ops", "--device", "pfvm:cpu").out
    assert any(line.startswith("MatMul ") for line in ops.splitlines())
    assert ops.splitlines()[-1].endswith("operators on pfvm:cpu")
    assert "operators on xla:tpu" in pfvm("ops", "--device", "xla:tpu").out


def test_tables_are_readable_at_80_columns() -> None:
    from pfvm.tools.console import table

    rows = table("name", "number", "what it is")
    rows.add_row("a-name-that-is-never-broken-as-one-may-copy-it", "1", "words " * 30)
    rows.add_row("b", "2", "")
    lines = list(rows.lines(80))
    assert lines[2].startswith("a-name-that-is-never-broken-as-one-may-copy-it  1")
    assert all(len(line) <= 80 and line == line.rstrip() for line in lines)
    assert lines[3].startswith("    words words")
    wide = list(rows.lines(200))
    assert len(wide) == 4
    assert wide[2].startswith(" " * 56 + "words")


def test_passes_are_described_without_importing_them() -> None:
    import dataclasses

    from pfvm.passes import pipeline
    from pfvm.tools.listing import describe_pass

    for name in pipeline.REGISTRY:
        options, summary = describe_pass(name)
        cls = pipeline.load(name)
        assert [o.partition("=")[0] for o in options] == [f.name for f in dataclasses.fields(cls)]
        assert summary == (cls.__doc__ or "").strip().partition("\n")[0]


def test_ops_of_xla(pfvm: Pfvm) -> None:
    pytest.importorskip("jax")
    lines = pfvm("ops", "--device", "xla:cpu").out.splitlines()
    assert any(line.startswith("Gemm ") for line in lines)
    assert any(line.split() == ["SequenceAt", "sequences"] for line in lines)
    assert any(line.startswith("test_gradient_of_add ") and "not an operator" in line for line in lines)
