"""Tensors of a file before anything trusts them: where their bytes are, and whether there are enough."""

from __future__ import annotations

import math
import pathlib
from collections.abc import Iterator, Mapping

import onnx
import onnx_ir as ir
from onnx.external_data_helper import load_external_data_for_tensor
from pfvm.errors import InvalidModelError


def check_tensors(proto: onnx.ModelProto, folder: pathlib.Path, weights: Mapping[int, memoryview]) -> None:
    """Check every tensor of the model, of its bodies and functions.

    External data must lie in the model's folder and be long enough; that of attributes is read in, that of initializers
    stays a reference. `weights` is the raw data of those initializers of the main graph, by their place, that have it
    elsewhere. Raises InvalidModelError naming the tensor.
    """
    for index, tensor in enumerate(_initializers(proto.graph)):
        _check(tensor, f"initializer {tensor.name!r}", folder, weights.get(index))
    for node in nodes(proto):
        for attribute in node.attribute:
            for tensor in [attribute.t] if attribute.HasField("t") else attribute.tensors:
                what = f"node {node.name or '?'!r} ({node.op_type}): attribute {attribute.name!r}"
                _check(tensor, what, folder)
                if tensor.data_location == onnx.TensorProto.EXTERNAL:
                    load_external_data_for_tensor(tensor, str(folder))
                    tensor.data_location = onnx.TensorProto.DEFAULT
                    del tensor.external_data[:]


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph and the bodies in it, outer ones first."""
    yield graph
    yield from _bodies(graph.node)


def _bodies(nodes: object) -> Iterator[onnx.GraphProto]:
    for node in nodes:  # type: ignore[attr-defined]
        for attribute in node.attribute:
            for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from graphs(body)


def _initializers(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    for each in graphs(graph):
        yield from each.initializer


def nodes(proto: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a model, of its functions, and of every body in either."""
    for graph in graphs(proto.graph):
        yield from graph.node
    for function in proto.functions:
        yield from function.node
        for body in _bodies(function.node):
            yield from body.node


def values(proto: onnx.ModelProto) -> Iterator[onnx.ValueInfoProto]:
    """What a model, its functions, and every body in either declare of their values."""
    for function in proto.functions:
        yield from function.value_info
    for graph in (*graphs(proto.graph), *(body for function in proto.functions for body in _bodies(function.node))):
        yield from (*graph.input, *graph.output, *graph.value_info)


def _check(tensor: onnx.TensorProto, what: str, folder: pathlib.Path, raw: memoryview | None = None) -> None:
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError as error:
        raise InvalidModelError(f"{what}: there is no element type {tensor.data_type}") from error
    if dtype == ir.DataType.UNDEFINED:
        raise InvalidModelError(f"{what}: its element type is not set")
    if any(dim < 0 for dim in tensor.dims):
        raise InvalidModelError(f"{what}: it has a negative dimension in {list(tensor.dims)}")
    if dtype == ir.DataType.STRING:
        return
    needed = math.ceil(math.prod(tensor.dims) * dtype.itemsize)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        _check_external(tensor, needed, what, folder)
    elif raw is not None or tensor.HasField("raw_data"):
        size = len(tensor.raw_data if raw is None else raw)
        if size != needed:
            raise InvalidModelError(
                f"{what}: {dtype.name.lower()}{list(tensor.dims)} needs {needed} bytes, it has {size}"
            )


def _check_external(tensor: onnx.TensorProto, needed: int, what: str, folder: pathlib.Path) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    offset, length = (_number(entries.get(key), key, what) for key in ("offset", "length"))
    if not location:
        raise InvalidModelError(f"{what}: its external data has no location")
    if length is not None and length < needed:
        raise InvalidModelError(f"{what}: its external data has length {length}, {needed} bytes are needed")
    root = folder.absolute().resolve()
    try:
        path = (root / location).resolve()
        inside, exists = path.is_relative_to(root), path.is_file()
        size = path.stat().st_size if exists else 0
    except (OSError, ValueError) as error:  # a name that no file can have
        raise InvalidModelError(f"{what}: external data {location[:80]!r}: {error}") from error
    if pathlib.PurePath(location).is_absolute() or not inside:
        raise InvalidModelError(f"{what}: external data {location!r} lies outside the model's folder")
    if not exists:
        raise InvalidModelError(f"{what}: external data file {str(path)!r} does not exist")
    end = (offset or 0) + (needed if length is None else length)
    if size < end:
        raise InvalidModelError(f"{what}: external data file {str(path)!r} has {size} bytes, {end} are needed")


def _number(text: str | None, key: str, what: str) -> int | None:
    if text is None:
        return None
    try:
        number = int(text)
    except ValueError:
        number = -1
    if number < 0:
        raise InvalidModelError(f"{what}: its external data has {key} {text!r}, which is no size")
    return number
