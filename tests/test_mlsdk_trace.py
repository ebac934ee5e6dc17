"""Promises of trace_scope: a file that Perfetto or Chrome opens, with compilations, calls and named events in it."""

from __future__ import annotations

import json
import pathlib
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory  # noqa: E402
from pfvm.runtime.mlsdk import Context, MNDevice, trace_event, trace_scope  # noqa: E402

# The part of Perfetto's schema that is written (trace_packet.proto, track_event.proto): (message, field, number, type).
SCHEMA = [
    ("Trace", "packet", 1, "*TracePacket"),
    ("TracePacket", "timestamp", 8, "uint64"),
    ("TracePacket", "trusted_packet_sequence_id", 10, "uint32"),
    ("TracePacket", "track_event", 11, "TrackEvent"),
    ("TracePacket", "track_descriptor", 60, "TrackDescriptor"),
    ("TrackEvent", "type", 9, "uint32"),
    ("TrackEvent", "track_uuid", 11, "uint64"),
    ("TrackEvent", "name", 23, "string"),
    ("TrackDescriptor", "uuid", 1, "uint64"),
    ("TrackDescriptor", "process", 3, "ProcessDescriptor"),
    ("TrackDescriptor", "thread", 4, "ThreadDescriptor"),
    ("TrackDescriptor", "parent_uuid", 5, "uint64"),
    ("ProcessDescriptor", "pid", 1, "uint32"),
    ("ProcessDescriptor", "process_name", 6, "string"),
    ("ThreadDescriptor", "pid", 1, "uint32"),
    ("ThreadDescriptor", "tid", 2, "uint32"),
    ("ThreadDescriptor", "thread_name", 5, "string"),
]


def parse(data: bytes) -> Any:
    """The file by protobuf's own decoder."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="trace.proto", syntax="proto2")
    messages: dict[str, Any] = {}
    for message, name, number, kind in SCHEMA:
        if message not in messages:
            messages[message] = file.message_type.add(name=message)
        field = messages[message].field.add(name=name, number=number, label=kinds.LABEL_OPTIONAL)
        if kind.startswith("*"):
            field.label = kinds.LABEL_REPEATED
        scalar = {"uint64": kinds.TYPE_UINT64, "uint32": kinds.TYPE_UINT32, "string": kinds.TYPE_STRING}.get(kind)
        if scalar is None:
            field.type, field.type_name = kinds.TYPE_MESSAGE, kind.lstrip("*")
        else:
            field.type = scalar
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    trace = message_factory.GetMessageClass(pool.FindMessageTypeByName("Trace"))()
    trace.ParseFromString(data)
    return trace


def program(folder: pathlib.Path) -> None:
    context = Context(MNDevice("pfvm:cpu"))

    def add(inp: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"out": inp["x"] + 1}

    compiled = context.compile(add, {"x": torch.zeros(2)}, folder / "add")
    with trace_event("outer"):
        with trace_event("inner"):
            compiled({"x": torch.zeros(2)})
        worker = threading.Thread(target=compiled, args=({"x": torch.zeros(2)},))
        worker.start()
        worker.join()


def test_perfettos_protobuf(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "traces" / "trace.pb"
    with trace_scope(file):
        program(tmp_path)
    packets = parse(file.read_bytes()).packet
    tracks = {p.track_descriptor.uuid: p.track_descriptor for p in packets if p.HasField("track_descriptor")}
    assert [t.process.process_name for t in tracks.values() if t.HasField("process")] == ["pfvm"]
    open_events: dict[int, list[str]] = {}
    seen = []
    last = 0
    for packet in packets:
        if not packet.HasField("track_event"):
            continue
        event = packet.track_event
        stack = open_events.setdefault(event.track_uuid, [])
        assert event.track_uuid in tracks and packet.trusted_packet_sequence_id
        last = packet.timestamp if not stack else last
        assert packet.timestamp >= last, "events of a track come in order"
        last = packet.timestamp
        if event.type == 1:
            seen.append("/".join([*stack, event.name]))
            stack.append(event.name)
        else:
            stack.pop()
    assert not any(open_events.values()), "what begins ends"
    assert sorted(seen) == ["add", "compile add", "outer", "outer/inner", "outer/inner/add"]


def test_chromes_json(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "trace.json"
    with pytest.raises(KeyError), trace_scope(file):
        program(tmp_path)
        raise KeyError("the file is written all the same")
    events = json.loads(file.read_text())["traceEvents"]
    by_name = {e["name"]: e for e in events}
    assert set(by_name) == {"compile add", "add", "inner", "outer"}
    assert all(e["ph"] == "X" and e["dur"] >= 0 for e in events)
    assert by_name["outer"]["ts"] <= by_name["inner"]["ts"]
    assert len({e["tid"] for e in events}) == 2


def test_none_records_nothing(tmp_path: pathlib.Path) -> None:
    with trace_scope(None), trace_event("nothing"):
        program(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"add"}
