"""The one adapter to onnx-shape-inference: sound, incremental, and never a reason to fail.

Shapes come from the inputs alone. What the library raises on, or is known to get wrong, is unknown here: facts that
hold on one path only (a branch, a first iteration) are widened before they leave the body.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Callable, Sequence

import onnx_ir as ir
import onnx_shape_inference as osi
from onnx_shape_inference import _functions  # function calls have no public entry; the version is pinned to 0.4
from pfvm.passes.effects import bodies
from pfvm.passes.view import RUNTIME, View, constant_tensor

logger = logging.getLogger(__name__)
Dim = int | ir.SymbolicDim


class ShapeInference:
    """Implements pfvm.passes.rewriter.ShapeInference for one model.

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
        roots = [self._model.graph, *(f.graph for f in self._model.functions.values())]
        for root in roots:
            for node in root.all_nodes():
                for out in node.outputs:
                    out.shape = None
        self._start()
        for root in roots:
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
            if value.const_value is not None:
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
        try:
            self._call_library(context, node)
        except Exception as error:
            # The library raises all sorts of things on unusual nodes; not knowing a shape is always safe.
            self.failures[node.op_type] += 1
            logger.debug("shape of %s (%s) stays unknown: %s", node.name, node.op_type, error)
            for out in node.outputs:
                out.shape = None
        _widen(context, node)
        for out in node.outputs:
            out.metadata_props.pop(osi.SYM_DATA_KEY, None)
            if out.const_value is not None:
                out.const_value = None  # contents() knows; a node's output is no constant of the file
            if out.shape is not None and any(isinstance(d, int) and d < 0 for d in out.shape):
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
        elif any(attr.is_ref() for attr in node.attributes.values()):
            if context.resolved_attrs:
                with _functions._resolve_ref_attrs(node, context.resolved_attrs):
                    infer(context, node)
        else:
            infer(context, node)


def _symbols(model: ir.Model) -> set[str]:
    """Every symbol that the file declares, so that new ones differ."""
    names: set[str] = set()
    for graph in [model.graph, *model.graph.subgraphs()]:
        for value in [*graph.inputs, *graph.outputs, *(out for node in graph for out in node.outputs)]:
            if value.shape is not None:
                names.update(str(s) for s in value.shape.free_symbols())
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
            formal.shape = ir.Shape([]) if formal.shape is None else formal.shape
        return
    if context.get_opset_version("") < 9:  # Scan-8 has a batch axis
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


