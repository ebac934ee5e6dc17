"""XLA's scheduled program as a graph: its entry computation, in the order in which it runs, with layouts and memories.

Nodes are of domain `xla`, values have a ForeignPlacement. What a while, a call or a fusion runs is one node. A bitcast
names its operand's memory again; tuples and their elements are no nodes. What the text does not say is left out:
addresses, and cycles on a CPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import onnx_ir as ir
from pfvm.compiler.plan.foreign import ForeignPlacement, find_foreign, place_foreign
from pfvm.compiler.plan.placement import IMMEDIATE
from pfvm.errors import PfvmError

DOMAIN = "xla"
Tree = Any  # an ir.Value, or the list of a tuple's trees

_DTYPES = {
    "pred": ir.DataType.BOOL, "f16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16, "f32": ir.DataType.FLOAT,
    "f64": ir.DataType.DOUBLE, "s4": ir.DataType.INT4, "s8": ir.DataType.INT8, "s16": ir.DataType.INT16,
    "s32": ir.DataType.INT32, "s64": ir.DataType.INT64, "u4": ir.DataType.UINT4, "u8": ir.DataType.UINT8,
    "u16": ir.DataType.UINT16, "u32": ir.DataType.UINT32, "u64": ir.DataType.UINT64, "c64": ir.DataType.COMPLEX64,
    "c128": ir.DataType.COMPLEX128, "f8e4m3fn": ir.DataType.FLOAT8E4M3FN, "f8e5m2": ir.DataType.FLOAT8E5M2,
}  # fmt: skip
_SPACES = {"1": "VMEM", "5": "HOST"}  # S(n) of a layout; none is the platform's main memory
_UNSHOWN = ("metadata", "sharding", "frontend_attributes", "backend_config", "origin")
_ALIASES = ("bitcast",)  # the operand's memory under another shape

_ENTRY = re.compile(r"^ENTRY .*\{$", re.MULTILINE)
_LINE = re.compile(r"^\s*(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)$")
_ARRAY = re.compile(r"(?P<dtype>\w+)\[(?P<dims>[\d,<=]*)\](?P<layout>\{[^{}]*\})?")
_ARGUMENT = re.compile(r'op_name="arguments\[(\d+)\]"')


class Instruction(NamedTuple):
    """One line: `name = type opcode(operands), attributes`."""

    name: str
    type: str
    opcode: str
    operands: str
    attributes: dict[str, str]
    is_root: bool


def read_hlo(text: str, arguments: Sequence[str] = (), memory: str = "HBM") -> ir.Model:
    """The graph of a scheduled HLO module.

    arguments: names for the program's arguments; those behind them are weights and keep XLA's names. memory: where
    arrays are whose layout names no memory space. Raises PfvmError for a text that is no scheduled module.
    """
    if "is_scheduled=true" not in text.partition("\n")[0]:
        raise PfvmError("not a scheduled HLO module: its first line has no is_scheduled=true")
    return _Reader(arguments, memory).read(list(entry(text)))


def entry(text: str) -> Iterator[Instruction]:
    """The instructions of the entry computation, in order."""
    start = _ENTRY.search(text)
    if start is None:
        raise PfvmError("an HLO module without an ENTRY computation")
    for line in text[start.end() :].split("\n"):
        if line.startswith("}"):
            return
        match = _LINE.match(line)
        if match:
            yield _instruction(match)


def _instruction(match: re.Match[str]) -> Instruction:
    rest = match["rest"]
    end = _closing(rest, 0) if rest.startswith("(") else _type_end(rest)
    opcode, _, tail = rest[end:].strip().partition("(")
    close = _closing("(" + tail, 0) - 1
    words = _split(tail[close:].lstrip(", "))
    attributes = dict(word.split("=", 1) for word in words if "=" in word)
    return Instruction(match["name"], rest[:end].strip(), opcode, tail[: close - 1], attributes, bool(match["root"]))


def _type_end(rest: str) -> int:
    match = _ARRAY.match(rest)
    return match.end() if match and match["layout"] is None else rest.index(" ")


def _closing(text: str, start: int) -> int:
    """Behind the bracket that closes the one at `start`."""
    depth, quoted = 0, False
    for i in range(start, len(text)):
        char = text[i]
        if char == '"' and text[i - 1] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (char in "([{") - (char in ")]}")
            if depth == 0:
                return i + 1
    raise PfvmError(f"HLO text with an open bracket: {text[:80]!r}")


def _split(text: str) -> list[str]:
    """Parts between commas outside brackets and quotes."""
    parts, depth, quoted, last = [], 0, False, 0
    for i, char in enumerate(text):
        if char == '"' and text[i - 1 : i] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (char in "([{") - (char in ")]}")
            if char == "," and depth == 0:
                parts.append(text[last:i].strip())
                last = i + 1
    return [part for part in [*parts, text[last:].strip()] if part]


class _Reader:
    """Values by name while the instructions are read."""

    def __init__(self, arguments: Sequence[str], memory: str) -> None:
        self.arguments = arguments
        self.memory = memory
        self.known: dict[str, Tree] = {}
        self.inputs: list[ir.Value] = []
        self.nodes: list[ir.Node] = []

    def read(self, instructions: Sequence[Instruction]) -> ir.Model:
        outputs: list[ir.Value] = []
        for each in instructions:
            tree = self.known[each.name] = self._result(each)
            if each.is_root:
                outputs = list(_leaves(tree))
        graph = ir.Graph(self.inputs, outputs, nodes=self.nodes, opset_imports={DOMAIN: 1}, name="entry")
        return ir.Model(graph, ir_version=10)

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
        parent = next(_leaves(operands), None) if each.opcode in _ALIASES else None
        made = self._made(each.name, each.type, parent, IMMEDIATE if each.opcode == "constant" else None)
        shown = [ir.AttrString(name, text) for name, text in each.attributes.items() if name not in _UNSHOWN]
        self.nodes.append(ir.Node(DOMAIN, each.opcode, list(_leaves(operands)), shown, outputs=list(_leaves(made))))
        return made

    def _argument_name(self, each: Instruction) -> str:
        match = _ARGUMENT.search(each.attributes.get("metadata", ""))
        number = int(match[1]) if match else len(self.arguments)
        return self.arguments[number] if number < len(self.arguments) else each.name

    def _made(self, name: str, type_text: str, parent: ir.Value | None = None, location: str | None = None) -> Tree:
        """The value of a type, or a list of those of a tuple's elements, `name:0`, `name:1`, …"""
        if type_text.startswith("("):
            parts = _split(type_text[1:-1])
            return [self._made(f"{name}:{i}", part, location=location) for i, part in enumerate(_uncommented(parts))]
        value = ir.Value(name=name)
        match = _ARRAY.fullmatch(type_text)
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
