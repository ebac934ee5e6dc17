"""The outline of a stage: its nodes and the types of its tensors, as the page's lists show them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pfvm.errors import PfvmError
from pfvm.passes.provenance import FROM, MODULE, RULE, SOURCE, names

from .folder import Folder, StageFile


def outline(folder: Folder, stage: StageFile) -> dict[str, Any]:
    """`nodes`, `tensors` (name → FLOAT[2,n]) and `error`, which says why there is nothing to show."""
    shown: dict[str, Any] = {
        "key": stage.key,
        "title": stage.title,
        "file": stage.file,
        "drawn": True,
        "missing": False,
        "nodes": [],
        "tensors": {},
        "error": None,
    }
    try:
        content = folder.model_bytes(stage)
        if content is None:
            return {**shown, "missing": True, "error": f"{stage.file} is not in this directory"}
        return {**shown, **_of_model(content, stage.file)}
    except PfvmError as error:
        return {**shown, "error": str(error)}


def has_external_data(content: bytes) -> bool:
    """Has model.onnx weights in another file? Only those in it are read here. Raises PfvmError where it is no model."""
    import onnx

    graph = _parsed(content, "model.onnx").graph
    return any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in _weights(graph))


def _weights(graph: Any) -> Iterator[Any]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            yield from (attribute.t, *attribute.tensors)
            for body in (attribute.g, *attribute.graphs):
                yield from _weights(body)


def _of_model(content: bytes, name: str) -> dict[str, Any]:
    import onnx

    model = _parsed(content, name)
    nodes = [_node(node, scope) for node, scope in _walk(model.graph, "")]
    for function in model.functions:
        nodes += [_node(node, f"{_text(function.domain)}::{_text(function.name)}") for node in function.node]
    return {"nodes": nodes, "tensors": dict(_tensors(model.graph, onnx))}


def _parsed(content: bytes, name: str) -> Any:
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load_model_from_string(content)
    except DecodeError as error:
        raise PfvmError(f"{name}: no ONNX model: {error}") from error
    if not model.HasField("graph"):
        raise PfvmError(f"{name}: no ONNX model: no graph in {len(content)} bytes")
    return model


def _walk(graph: Any, scope: str) -> Iterator[tuple[Any, str]]:
    """Every node with where it stands: "" for the graph itself, the name of the node whose body it is in."""
    for node in graph.node:
        yield node, scope
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _walk(body, node.name or (node.output[0] if node.output else node.op_type))


def _node(node: Any, scope: str) -> dict[str, Any]:
    meta = {_text(entry.key): _text(entry.value) for entry in node.metadata_props}
    return {
        "op": _text(node.op_type),
        "name": _text(node.name),
        "in": list(map(_text, node.input)),
        "out": list(map(_text, node.output)),
        "scope": _text(scope),
        "source": meta.get(SOURCE),
        "module": meta.get(MODULE),
        "rule": meta.get(RULE),
        "from": names(meta.get(FROM)),
    }


def _tensors(graph: Any, onnx: Any) -> Iterator[tuple[str, str]]:
    for tensor in graph.initializer:
        yield _text(tensor.name), f"{_dtype(tensor.data_type, onnx)}[{','.join(map(str, tensor.dims))}]"
    for value in (*graph.value_info, *graph.input, *graph.output):
        if value.type.HasField("tensor_type"):
            kind = value.type.tensor_type
            dims = [
                _text(d.dim_param) or (str(d.dim_value) if d.HasField("dim_value") else "?") for d in kind.shape.dim
            ]
            yield _text(value.name), f"{_dtype(kind.elem_type, onnx)}[{','.join(dims)}]"
    for node in graph.node:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                yield from _tensors(body, onnx)


def _text(name: str | bytes) -> str:
    """A name; protobuf gives bytes where it is no UTF-8."""
    return name if isinstance(name, str) else name.decode(errors="replace")


def _dtype(number: int, onnx: Any) -> str:
    """FLOAT; "type 99" of an ONNX to come, or of a broken file."""
    known = onnx.TensorProto.DataType
    return str(known.Name(number)) if number in known.values() else f"type {number}"
