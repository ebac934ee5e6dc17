"""Where onnx-shape-inference assumes more than the standard promises: what to keep of its answer.

Facts that hold on one path only (a branch, a first iteration) or for one size only are widened to a new symbol, or to
"unknown". Every entry was found by comparing with what really comes out: tests/test_shapes_sound.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir
import onnx_shape_inference as osi
from pfvm.passes.dims import Dim
from pfvm.passes.effects import bodies
from pfvm.passes.numpy_ops import TO_THE_END, sliced
from pfvm.passes.replace_einsum import terms_of
from pfvm.passes.view import View, constant_tensor

from . import contrib_mending
from .plain_shapes import broadcast, product

_BROADCASTING = """Add Sub Mul Div Pow Mod And Or Xor BitwiseAnd BitwiseOr BitwiseXor BitShift Equal Less LessOrEqual
Greater GreaterOrEqual Max Min Mean Sum Where"""


def mend(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """Keep only what holds for every run: mend what the library assumes and the standard does not promise."""
    rule = _MEND.get((node.domain, node.op_type))
    if rule is not None:
        rule(context, node)
    _mend_contents(context, node)


def _mend_contents(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """Keep contents only where integer arithmetic is what the library computed.

    It follows them through floats, narrow types and negative divisions as if those were unbounded floor arithmetic.
    """
    for out in node.outputs:
        contents = context._symbolic_values.get(out)
        if contents is None:
            continue
        numbers = [d for d in contents if isinstance(d, int)]
        operands = [context.get_symbolic_value(v) or () for v in node.inputs if v is not None]
        negative = any(isinstance(d, int) and d < 0 for each in operands for d in each)
        bounds = {ir.DataType.INT64: 2**63, ir.DataType.INT32: 2**31}
        limit = bounds.get(out.dtype) if out.dtype is not None else None
        unsafe = limit is None or any(not -limit <= d < limit for d in numbers)
        if unsafe or (negative and node.op_type in ("Div", "Mod")):
            del context._symbolic_values[out]


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
    """Of two different symbols the library takes the first. Before opset 7 the first operand rules."""
    out, first = node.outputs[0], node.inputs[0]
    if context.opset < 7 and len(node.inputs) == 2:
        out.shape = first.shape if first is not None else None
    elif out.shape is not None:
        dims = broadcast(context, [v.shape for v in node.inputs if v is not None])
        out.shape = None if dims is None else ir.Shape(dims)


def _mend_matmul(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    out, shapes = node.outputs[0].shape, [v.shape for v in node.inputs[:2] if v is not None]
    if out is None or any(shape is None for shape in shapes):
        return
    batches = [list(shape)[:-2] for shape in shapes if shape is not None]
    dims = broadcast(context, batches)
    if any(batches) and dims is not None:
        node.outputs[0].shape = ir.Shape([*dims, *list(out)[len(dims) :]])


def _mend_fused_matmul(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """The library takes the batch for the first axes, wherever the attributes say it is."""
    places = [node.attributes.get(f"transBatch{operand}") for operand in "AB"]
    if any(place is not None and (place.is_ref() or place.value) for place in places):
        _mend_unknown(context, node)
    else:
        _mend_matmul(context, node)


def _mend_expand(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    out, data, target = node.outputs[0], node.inputs[0], node.inputs[1]
    if out.shape is None or data is None or target is None:
        return
    contents = context.get_symbolic_value(target)
    dims = None if contents is None else broadcast(context, [data.shape, contents])
    out.shape = ir.Shape(dims if dims is not None else [context.new_symbolic_dim() for _ in out.shape])


def _mend_einsum(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """A label of size 1 broadcasts; the library takes the first operand's size."""
    out, operands = node.outputs[0], [value for value in node.inputs if value is not None]
    dims_in_a_row = [dim for value in operands for dim in value.shape or ()]
    if out.shape is None or all(isinstance(dim, int) and dim != 1 for dim in dims_in_a_row):
        return
    terms, result = terms_of(node.attributes.get_string("equation", "")) or ([], "")
    sizes: dict[str, list[list[Dim]]] = {}
    for label, dim in zip("".join(terms), dims_in_a_row):
        sizes.setdefault(label, []).append([dim])
    known = all(value.shape is not None for value in operands) and sizes.keys() >= set(result) and terms
    dims = [broadcast(context, sizes[label]) for label in result] if known else [None] * len(out.shape)
    out.shape = ir.Shape([context.new_symbolic_dim() if dim is None else dim[0] for dim in dims])


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
    """Of a symbolic dim only the whole is known: it may be shorter than any start or end.

    What a slice of known contents holds follows from bounds that are known, negative ones as well.
    """
    data, out = node.inputs[0], node.outputs[0]
    context._symbolic_values.pop(out, None)
    if data is None or data.shape is None or out.shape is None:
        return
    cuts = _cuts(context, node)
    if cuts is None:
        axes = _cut_axes(context, node, len(data.shape))
        out.shape = ir.Shape([context.new_symbolic_dim() if i in axes else dim for i, dim in enumerate(data.shape)])
        return
    dims = list(out.shape)
    for axis, start, end, step in cuts:
        dims[axis] = _cut_dim(context, data.shape[axis], (start, end, step), dims[axis])
    out.shape = ir.Shape(dims)
    contents = context.get_symbolic_value(data)
    if contents is not None and len(data.shape) == 1 and len(cuts) == 1:
        _, start, end, step = cuts[0]
        if isinstance(start, int) and isinstance(end, int) and step:
            context._symbolic_values[out] = [contents[i] for i in sliced(len(contents), start, end, step)]


