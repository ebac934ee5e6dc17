"""Weights beside a model: written to one file, those of another file copied from file to file and never parsed.

    m.onnx.data          offset 0 ─ w0 ─┬─ w1 ─ …       packed, in the order of the model
    m.onnx.safetensors   size, header ──┴─ w0 ─ w1 ─ …  wider element types first, so that each is aligned

The ONNX file points into either with location, offset and length.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import numpy as np
import onnx_ir as ir
from pfvm.passes.effects import graphs_in
from pfvm.passes.tensor_bytes import buffer, content

INSIDE = 1024
"""Tensors of at most so many bytes stay in the model's own file."""

_SAFETENSORS = {
    ir.DataType.DOUBLE: "F64",
    ir.DataType.FLOAT: "F32",
    ir.DataType.FLOAT16: "F16",
    ir.DataType.BFLOAT16: "BF16",
    ir.DataType.FLOAT8E4M3FN: "F8_E4M3",
    ir.DataType.FLOAT8E5M2: "F8_E5M2",
    ir.DataType.INT64: "I64",
    ir.DataType.INT32: "I32",
    ir.DataType.INT16: "I16",
    ir.DataType.INT8: "I8",
    ir.DataType.UINT64: "U64",
    ir.DataType.UINT32: "U32",
    ir.DataType.UINT16: "U16",
    ir.DataType.UINT8: "U8",
    ir.DataType.BOOL: "BOOL",
}
"""Element types that safetensors has; weights of another type stay in the model's own file."""


def unload(model: ir.Model, path: pathlib.Path, safetensors: bool = False) -> None:
    """Write the model's weights to `path`, and let its initializers refer to them there. Raises OSError."""
    values = _large(model)
    header = b""
    if safetensors:
        values = [v for v in values if content(v).dtype in _SAFETENSORS]
        values.sort(key=lambda v: -content(v).dtype.itemsize)
        header = _header(values)
    with open(path, "wb") as file:
        file.write(header)
        file.flush()
        position = len(header)
        for value in values:
            tensor = content(value)
            if isinstance(tensor, ir.ExternalTensor):
                _copy(tensor, file, position)
            else:
                _write(file, position, tensor)
            value.const_value = ir.ExternalTensor(
                path.name,
                position,
                tensor.nbytes,
                tensor.dtype,
                shape=ir.Shape(tensor.shape.numpy()),
                name=str(value.name),
                doc_string=tensor.doc_string,
                metadata_props=dict(tensor.metadata_props),
                base_dir=path.parent,
            )
            position += tensor.nbytes
        file.truncate(position)


def storable(array: np.ndarray) -> np.ndarray:
    """An array as safetensors can have it: as it is, or its bytes where that has no such element type."""
    whole = np.asarray(array, order="C")
    return whole if ir.DataType.from_numpy(array.dtype) in _SAFETENSORS else whole.view(np.uint8)


def write_safetensors(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write storable arrays by name. Raises OSError."""
    values = [ir.Value(name=name, const_value=ir.Tensor(array, name=name)) for name, array in arrays.items()]
    values.sort(key=lambda v: -content(v).dtype.itemsize)
    with open(path, "wb") as file:
        file.write(_header(values))
        for value in values:
            file.write(buffer(content(value)))


def read_safetensors(path: pathlib.Path) -> dict[str, np.ndarray]:
    """Arrays by name, read from the file when they are used. Raises OSError, and ValueError for another format."""
    dtypes = {text: kind.numpy() for kind, text in _SAFETENSORS.items()}
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= size - 8:
            raise ValueError(f"{path} is no safetensors file")
        header = json.loads(file.read(length))
    data = np.memmap(path, np.uint8, "r", offset=8 + length) if size > 8 + length else np.zeros(0, np.uint8)
    arrays = {}
    for name, entry in header.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            if not 0 <= start <= end <= data.size:
                raise ValueError(f"{path} ends before tensor {name!r}")
            arrays[name] = data[start:end].view(dtypes[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def _large(model: ir.Model) -> list[ir.Value]:
    graphs = graphs_in(model.graph)
    values = [value for graph in graphs for value in graph.initializers.values()]
    return [
        v
        for v in values
        if v.const_value is not None and v.const_value.dtype != ir.DataType.STRING and v.const_value.nbytes > INSIDE
    ]


def _header(values: list[ir.Value]) -> bytes:
    """Eight bytes of length, then JSON, padded with blanks so that the first tensor is aligned."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for value in values:
        tensor = content(value)
        end = position + tensor.nbytes
        entries[_key(value, entries)] = {
            "dtype": _SAFETENSORS[tensor.dtype],
            "shape": list(tensor.shape.numpy()),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _key(value: ir.Value, taken: dict[str, object]) -> str:
    """The initializer's name; two bodies may each have one of the same name."""
    key, number = str(value.name), 1
    while key in taken:
        key, number = f"{value.name}#{number}", number + 1
    return key


def _write(file: BinaryIO, position: int, tensor: ir.TensorProtocol) -> None:
    file.seek(position)
    file.write(buffer(tensor))
    file.flush()


# ---- from file to file

_CHUNK = 2**24


def _copy(tensor: ir.ExternalTensor, file: BinaryIO, position: int) -> None:
    """The tensor's bytes, by the kernel where the file systems allow it. What is a hole in a file stays one."""
    offset, length = tensor.offset or 0, tensor.nbytes
    with open(tensor.path, "rb", buffering=0) as source:
        for start, end in _filled(source.fileno(), offset, offset + length):
            _copy_range(source.fileno(), start, file.fileno(), position + start - offset, end - start)


def _filled(source: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of [start, end) that are no holes."""
    while start < end:
        try:
            first = os.lseek(source, start, os.SEEK_DATA)
            last = os.lseek(source, first, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # which says: nothing but a hole up to the end of the file
                yield start, end  # a file system without holes
            return
        if first < end:
            yield first, min(last, end)
        start = last


def _copy_range(source: int, start: int, target: int, position: int, length: int) -> None:
    while length:
        copied = 0
        with contextlib.suppress(OSError):  # two file systems, or one that cannot do it: then through a buffer
            copied = os.copy_file_range(source, target, min(length, 2**30), start, position)
        if not copied:
            chunk = os.pread(source, min(length, _CHUNK), start)
            if not chunk:
                raise OSError(f"a file of weights ends {length} bytes too early")
            copied = os.pwrite(target, chunk, position)
        start, position, length = start + copied, position + copied, length - copied
