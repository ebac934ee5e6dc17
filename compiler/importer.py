"""Any ONNX file → normal form: one validated onnx_ir model that every pass and backend can rely on.

Normal form: Constant nodes of graphs are initializers; initializers that IR version 3 lists as inputs are plain ones;
sparse tensors are dense; nodes stand in topological order; every body computes its own outputs; every name is
defined; only inputs have declared shapes (the rest are inferred). Export undoes what the file's IR version asks for.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from pfvm.errors import InvalidModelError, describe_node
from pfvm.passes import schema
from pfvm.passes.dims import symbols
from pfvm.passes.effects import bodies, graphs_in, roots
from pfvm.passes.view import constant_tensor, renamed

from . import external, validation, wire
from .signature import Interface, has_map, read_manifest

DECLARED_SHAPE = "pfvm.declared_shape"
"""Key in `value.meta` of the shape that the file declared for an intermediate value."""

Source = str | os.PathLike | bytes | onnx.ModelProto | ir.Model


def read_model(source: Source) -> ir.Model:
    """Read a model and bring it into normal form. The source is not changed.

    `source` is a path, the bytes of a file, an onnx.ModelProto or an onnx_ir Model.
    Raises InvalidModelError (not an ONNX file, missing or escaping external data, undefined tensors …) and
    UnsupportedOpError (an operator or opset that ai.onnx does not have).
    """
    if isinstance(source, ir.Model):
        model, interface = source.clone(), Interface.recorded(source)
        if interface is not None:  # already in normal form
            interface.record(model)
            return model
    else:
        proto, folder, weights = _read_proto(source)
        interface = Interface.declared_in(proto)
        _prepare_proto(proto, folder, weights)
        model = _deserialize(proto, folder, weights)
    normalise(model, interface)
    return model


# ---- reading


def _read_proto(
    source: str | os.PathLike | bytes | onnx.ModelProto,
) -> tuple[onnx.ModelProto, pathlib.Path, wire.Weights]:
    """The message, the folder of its external data, and what was cut out of it."""
    if isinstance(source, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        return proto, pathlib.Path(), {}
    if isinstance(source, bytes):
        proto, weights = _parse(source, "the given bytes")
        return proto, pathlib.Path(), weights
    path = pathlib.Path(source)
    advice = "; of a PyTorch function, `pfvm export` makes an ONNX file" if ".py:" in f"{path.name}:" else ""
    try:
        if path.suffix in (".onnx", ""):
            proto, weights = _parse(path.read_bytes(), str(path))
            return proto, path.parent, weights
        return onnx.load_model(str(path), load_external_data=False), path.parent, {}  # .onnxtxt, .textproto, .json
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise InvalidModelError(f"{path}: {error.strerror}{advice}") from error
    except InvalidModelError:
        raise
    except Exception as error:  # text formats raise their parsers' own types
        raise InvalidModelError(f"{path}: not an ONNX model ({error}){advice}") from error


def _parse(data: bytes, what: str) -> tuple[onnx.ModelProto, wire.Weights]:
    proto = onnx.ModelProto()
    light, weights = wire.cut(data)
    try:
        proto.ParseFromString(light)
        names = [tensor.name for tensor in proto.graph.initializer]
        if weights and len(set(names)) < len(names):  # to be refused, or not, by those who look at names
            proto.ParseFromString(data)
            weights = {}
    except DecodeError as error:
        raise InvalidModelError(f"{what}: not an ONNX model, or a truncated one ({len(data)} bytes)") from error
    if not proto.ir_version or not proto.HasField("graph"):
        raise InvalidModelError(f"{what}: not an ONNX model (no graph in {len(data)} bytes)")
    return proto, weights


def _prepare_proto(proto: onnx.ModelProto, folder: pathlib.Path, weights: wire.Weights) -> None:
    """Check what onnx_ir would trust; refuse, or put in another form, what it does not carry over."""
    if len(proto.training_info):
        raise InvalidModelError(
            "the model has training_info graphs, which pfvm does not carry over; remove that field, "
            "or express the training step as an ordinary graph"
        )
    if not proto.opset_import:
        proto.opset_import.add(domain="", version=1)
    validation.check_functions(proto)
    external.check_tensors(proto, folder, {index: data for index, (_, data) in weights.items()})
    for graph in external.graphs(proto.graph):
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(sparse))
        del graph.sparse_initializer[:]
        for node in graph.node:
            _set_attribute_types(node)
    for node in external.nodes(proto):
        _fill(node)
    for value in external.values(proto):
        if has_map(value.type):  # onnx_ir has no maps; of inputs and outputs, the interface knows them
            value.ClearField("type")


_ATTRIBUTE_FIELDS = ("f", "i", "s", "t", "g", "floats", "ints", "strings", "tensors", "graphs")


def _set_attribute_types(node: onnx.NodeProto) -> None:
    """Files of IR version 1 leave the type to the reader."""
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.UNDEFINED and not attribute.ref_attr_name:
            filled = {field.name for field, _ in attribute.ListFields()}
            kind = next((name for name in _ATTRIBUTE_FIELDS if name in filled), None)
            if kind is not None:
                names = {"f": "FLOAT", "i": "INT", "s": "STRING", "t": "TENSOR", "g": "GRAPH"}
                attribute.type = onnx.AttributeProto.AttributeType.Value(names.get(kind, kind.upper()))


def _fill(node: onnx.NodeProto) -> None:
    """A Constant of a sparse tensor becomes one of the dense tensor."""
    for attribute in node.attribute:
        if node.op_type == "Constant" and attribute.name == "sparse_value" and attribute.HasField("sparse_tensor"):
            attribute.CopyFrom(onnx.helper.make_attribute("value", _dense(attribute.sparse_tensor)))


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    values = onnx.numpy_helper.to_array(sparse.values)
    indices = onnx.numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return onnx.numpy_helper.from_array(dense, sparse.values.name)


def _deserialize(proto: onnx.ModelProto, folder: pathlib.Path, weights: wire.Weights) -> ir.Model:
    try:
        model = ir.serde.deserialize_model(proto)
    except Exception as error:  # onnx_ir wraps whatever it met in its own context
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = f"{type(cause).__name__}: {cause}" if isinstance(cause, (KeyError, AttributeError)) else cause
        raise InvalidModelError(f"the model cannot be represented: {reason}") from error
    for index, (dtype, data) in weights.items():
        tensor = proto.graph.initializer[index]
        value = model.graph.initializers[tensor.name]
        value.const_value = ir.Tensor(
            wire.array(dtype, data, tuple(tensor.dims)),
            dtype,
            name=tensor.name,
            doc_string=tensor.doc_string or None,
            metadata_props={prop.key: prop.value for prop in tensor.metadata_props},
        )
    for graph in graphs_in(model.graph):
        ir.external_data.set_base_dir(graph, folder.absolute())
    return model


# ---- normal form


def normalise(model: ir.Model, interface: Interface | None = None) -> None:
    """Bring a model into normal form, in place. Raises InvalidModelError and UnsupportedOpError.

    interface: what its file declares; without one, what the graph says.
    """
    graph = model.graph
    if model.ir_version < 4:
        for value in [v for v in graph.inputs if v.is_initializer()]:
            graph.inputs.remove(value)
    interface = interface or Interface.of(model)
    kept = {value.name for value in graph.inputs}
    dataclasses.replace(interface, inputs=tuple(v for v in interface.inputs if v.name in kept)).record(model)
    validation.check_model(model)
    for value in graph.inputs:
        value.shape = _clean(value.shape)
    for root in roots(model):
        _sort(root)
        for each in graphs_in(root):
            inner = list(each.inputs) if each is not root else []
            _forget_declared_shapes([*inner, *(out for node in each for out in node.outputs)])
    for root in roots(model):
        _own_body_outputs(root, {})
        _unshadow(root, {})
    _lift_constants(model)
    read_manifest(model)  # refuses one that does not fit the graph


def _clean(shape: ir.Shape | None) -> ir.Shape | None:
    """Unknown dims are anonymous: some exporters write -1, or a name such as "?" that is no expression."""
    return None if shape is None else ir.Shape([dim if _is_dim(dim) else ir.SymbolicDim(None) for dim in shape])


def _is_dim(dim: int | ir.SymbolicDim) -> bool:
    if isinstance(dim, int):
        return dim >= 0
    return not is_placeholder(dim.value) and _is_expression(str(dim.value))


@functools.lru_cache(1 << 12)
def _is_expression(name: str) -> bool:
    try:
        symbols(ir.SymbolicDim(name))
    except ValueError:
        return False
    return True


def is_placeholder(name: str | None) -> bool:
    """Whether exporters give this name to every dim that they do not know: two of them need not be equal."""
    return name is None or name.lower() in ("", "?", "-1", "none", "unk", "unknown", "dyn", "dynamic", "any")


def _sort(graph: ir.Graph) -> None:
    """Topological order, touched only when the file does not have it."""
    defined: set[ir.Value] = set()

    def ordered(each: ir.Graph) -> bool:
        for node in each:
            if any(v is not None and v.producer() is not None and v not in defined for v in node.inputs):
                return False
            if not all(ordered(body) for body in bodies(node)):
                return False
            defined.update(node.outputs)
        return True

    if ordered(graph):
        return
    try:
        graph.sort()
    except ValueError as error:
        raise InvalidModelError(f"graph {graph.name!r} has a cycle") from error


def _forget_declared_shapes(values: list[ir.Value]) -> None:
    """Keep the declarations of inner values aside: they may be wrong, and passes must not trust them."""
    for value in values:
        if value.shape is not None:
            value.meta[DECLARED_SHAPE] = _clean(value.shape)
            value.shape = None


def _own_body_outputs(graph: ir.Graph, outer: dict[str, ir.Value]) -> None:
    """A body that hands on an outer value by name gets an Identity, so that the reference is one of objects."""
    visible = dict(outer)
    visible.update({v.name: v for v in [*graph.inputs, *graph.initializers.values()] if v.name})
    visible.update({out.name: out for node in graph for out in node.outputs if out.name})
    for node in graph:
        for body in bodies(node):
            own = {*body.inputs, *body.initializers.values(), *(out for n in body for out in n.outputs)}
            for i, out in enumerate(body.outputs):
                if out in own:
                    continue
                if out.name not in visible:
                    raise InvalidModelError(
                        f"{describe_node(node)}: its body returns {out.name!r}, which nothing defines"
                    )
                copy = ir.Node("", "Identity", [visible[out.name]])
                body.append(copy)
                copy.outputs[0].name = f"{out.name}_{i}_of_{node.name or node.op_type}"
                copy.outputs[0].type = out.type
                body.outputs[i] = copy.outputs[0]
            _own_body_outputs(body, visible)


def _unshadow(graph: ir.Graph, outer: dict[str, ir.Value]) -> None:
    """Rename what a body defines under a name of an enclosing graph: references here are objects, in a file names."""
    own = [*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)]
    visible = {**outer, **{v.name: v for v in own if v.name and not outer}}
    for value in own if outer else ():
        hidden = outer.get(value.name or "")
        if hidden is not None and hidden is not value:
            _check_hidden(value, hidden)
            name = f"{value.name}_inner"
            while name in visible:
                name += "_"
            value.name = name
        if value.name:
            visible[value.name] = value
    for node in graph:
        if node.domain in schema.STANDARD_DOMAINS:  # to another operator the names in its graphs may mean something
            for body in bodies(node):
                _unshadow(body, visible)


def _check_hidden(value: ir.Value, hidden: ir.Value) -> None:
    """A body's initializer under an outer name: runtimes read the outer one, so it must be the same."""
    if not value.is_initializer() or value.is_graph_input():
        return
    inner, outer = constant_tensor(value), constant_tensor(hidden)
    same = inner is not None and outer is not None and inner.dtype == outer.dtype and inner.shape == outer.shape
    if not same or inner is None or outer is None or not np.array_equal(inner.numpy(), outer.numpy()):
        raise InvalidModelError(
            f"a body has an initializer {value.name!r}, which is also the name of another value outside; rename one"
        )


def _lift_constants(model: ir.Model) -> None:
    """Constant nodes become initializers, where the IR version has initializers."""
    for graph in graphs_in(model.graph) if model.ir_version >= 4 else (model.graph,):
        lifted: list[ir.Node] = []
        for node in graph:
            if node.op_type != "Constant" or node.domain != "" or len(node.outputs) != 1:
                continue
            out = node.outputs[0]
            tensor = constant_tensor(out)
            if tensor is None or out.is_graph_output() or not out.name or out.name in graph.initializers:
                continue
            value = ir.Value(
                name=out.name,
                type=ir.TensorType(tensor.dtype),
                shape=ir.Shape(tensor.shape.numpy()),
                doc_string=out.doc_string or node.doc_string,
                const_value=renamed(tensor, out.name),
                metadata_props={**node.metadata_props, **out.metadata_props},
            )
            graph.initializers.add(value)
            out.replace_all_uses_with(value)
            lifted.append(node)
        graph.remove(lifted)