Cut = tuple[int, Dim, Dim, int]
"""Axis, start, end and step."""


def _cuts(context: osi.ShapeInferenceContext, node: ir.Node) -> Sequence[Cut] | None:
    """What a Slice cuts, its bounds as they follow from shapes; None where anything is known only in a run."""
    view = View(node, context.opset)
    exact = view.cuts()
    if exact is not None or context.opset < 10:
        return exact
    given = [None if value is None else _elements(context, value) for value in (view.at(i) for i in range(1, 5))]
    if any(view.at(i + 1) is not None and each is None for i, each in enumerate(given)):
        return None
    starts, ends = given[0] or [], given[1] or []
    axes, steps = given[2] or range(len(starts)), given[3] or [1] * len(starts)
    rank = len(node.inputs[0].shape or ()) if node.inputs[0] is not None else 0
    found = list[Cut]()
    for axis, start, end, step in zip(axes, starts, ends, steps):
        if not isinstance(axis, int) or not -rank <= axis < rank or not isinstance(step, int):
            return None
        found.append((axis, start, end, step))
    return found if len(found) == len(starts) else None


def _cut_axes(context: osi.ShapeInferenceContext, node: ir.Node, rank: int) -> set[int]:
    """The axes that a Slice with bounds of a run may cut."""
    view = View(node, context.opset)
    starts, axes = view.at(1), view.at(3)
    if axes is not None:
        found = _elements(context, axes)
    else:
        count = starts.shape[0] if starts is not None and starts.shape else None
        found = range(count) if isinstance(count, int) else None
    known = [axis for axis in found or () if isinstance(axis, int) and -rank <= axis < rank]
    return {axis % rank for axis in known} if found and len(known) == len(found) else set(range(rank))


def _elements(context: osi.ShapeInferenceContext, value: ir.Value) -> Sequence[Dim] | None:
    """What an integer tensor holds, as far as constants and shapes tell."""
    tensor = constant_tensor(value)
    if tensor is not None:
        return [int(number) for number in tensor.numpy().reshape(-1)]
    return None if value.is_graph_input() else context.get_symbolic_value(value)


def _cut_dim(context: osi.ShapeInferenceContext, size: Dim, cut: tuple[Dim, Dim, int], assumed: Dim) -> Dim:
    """What is left of an axis of `size`; of an end that is a sum of dims, which is not negative, as `assumed`."""
    start, end, step = cut
    if isinstance(start, int) and isinstance(end, int):
        if isinstance(size, int):
            return len(sliced(size, start, end, step)) if step else size
        forward = start == 0 and end >= TO_THE_END and step == 1
        backward = start == -1 and end <= -TO_THE_END and step == -1
        return size if forward or backward else context.new_symbolic_dim()
    positive = isinstance(start, int) and start >= 0 and step > 0
    follows = positive and isinstance(end, ir.SymbolicDim) and end.value is not None and "-" not in end.value
    return assumed if follows else context.new_symbolic_dim()


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
    """With ceil_mode the last window may fall away, which a formula of symbols does not say.

    Where no window fits, ONNX Runtime, which rounds toward zero, may still have one.
    """
    rounds_up = bool(node.attributes.get_int("ceil_mode", 0))

    def is_sure(dim: Dim) -> bool:
        return dim > 0 if isinstance(dim, int) else not rounds_up

    for out in node.outputs:
        if out.shape is not None:
            dims = [d if i < 2 or is_sure(d) else context.new_symbolic_dim() for i, d in enumerate(out.shape)]
            out.shape = ir.Shape(dims)


