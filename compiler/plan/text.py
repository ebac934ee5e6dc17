"""l3ir.txt: a planned program as text, one block per node in scheduled order. Parser and printer, byte for byte.

    Reshape(x_Download_0, val_1) -> (view)
       in(0):x_Download_0 onnx_type=Tensor(dtype=FLOAT32 shape=125,1,32,32) num_lw=8 … loc=LM0 addr=0)
       in(1):val_1 onnx_type=Tensor(dtype=INT64 shape=2) num_lw=2 … loc_kind=IMM loc=IMM)
      out(0):view onnx_type=Tensor(dtype=FLOAT32 shape=125,1024) num_lw=8 … loc=LM0 addr=0 parent=x_Download_0)

The form is that of MLSDK's dumps; `[gathered]` behind a head is ours. Fields that are not known are left out.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pfvm.errors import PfvmError

from .layout import Layout, LayoutError

GAP = ("…", "...")  # what a dump that was shortened by hand has in the place of text
FIELDS = (
    "onnx_type", "num_lw", "padded_shape", "layout", "layout_kind", "dtype", "gene", "pad_type", "loc_kind", "loc",
    "addr", "parent",
)  # fmt: skip


class L3irError(PfvmError, ValueError):
    """A text that is no l3ir.txt; the message names the line."""


@dataclass(frozen=True)
class L3Value:
    """One value line. `fields` are the texts of its fields in order; text in a shortened dump has the key ""."""

    name: str
    fields: tuple[tuple[str, str], ...] = ()

    def get(self, key: str) -> str | None:
        """The text of the field `key`, None where the line has none or it is shortened."""
        text = dict(self.fields).get(key)
        return None if text is None or has_gap(text) else text

    @property
    def is_shortened(self) -> bool:
        """Was something left out of the line?"""
        return has_gap(self.name) or any(not key or has_gap(text) for key, text in self.fields)

    @property
    def onnx_dtype(self) -> str | None:
        """The ONNX element type: FLOAT32, INT64, …"""
        match = _TYPE.fullmatch(self.get("onnx_type") or "")
        return match[1] if match else None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape, () for a scalar."""
        match = _TYPE.fullmatch(self.get("onnx_type") or "")
        return _ints(match[2]) if match else None

    @property
    def num_lw(self) -> int | None:
        """Long words per innermost cell."""
        return _int(self.get("num_lw"))

    @property
    def padded_shape(self) -> tuple[int, ...] | None:
        """The room of each axis."""
        text = self.get("padded_shape")
        return None if text is None else _ints(text)

    @functools.cached_property
    def layout(self) -> Layout | None:
        """The layout; None where there is none, it is shortened, or it is another compiler's."""
        text = self.get("layout")
        if text is None or not text.startswith("PadLayout{"):
            return None
        return Layout.parse(text.removeprefix("PadLayout{").removesuffix("}"))

    @property
    def gene(self) -> tuple[str, ...]:
        """What each axis stands for."""
        text = (self.get("gene") or "[]")[1:-1]
        return tuple(text.split(",")) if text else ()

    @property
    def addr(self) -> int | None:
        """The address, in its memory's units."""
        return _int(self.get("addr"))

    def __str__(self) -> str:
        return f"{self.name}{''.join(f' {key}={text}' if key else f' {text}' for key, text in self.fields)}"


@dataclass(frozen=True)
class L3Node:
    """One node. inputs and outputs by position, None where an optional one is not given (or its line is cut out).

    flags: what stands in [] behind the head. before: lines ahead of a dump's first node. verbatim: the block's lines
    where a dump was shortened and they say less than they should.
    """

    op: str
    inputs: tuple[L3Value | None, ...]
    outputs: tuple[L3Value | None, ...]
    arguments: tuple[str, ...]  # of the head: the names of the inputs, then those of the attributes that are set
    results: tuple[str, ...]
    flags: tuple[str, ...] = ()
    line: int = 0
    before: tuple[str, ...] = ()
    verbatim: tuple[str, ...] = ()

    @property
    def attributes(self) -> tuple[str, ...]:
        """The names of the attributes that are set."""
        return self.arguments[len(self.inputs) :]

    @property
    def name(self) -> str:
        """The name of its first output, which names the node."""
        return self.results[0] if self.results else self.op

    def values(self) -> Iterator[L3Value]:
        """Its values that have a line, inputs first."""
        yield from (value for value in (*self.inputs, *self.outputs) if value is not None)

    def lines(self) -> Iterator[str]:
        """The lines of its block."""
        yield from self.before
        yield from self.verbatim or self.own_lines()

    def own_lines(self) -> Iterator[str]:
        """What its fields say."""
        flags = f" [{', '.join(self.flags)}]" if self.flags else ""
        yield f"{self.op}({', '.join(self.arguments)}) -> ({', '.join(self.results)}){flags}"
        yield from (f"   in({i}):{value})" for i, value in enumerate(self.inputs) if value is not None)
        yield from (f"  out({i}):{value})" for i, value in enumerate(self.outputs) if value is not None)


def format_l3ir(nodes: Iterable[L3Node]) -> str:
    """The text of a program, one block for each of `nodes`: what `parse_l3ir` read comes out byte for byte."""
    return "".join(f"{line}\n" for node in nodes for line in node.lines())


