"""Any ONNX file → normal form: one validated onnx_ir model that every pass and backend can rely on.

Normal form: Constant nodes of graphs are initializers; initializers that IR version 3 lists as inputs are plain ones;
sparse initializers are dense; nodes stand in topological order; every body computes its own outputs; every name is
defined; only inputs have declared shapes (the rest are inferred). Export undoes what the file's IR version asks for.
"""

from __future__ import annotations

import os
import pathlib

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError
from pfvm.errors import InvalidModelError, UnsupportedOpError
from pfvm.passes import schema
from pfvm.passes.effects import bodies
from pfvm.passes.view import constant_tensor, renamed

from .signature import Interface

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
        model, no_opset = source.clone(), False
        recorded = source.meta.get("pfvm.interface")
        if recorded is not None:  # already in normal form
            recorded.record(model)
            return model
    else:
        proto, folder = _read_proto(source)
        no_opset = not proto.opset_import
        _prepare_proto(proto)
        model = _deserialize(proto, folder)
    _normalise(model, no_opset)
    return model


# ---- reading


def _read_proto(source: str | os.PathLike | bytes | onnx.ModelProto) -> tuple[onnx.ModelProto, pathlib.Path]:
    if isinstance(source, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        return proto, pathlib.Path()
    if isinstance(source, bytes):
        return _parse(source, "the given bytes"), pathlib.Path()
    path = pathlib.Path(source)
    try:
        if path.suffix in (".onnx", ""):
            return _parse(path.read_bytes(), str(path)), path.parent
        return onnx.load_model(str(path), load_external_data=False), path.parent  # .onnxtxt, .textproto, .json
    except (FileNotFoundError, IsADirectoryError, PermissionError) as error:
        raise InvalidModelError(f"{path}: {error.strerror}") from error
    except InvalidModelError:
        raise
    except Exception as error:  # text formats raise their parsers' own types
        raise InvalidModelError(f"{path}: not an ONNX model ({error})") from error


def _parse(data: bytes, what: str) -> onnx.ModelProto:
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise InvalidModelError(f"{what}: not an ONNX model, or a truncated one ({len(data)} bytes)") from error
    if not proto.ir_version or not proto.HasField("graph"):
        raise InvalidModelError(f"{what}: not an ONNX model (no graph in {len(data)} bytes)")
    return proto


def _prepare_proto(proto: onnx.ModelProto) -> None:
    """What onnx_ir does not carry over: refuse it, or put it in a form that it does."""
    if len(proto.training_info):
        raise InvalidModelError(
            "the model has training_info graphs, which pfvm does not carry over; remove that field, "
            "or express the training step as an ordinary graph"
        )
    if not proto.opset_import:
        proto.opset_import.add(domain="", version=1)
    for function in proto.functions:
        defined = {*function.input, *(out for node in function.node for out in node.output)}
        for name in function.output:
            if name not in defined:
                raise InvalidModelError(f"function {function.name!r}: its output {name!r} is computed by no node")
    for graph in _graphs(proto.graph):
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(sparse))
        del graph.sparse_initializer[:]


