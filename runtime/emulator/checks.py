"""What can be said of a node from placements alone: memories, layouts of moves and reuses, locality of operands."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
from pfvm.compiler.plan.addresses import dram_size
from pfvm.compiler.plan.layout import ADDRESS, LANE
from pfvm.compiler.plan.machine import Machine
from pfvm.compiler.plan.mngraph import CAST, DOWNLOAD, GATHERED, LAYOUT_SWITCH, UPLOAD
from pfvm.compiler.plan.ops import contract, reduce
from pfvm.compiler.plan.ops.table import Rule
from pfvm.compiler.plan.placement import DRAM, IMMEDIATE
from pfvm.compiler.plan.schedule.cuts import is_same_but_time
from pfvm.errors import describe_node

from .cells import places
from .errors import AddressError, EmulatorError, LocalityError
from .image_checks import check_convolution, check_window
from .kernels import Kernel
from .locality import Pairs, broadcast_pairs, levels_of, misplaced, misplaced_text, never_meet, require
from .values import PlacedValue

Array = np.ndarray
Operands = list[PlacedValue | None]


def check_move(node: ir.Node, source: PlacedValue, out: PlacedValue, machine: Machine) -> None:
    """A move changes what its name says and nothing else. Raises EmulatorError."""
    what = describe_node(node)
    in_slices = node.op_type in (DOWNLOAD, UPLOAD) and is_same_but_time(source.layout, out.layout)
    same_layout = in_slices or source.layout.is_same_as(out.layout)
    if node.op_type != LAYOUT_SWITCH and node.op_type != CAST and not same_layout:
        raise LocalityError(f"{what} cannot change the layout {source.layout} to {out.layout}")
    if node.op_type != CAST and source.placement.dtype != out.placement.dtype:
        raise EmulatorError(f"{what} cannot change {source.placement.dtype} to {out.placement.dtype}")
    in_dram = source.placement.location == DRAM, out.placement.location == DRAM
    expected = {DOWNLOAD: (True, False), UPLOAD: (False, True)}.get(node.op_type, (False, False))
    if in_dram != expected and not (node.op_type == LAYOUT_SWITCH and in_dram == (False, True)):
        raise AddressError(
            f"{what} goes from {source.placement.location} to {out.placement.location}, which is not its way"
        )
    if node.op_type == CAST:
        require(node, out, source, machine, broadcast_pairs(out.layout, source.layout))


def check_reuse(node: ir.Node, source: PlacedValue, out: PlacedValue, positions: Array, machine: Machine) -> None:
    """A node that only names memory again: every element of the output lies where its input's does.

    positions: for each element of the output the flat index of the input's element. Raises EmulatorError.
    """
    what = describe_node(node)
    a, b = source.placement, out.placement
    if (a.location, a.address, a.dtype) != (b.location, b.address, b.dtype):
        raise AddressError(
            f"{what}: {out.name!r} is to be the memory of {source.name!r} ({a.dtype} in {a.location} at {a.address}), "
            f"but is {b.dtype} in {b.location} at {b.address}"
        )
    _check_places(node, [source], out, positions, machine)


def check_slices(node: ir.Node, sources: list[PlacedValue], out: PlacedValue, kernel: Kernel, machine: Machine) -> None:
    """Every element of a slice, or of a whole of slices, keeps its cell, lane and address; time apart."""
    if any(source.placement.dtype != out.placement.dtype for source in sources):
        raise EmulatorError(f"{describe_node(node)}: {out.name!r} has another dtype than what it is made of")
    numbers, first = [], 0
    for source in sources:
        size = int(np.prod(source.shape, dtype=np.int64))
        numbers.append(np.arange(first, first + size).reshape(source.shape))
        first += size
    _check_places(node, sources, out, kernel(numbers)[0], machine)


def check_concat(
    node: ir.Node, slices: list[PlacedValue], whole: PlacedValue, kernel: Kernel, machine: Machine
) -> None:
    """A whole in DRAM: its slices stand there one behind the other. Raises EmulatorError."""
    check_slices(node, slices, whole, kernel, machine)
    memory = machine.memory(DRAM)
    at = whole.placement.address
    for held in slices:
        if held.placement.location != DRAM or held.placement.address != at:
            raise AddressError(
                f"{describe_node(node)}: slice {held.name!r} is in {held.placement.location} at "
                f"{held.placement.address}, and not in its part of {whole.name!r}, {at}"
            )
        size = dram_size(held.placement, machine)
        at = (at or 0) + -(-size // memory.granularity) * memory.granularity


def _check_places(
    node: ir.Node, sources: list[PlacedValue], out: PlacedValue, positions: Array, machine: Machine
) -> None:
    """Element i of `out` lies where element positions[i] of the sources, one behind the other, does."""
    levels = {**machine.index_levels, LANE: max(dtype.lanes for dtype in machine.dtypes.values())}
    reach = max(held.layout.extent(ADDRESS) for held in (*sources, out))
    there = np.concatenate([places(source.layout, levels, reach).reshape(-1) for source in sources])
    here = places(out.layout, levels, reach).reshape(-1)
    lanes = {**levels, LANE: machine.lanes(out.placement.dtype)}
    copies = sorted(out.layout.normalized(lanes).copies)
    for source in sources:
        if sorted(source.layout.normalized(lanes).copies) != copies:
            break
    else:
        if np.array_equal(there[positions.reshape(-1)], here):
            return
    listed = " and ".join(f"{source.name!r}, {source.layout}" for source in sources[:2])
    raise LocalityError(
        f"{describe_node(node)} moves nothing in its cells, but {out.name!r} in {out.layout} is not where the "
        f"elements of {listed} are"
    )


def check_compute(node: ir.Node, rule: Rule, inputs: Operands, outputs: list[PlacedValue], machine: Machine) -> None:
    """Operands in local memory, in cells that can read them; results in another memory. Raises EmulatorError."""
    if GATHERED in node.metadata_props:
        _check_memories(node, rule, inputs, outputs, machine, anywhere=True)
        return
    _check_memories(node, rule, inputs, outputs, machine, anywhere=False)
    out = outputs[0]
    if rule.kind == "elementwise":
        for held in inputs:
            if held is not None and held.placement.location != IMMEDIATE:
                for each in outputs:
                    if np.prod(held.shape) <= np.prod(each.shape):  # an update's step count reads no weight
                        require(node, each, held, machine, _elementwise_pairs(node, inputs.index(held), each, held))
    elif rule.kind == "reduce":
        _check_reduction(node, inputs, outputs, machine)
    elif rule.kind == "contract":
        _check_product(node, inputs, out, machine)
    elif rule.kind == "convolve":
        check_convolution(node, inputs, out, machine)
    elif rule.kind == "window":
        for each in outputs:
            check_window(node, inputs, each, machine)
    else:
        raise LocalityError(f"{describe_node(node)} reads other cells than its own, but is not marked as gathered")


def _check_memories(
    node: ir.Node, rule: Rule, inputs: Operands, outputs: list[PlacedValue], machine: Machine, anywhere: bool
) -> None:
    what = describe_node(node)
    streamed = rule.reads_dram(node)
    read: set[str] = set()
    for i, held in enumerate(inputs):
        location = None if held is None else held.placement.location
        if location == DRAM and i not in streamed and not anywhere:
            raise LocalityError(f"{what} reads {held.name!r} from {DRAM}, where it cannot compute")  # type: ignore[union-attr]
        if location not in (None, DRAM, IMMEDIATE):
            read.add(str(location))
    if len(read) > 1 and not anywhere:
        raise LocalityError(
            f"{what} reads operands from {' and '.join(sorted(read))}, one instruction reads one memory"
        )
    for out in outputs:
        location = out.placement.location
        exclusive = location in read and machine.memory(str(location)).exclusive
        if exclusive and len(machine.local_memories) > 1 and not anywhere:
            raise LocalityError(f"{what} reads and writes {location}, which one instruction cannot do")


def _elementwise_pairs(node: ir.Node, i: int, out: PlacedValue, held: PlacedValue) -> Pairs:
    """As numpy pairs axes; what a normalization has per channel stands at its axis."""
    rank = len(out.shape)
    axis = None
    if i and node.op_type in ("BatchNormalization", "InstanceNormalization", "GroupNormalization"):
        axis = 1
    if i and node.op_type in ("QuantizeLinear", "DequantizeLinear"):
        axis = node.attributes.get_int("axis", 1) % max(rank, 1)
    if axis is None or len(held.shape) != 1 or held.shape[0] == 1:
        return broadcast_pairs(out.layout, held.layout)
    return [(k, 0 if k == axis else None) for k in range(rank)]


def _check_reduction(node: ir.Node, inputs: Operands, outputs: list[PlacedValue], machine: Machine) -> None:
    """The result where the input lies, anywhere along the levels that the tree spans."""
    source = inputs[0]
    assert source is not None
    axes = reduce.reduced_axes(node)
    kept = [i for i in range(len(source.shape)) if i not in axes]
    tree = levels_of(source.layout, axes)
    for out in outputs:
        if len(out.shape) == len(source.shape):
            pairs: Pairs = [
                (i, i if i in kept or out.shape[i] == source.shape[i] else None) for i in range(len(out.shape))
            ]
        else:
            pairs = list(enumerate(kept))
        in_place = reduce.is_in_place(node) and out.shape == source.shape
        require(node, out, source, machine, pairs, set() if in_place else tree)
    if reduce.is_in_place(node):
        for held in inputs[1:]:
            if held is not None and held.placement.location != IMMEDIATE:
                require(node, outputs[0], held, machine, broadcast_pairs(outputs[0].layout, held.layout))


def _check_product(node: ir.Node, inputs: Operands, out: PlacedValue, machine: Machine) -> None:
    """The weight beside the data in each matrix unit; the sum goes anywhere along the levels of the contracted axis.

    Inside a matrix unit operands and results go where they have to.
    """
    data, weight = inputs[0], inputs[1]
    assert data is not None and weight is not None
    axes = contract.product(node)
    inside = set(machine.levels_inside_matrix)
    if weight.placement.location != DRAM:
        pairs: list[tuple[int | None, int | None]] = [(axis, i) for i, axis in enumerate(axes.weight_axes)]
        known = {axis for axis in axes.weight_axes if axis is not None}
        pairs += [(axis, None) for axis in range(len(data.shape)) if axis not in known]
        if contract.is_over_rows(node):
            level = never_meet(data.layout, weight.layout, pairs, machine, inside)
        else:
            level = misplaced(data.layout, weight.layout, pairs, machine, inside, every_copy=False)
        if level is not None:
            raise LocalityError(misplaced_text(node, data, weight, level))
    tree = inside | levels_of(data.layout, [axes.data_column])
    if contract.is_over_rows(node):
        tree |= levels_of(weight.layout, [axes.weight_column])
    rows = [(i, i) for i in range(len(out.shape) - 1)] if node.op_type != "Gemm" else [(0, 1 - axes.data_column)]
    columns = len(out.shape) - 1
    require(node, out, data, machine, [*rows, (columns, None)], tree | {machine.matrix_unit.level})
    bias = inputs[2] if len(inputs) > 2 else None
    if bias is not None and bias.placement.location not in (DRAM, IMMEDIATE):
        require(node, out, bias, machine, broadcast_pairs(out.layout, bias.layout))
