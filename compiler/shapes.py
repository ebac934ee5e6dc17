"""The one adapter to onnx-shape-inference: sound, incremental, and never a reason to fail.

Shapes come from the inputs alone. What the library raises on, or is known to get wrong, is unknown here: facts that
hold on one path only (a branch, a first iteration) are widened before they leave the body.
"""

from __future__ import annotations

import collections
import contextlib
import logging
from collections.abc import Iterator, Sequence

import onnx_ir as ir
import onnx_shape_inference as osi
from onnx_shape_inference import _functions  # function calls have no public entry; the version is pinned to 0.4
from pfvm.passes import schema
from pfvm.passes.dims import symbols
from pfvm.passes.effects import bodies, graphs_in, nodes_in, roots
from pfvm.passes.view import is_parameterized

from . import onnx_shapes, plain_shapes
from .importer import DECLARED_SHAPE
from .shape_mending import Dim, mend

logger = logging.getLogger(__name__)


class ShapeInference:
    """Implements pfvm.passes.shape_inference.ShapeInference for one model.

    `failures` counts, by operator, nodes whose outputs stayed unknown because the library raised.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        osi.registry.collect()
        self.failures: collections.Counter[str] = collections.Counter()
        self._start()

    def _start(self) -> None:
        """Forget everything that was inferred."""
        self._context = osi.ShapeInferenceContext(self._model.opset_imports, policy="refine")
        self._context.reserve_symbol_names(_symbols(self._model))
        self._contexts: dict[ir.Graph, osi.ShapeInferenceContext] = {self._model.graph: self._context}
        self._function_cache: dict = {}
        self._schema_function_cache: dict = {}

    # ---- the protocol

    def infer_model(self) -> None:
        """Infer every graph, bodies included, from the inputs alone.

        It starts afresh, so that the result is a function of the graph and not of how the graph came about: what
        passes know is then the same when their output is compiled again.
        """
        for root in roots(self._model):
            for node in nodes_in(root):
                for out in node.outputs:
                    out.shape = None
        self._start()
        for root in roots(self._model):
            context = self._context
            if root is not self._model.graph:
                context = self._contexts[root] = context.create_child(root.opset_imports, resolved_attrs={})
            self._infer_graph(context, root)

    def infer_node(self, node: ir.Node) -> None:
        """Infer one new node."""
        context = self._contexts.get(node.graph) if node.graph is not None else None
        self._infer_node(context or self._context, node)

    def contents(self, value: ir.Value) -> Sequence[Dim] | None:
        """Elements of a 0-d or 1-d integer tensor as far as they follow from shapes; None when nothing is known."""
        if value.dtype not in (ir.DataType.INT64, ir.DataType.INT32) or value.is_graph_input():
            return None
        return self._context.get_symbolic_value(value)

    # ---- graphs

    def _infer_graph(self, context: osi.ShapeInferenceContext, graph: ir.Graph) -> None:
        self._contexts[graph] = context
        for value in graph.initializers.values():
            if value.const_value is not None and not value.is_graph_input():
                value.shape = ir.Shape(value.const_value.shape.numpy())
                value.type = value.type or ir.TensorType(value.const_value.dtype)
        for value in graph.inputs:
            context.name_anonymous_dims(value)
        for node in graph:
            self._infer_node(context, node)

    def _process_graph(self, context: osi.ShapeInferenceContext, graph: ir.Graph, **_: object) -> bool:
        """What the library calls for the body of a function: our own walk."""
        self._infer_graph(context, graph)
        return True

    # ---- nodes

    def _infer_node(self, context: osi.ShapeInferenceContext, node: ir.Node) -> None:
        for value in node.inputs:
            if value is not None:
                context.name_anonymous_dims(value)
        _bind_body_inputs(context, node)
        for body in bodies(node):
            self._infer_graph(context, body)
        if not plain_shapes.infer(context, node):
            self._ask_library(context, node)
            mend(context, node)
        for out in node.outputs:
            out.metadata_props.pop(osi.SYM_DATA_KEY, None)
            if out.type is not None and out.type.dtype is None:
                out.type = None  # a sequence of what nobody knows, as in a function, which a file cannot say
            if out.const_value is not None:
                out.const_value = None  # contents() knows; a node's output is no constant of the file
            if out.shape is not None and any(isinstance(d, int) and d < 0 for d in out.shape):
                out.shape = None

    def _ask_library(self, context: osi.ShapeInferenceContext, node: ir.Node) -> None:
        """Leaves unknown what it raises on."""
        try:
            with _without_defaults(node):
                self._call_library(context, node)
        except Exception as error:
            # The library raises all sorts of things on unusual nodes; not knowing a shape is always safe.
            self.failures[node.op_type] += 1
            logger.debug("shape of %s (%s) stays unknown: %s", node.name, node.op_type, error)
            for out in node.outputs:
                out.shape = None

    def _call_library(self, context: osi.ShapeInferenceContext, node: ir.Node) -> None:
        identifier = (node.domain or "", node.op_type, node.overload or "")
        if identifier in self._model.functions:
            _functions.infer_function_call_output_shapes(
                context,
                node,
                self._model.functions,
                process_graph_fn=self._process_graph,
                warn_on_missing=False,
                inference_cache=self._function_cache,
            )
            return
        version = context.get_opset_version(node.domain)
        infer = osi.registry.get(node.domain, node.op_type, version=version)
        if infer is None and node.domain == "" and node.op_type in schema.EXTENSIONS:
            infer = osi.registry.get("", node.op_type, version=schema.newest_opset())
        if infer is None and onnx_shapes.infer(context, node, version):
            return
        if infer is None:
            _functions.infer_via_op_schema_function(
                context,
                node,
                process_graph_fn=self._process_graph,
                warn_on_missing=False,
                opset_version=version,
                model_functions=self._model.functions,
                inference_cache=self._function_cache,
                op_function_cache=self._schema_function_cache,
            )
        elif is_parameterized(node):
            if context.resolved_attrs:
                with _functions._resolve_ref_attrs(node, context.resolved_attrs):
                    infer(context, node)
        else:
            infer(context, node)


def _symbols(model: ir.Model) -> set[str]:
    """Every symbol that the file declares, so that new ones differ."""
    names: set[str] = set()
    for graph in graphs_in(model.graph):
        for value in [*graph.inputs, *graph.outputs, *(out for node in graph for out in node.outputs)]:
            if value.shape is not None:
                names.update(*map(symbols, value.shape))
    return names


def _bind_body_inputs(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """Give body inputs what is true in every iteration: types, and for Scan the shapes.

    A value that a Loop carries may change its shape between iterations, so its shape stays unknown.
    """
    if node.domain != "" or node.op_type not in ("Loop", "Scan"):
        return
    (body,) = bodies(node) or (None,)
    if body is None:
        return
    if node.op_type == "Loop":
        for formal, actual in zip(list(body.inputs)[2:], list(node.inputs)[2:]):
            formal.shape = None
            if formal.type is None and actual is not None:
                formal.type = actual.type
        for formal in list(body.inputs)[:2]:
            if formal.shape is None:  # scalars; where a file says [1], runtimes hand in one element
                declared = formal.meta.get(DECLARED_SHAPE)
                formal.shape = declared if declared is not None and declared == [1] else ir.Shape([])
        return
    if context.get_opset_version("") < 9 or is_parameterized(node):  # Scan-8 has a batch axis
        for formal in body.inputs:
            formal.shape = None
        return
    scanned = node.attributes.get_int("num_scan_inputs", 0)
    axes = node.attributes.get_ints("scan_input_axes", ()) or ()
    states = len(node.inputs) - scanned
    for i, (formal, actual) in enumerate(zip(body.inputs, node.inputs)):
        if actual is None or actual.shape is None:
            formal.shape = None
            continue
        dims = list(context.name_anonymous_dims_in_shape(actual.shape))
        if i >= states and dims:
            del dims[axes[i - states] if i - states < len(axes) else 0]
        formal.shape = ir.Shape(dims)


@contextlib.contextmanager
def _without_defaults(node: ir.Node) -> Iterator[None]:
    """Hide the values of overridable initializers from the library: a caller may give others."""
    hidden = [(v, v.const_value) for v in node.inputs if v is not None and v.is_initializer() and v.is_graph_input()]
    for value, _ in hidden:
        value.const_value = None
    try:
        yield
    finally:
        for value, tensor in hidden:
            value.const_value = tensor