def _graphs(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    found = [graph]
    for node in graph.node:
        for attribute in node.attribute:
            for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                found.extend(_graphs(body))
    return found


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    values = onnx.numpy_helper.to_array(sparse.values)
    indices = onnx.numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        dense.reshape(-1)[indices] = values
    else:
        dense[tuple(indices.T)] = values
    return onnx.numpy_helper.from_array(dense, sparse.values.name)


def _deserialize(proto: onnx.ModelProto, folder: pathlib.Path) -> ir.Model:
    try:
        model = ir.serde.deserialize_model(proto)
    except Exception as error:  # onnx_ir wraps whatever it met in its own context
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        reason = f"{type(cause).__name__}: {cause}" if isinstance(cause, (KeyError, AttributeError)) else cause
        raise InvalidModelError(f"the model cannot be represented: {reason}") from error
    ir.external_data.set_base_dir(model.graph, folder.absolute())
    _check_external_data(model, folder)
    return model


def _check_external_data(model: ir.Model, folder: pathlib.Path) -> None:
    root = folder.absolute().resolve()
    for graph in [model.graph, *model.graph.subgraphs()]:
        for value in graph.initializers.values():
            tensor = value.const_value
            if not isinstance(tensor, ir.ExternalTensor):
                continue
            path = (root / tensor.location).resolve()
            if not path.is_relative_to(root):
                raise InvalidModelError(
                    f"initializer {value.name!r}: external data {str(tensor.location)!r} lies outside the model's "
                    "folder"
                )
            if not path.is_file():
                raise InvalidModelError(f"initializer {value.name!r}: external data file {str(path)!r} does not exist")
            end = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
            if path.stat().st_size < end:
                raise InvalidModelError(
                    f"initializer {value.name!r}: external data file {str(path)!r} has {path.stat().st_size} bytes, "
                    f"{end} are needed"
                )


# ---- normal form


def _normalise(model: ir.Model, no_opset: bool) -> None:
    _check_opsets(model)
    graph = model.graph
    if model.ir_version < 4:
        for value in [v for v in graph.inputs if v.is_initializer()]:
            graph.inputs.remove(value)
    Interface(
        tuple(ir.serde.serialize_value(v) for v in graph.inputs),
        tuple(ir.serde.serialize_value(v) for v in graph.outputs),
        no_opset,
    ).record(model)
    _check_nodes(model)
    for value in graph.inputs:
        value.shape = _clean(value.shape)
    for root in [graph, *(f.graph for f in model.functions.values())]:
        _sort(root)
        for each in [root, *root.subgraphs()]:
            inner = list(each.inputs) if each is not root else []
            _forget_declared_shapes([*inner, *(out for node in each for out in node.outputs)])
    _own_body_outputs(graph, {})
    for root in [graph, *(f.graph for f in model.functions.values())]:
        _unshadow(root, set())
    _lift_constants(model)


def _check_opsets(model: ir.Model) -> None:
    for where, imports in [
        ("the model", model.opset_imports),
        *((f"function {f.name!r}", f.opset_imports) for f in model.functions.values()),
    ]:
        if "ai.onnx" in imports:  # the long name of the default domain
            imports.setdefault("", imports.pop("ai.onnx"))
        for domain, version in imports.items():
            newest = schema.newest_opset(domain)
            if newest and not 1 <= version <= newest:
                raise UnsupportedOpError(
                    f"{where} imports opset {version} of {domain or 'ai.onnx'}; this onnx knows 1 to {newest}"
                )


def _check_nodes(model: ir.Model) -> None:
    """Every operator of a standard domain exists, and every tensor that a node reads is defined."""
    local = set(model.functions)
    for function in [None, *model.functions.values()]:
        root = model.graph if function is None else function.graph
        for node in root.all_nodes():
            domain, op = node.domain, node.op_type
            if domain in schema.STANDARD_DOMAINS and node.op_identifier() not in local:
                version = root.opset_imports.get(domain)
                known = version is not None and schema.find(domain, op, version) is not None
                if not known and not (domain == "" and op in schema.EXTENSIONS):
                    raise UnsupportedOpError(
                        f"node {node.name or '?'!r} ({_outputs(node)}): {domain or 'ai.onnx'} has no operator {op!r} "
                        f"at opset {version}; use an operator of that opset, or a domain of your own"
                    )
            for value in node.inputs:
                if value is not None and value.producer() is None and value.graph is None:
                    raise InvalidModelError(
                        f"node {node.name or '?'!r} ({op}, {_outputs(node)}) reads tensor {value.name!r}, "
                        "which nothing defines"
                    )
        for value in root.outputs:
            if value.producer() is None and not value.is_graph_input() and not value.is_initializer():
                raise InvalidModelError(f"output {value.name!r} of graph {root.name!r} is computed by no node")


def _outputs(node: ir.Node) -> str:
    return "→ " + ", ".join(repr(out.name) for out in node.outputs if out.name)


def _clean(shape: ir.Shape | None) -> ir.Shape | None:
    """Unknown dims are anonymous: some exporters write -1, or a name such as "?" that is no expression."""
    return None if shape is None else ir.Shape([dim if _is_dim(dim) else ir.SymbolicDim(None) for dim in shape])


def _is_dim(dim: int | ir.SymbolicDim) -> bool:
    if isinstance(dim, int):
        return dim >= 0
    try:
        dim.free_symbols()
    except ValueError:
        return False
    return True


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
                        f"node {node.name or '?'!r} ({node.op_type}): its body returns {out.name!r}, "
                        "which nothing defines"
                    )
                copy = ir.Node("", "Identity", [visible[out.name]])
                body.append(copy)
                copy.outputs[0].name = f"{out.name}_{i}_of_{node.name or node.op_type}"
                copy.outputs[0].type = out.type
                body.outputs[i] = copy.outputs[0]
            _own_body_outputs(body, visible)


def _unshadow(graph: ir.Graph, outer: set[str]) -> None:
    """Rename what a body defines under a name of an enclosing graph: references here are objects, in a file names."""
    own = [*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)]
    taken = outer | {v.name for v in own if v.name and not outer}
    for value in own if outer else ():
        if value.name in outer:
            name = f"{value.name}_inner"
            while name in taken:
                name += "_"
            value.name = name
        if value.name:
            taken.add(value.name)
    for node in graph:
        for body in bodies(node):
            _unshadow(body, taken)


def _lift_constants(model: ir.Model) -> None:
    """Constant nodes become initializers, where the IR version has initializers."""
    for graph in [model.graph, *(model.graph.subgraphs() if model.ir_version >= 4 else ())]:
        for node in list(graph):
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
                doc_string=out.doc_string,
                const_value=renamed(tensor, out.name),
                metadata_props={**node.metadata_props, **out.metadata_props},
            )
            graph.initializers.add(value)
            out.replace_all_uses_with(value)
            graph.remove(node)
