"""An ir.Model as the bytes that ONNX Runtime loads, with the large weights left out: it takes those from memory.

Protobuf ends at 2 GiB and would copy every weight twice. The model itself is not changed and not cloned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import onnx
import onnx_ir as ir
from pfvm.compiler.importer import DECLARED_SHAPE
from pfvm.compiler.signature import Interface, has_map

# Initializers from this size on are handed over as memory.
_LARGE_BYTES = 1 << 20


def large_initializers(model: ir.Model) -> dict[str, ir.TensorProtocol]:
    """Initializers of at least 1 MiB that are read (never strings, which have no memory of their own)."""
    found = {name: value.const_value for name, value in _read_initializers(model).items()}
    return {
        name: tensor
        for name, tensor in found.items()
        if tensor is not None and tensor.dtype != ir.DataType.STRING and tensor.nbytes >= _LARGE_BYTES
    }


def _read_initializers(model: ir.Model) -> dict[str, ir.Value]:
    """Initializers that a node, an input or an output stands for; ONNX Runtime drops others before it takes memory."""
    return {
        name: value
        for name, value in model.graph.initializers.items()
        if value.uses() or value.is_graph_input() or value.is_graph_output()
    }


def external_folder(model: ir.Model) -> str | None:
    """Where the external data of nested graphs lies (that of the main graph is read or handed over), or None."""
    for graph in model.graph.subgraphs():
        for value in graph.initializers.values():
            if graph is not model.graph and isinstance(value.const_value, ir.ExternalTensor):
                return str(value.const_value.base_dir)
    return None


def serialize(model: ir.Model, shared: Mapping[str, ir.TensorProtocol]) -> bytes:
    """The model's bytes, without initializers that nobody reads.

    Tensors in `shared` are written as references only; other external data is read in.
    """
    initializers = _read_initializers(model)
    replaced = {
        name: _Overlay(value, const_value=_portable(name, value.const_value, name in shared))
        for name, value in initializers.items()
        if name in shared or isinstance(value.const_value, ir.ExternalTensor)
    }
    graph = _Overlay(model.graph, initializers={**initializers, **replaced})
    # Before IR version 4 every initializer had to be an input as well; in normal form it is not, and ORT would object.
    view: Any = _Overlay(model, graph=graph, ir_version=max(model.ir_version, 4))
    proto = ir.serde.serialize_model(view)
    _declare_maps(model, proto)
    _declare_bodies(model.graph, proto.graph.node)
    for function, function_proto in zip(model.functions.values(), proto.functions):
        _declare_bodies(function, function_proto.node)
    return proto.SerializeToString()


def _declare_maps(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Gives inputs the types that onnx_ir does not represent; ORT knows an output's by its node."""
    interface = Interface.recorded(model)
    maps = {v.name: v.type for v in interface.inputs if has_map(v.type)} if interface is not None else {}
    for value in proto.graph.input:
        if value.name in maps:
            value.type.CopyFrom(maps[value.name])


def _declare_bodies(nodes: Iterable[ir.Node], protos: Sequence[onnx.NodeProto]) -> None:
    """Gives inputs and outputs of bodies the shapes that were declared where inference finds none.

    ORT makes a Loop's counter in its shape, and a Scan's outputs need one.
    """
    for node, proto in zip(nodes, protos):
        for attribute in proto.attribute:
            if attribute.type != onnx.AttributeProto.GRAPH:
                continue
            body = node.attributes[attribute.name].as_graph()
            formals = (*zip(body.inputs, attribute.g.input), *zip(body.outputs, attribute.g.output))
            for value, value_proto in formals:
                declared = value.meta.get(DECLARED_SHAPE)
                if value.shape is None and declared is not None:
                    ir.serde.serialize_shape_into(value_proto.type, declared)
            _declare_bodies(body, attribute.g.node)


def _portable(name: str, tensor: Any, shared: bool) -> ir.TensorProtocol:
    if shared:
        return ir.ExternalTensor("memory", 0, tensor.nbytes, tensor.dtype, shape=ir.Shape(tensor.shape), name=name)
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)


class _Overlay:
    """An object seen with some attributes replaced: serialization reads the model without the model being touched."""

    def __init__(self, base: Any, **replaced: Any) -> None:
        self._base = base
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._base, name)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._base)

    def __len__(self) -> int:
        return len(self._base)
