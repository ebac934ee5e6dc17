"""The collectives of a program are read from its HLO text: what, among whom, how many bytes, how often."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from pfvm.errors import PfvmError
from pfvm.runtime.xla.collectives import collectives, collectives_report, replica_groups

HLO = """HloModule jit_f, is_scheduled=true, replica_count=1, num_partitions=4

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (s: (s32[], f32[8,2])) -> (s32[], f32[8,2]) {
  %s = (s32[], f32[8,2]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %x = f32[8,2] get-tuple-element(%s), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %all-reduce.1 = f32[8,2] all-reduce(%x), channel_id=1, replica_groups=[2,2]<=[4], to_apply=%add
  ROOT %out = (s32[], f32[8,2]) tuple(%next, %all-reduce.1)
}

%condition (s: (s32[], f32[8,2])) -> pred[] {
  %s = (s32[], f32[8,2]) parameter(0)
  %i = s32[] get-tuple-element(%s), index=0
  %limit = s32[] constant(5)
  ROOT %less = pred[] compare(%i, %limit), direction=LT
}

%scatter (p: bf16[16]) -> bf16[4] {
  %p = bf16[16] parameter(0)
  ROOT %reduce-scatter.1 = bf16[4] reduce-scatter(%p), replica_groups={{0,1,2,3}}, dimensions={0}, to_apply=%add
}

ENTRY %main (x: f32[8,2], y: bf16[16]) -> (f32[32,2], bf16[4]) {
  %x = f32[8,2] parameter(0)
  %y = bf16[16] parameter(1)
  %zero = s32[] constant(0)
  %start = (s32[], f32[8,2]) tuple(%zero, %x)
  %loop = (s32[], f32[8,2]) while(%start), condition=%condition, body=%body
  %x2 = f32[8,2] get-tuple-element(%loop), index=1
  %all-gather-start = (f32[8,2], f32[32,2]) all-gather-start(%x2), replica_groups={}, dimensions={0}
  %all-gather-done = f32[32,2] all-gather-done(%all-gather-start)
  %async = ((bf16[16]), bf16[4]) async-start(%y), calls=%scatter
  %done = bf16[4] async-done(%async)
  %permuted = bf16[4] collective-permute(%done), source_target_pairs={{0,1},{1,0}}, metadata={op_name="jit(f)/roll"}
  ROOT %result = (f32[32,2], bf16[4]) tuple(%all-gather-done, %permuted)
}
"""


def test_kinds_bytes_groups_and_how_often() -> None:
    rows = [(c.kind, c.bytes, c.times, c.groups, c.source) for c in collectives(HLO)]
    assert rows == [
        ("all-reduce", 64, 5, ((0, 1), (2, 3)), ""),  # in a loop of five trips
        ("all-gather", 64, 1, ((0, 1, 2, 3),), ""),  # start and done are one; {} is all devices
        ("reduce-scatter", 32, 1, ((0, 1, 2, 3),), ""),
        ("collective-permute", 8, 1, ((0, 1), (1, 0)), "jit(f)/roll"),
    ]
    report = collectives_report([HLO])
    assert report["bytes"] == 5 * 64 + 64 + 32 + 8
    assert report["by_kind"]["all-reduce"] == {"count": 1, "bytes": 320}
    assert collectives_report([]) == {"bytes": 0, "by_kind": {}, "list": []}


def test_a_total_is_unknown_where_a_loops_trips_are() -> None:
    text = HLO.replace("%limit = s32[] constant(5)", "%limit = s32[] get-tuple-element(%s), index=0")
    report = collectives_report([text])
    assert (report["bytes"], report["list"][0]["times"]) == (None, None)
    with pytest.raises(PfvmError, match="without an ENTRY"):
        collectives("no HLO")


@pytest.mark.parametrize(
    ("text", "order", "groups"),
    [
        ("{{0,2},{1,3}}", None, ((0, 2), (1, 3))),
        ("[2,4]<=[8]", None, ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("[4,2]<=[2,4]T(1,0)", None, ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=4,'b'=2] {'a'}", None, ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=4,'b'=2] {'b'}", None, ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['a'=2,'b'=4]", "([4,2]T(1,0)) {'b'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['a'=8] {'a':(1)4}", None, None),  # a part of an axis
        ("something else", None, None),
    ],
)
def test_forms_of_groups(text: str, order: str | None, groups: object) -> None:
    assert replica_groups(text, 8, order) == groups


def test_report_of_a_mesh(tmp_path: Path) -> None:
    """A product over a split dimension is a partial sum on each device, and one all-reduce."""
    pytest.importorskip("jax")
    import pfvm

    weights = ",".join("1" * 64)
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[8,16] x) => (float[8,4] y)'
        f"<float[16,4] w = {{{weights}}}> {{ y = MatMul (x, w) }}"
    )
    pfvm.optimize(
        proto, device="xla:cpu", mesh="data=2,model=2", shard=["w=model,None", "x=data,model"], artifacts=tmp_path
    )
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["machine"]["name"] == "xla:cpu on data=2,model=2"
    (only,) = report["collectives"]["list"]
    assert (only["kind"], only["bytes"], only["groups"]) == ("all-reduce", 4 * 4 * 4, [[0, 1], [2, 3]])
    assert "all-reduce" in (tmp_path / "l3ir.txt").read_text()
