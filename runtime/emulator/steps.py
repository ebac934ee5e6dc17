"""A node of a plan as a step: loads its operands from their memories, computes, stores. Checks what is static first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import onnx_ir as ir
from pfvm.compiler.plan.mngraph import DOMAIN, GATHERED, INPUT_SPLIT, REFILL
from pfvm.compiler.plan.ops import contract, convolve, reduce
from pfvm.compiler.plan.ops.table import PadNeed, Rule, rule_of
from pfvm.errors import describe_node

from .arithmetic import Arithmetic, CellArithmetic
from .calls import Call
from .cells import cell_parts
from .checks import check_compute, check_move, check_slices
from .errors import PaddingError
from .kernels import Kernel, is_elementwise, kernel_of
from .memory import POISON
from .tail import NodeFailedError
from .values import PlacedValue, number_of

Array = np.ndarray
Step = Callable[[], None]
Operands = list[PlacedValue | None]


def move_step(call: Call, arithmetic: Arithmetic, source: PlacedValue, out: PlacedValue) -> Step:
    """A node that only moves, re-lays, refills, cuts or converts one value. Raises EmulatorError."""
    node, machine = call.node, arithmetic.machine
    if node.domain == DOMAIN and node.op_type == INPUT_SPLIT:
        return _split(call, arithmetic, source, out)
    check_move(node, source, out, machine)
    what = describe_node(node)
    if node.domain == DOMAIN and node.op_type == REFILL:
        return _refill(node, what, arithmetic, source, out)
    room = out.layout.padded_shape
    is_float = out.value.dtype is not None and out.value.dtype.is_floating_point()
    converts = is_float and source.placement.dtype != out.placement.dtype

    def move() -> None:
        padded = fitted(source.padded(what), room)
        out.store_padded(_converted(arithmetic, padded, out) if converts else padded, what)

    return move


def _refill(node: ir.Node, what: str, arithmetic: Arithmetic, source: PlacedValue, out: PlacedValue) -> Step:
    number = number_of(node.attributes.get_string("pad", "Zero"), out.placement.dtype, arithmetic.machine)
    valid = out.layout.valid()

    def refill() -> None:
        padded = out.filling(number)
        padded[valid] = source.cropped(source.padded(what), what)
        out.store_padded(padded, what)

    return refill


def _split(call: Call, arithmetic: Arithmetic, source: PlacedValue, out: PlacedValue) -> Step:
    """A slice of a value in DRAM; its padding is what the plan says of the whole."""
    check_slices(call.node, [source], out, kernel_of(call, arithmetic, [None]), arithmetic.machine)
    if out.layout.is_padded and out.placement.pad not in (None, "Dirty", source.placement.pad):
        raise PaddingError(
            f"{describe_node(call.node)}: the padding of {out.name!r} is called {out.placement.pad}, "
            f"that of {source.name!r} is {source.placement.pad}"
        )
    kernel, what = kernel_of(call, arithmetic, [None]), describe_node(call.node)
    return lambda: out.store(kernel([source.load(what)])[0], what)


def _converted(arithmetic: Arithmetic, padded: Array, out: PlacedValue) -> Array:
    """Another dtype; poison stays poison."""
    with np.errstate(all="ignore"):
        return np.where(np.isnan(padded), padded, arithmetic.store(padded, out.placement.dtype, None))


def compute_step(call: Call, arithmetic: Arithmetic, inputs: Operands, outputs: list[PlacedValue]) -> Step:
    """A node that computes. Raises EmulatorError, UnsupportedOpError."""
    node, machine = call.node, arithmetic.machine
    what, rule = describe_node(node), rule_of(node)
    check_compute(node, rule, inputs, outputs, machine)
    dtypes = [None if held is None else held.placement.dtype for held in inputs]
    kernel = kernel_of(call, arithmetic, dtypes)
    gathered = GATHERED in node.metadata_props
    in_cells = None if gathered else _cell_arithmetic(node, rule, arithmetic, inputs)
    partial = kernel if in_cells is None else kernel_of(call, in_cells, dtypes)
    promised = any(held.layout.is_padded and held.placement.pad not in (None, "Dirty") for held in outputs)
    if promised and not gathered and rule.kind == "elementwise" and is_elementwise(call):
        return _padded_step(what, arithmetic, kernel, inputs, outputs)
    if promised and not gathered:
        raise PaddingError(f"{what} cannot leave its padding {outputs[0].placement.pad}: only a refill can")
    needs = {} if gathered else _needs(arithmetic, rule.pad_need(node), inputs)
    named = [i for i, value in enumerate(node.outputs) if value.name]

    def load(i: int, held: PlacedValue | None) -> Array | None:
        if held is None or held.constant is not None:
            return None if held is None else held.constant
        padded = held.padded(what)
        if i in needs:
            held.check_padding(padded, *needs[i], what)
        return held.typed(held.cropped(padded, what))

    def compute() -> None:
        nonlocal partial
        results = partial([load(i, held) for i, held in enumerate(inputs)])
        partial = kernel  # the same results, sooner
        for k, held in zip(named, outputs):
            held.store(stored(arithmetic, held, results[k]), what)

    return compute


def _cell_arithmetic(node: ir.Node, rule: Rule, arithmetic: Arithmetic, inputs: Operands) -> Arithmetic | None:
    """The arithmetic of a product's or a reduction's partial sums; None for other nodes, and without rounding."""
    source = inputs[0] if inputs else None
    if source is None or arithmetic.exact or rule.kind not in ("contract", "convolve", "reduce"):
        return None
    machine = arithmetic.machine
    if rule.kind == "reduce":
        axes, levels = reduce.reduced_axes(node), machine.index_levels
        return CellArithmetic(arithmetic, reduced={axis: cell_parts(source.layout, axis, levels) for axis in axes})
    outer = (*machine.levels_outside_matrix, machine.matrix_unit.level)
    if rule.kind == "convolve":
        return CellArithmetic(arithmetic, contracted=_channels_of_taps(node, source, outer))
    return CellArithmetic(arithmetic, contracted=cell_parts(source.layout, contract.product(node).data_column, outer))


def _channels_of_taps(node: ir.Node, source: PlacedValue, levels: Sequence[str]) -> list[Array]:
    """Positions along a convolution's taps and channels, those of each matrix unit together."""
    channels, taps = source.shape[convolve.CHANNELS], np.arange(convolve.taps(node))
    parts = cell_parts(source.layout, convolve.CHANNELS, levels)
    return [(taps[:, None] * channels + part[None, :]).reshape(-1) for part in parts]


