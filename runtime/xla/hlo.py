"""The text of an HLO module as instructions, computation by computation. Nothing here needs jax."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from pfvm.errors import PfvmError

_HEAD = re.compile(r"^(?P<entry>ENTRY )?%?(?P<name>[\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s*(?P<root>ROOT )?%?(?P<name>[\w.\-]+) = (?P<rest>.*)$")
ARRAY = re.compile(r"(?P<dtype>\w+)\[(?P<dims>[\d,<=]*)\](?P<layout>\{[^{}]*\})?")
_BITS = {"pred": 8, "bf16": 16, "c64": 64, "c128": 128}


class Instruction(NamedTuple):
    """One line: `name = type opcode(operands), attributes`."""

    name: str
    type: str
    opcode: str
    operands: str
    attributes: dict[str, str]
    is_root: bool

    @property
    def reads(self) -> list[str]:
        """The names of its operands."""
        return re.findall(r"%([\w.\-]+)", self.operands)

    def called(self, key: str) -> str | None:
        """The computation that an attribute names."""
        text = self.attributes.get(key)
        return None if text is None else text.strip().lstrip("%")

    @property
    def branches(self) -> list[str]:
        """The computations of a conditional."""
        listed = self.attributes.get("branch_computations")
        names = [self.called("true_computation"), self.called("false_computation")] if listed is None else []
        return [name for name in names if name] or re.findall(r"%?([\w.\-]+)", (listed or "").strip("{}"))

    @property
    def config(self) -> Mapping[str, Any]:
        """What the compiler has written behind it: backend_config, {} where that is none or no JSON."""
        try:
            found = json.loads(self.attributes.get("backend_config", "{}"))
        except json.JSONDecodeError:
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def estimated_cycles(self) -> int | None:
        """The compiler's own estimate of how long it runs, None where it states none."""
        window = self.config.get("window_config")
        cycles = window.get("estimated_cycles") if isinstance(window, dict) else None
        return None if cycles is None else int(cycles)

    @property
    def arrays(self) -> list[re.Match[str]]:
        """The arrays of its type, those of a tuple's elements in order: groups dtype, dims, layout."""
        return list(ARRAY.finditer(re.sub(r"/\*.*?\*/", "", self.type)))

    @property
    def bytes(self) -> int:
        """Bytes of its results, without the padding of their layout."""
        return sum(size_of(array) for array in self.arrays)


@dataclass(frozen=True)
class Module:
    """The computations of a module by name, instructions in the order of the text (the schedule's)."""

    computations: Mapping[str, Mapping[str, Instruction]]
    entry: str

    def root(self, computation: str) -> Instruction:
        """The instruction whose value the computation returns."""
        return next(each for each in self.computations[computation].values() if each.is_root)


def parse_module(text: str) -> Module:
    """Every computation of an HLO module. Raises PfvmError for a text without an ENTRY computation."""
    computations: dict[str, dict[str, Instruction]] = {}
    current: dict[str, Instruction] | None = None
    entry = None
    for line in text.split("\n"):
        head = _HEAD.match(line)
        if head is not None:
            current = computations[head["name"]] = {}
            entry = head["name"] if head["entry"] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and (match := _LINE.match(line)):
            current[match["name"]] = _instruction(match)
    if entry is None:
        raise PfvmError("an HLO module without an ENTRY computation")
    return Module(computations, entry)


def size_of(array: re.Match[str]) -> int:
    """Bytes of an array of a type, without padding."""
    count = 1
    for dim in array["dims"].split(","):
        count *= int(dim.lstrip("<=")) if dim else 1
    digits = re.search(r"\d+", array["dtype"])
    bits = _BITS.get(array["dtype"]) or (int(digits[0]) if digits else 0)
    return (count * bits + 7) // 8


def _instruction(match: re.Match[str]) -> Instruction:
    rest = match["rest"]
    end = closing(rest, 0) if rest.startswith("(") else _type_end(rest)
    opcode, _, tail = rest[end:].strip().partition("(")
    close = closing("(" + tail, 0) - 1
    words = split(tail[close:].lstrip(", "))
    attributes = dict(word.split("=", 1) for word in words if "=" in word)
    return Instruction(match["name"], rest[:end].strip(), opcode, tail[: close - 1], attributes, bool(match["root"]))


def _type_end(rest: str) -> int:
    match = ARRAY.match(rest)
    return match.end() if match and match["layout"] is None else rest.index(" ")


_MARKS = re.compile(r'["()\[\]{},]')


def closing(text: str, start: int) -> int:
    """Behind the bracket that closes the one at `start`."""
    depth, quoted = 0, False
    for mark in _MARKS.finditer(text, start):
        i, char = mark.start(), mark[0]
        if char == '"' and text[i - 1 : i] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (char in "([{") - (char in ")]}")
            if depth == 0:
                return i + 1
    raise PfvmError(f"HLO text with an open bracket: {text[:80]!r}")


def split(text: str) -> list[str]:
    """Parts between commas outside brackets and quotes."""
    parts, depth, quoted, last = [], 0, False, 0
    for mark in _MARKS.finditer(text):
        i, char = mark.start(), mark[0]
        if char == '"' and text[i - 1 : i] != "\\":
            quoted = not quoted
        elif not quoted:
            depth += (char in "([{") - (char in ")]}")
            if char == "," and depth == 0:
                parts.append(text[last:i].strip())
                last = i + 1
    return [part for part in [*parts, text[last:].strip()] if part]