def _widen(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """Keep only what holds for every run: mend what the library assumes and the standard does not promise."""
    mend = _MEND.get((node.domain, node.op_type))
    if mend is not None:
        mend(context, node)


def _mend_if(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """The library takes the shape of one branch when the other's is unknown."""
    branches = bodies(node)
    for i, out in enumerate(node.outputs):
        if any(branch.outputs[i].shape is None for branch in branches):
            out.shape = None


def _mend_loop(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """A carried value leaves with its initial shape after no iteration, and with the body's after any other."""
    (body,) = bodies(node)
    carried = len(node.inputs) - 2
    for i, out in enumerate(node.outputs):
        if i < carried:
            init = node.inputs[2 + i]
            out.shape = _common(context, body.outputs[1 + i].shape, init.shape if init is not None else None)
        elif out.shape is not None:
            out.shape = _common(context, out.shape, out.shape)


def _common(context: osi.ShapeInferenceContext, a: ir.Shape | None, b: ir.Shape | None) -> ir.Shape | None:
    """Dims known to be the same int in both; a new symbol elsewhere. None when the ranks differ or are unknown."""
    if a is None or b is None or len(a) != len(b):
        return None
    return ir.Shape([x if isinstance(x, int) and x == y else context.new_symbolic_dim() for x, y in zip(a, b)])


def _mend_broadcast(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """Of two different symbols the library takes the first; either may be 1. Before opset 7 the first operand rules."""
    out, first = node.outputs[0], node.inputs[0]
    if context.opset < 7 and len(node.inputs) == 2:
        out.shape = first.shape if first is not None else None
    elif out.shape is not None:
        dims = _broadcast(context, [v.shape for v in node.inputs if v is not None])
        out.shape = None if dims is None else ir.Shape(dims)


def _mend_matmul(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    out, shapes = node.outputs[0].shape, [v.shape for v in node.inputs[:2] if v is not None]
    if out is None or any(shape is None for shape in shapes):
        return
    batches = [list(shape)[:-2] for shape in shapes if shape is not None]
    dims = _broadcast(context, batches)
    if any(batches) and dims is not None:
        node.outputs[0].shape = ir.Shape([*dims, *list(out)[len(dims) :]])


def _mend_expand(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    out, data, target = node.outputs[0], node.inputs[0], node.inputs[1]
    if out.shape is None or data is None or target is None:
        return
    contents = context.get_symbolic_value(target)
    dims = None if contents is None else _broadcast(context, [data.shape, contents])
    out.shape = ir.Shape(dims if dims is not None else [context.new_symbolic_dim() for _ in out.shape])


def _broadcast(
    context: osi.ShapeInferenceContext, shapes: Sequence[Sequence[Dim] | ir.Shape | None]
) -> list[Dim] | None:
    """Multidirectional broadcasting of symbolic shapes; None when one is unknown."""
    if any(shape is None for shape in shapes):
        return None
    rank = max(len(shape) for shape in shapes if shape is not None)
    padded: list[list[Dim]] = [[*[1] * (rank - len(shape)), *shape] for shape in shapes if shape is not None]
    return [_broadcast_dim(context, column) for column in zip(*padded)]


def _broadcast_dim(context: osi.ShapeInferenceContext, dims: Sequence[Dim]) -> Dim:
    sizes = [dim for dim in dims if isinstance(dim, int) and dim != 1]
    if sizes:
        return sizes[0]
    symbols = {dim.value: dim for dim in dims if not isinstance(dim, int)}
    if not symbols:
        return 1
    return next(iter(symbols.values())) if len(symbols) == 1 else context.new_symbolic_dim()


def _mend_einsum(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """A label of size 1 broadcasts; the library takes the first operand's size."""
    shapes = [v.shape for v in node.inputs if v is not None and v.shape is not None]
    if all(isinstance(dim, int) and dim != 1 for shape in shapes for dim in shape):
        return
    for out in node.outputs:
        if out.shape is not None:
            out.shape = ir.Shape([context.new_symbolic_dim() for _ in out.shape])


def _mend_quantized_broadcast(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """As above, with scales and zero points between the operands: symbols are not followed."""
    if node.outputs[0].shape is not None and not node.outputs[0].shape.is_static():
        node.outputs[0].shape = None


def _mend_split(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """Parts given by a run-time input are not equal parts."""
    if len(node.inputs) < 2 or node.inputs[1] is None or constant_tensor(node.inputs[1]) is not None:
        return
    parts = context.get_symbolic_value(node.inputs[1])
    for i, out in enumerate(node.outputs):
        if out.shape is not None:
            dims = list(out.shape)
            dims[node.attributes.get_int("axis", 0)] = context.new_symbolic_dim() if parts is None else parts[i]
            out.shape = ir.Shape(dims)


def _mend_slice(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """Of a symbolic dim only the whole is known: it may be shorter than any start or end."""
    data, out = node.inputs[0], node.outputs[0]
    if data is None or data.shape is None or out.shape is None or data.shape.is_static():
        return
    view = View(node, context.opset)
    starts, ends, axes = view.ints("starts"), view.ints("ends"), view.ints("axes")
    steps = view.ints("steps") if context.opset >= 10 else None
    if not isinstance(starts, tuple) or not isinstance(ends, tuple) or RUNTIME in (axes, steps):
        return  # the library follows run-time bounds only as new symbols
    dims = list(out.shape)
    for i, axis in enumerate(axes or range(len(starts))):  # type: ignore[arg-type]
        whole = starts[i] == 0 and ends[i] >= _TO_THE_END and (steps is None or steps[i] == 1)  # type: ignore[index]
        if isinstance(data.shape[axis], ir.SymbolicDim):
            dims[axis] = data.shape[axis] if whole else context.new_symbolic_dim()
    out.shape = ir.Shape(dims)


def _mend_squeeze(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """Axes that are given at run time, or none with a symbolic dim that may be 1: not even the rank is known."""
    axes = node.inputs[1] if len(node.inputs) > 1 else None
    if axes is not None:
        unknown = constant_tensor(axes) is None
    else:
        shape = node.inputs[0].shape if node.inputs[0] is not None else None
        unknown = "axes" not in node.attributes and (shape is None or not shape.is_static())
    if unknown:
        node.outputs[0].shape = None


def _mend_pool(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """With ceil_mode the last window may fall away, which a formula of symbols does not say."""
    if not node.attributes.get_int("ceil_mode", 0):
        return
    for out in node.outputs:
        if out.shape is not None:
            dims = [d if i < 2 or isinstance(d, int) else context.new_symbolic_dim() for i, d in enumerate(out.shape)]
            out.shape = ir.Shape(dims)


def _mend_unique(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """With an axis the result keeps its input's rank; the library says 1."""
    if "axis" in node.attributes:
        node.outputs[0].shape = None


_TO_THE_END = 2**31 - 1
"""Slice ends from here on mean "to the end": exporters write INT32_MAX or INT64_MAX."""
_BROADCASTING = (
    *(
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Pow",
        "Mod",
        "And",
        "Or",
        "Xor",
        "BitwiseAnd",
        "BitwiseOr",
        "BitwiseXor",
        "BitShift",
    ),
    *("Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "Max", "Min", "Mean", "Sum", "Where"),
)
_MEND: dict[tuple[str, str], Callable[[osi.ShapeInferenceContext, ir.Node], None]] = {
    ("", "If"): _mend_if,
    ("", "Loop"): _mend_loop,
    **{("", op): _mend_broadcast for op in _BROADCASTING},
    ("", "MatMul"): _mend_matmul,
    ("", "MatMulInteger"): _mend_matmul,
    ("com.microsoft", "FusedMatMul"): _mend_matmul,
    **{("com.microsoft", op): _mend_quantized_broadcast for op in ("QLinearAdd", "QLinearMul", "QLinearWhere")},
    ("", "Expand"): _mend_expand,
    ("", "Einsum"): _mend_einsum,
    ("", "Split"): _mend_split,
    ("", "Slice"): _mend_slice,
    ("", "Squeeze"): _mend_squeeze,
    **{("", op): _mend_pool for op in ("MaxPool", "AveragePool", "LpPool")},
    ("", "Unique"): _mend_unique,
}
