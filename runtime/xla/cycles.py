"""How long a program takes by the compiler's own estimates: the sum over all that its schedule runs.

XLA's TPU compiler writes `estimated_cycles` behind each instruction that it has modelled, a fusion as one. A loop is
its condition and body times its trips; of a conditional the longest branch counts. Where the compiler says nothing of
something that computes, or does not know how often a loop runs, there is no total: a number that left it out would be
too small. Copies that run beside the rest (copy-start, slice-start) cost nothing where they are awaited, as in the
compiler's schedule; other moves of data without an estimate are listed, and may be few.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from .hlo import Instruction, Module, parse_module
from .products import Flops, product_flops
from .trips import Place, trip_count

# These name, choose or announce values: no unit works.
_FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "partition-id", "replica-id",
    "opt-barrier", "add-dependency",
}  # fmt: skip
_FREE_CALLS = {"AllocateBuffer", "ConcatBitcast", "AssumeGatherIndicesInBound"}
# A TPU has 64-bit numbers as two of 32 bits: these take them apart and put them together.
_HALVES = {"X64SplitLow", "X64SplitHigh", "X64Combine"}
_BESIDE = {"copy-start", "copy-done", "slice-start", "slice-done"}
_MOVES = {
    "copy", "slice", "dynamic-slice", "dynamic-update-slice", "gather", "concatenate", "pad", "reverse", "transpose",
    "reshape", "broadcast", "iota", "convert", "bitcast-convert", "select", "clamp",
}  # fmt: skip
_PARTS = ("slice", "dynamic-slice", "gather")
# Moves without an estimate may be so large a part of the bytes that everything reads and writes.
NEGLIGIBLE = 0.1
_FEW = 3


@dataclass
class Estimate:
    """cycles: None where something is missing, `missing` says what; `modelled` is the sum of what is there.

    flops: of convolutions and products by XLA type, None where a loop's trips are not known. by_op: modelled cycles by
    opcode. loops: the trips of each while (None: unknown). branches: how many conditionals counted their longest
    branch. moved, unmodelled_moves: bytes read and written in all, and of moves without an estimate; beside: of copies
    that run beside the rest.
    """

    modelled: int = 0
    missing: list[str] = field(default_factory=list)
    flops: Flops | None = field(default_factory=Counter)
    by_op: Counter[str] = field(default_factory=Counter)
    loops: dict[str, int | None] = field(default_factory=dict)
    branches: int = 0
    moved: int = 0
    unmodelled_moves: Counter[str] = field(default_factory=Counter)
    beside: int = 0

    @property
    def cycles(self) -> int | None:
        """The total, None where something is missing."""
        return None if self.missing else self.modelled

    @property
    def total_flops(self) -> int | None:
        """Operations of all types."""
        return None if self.flops is None else sum(self.flops.values())

    def reason(self) -> str | None:
        """Why there is no total, None where there is one."""
        if not self.missing:
            return None
        kinds = list(dict.fromkeys(self.missing))
        more = f" and {len(kinds) - _FEW} more" if len(kinds) > _FEW else ""
        return f"{'; '.join(kinds[:_FEW])}{more}"


def estimate(text: str) -> Estimate:
    """The estimate of a scheduled HLO module's text. Raises PfvmError for a text that is none."""
    module = parse_module(text)
    total = _Reading(module).of(Place(module.entry))
    if sum(total.unmodelled_moves.values()) > NEGLIGIBLE * total.moved:
        listed = ", ".join(f"{op} ({size:,} bytes)" for op, size in sorted(total.unmodelled_moves.items()))
        total.missing.append(
            f"the compiler states no cycles for {listed}, more than {NEGLIGIBLE:.0%} of all bytes moved"
        )
    return total


