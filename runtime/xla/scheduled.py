"""XLA's scheduled program as a graph: computations in the order in which they run, with layouts and memories.

Nodes are of domain `xla`, values have a ForeignPlacement. What a while, a conditional or a call runs are graphs of its
node (body, condition, branch_0, …); a fusion is one node. A bitcast names its operand's memory again; tuples and their
elements are no nodes. Cycles that the compiler states, and trips of loops, are attributes; the nodes of the model that
a node comes from are its `pfvm.from`. What the text does not say is left out: addresses, and cycles on a CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import onnx_ir as ir
from pfvm.compiler.plan.foreign import ForeignPlacement, find_foreign, place_foreign
from pfvm.compiler.plan.placement import IMMEDIATE
from pfvm.errors import PfvmError
from pfvm.passes import provenance

from .hlo import ARRAY, Instruction, Module, parse_module, split
from .origins import origins_of
from .trips import Place, trip_count

DOMAIN = "xla"
Tree = Any  # an ir.Value, or the list of a tuple's trees

_DTYPES = {
    "pred": ir.DataType.BOOL, "f16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16, "f32": ir.DataType.FLOAT,
    "f64": ir.DataType.DOUBLE, "s4": ir.DataType.INT4, "s8": ir.DataType.INT8, "s16": ir.DataType.INT16,
    "s32": ir.DataType.INT32, "s64": ir.DataType.INT64, "u4": ir.DataType.UINT4, "u8": ir.DataType.UINT8,
    "u16": ir.DataType.UINT16, "u32": ir.DataType.UINT32, "u64": ir.DataType.UINT64, "c64": ir.DataType.COMPLEX64,
    "c128": ir.DataType.COMPLEX128, "f8e4m3fn": ir.DataType.FLOAT8E4M3FN, "f8e5m2": ir.DataType.FLOAT8E5M2,
}  # fmt: skip
_SPACES = {"1": "VMEM", "5": "HOST", "6": "SMEM"}  # S(n) of a layout; none is the platform's main memory
_UNSHOWN = ("metadata", "sharding", "frontend_attributes", "backend_config", "origin")
_BODIES = {"while": ("body", "condition"), "call": ("to_apply",), "async-start": ("calls",)}
CYCLES, TRIPS = "estimated_cycles", "trips"
_ALIASES = ("bitcast",)  # the operand's memory under another shape

_STEP = "jit(training_step)"  # a call of the step that is compiled apart (see `apart`): read as if it stood there

_ARGUMENT = re.compile(r'op_name="arguments\[(\d+)\]"')


def read_hlo(text: str, arguments: Sequence[str] = (), memory: str = "HBM") -> ir.Model:
    """The graph of a scheduled HLO module.

    arguments: names for the program's arguments; those behind them are weights and keep XLA's names. memory: where
    arrays are whose layout names no memory space. Raises PfvmError for a text that is no scheduled module.
    """
    if "is_scheduled=true" not in text.partition("\n")[0]:
        raise PfvmError("not a scheduled HLO module: its first line has no is_scheduled=true")
    module = parse_module(text)
    graph = _Reader(module, Place(module.entry), arguments, memory).read()
    return ir.Model(graph, ir_version=10)


class _Reader:
    """One computation: values by name while its instructions are read."""

    def __init__(self, module: Module, place: Place, arguments: Sequence[str], memory: str) -> None:
        self.module = module
        self.place = place
        self.arguments = arguments
        self.memory = memory
        self.known: dict[str, Tree] = {}
        self.inputs: list[ir.Value] = []
        self.nodes: list[ir.Node] = []

    def read(self) -> ir.Graph:
        outputs: list[ir.Value] = []
        for each in self.module.computations[self.place.computation].values():
            tree = self.known[each.name] = self._result(each)
            if each.is_root:
                outputs = list(_leaves(tree))
        imports = {DOMAIN: 1}
        name = "entry" if self.place.outer is None else self.place.computation
        return ir.Graph(self.inputs, outputs, nodes=self.nodes, opset_imports=imports, name=name)

    def _result(self, each: Instruction) -> Tree:
        operands = [self.known[name] for name in re.findall(r"%([\w.\-]+)", each.operands) if name in self.known]
        if each.opcode == "tuple":
            return operands
        if each.opcode == "get-tuple-element":
            whole = operands[0]
            return whole[int(each.attributes["index"])] if isinstance(whole, list) else whole
        if each.opcode == "parameter":
            value = self._made(self._argument_name(each), each.type)
            self.inputs += _leaves(value)
            return value
        if each.opcode == "call" and _STEP in each.attributes.get("metadata", ""):
            return self._step(each, operands)
        parent = next(_leaves(operands), None) if each.opcode in _ALIASES else None
        made = self._made(each.name, each.type, parent, IMMEDIATE if each.opcode == "constant" else None)
        inside = self._bodies(each)
        shown: list[ir.Attr] = [
            ir.AttrString(name, text)
            for name, text in each.attributes.items()
            if name not in _UNSHOWN and name not in inside and not (inside and name.endswith("_computation"))
        ]
        shown += [ir.AttrGraph(name, graph) for name, graph in inside.items()]
        shown += self._figures(each)
        node = ir.Node(DOMAIN, each.opcode, list(_leaves(operands)), shown, outputs=list(_leaves(made)))
        if origins := origins_of(each, self.module):
            provenance.label(node, origins)
        self.nodes.append(node)
        return made

    def _step(self, call: Instruction, operands: list[Tree]) -> Tree:
        """What a call returns, with its instructions in its place; a module has no name twice."""
        outer, called = self.place, call.called("to_apply") or ""
        self.place = Place(called, None, outer)
        result: Tree = []
        for each in self.module.computations[called].values():
            is_argument = each.opcode == "parameter"
            self.known[each.name] = operands[int(each.operands)] if is_argument else self._result(each)
            result = self.known[each.name] if each.is_root else result
        self.place = outer
        return result

    def _bodies(self, each: Instruction) -> dict[str, ir.Graph]:
        """What it runs as computations with a schedule of their own."""
        keys = _BODIES.get(each.opcode, ())
        found = {key: called for key in keys if (called := each.called(key)) is not None}
        if each.opcode == "conditional":
            found = {f"branch_{i}": name for i, name in enumerate(each.branches)}
        loop = each if each.opcode == "while" else None
        return {
            key: _Reader(self.module, Place(name, loop, self.place), (), self.memory).read()
            for key, name in found.items()
        }

    def _figures(self, each: Instruction) -> list[ir.Attr]:
        cycles = each.estimated_cycles
        trips = trip_count(self.module, each, self.place) if each.opcode == "while" else None
        return [ir.AttrInt64(name, value) for name, value in ((CYCLES, cycles), (TRIPS, trips)) if value is not None]

    def _argument_name(self, each: Instruction) -> str:
        match = _ARGUMENT.search(each.attributes.get("metadata", ""))
        number = int(match[1]) if match else len(self.arguments)
        return self.arguments[number] if number < len(self.arguments) else each.name

    def _made(self, name: str, type_text: str, parent: ir.Value | None = None, location: str | None = None) -> Tree:
        """The value of a type, or a list of those of a tuple's elements, `name:0`, `name:1`, …"""
        if type_text.startswith("("):
            parts = split(type_text[1:-1])
            return [self._made(f"{name}:{i}", part, location=location) for i, part in enumerate(_uncommented(parts))]
        value = ir.Value(name=name)
        match = ARRAY.fullmatch(type_text)
        if match is None:  # token[], opaque[]
            place_foreign(value, ForeignPlacement("XLA", dtype=type_text))
            return value
        dtype = _DTYPES.get(match["dtype"])
        if dtype is not None:
            value.type = ir.TensorType(dtype)
            value.shape = ir.Shape([int(dim) for dim in match["dims"].split(",") if dim])
        layout = match["layout"]
        space = re.search(r"S\((\d+)\)", layout or "")
        where = location or (_SPACES.get(space[1], f"S({space[1]})") if space else self.memory)
        if parent is not None:
            there = find_foreign(parent)
            where = where if there is None or there.location is None else there.location
        alias = None if parent is None else parent.name
        place_foreign(value, ForeignPlacement("XLA", layout, match["dtype"], where, parent=alias))
        return value


def _uncommented(parts: Sequence[str]) -> list[str]:
    """Long tuples have comments: /*index=5*/f32[8]{0}."""
    return [re.sub(r"/\*.*?\*/", "", part) for part in parts]


def _leaves(tree: Tree) -> Iterator[ir.Value]:
    if isinstance(tree, list):
        for each in tree:
            yield from _leaves(each)
    else:
        yield tree
