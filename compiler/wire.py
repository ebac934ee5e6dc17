"""ONNX files without a copy of their weights: large initializers are cut out of what protobuf reads and writes.

protobuf copies every byte it is given at least once in each direction, and onnx_ir's tensors again at each look. Here a
file's bytes stay as they are; weights are views of them, and go from there straight into the file that is written.

    ModelProto   … 7: GraphProto   … 5: TensorProto   1: dims  2: data_type  8: name  9: raw_data ← cut out
                                   … 5: TensorProto   …
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

LEAST = 4096
"""Bytes of the raw data that is cut out."""

# Field numbers of onnx.proto.
_MODEL_GRAPH, _GRAPH_INITIALIZER, _TENSOR_TYPE, _TENSOR_RAW, _TENSOR_LOCATION = 7, 5, 2, 9, 14
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
# Packed types have no array of their own bytes.
_CUT_TYPES = {
    dtype.value: dtype
    for dtype in ir.DataType
    if dtype not in (ir.DataType.UNDEFINED, ir.DataType.STRING) and dtype.bitwidth >= 8
}

Weights = dict[int, tuple[ir.DataType, memoryview]]
"""By their place in graph.initializer."""


class NotPlain(Exception):
    """Bytes that protobuf itself must make sense of, or refuse."""


def cut(data: bytes) -> tuple[bytes, Weights]:
    """A serialized ModelProto without the raw data of the main graph's large initializers, and that data as views.

    Files that are no such message, or an unusual one, are returned whole.
    """
    view = memoryview(data)
    try:
        (graph,) = [field for field in _fields(view, 0, len(view)) if field.number == _MODEL_GRAPH]
        parts, weights = _without_weights(view, graph)
    except (NotPlain, IndexError, ValueError):
        return data, {}
    if not weights:
        return data, {}
    body = b"".join(parts)
    return b"".join([view[: graph.tag], _head(_MODEL_GRAPH, len(body)), body, view[graph.end :]]), weights


class _Field:
    """A field of a message: where its tag, its content and what follows it begin."""

    __slots__ = ("end", "number", "start", "tag", "wire")

    def __init__(self, number: int, wire: int, tag: int, start: int, end: int) -> None:
        self.number, self.wire, self.tag, self.start, self.end = number, wire, tag, start, end


def _fields(view: memoryview, position: int, end: int) -> Iterator[_Field]:
    while position < end:
        tag = position
        key, position = _varint(view, position)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            start = position
            _, position = _varint(view, position)
        elif wire == _LENGTH:
            size, start = _varint(view, position)
            position = start + size
        elif wire in (_FIXED32, _FIXED64):
            start, position = position, position + (4 if wire == _FIXED32 else 8)
        else:
            raise NotPlain
        if position > end or not number:
            raise NotPlain
        yield _Field(number, wire, tag, start, position)


def _varint(view: memoryview, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
        if shift > 63:
            raise NotPlain


def _without_weights(view: memoryview, graph: _Field) -> tuple[list[bytes | memoryview], Weights]:
    """The graph's bytes in parts, and what was cut out of them."""
    parts: list[bytes | memoryview] = []
    weights: Weights = {}
    index, begin = -1, graph.start
    for field in _fields(view, graph.start, graph.end):
        if field.number != _GRAPH_INITIALIZER or field.wire != _LENGTH:
            continue
        index += 1
        if field.end - field.start < LEAST:
            continue
        found = _raw_data(view, field)
        if found is None:
            continue
        dtype, raw = found
        rest = [view[field.start : raw.tag], view[raw.end : field.end]]
        parts += [view[begin : field.tag], _head(_GRAPH_INITIALIZER, sum(map(len, rest))), *rest]
        weights[index] = dtype, view[raw.start : raw.end]
        begin = field.end
    return [*parts, view[begin : graph.end]], weights


def _raw_data(view: memoryview, tensor: _Field) -> tuple[ir.DataType, _Field] | None:
    dtype = raw = None
    for field in _fields(view, tensor.start, tensor.end):
        if field.number == _TENSOR_RAW and field.wire == _LENGTH:
            if raw is not None:
                return None  # the last one counts
            raw = field
        elif field.number == _TENSOR_TYPE and field.wire == _VARINT:
            dtype = _CUT_TYPES.get(_varint(view, field.start)[0])
        elif field.number == _TENSOR_LOCATION:
            return None
    return None if dtype is None or raw is None or raw.end - raw.start < LEAST else (dtype, raw)


def _head(number: int, size: int) -> bytes:
    """Tag and length of a field."""
    return varint(number << 3 | _LENGTH) + varint(size)


def varint(value: int) -> bytes:
    """A whole number as protobuf writes it: seven bits a byte, the lowest first."""
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def array(dtype: ir.DataType, data: memoryview, dims: tuple[int, ...]) -> np.ndarray:
    """A view of a weight's bytes, read-only as those are."""
    return np.frombuffer(data, dtype.numpy()).reshape(dims)


# ---- writing


def write(file: BinaryIO, proto: onnx.ModelProto, weights: Mapping[str, memoryview]) -> None:
    """Writes the message as protobuf would, with `weights` as the raw data of the main graph's initializers.

    proto: those initializers have no data; it loses its graph. Raises OSError.
    """
    if not weights:
        file.write(proto.SerializeToString(deterministic=True))
        return
    graph = onnx.GraphProto()
    graph.CopyFrom(proto.graph)
    initializers = list(graph.initializer)
    parts: list[bytes | memoryview] = []
    for tensor in initializers:
        parts += _tensor(tensor, weights.get(tensor.name))
    before, after = _split(graph, _GRAPH_INITIALIZER)
    size = len(before) + sum(map(len, parts)) + len(after)
    proto.ClearField("graph")
    above, below = _split(proto, _MODEL_GRAPH)
    for part in (above, _head(_MODEL_GRAPH, size), before, *parts, after, below):
        file.write(part)


def _tensor(tensor: onnx.TensorProto, data: memoryview | None) -> list[bytes | memoryview]:
    if data is None:
        whole = tensor.SerializeToString(deterministic=True)
        return [_head(_GRAPH_INITIALIZER, len(whole)), whole]
    tensor.ClearField("raw_data")
    before, after = _split(tensor, _TENSOR_RAW)
    raw = _head(_TENSOR_RAW, len(data))
    size = len(before) + len(raw) + len(data) + len(after)
    return [_head(_GRAPH_INITIALIZER, size), before, raw, data, after]


def _split(message: onnx.ModelProto | onnx.GraphProto | onnx.TensorProto, number: int) -> tuple[bytes, bytes]:
    """The message's bytes of fields below that number, and of those above; the field itself is left out."""
    data = memoryview(message.SerializeToString(deterministic=True))
    own = [field for field in _fields(data, 0, len(data)) if field.number >= number]
    first = own[0].tag if own else len(data)
    last = next((field.tag for field in own if field.number > number), len(data))
    return bytes(data[:first]), bytes(data[last:])