def _mend_unknown(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """The library's formula is not the standard's."""
    for out in node.outputs:
        out.shape = None


def _mend_resize(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """It ignores the policies that keep the aspect ratio."""
    policy = node.attributes.get("keep_aspect_ratio_policy")
    if policy is not None and (policy.is_ref() or policy.as_string() != "stretch"):
        _mend_unknown(context, node)


def _mend_unique(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """With an axis the result keeps its input's rank; the library says 1."""
    if "axis" in node.attributes:
        node.outputs[0].shape = None


def _mend_constant_of_shape(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """The library wants its operand constant; that what is in it follows from shapes is enough."""
    operand, out = node.inputs[0], node.outputs[0]
    contents = context.get_symbolic_value(operand) if operand is not None and not operand.is_graph_input() else None
    if out.shape is None and contents is not None and operand is not None and operand.dtype == ir.DataType.INT64:
        out.shape = ir.Shape(list(contents))


def _mend_range(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """The library wants constants; from 0 by 1 there are as many numbers as the dim that the limit is."""
    start, limit, delta = (context.get_symbolic_value(value) if value is not None else None for value in node.inputs)
    out = node.outputs[0]
    if start is None or limit is None or delta is None or list(start) != [0] or list(delta) != [1] or len(limit) != 1:
        return
    (size,) = limit
    name = size.value if isinstance(size, ir.SymbolicDim) else None
    if isinstance(name, str) and name.isidentifier():  # a dim, which is not negative; a sum of dims may be
        out.shape = ir.Shape([size])


def _mend_reshape(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """The dim that −1 stands for, where the symbolic dims of both sides cancel but for one.

    None of them is 0 in a run: −1 has no meaning there.
    """
    data, target, out = node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None, node.outputs[0]
    contents = context.get_symbolic_value(target) if target is not None and not target.is_graph_input() else None
    if data is None or data.shape is None or contents is None or out.shape is None or len(out.shape) != len(contents):
        return
    places = [i for i, dim in enumerate(contents) if dim == -1]
    copied = {i for i, dim in enumerate(contents) if dim == 0 and not node.attributes.get_int("allowzero", 0)}
    if len(places) != 1 or any(i >= len(data.shape) for i in copied):
        return
    known = [dim for i, dim in enumerate(contents) if i not in (*places, *copied)]
    if any(isinstance(dim, int) and dim < 1 for dim in known):
        return
    left = [dim for i, dim in enumerate(data.shape) if i not in copied and not isinstance(dim, int)]
    numbers = [dim for i, dim in enumerate(data.shape) if i not in copied and isinstance(dim, int)]
    for dim in known:
        if not isinstance(dim, int):
            if dim.value is None or dim not in left:
                return
            left.remove(dim)
    quotient, rest = divmod(math.prod(numbers), math.prod(dim for dim in known if isinstance(dim, int)))
    if rest or len(left) > 1 or (left and (quotient != 1 or left[0].value is None)):
        return
    dims = list(out.shape)
    dims[places[0]] = left[0] if left else quotient
    out.shape = ir.Shape(dims)


def _mend_feature_extractor(context: osi.ShapeInferenceContext, node: ir.Node) -> None:
    """All elements of the indices count, not their last axis alone; a vector of data counts as one row."""
    (data, indices), out = (None if value is None else value.shape for value in node.inputs), node.outputs[0]
    if data is None or indices is None or not len(data):
        out.shape = None
        return
    count = product(indices)
    out.shape = ir.Shape([*(list(data)[:-1] or [1]), context.new_symbolic_dim() if count is None else count])


_MEND: dict[tuple[str, str], Callable[[osi.ShapeInferenceContext, ir.Node], None]] = {
    ("", "If"): _mend_if,
    ("", "Loop"): _mend_loop,
    **{("", op): _mend_broadcast for op in _BROADCASTING.split()},
    ("", "MatMul"): _mend_matmul,
    ("", "MatMulInteger"): _mend_matmul,
    **contrib_mending.MEND,
    ("com.microsoft", "FusedMatMul"): _mend_fused_matmul,
    ("", "ConstantOfShape"): _mend_constant_of_shape,
    ("", "Range"): _mend_range,
    ("", "Reshape"): _mend_reshape,
    ("", "Expand"): _mend_expand,
    ("", "Einsum"): _mend_einsum,
    ("", "Split"): _mend_split,
    ("", "Slice"): _mend_slice,
    ("", "Squeeze"): _mend_squeeze,
    **{("", op): _mend_pool for op in ("MaxPool", "AveragePool", "LpPool")},
    ("", "Unique"): _mend_unique,
    ("", "Resize"): _mend_resize,
    ("", "MelWeightMatrix"): _mend_unknown,
    ("ai.onnx.ml", "ArrayFeatureExtractor"): _mend_feature_extractor,
}