def stored(arithmetic: Arithmetic, held: PlacedValue, x: Array) -> Array:
    """A result as the value keeps it. Raises NodeFailedError where it has another shape than the plan says."""
    if x.shape not in (held.shape, held.layout.padded_shape):
        raise NodeFailedError(f"{held.name!r} came out with shape {x.shape}, the plan has {held.shape}")
    return arithmetic.store(x, held.placement.dtype, held.value.dtype)


def _needs(
    arithmetic: Arithmetic, needs: Sequence[PadNeed | None], inputs: Operands
) -> dict[int, tuple[tuple[int, ...], float]]:
    """input → (axes, number) of the padding that a node reads."""
    return {
        i: (tuple(need.axes), number_of(need.pad, held.placement.dtype, arithmetic.machine))
        for i, (need, held) in enumerate(zip(needs, inputs))
        if need is not None and held is not None and held.layout.is_padded and held.constant is None
    }


def _padded_step(
    what: str, arithmetic: Arithmetic, kernel: Kernel, inputs: Operands, outputs: list[PlacedValue]
) -> Step:
    """An elementwise node whose padding matters: it is computed like every element."""

    def compute() -> None:
        results = kernel([None if held is None else _spread(held, outputs[0], what) for held in inputs])
        for held, result in zip(outputs, results):
            rounded = stored(arithmetic, held, np.broadcast_to(result, held.layout.padded_shape))
            held.store_padded(held.cells(rounded), what)

    return compute


def _spread(held: PlacedValue, out: PlacedValue, what: str) -> Array:
    """The padded operand, of the output's padded sizes except where it is repeated."""
    if held.constant is not None and held.constant.size == 1:
        return held.constant
    padded = held.padded(what)
    held.cropped(padded, what)
    lead = len(out.shape) - len(held.shape)
    room = [1 if size == 1 else out.layout.padded_shape[i + lead] for i, size in enumerate(held.shape)]
    with np.errstate(all="ignore"):
        return np.asarray(held.typed(fitted(padded, room)), order="C")


def fitted(padded: Array, room: Sequence[int]) -> Array:
    """A tensor cut or continued with poison to other padded sizes."""
    if padded.shape == tuple(room):
        return padded
    result = np.full(room, POISON)
    shared = tuple(slice(0, min(a, b)) for a, b in zip(padded.shape, room))
    result[shared] = padded[shared]
    return result