class _Reading:
    """One module while its estimate is summed up."""

    def __init__(self, module: Module) -> None:
        self._module = module

    def of(self, place: Place) -> Estimate:
        """What one run of a computation takes."""
        total = Estimate()
        for each in self._module.computations[place.computation].values():
            self._add(total, each, place)
        return total

    def _add(self, total: Estimate, each: Instruction, place: Place) -> None:
        if each.opcode in _FREE:
            return
        if each.opcode == "while":
            self._loop(total, each, place)
        elif each.opcode == "conditional":
            self._conditional(total, each, place)
        elif each.opcode in ("call", "async-start") and (called := each.called("to_apply") or each.called("calls")):
            _join(total, self.of(Place(called, None, place)), 1)
        elif each.opcode in ("async-done", "async-update"):
            return
        else:
            self._instruction(total, each, place)

    def _instruction(self, total: Estimate, each: Instruction, place: Place) -> None:
        if total.flops is not None:
            total.flops.update(product_flops(self._module, place.computation, each))
        size = self._bytes(each, place)
        cycles = each.estimated_cycles
        if each.opcode in _BESIDE:
            total.beside += each.bytes if each.opcode.endswith("-done") else 0
            return
        if each.opcode == "custom-call" and _target(each) in _HALVES:
            total.moved += size
            total.unmodelled_moves["X64 halves"] += size
            return
        if each.opcode == "custom-call":
            if not _is_free_call(each):
                total.missing.append(f"custom call {_target(each)}")
            return
        total.moved += size
        if cycles is not None:
            total.modelled += cycles
            total.by_op[each.opcode] += cycles
        elif _is_scalar(each):
            return  # of the scalar unit, a few cycles beside the rest
        elif self._only_moves(each):
            total.unmodelled_moves[self._moved(each)] += size
        else:
            total.missing.append(f"the compiler states no cycles for {self._named(each)}")

    def _bytes(self, each: Instruction, place: Place) -> int:
        """What it reads and writes: of arrays that it takes a part of, that part."""
        names = self._module.computations[place.computation]
        if each.opcode in _PARTS:
            return 2 * each.bytes
        if each.opcode == "dynamic-update-slice":  # in place
            return 2 * names[each.reads[1]].bytes
        if each.opcode == "fusion" and (called := each.called("calls")):
            return self._fusion_bytes(each, called)
        return each.bytes + sum(names[name].bytes for name in each.reads if name in names)

    def _fusion_bytes(self, each: Instruction, called: str) -> int:
        inside = self._module.computations[called]
        readers: dict[str, list[Instruction]] = {}
        for inner in inside.values():
            for name in dict.fromkeys(inner.reads):
                readers.setdefault(name, []).append(inner)
        root = self._module.root(called)
        updated = root.reads[0] if root.opcode == "dynamic-update-slice" else None
        total = 2 * inside[root.reads[1]].bytes if updated is not None else each.bytes
        for inner in inside.values():
            if inner.opcode == "parameter" and inner.name != updated:
                users = readers.get(inner.name, [])
                takes_parts = users and all(u.opcode in _PARTS and u.reads[0] == inner.name for u in users)
                total += sum(u.bytes for u in users) if takes_parts else inner.bytes
        return total

    def _only_moves(self, each: Instruction) -> bool:
        """Does it move data and compute nothing?"""
        if each.opcode == "fusion" and (called := each.called("calls")):
            inside = self._module.computations[called].values()
            gathers = any(inner.opcode == "gather" for inner in inside)
            return all(self._only_moves(i) or _is_scalar(i) or (gathers and _is_integer(i)) for i in inside)
        return each.opcode in _MOVES or each.opcode in _FREE or _is_free_call(each) or _target(each) in _HALVES

    def _moved(self, each: Instruction) -> str:
        """What a move is called; a fusion by what stands in it."""
        if each.opcode != "fusion":
            return each.opcode
        inside = {inner.opcode for inner in self._module.computations[each.called("calls") or ""].values()}
        return next((opcode for opcode in ("gather", "dynamic-update-slice", *_PARTS) if opcode in inside), "fusion")

    def _named(self, each: Instruction) -> str:
        if each.opcode == "fusion" and (called := each.called("calls")):
            inside = {i.opcode for i in self._module.computations[called].values()} - _FREE - _MOVES - {"fusion"}
            return f"a fusion of {', '.join(sorted(inside)) or each.name}"
        return each.opcode

    def _loop(self, total: Estimate, loop: Instruction, place: Place) -> None:
        trips = trip_count(self._module, loop, place)
        body, condition = loop.called("body"), loop.called("condition")
        assert body is not None and condition is not None
        total.loops[loop.name] = trips
        if trips is None:
            total.missing.append(f"the trips of loop {loop.name} are not known before it runs")
            total.flops = None
        _join(total, self.of(Place(body, loop, place)), 1 if trips is None else trips)
        _join(total, self.of(Place(condition, loop, place)), 1 if trips is None else trips + 1)

    def _conditional(self, total: Estimate, each: Instruction, place: Place) -> None:
        branches = [self.of(Place(name, None, place)) for name in each.branches]
        longest = max(branches, key=lambda branch: branch.modelled)
        _join(total, longest, 1)
        total.branches += 1
        for branch in branches:  # the shorter one may be longer than its sum says
            if branch is not longest:
                total.missing += branch.missing
                total.loops.update(branch.loops)
                total.flops = None if branch.flops is None else total.flops


def _join(total: Estimate, part: Estimate, times: int) -> None:
    """Adds what runs `times` times."""
    total.modelled += part.modelled * times
    if times:
        total.missing += part.missing
    if part.flops is None or total.flops is None:
        total.flops = None
    else:
        total.flops.update({dtype: count * times for dtype, count in part.flops.items()})
    total.by_op.update({op: cycles * times for op, cycles in part.by_op.items()})
    total.loops.update(part.loops)
    total.branches += part.branches
    total.moved += part.moved * times
    total.unmodelled_moves.update({op: size * times for op, size in part.unmodelled_moves.items()})
    total.beside += part.beside * times


def _is_integer(each: Instruction) -> bool:
    """Arithmetic of indices."""
    return all(array["dtype"][0] in "sup" for array in each.arrays)


def _target(each: Instruction) -> str:
    return each.attributes.get("custom_call_target", "").strip('"')


def _is_free_call(each: Instruction) -> bool:
    return each.opcode == "custom-call" and _target(each) in _FREE_CALLS


def _is_scalar(each: Instruction) -> bool:
    return all(array["dims"] in ("", "1") for array in each.arrays)
