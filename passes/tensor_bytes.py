"""Bytes of initializers, read no more than it takes to tell them apart; those in files are never mapped as a whole."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

_SAMPLE = 4096
_CHUNK = 2**22
_SHARED_BYTES = 4096
"""A constant that others read as well is stored a second time, changed, up to this size."""


def content(value: ir.Value) -> ir.TensorProtocol:
    """The tensor of an initializer, which has one."""
    assert value.const_value is not None, f"initializer {value.name} has no content"
    return value.const_value


def nbytes(tensor: ir.TensorProtocol) -> int:
    """What `tensor.nbytes` says, which takes four times as long: the sizes of all weights are asked for often."""
    if type(tensor) is ir.Tensor and type(tensor.raw) is np.ndarray and tensor.dtype.bitwidth >= 8:
        return tensor.raw.nbytes
    return tensor.nbytes


def is_shared(weight: ir.Value, tensor: ir.TensorProtocol) -> bool:
    """Whether a changed copy of a constant would be stored beside it, which others read, and is too large for that."""
    return (len(weight.uses()) > 1 or weight.is_graph_output()) and tensor.nbytes > _SHARED_BYTES


def sample(value: ir.Value) -> bytes:
    """Hash of the first and last bytes of an initializer, kept on the value: most unequal weights differ there."""
    found = value.meta.get("pfvm.sample")
    if found is None:
        size = nbytes(content(value))
        picked = hashlib.sha256()
        for start in sorted({0, max(0, size - _SAMPLE)}):
            picked.update(b"".join(_read(content(value), start, min(size, start + _SAMPLE))))
        found = value.meta["pfvm.sample"] = picked.digest()
    return found


def digest(value: ir.Value) -> bytes:
    """Hash of all bytes of an initializer, kept on the value."""
    found = value.meta.get("pfvm.digest")
    if found is None:
        whole = hashlib.sha256()
        for part in _read(content(value), 0, content(value).nbytes):
            whole.update(part)
        found = value.meta["pfvm.digest"] = whole.digest()
    return found


def buffer(tensor: ir.TensorProtocol) -> memoryview:
    """The bytes of a tensor as a file has them; of one in memory, without a copy."""
    if type(tensor) is ir.Tensor and tensor.dtype.bitwidth >= 8 and sys.byteorder == "little":
        array = tensor.numpy()
        if array.flags.c_contiguous and array.nbytes == tensor.nbytes:
            return array.reshape(-1).view(np.uint8).data
    return memoryview(tensor.tobytes())


def _read(tensor: ir.TensorProtocol, start: int, end: int) -> Iterator[bytes | memoryview]:
    """Bytes [start, end) of a tensor in pieces."""
    if not isinstance(tensor, ir.ExternalTensor):
        yield buffer(tensor)[start:end]
        return
    with open(tensor.path, "rb", buffering=0) as file:
        file.seek((tensor.offset or 0) + start)
        while start < end:
            part = file.read(min(_CHUNK, end - start))
            if not part:  # the importer has checked the size; a file that shrank since is another file
                raise OSError(f"{tensor.path} ends before the bytes of {tensor.name!r}")
            yield part
            start += len(part)