def parse_l3ir(text: str, tolerant: bool = False) -> list[L3Node]:
    """The nodes of a dump. Raises L3irError with the line's number.

    tolerant: for dumps that other tools or people wrote: unknown fields, and "…" where text was left out.
    """
    blocks: list[_Block] = []
    before: list[str] = []
    for number, line in enumerate(text.removesuffix("\n").split("\n"), 1):
        head, value = _HEAD.fullmatch(line), _VALUE.fullmatch(line)
        if head:
            blocks.append(_Block(number, line, head))
        elif value and blocks and not blocks[-1].is_broken:
            blocks[-1].add(number, line, value, tolerant)
        elif tolerant and (not line.strip() or value or has_gap(line)):
            if blocks:
                blocks[-1].note(line)
            else:
                before.append(line)
        else:
            raise L3irError(f"line {number}: neither a node nor one of its values: {line[:120]!r}")
    if not blocks:
        raise L3irError("no l3ir.txt: there is no node in it; one reads `Relu(x) -> (y)`")
    return [block.node(tuple(before) if i == 0 else (), tolerant) for i, block in enumerate(blocks)]


class _Block:
    """The lines of one node while they are read. is_broken: what follows belongs to a node whose head is cut out."""

    def __init__(self, number: int, line: str, head: re.Match[str]) -> None:
        self.number, self.op = number, head["op"]
        self.arguments = tuple(head["arguments"].split(", ")) if head["arguments"] else ()
        self.results = tuple(head["results"].split(", ")) if head["results"] else ()
        self.flags = tuple(head["flags"].split(", ")) if head["flags"] else ()
        self.inputs: dict[int, L3Value] = {}
        self.outputs: dict[int, L3Value] = {}
        self.raw = [line]
        self.is_broken = False

    def note(self, line: str) -> None:
        self.raw.append(line)
        self.is_broken = self.is_broken or bool(line.strip() and not line.startswith(" ") and line.strip() not in GAP)

    def add(self, number: int, line: str, match: re.Match[str], tolerant: bool) -> None:
        is_input = match["side"] == "   in"
        values, names = (self.inputs, self.arguments) if is_input else (self.outputs, self.results)
        index = int(match["index"])
        value = _parse_value(match["body"], number, tolerant)
        where = f"{match['side'].strip()}({index})"
        if index in values or (is_input and self.outputs):
            if not tolerant or not any(has_gap(each) for each in self.raw):
                raise L3irError(f"line {number}: {where} of {self.op} out of order")
            self.is_broken = True  # the head between them is cut out
            self.raw.append(line)
            return
        if not tolerant and (index >= len(names) or names[index] != value.name):
            raise L3irError(f"line {number}: {value.name!r} is not {where} of the head {names}")
        self.raw.append(line)
        values[index] = value

    def node(self, before: tuple[str, ...], tolerant: bool) -> L3Node:
        inputs = tuple(self.inputs.get(i) for i in range(1 + max(self.inputs, default=-1)))
        outputs = tuple(self.outputs.get(i) for i in range(1 + max(self.outputs, default=-1)))
        node = L3Node(self.op, inputs, outputs, self.arguments, self.results, self.flags, self.number, before)
        if list(node.own_lines()) == self.raw:
            return node
        if not tolerant:
            raise L3irError(f"line {self.number}: the block of {self.op} has other blanks or another order of lines")
        return dataclasses.replace(node, verbatim=tuple(self.raw))


def _parse_value(body: str, number: int, tolerant: bool) -> L3Value:
    name, _, rest = body.partition(" ")
    shortened = tolerant and has_gap(body)
    fields: list[tuple[str, str]] = []
    for match in _FIELD.finditer(rest):
        key, text = match["key"] or "", match["other"] if match["text"] is None else match["text"]
        if not key and not shortened:
            raise L3irError(f"line {number}: {text!r} is no field of value {name!r}; one reads num_lw=8")
        if key and key not in FIELDS and not tolerant:
            raise L3irError(f"line {number}: value {name!r} has an unknown field {key!r}; known: {', '.join(FIELDS)}")
        fields.append((key, text))
    value = L3Value(name, tuple(fields))
    if shortened:
        return L3Value(name, tuple(_readable(value, key, text) for key, text in fields))
    try:
        _check_texts(value)
    except LayoutError as error:
        raise L3irError(f"line {number}: value {name!r}: {error}") from error
    return value


def _readable(value: L3Value, key: str, text: str) -> tuple[str, str]:
    """A field of a shortened line, as text without a key where it cannot be read."""
    try:
        _check_texts(L3Value(value.name, ((key, text),)))
    except LayoutError:
        return "", f"{key}={text}"
    return key, text


def _check_texts(value: L3Value) -> None:
    """Reads every field once, so that a bad one is found here."""
    _ = value.num_lw, value.addr, value.padded_shape, value.layout
    if value.get("onnx_type") is not None and value.shape is None:
        raise LayoutError(f"no type: {value.get('onnx_type')!r}; one reads Tensor(dtype=FLOAT32 shape=125,10)")


def _int(text: str | None) -> int | None:
    if text is not None and not re.fullmatch(r"-?\d+", text):
        raise LayoutError(f"{text!r} is no number")
    return None if text is None else int(text)


def _ints(text: str) -> tuple[int, ...]:
    return tuple(number for word in text.split(",") if word if (number := _int(word)) is not None)


def has_gap(text: str) -> bool:
    """Was something left out of this text?"""
    return any(gap in text for gap in GAP)


_HEAD = re.compile(
    r"(?P<op>\S[^\s()]*)\((?P<arguments>.*)\) -> \((?P<results>.*?)\)(?: \[(?P<flags>[^\]]+)\])?"
)  # names have no blanks or brackets
_VALUE = re.compile(r"(?P<side>   in|  out)\((?P<index>\d+)\):(?P<body>.*)\)")
_TYPE = re.compile(r"Tensor\(dtype=(\w+) shape=([\d,]*)\)")
_FIELD = re.compile(
    r"(?P<key>\w+)=(?P<text>PadLayout\{[^{}]*\}|Tensor\([^()]*\)|\[[^\[\]]*\]|\S*)(?: |$)|(?P<other>\S+)(?: |$)"
)
