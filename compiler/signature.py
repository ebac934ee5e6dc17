"""A model's interface: what must be the same before and after, and which output updates which input."""

from __future__ import annotations

import dataclasses
import json
from typing import Literal, get_args

import onnx
import onnx_ir as ir
from pfvm.errors import InvalidModelError

MANIFEST_KEY = "pfvm.state"
MANIFEST_VERSION = 1
_META_KEY = "pfvm.interface"

Kind = Literal["param", "buffer", "optimizer", "rng", "hyperparameter"]


@dataclasses.dataclass(frozen=True)
class Interface:
    """Inputs and outputs as the file declares them, kept verbatim: names, order, types, symbolic dims, doc strings.

    Inputs include the overridable initializers. A file without opset imports (IR version < 3) has `no_opset`.
    """

    inputs: tuple[onnx.ValueInfoProto, ...]
    outputs: tuple[onnx.ValueInfoProto, ...]
    no_opset: bool = False

    @classmethod
    def declared_in(cls, proto: onnx.ModelProto) -> Interface:
        """The interface of a file. An input that is an output too has two declarations, and they may differ."""
        graph = onnx.GraphProto(input=proto.graph.input, output=proto.graph.output)  # `proto` may change
        return cls(tuple(graph.input), tuple(graph.output), not proto.opset_import)

    @classmethod
    def of(cls, model: ir.Model) -> Interface:
        """The interface recorded at import, else that of the graph as it stands."""
        recorded = cls.recorded(model)
        if recorded is not None:
            return recorded
        graph = model.graph
        return cls(
            tuple(ir.serde.serialize_value(v) for v in graph.inputs),
            tuple(ir.serde.serialize_value(v) for v in graph.outputs),
        )

    @classmethod
    def recorded(cls, model: ir.Model) -> Interface | None:
        """The interface recorded at import; None for a model that was not imported."""
        return model.meta.get(_META_KEY)

    def record(self, model: ir.Model) -> None:
        """Remember this interface on the model; export restores it."""
        model.meta[_META_KEY] = self

    @staticmethod
    def forget(model: ir.Model) -> None:
        """Remove what `record` noted: the model's inputs and outputs may change again."""
        model.meta.pop(_META_KEY, None)

    def declared(self) -> dict[str, ir.Value]:
        """The declarations as values, by name; of an input that is an output too the input's, which feeds must fit.

        A map has no type there: onnx_ir does not represent it.
        """
        known = [_without_map(v) for v in (*self.outputs, *self.inputs)]
        return {v.name: ir.serde.deserialize_value_info_proto(v, None) for v in known}

    def maps(self) -> dict[str, str]:
        """Of the inputs and outputs that are or hold maps, what they are: "map", "sequence map"."""
        return {v.name: kind(v.type) for v in (*self.inputs, *self.outputs) if has_map(v.type)}

    def symbols(self) -> frozenset[str]:
        """Names of the symbolic dims of inputs and outputs."""
        dims = (d for v in (*self.inputs, *self.outputs) for d in v.type.tensor_type.shape.dim)
        return frozenset(d.dim_param for d in dims if d.dim_param)

    def restore(self, proto: onnx.ModelProto) -> None:
        """Put the recorded declarations back.

        Raises InvalidModelError when names or order changed: a pass broke its promise.
        """
        for what, kept, field in (
            ("inputs", self.inputs, proto.graph.input),
            ("outputs", self.outputs, proto.graph.output),
        ):
            names, expected = [v.name for v in field], [v.name for v in kept]
            if names != expected:
                raise InvalidModelError(f"internal error: {what} changed from {expected} to {names}")
            for value, original in zip(field, kept):
                value.CopyFrom(original)
        if self.no_opset:
            del proto.opset_import[:]


def kind(declared: onnx.TypeProto) -> str:
    """ "tensor", or what is around the tensor, outer words first: "optional sequence", "sequence map"."""
    words: list[str] = []
    field = declared.WhichOneof("value")
    while field in ("sequence_type", "optional_type"):
        words.append(field.removesuffix("_type"))
        declared = getattr(declared, field).elem_type
        field = declared.WhichOneof("value")
    return " ".join([*words, "map"] if field == "map_type" else words) or "tensor"


def has_map(declared: onnx.TypeProto) -> bool:
    return "map" in kind(declared)


def _without_map(declared: onnx.ValueInfoProto) -> onnx.ValueInfoProto:
    return onnx.ValueInfoProto(name=declared.name) if has_map(declared.type) else declared


@dataclasses.dataclass(frozen=True)
class StateEntry:
    """One tensor of state: which input holds it, what it is, where it lives in Python, which output updates it."""

    name: str
    kind: Kind
    source: str = ""
    output: str | None = None


def write_manifest(model: ir.Model, entries: list[StateEntry]) -> None:
    """Store the state manifest in the model's metadata, as versioned JSON."""
    state = [dataclasses.asdict(entry) for entry in entries]
    model.metadata_props[MANIFEST_KEY] = json.dumps({"version": MANIFEST_VERSION, "state": state})


def read_manifest(model: ir.Model) -> list[StateEntry]:
    """The state manifest, checked against the graph; empty for a model without one.

    Raises InvalidModelError for a manifest of another version, of a wrong form, or naming what is not there.
    """
    text = model.metadata_props.get(MANIFEST_KEY)
    if text is None:
        return []
    try:
        data = json.loads(text)
        if data["version"] != MANIFEST_VERSION:
            raise InvalidModelError(
                f"the state manifest has version {data['version']}; this pfvm reads version {MANIFEST_VERSION}"
            )
        entries = [StateEntry(**item) for item in data["state"]]
        for entry in entries:
            texts = (entry.name, entry.kind, entry.source, entry.output or "")
            if not all(isinstance(text, str) for text in texts):
                raise TypeError(f"{entry} holds what is no text")
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise InvalidModelError(f"metadata {MANIFEST_KEY!r} is no state manifest: {error}") from error
    inputs = {v.name for v in model.graph.inputs}
    outputs = {v.name for v in model.graph.outputs}
    for entry in entries:
        if entry.name not in inputs:
            raise InvalidModelError(f"the state manifest names {entry.name!r}, which is no input of the graph")
        if entry.output is not None and entry.output not in outputs:
            raise InvalidModelError(f"the state manifest names {entry.output!r}, which is no output of the graph")
        if entry.kind not in get_args(Kind):
            raise InvalidModelError(f"state {entry.name!r} has kind {entry.kind!r}; kinds: {', '.join(get_args(Kind))}")
    return entries
