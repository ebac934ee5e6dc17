"""ImageDecoder, for which ONNX Runtime has no kernel: Pillow decodes, ONNX Runtime runs what is before and behind."""

from __future__ import annotations

import importlib.util
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx_ir as ir
from pfvm.compiler.shapes import ShapeInference
from pfvm.errors import InputError, MissingExtraError
from pfvm.passes.effects import bodies

from .executable import Executable, check_feeds, representation, specs_of
from .ort import OrtExecutable

# Those that the standard lists. Pillow opens many more, and runs Ghostscript for one.
_FORMATS = ("BMP", "DIB", "JPEG", "JPEG2000", "TIFF", "PNG", "WEBP", "PPM")
OPS = {("", "ImageDecoder"): (20,)}
_MODES = {"RGB": "RGB", "BGR": "RGB", "Grayscale": "L"}


def load_ort(model: ir.Model, **options: Any) -> Executable:
    """A model in ONNX Runtime, with ImageDecoder nodes of the main graph in Pillow. options: see OrtExecutable.

    Raises what OrtExecutable raises, and MissingExtraError where a model decodes images and Pillow is missing.
    """
    if any(decodes(node) for node in model.graph):
        return DecodingExecutable(model, **options)
    return OrtExecutable(model, **options)


def decode(encoded: np.ndarray, pixel_format: str = "RGB") -> np.ndarray:
    """An image file (uint8[bytes]) → uint8[height, width, channels]; the channels are 3, or 1 for "Grayscale".

    As the standard has it, what cannot be decoded gives an empty array, [0, 0, channels].
    """
    from PIL import Image

    mode = _MODES[pixel_format]
    try:
        with Image.open(io.BytesIO(encoded.tobytes()), formats=_FORMATS) as image:
            pixels = np.asarray(image.convert(mode))
    except (OSError, SyntaxError, ValueError):  # what Pillow raises for data that is no image
        return np.zeros((0, 0, len(mode)), np.uint8)
    pixels = pixels.reshape(*pixels.shape[:2], len(mode))
    return np.ascontiguousarray(pixels[:, :, ::-1]) if pixel_format == "BGR" else pixels


class _Stage(NamedTuple):
    """Nodes that run as one unit: ImageDecoder nodes where `session` is None."""

    nodes: Sequence[ir.Node]
    session: OrtExecutable | None


class DecodingExecutable:
    """A model with ImageDecoder nodes; implements `pfvm.runtime.executable.Executable`. See `load_ort`."""

    def __init__(self, model: ir.Model, *, device: str = "pfvm:cpu", **options: Any) -> None:
        if importlib.util.find_spec("PIL") is None:
            raise MissingExtraError("operator ImageDecoder", "image")
        self.device = device
        self.inputs, self.optional_inputs, self.outputs = specs_of(model)
        typed = model.clone()
        for node in filter(decodes, typed.graph):
            node.outputs[0].type, node.outputs[0].shape = ir.TensorType(ir.DataType.UINT8), ir.Shape([None] * 3)
        ShapeInference(typed).infer_model()
        self._defaults = {
            name: value.const_value.numpy()
            for name, value in typed.graph.initializers.items()
            if value.const_value is not None and (value.is_graph_input() or any(decodes(n) for n in value.consumers()))
        }
        self._stages = [
            _Stage(nodes, None if decodes else OrtExecutable(_part(typed, nodes), device=device, **options))
            for decodes, nodes in _levels(typed.graph)
        ]

    def __call__(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        values = {**self._defaults, **check_feeds(self.inputs, self.optional_inputs, feeds)}
        for nodes, session in self._stages:
            if session is None:
                values.update((node.outputs[0].name or "", self._decode(node, values)) for node in nodes)
            else:
                values.update(session({spec.name: values[spec.name] for spec in session.inputs}))
        return {spec.name: values[spec.name] for spec in self.outputs}

    def __repr__(self) -> str:
        return representation(self.device, self.inputs, self.outputs)

    def _decode(self, node: ir.Node, values: Mapping[str, Any]) -> np.ndarray:
        source = node.inputs[0].name or ""  # type: ignore[union-attr]  # the schema requires it
        try:
            return decode(values[source], node.attributes.get_string("pixel_format", "RGB"))
        except Exception as error:  # an image that is too large to be meant; Pillow's own class of error
            if type(error).__name__ != "DecompressionBombError":
                raise
            raise InputError(f"{self.device}: ImageDecoder cannot decode {source!r}: {error}") from error


def decodes(node: ir.Node) -> bool:
    """Is it an ImageDecoder?"""
    return node.op_type == "ImageDecoder" and node.domain == ""


def _levels(graph: ir.Graph) -> list[tuple[bool, list[ir.Node]]]:
    """The nodes as alternating groups, as few as the edges allow, in execution order: do they decode, and which."""
    level_of: dict[ir.Node | None, int] = {}
    levels: dict[int, list[ir.Node]] = defaultdict(list)
    for node in graph:
        earliest = max((level_of[v.producer()] for v in _reads(node) if v.producer() in level_of), default=0)
        level = level_of[node] = earliest + (earliest % 2 != decodes(node))
        levels[level].append(node)
    return [(level % 2 == 1, nodes) for level, nodes in sorted(levels.items())]


def _reads(node: ir.Node) -> dict[ir.Value, None]:
    """What the node and the bodies in it read; what bodies compute themselves is among it."""
    found: dict[ir.Value, None] = dict.fromkeys(v for v in node.inputs if v is not None and v.name)
    for body in bodies(node):
        found.update(dict.fromkeys(body.outputs))
        for inner in body:
            found.update(_reads(inner))
    return found


def _part(model: ir.Model, nodes: Sequence[ir.Node]) -> ir.Model:
    """Some nodes of the main graph as a model. It shares the tensors of the whole model's constants."""
    graph, own = model.graph, set(nodes)
    reads = dict.fromkeys(v for node in nodes for v in _reads(node) if v.graph is graph and v.producer() not in own)
    inputs = [v for v in reads if v.is_graph_input() or v.producer() is not None]
    produced = [v for node in nodes for v in node.outputs if v.name]
    outside = {v for node in graph if node not in own for v in _reads(node)} | set(graph.outputs)
    view = ir.GraphView(
        inputs,
        [v for v in produced if v in outside],
        nodes=nodes,
        initializers=[v for v in graph.initializers.values() if v in reads and v not in inputs],
        opset_imports=graph.opset_imports,
        name=graph.name,
    )
    clone = view.clone()
    for value in clone.inputs:
        value.const_value = None
    return ir.Model(clone, ir_version=model.ir_version, functions=list(model.functions.values()))
