"""A machine with explicit memories, as a file describes it: levels, memories, paths, number formats, units, clock.

One TOML file is one machine; machines/mncore2.toml is the one that is shipped. Rates are long words per cycle.
"""

from __future__ import annotations

import functools
import importlib.resources
import os
import pathlib
import tomllib
from typing import Literal

import pydantic
from pfvm.errors import OptionError, did_you_mean, one_line

from .placement import DRAM
from .subaxes import LANE, TIME

SUM = "Float"  # the dtype of sums of products, and of products of integers
EACH = ("individual", "distribute", "collect")  # modes of a path in which every child has words of its own
ALL = ("broadcast", "reduce")  # modes in which all children have the same word


class _Table(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


class Level(_Table):
    """One level of the tree of cells. count: cells per parent. A level that is not indexed has no name in layouts."""

    name: str
    count: pydantic.PositiveInt
    parent: str | None = None
    indexed: bool = True
    source: str


class Dtype(_Table):
    """A number format. lanes: elements in a long word. An integer has no exponent; mantissa: stored bits."""

    lanes: pydantic.PositiveInt
    exponent: pydantic.PositiveInt | None = None
    mantissa: pydantic.PositiveInt | None = None
    bias: int | None = None
    source: str

    @property
    def is_float(self) -> bool:
        """Has it an exponent?"""
        return self.exponent is not None


class MatrixMode(_Table):
    """inputs × outputs multiply-adds per cycle; `block` operands share an exponent and keep `block_mantissa` bits."""

    inputs: pydantic.PositiveInt
    outputs: pydantic.PositiveInt
    block: pydantic.PositiveInt
    block_mantissa: pydantic.PositiveInt


class MatrixUnit(_Table):
    """The matrix unit of each cell of `level`. load: long words per cycle and innermost cell to fill the matrix."""

    level: str
    load: pydantic.PositiveFloat
    modes: dict[str, MatrixMode]
    source: str


class VectorUnit(_Table):
    """Elementwise results per cycle of each cell of `level`, by dtype."""

    level: str
    rate: dict[str, pydantic.PositiveFloat]
    source: str


class Memory(_Table):
    """A memory of each cell of `level`. size and granularity in long words.

    exclusive: one instruction cannot both read and write it. spill_top: spilled values lie below this address.
    """

    name: str
    level: str
    size: pydantic.PositiveInt
    address_unit: Literal["word", "long_word"]
    granularity: pydantic.PositiveInt = 1
    exclusive: bool = False
    spill_top: pydantic.PositiveInt | None = None
    source: str

    @property
    def units_per_long_word(self) -> int:
        """Addresses that one long word takes: 2 where addresses count words, else 1."""
        return 2 if self.address_unit == "word" else 1


class Path(_Table):
    """A way between memories. rate: long words per cycle per cell of `level`; latency in cycles, 0 where unstated."""

    name: str
    source_memory: str
    target_memory: str
    mode: str
    level: str
    rate: pydantic.PositiveFloat
    latency: pydantic.NonNegativeInt = 0
    resource: str
    source: str


class Ambiguous(_Table):
    """A figure that sources leave open, with each reading's value. The first is the one in force."""

    key: str
    about: str
    readings: dict[str, float]


class Machine(_Table):
    """A whole machine. Levels stand outermost first; the memories of the innermost one are its local memories."""

    name: str
    title: str
    long_word_bits: pydantic.PositiveInt
    instruction_step: pydantic.PositiveInt = 1
    clock_mhz: pydantic.PositiveFloat
    levels: tuple[Level, ...]
    dtypes: dict[str, Dtype]
    matrix_unit: MatrixUnit
    vector_unit: VectorUnit
    memories: tuple[Memory, ...]
    paths: tuple[Path, ...]
    ambiguous: tuple[Ambiguous, ...] = ()

    @pydantic.model_validator(mode="after")
    def _is_consistent(self) -> Machine:
        names = [level.name for level in self.levels]
        for child, parent in zip(self.levels[1:], self.levels):
            if child.parent != parent.name:
                raise ValueError(f"level {child.name!r}: its parent is the level before it, {parent.name!r}")
        known = set(names)
        used = [self.matrix_unit.level, self.vector_unit.level]
        used += [each.level for each in self.memories] + [each.level for each in self.paths]
        for level in used:
            if level not in known:
                raise ValueError(f"level {level!r} is none of {', '.join(names)}")
        if self.matrix_unit.level not in self.index_levels:
            raise ValueError(f"layouts deal products over matrix units, so that {self.matrix_unit.level!r} is indexed")
        if {LANE, TIME} & known:
            raise ValueError(f"{LANE} (lanes) and {TIME} are words of layouts, not names of levels")
        if not self.local_memories or not any(memory.name == DRAM for memory in self.memories):
            raise ValueError(f"a machine has a memory {DRAM} and one or more memories at {names[-1]!r}")
        self._check_units()
        self._check_dram_paths()
        return self

    def _check_units(self) -> None:
        """Every dtype has its rates."""
        if SUM not in self.dtypes or not self.dtypes[SUM].is_float:
            raise ValueError(f"products are summed in {SUM}: dtypes needs {SUM!r}, with an exponent")
        for name, dtype in self.dtypes.items():
            if dtype.is_float and name not in self.matrix_unit.modes:
                raise ValueError(f"matrix_unit.modes needs one for {name!r}, as dtypes has it")
            if name not in self.vector_unit.rate:
                raise ValueError(f"vector_unit.rate needs one for {name!r}, as dtypes has it")

    def _check_dram_paths(self) -> None:
        """Words leave DRAM and come back; those of several cells with DRAM also reach the others' children."""
        below = next((path.target_memory for path in self.paths if path.source_memory == DRAM), None)
        down = [path for path in self.paths if (path.source_memory, path.target_memory) == (DRAM, below)]
        up = [path for path in self.paths if (path.source_memory, path.target_memory) == (below, DRAM)]
        for what, paths in ((f"from {DRAM}", down), (f"back to {DRAM}", up)):
            if not any(path.mode in EACH for path in paths):
                raise ValueError(f"paths needs one {what} of mode {', '.join(EACH)}")
        if self.cells(self.memory(DRAM).level) > 1 and not any(path.mode in ALL for path in down):
            raise ValueError(f"paths needs one from {DRAM} of mode broadcast: several cells have {DRAM}")

    @functools.cached_property
    def index_levels(self) -> dict[str, int]:
        """The levels that layouts name, outermost first, with the indices that each has: L2B 8, L1B 8, MAB 16, PE 4."""
        result, carried = {}, 1
        for level in self.levels:
            carried *= level.count
            if level.indexed:
                result[level.name], carried = carried, 1
        return result

    @functools.cached_property
    def levels_outside_matrix(self) -> tuple[str, ...]:
        """The index levels whose cells have matrix units, outermost first: L2B and L1B."""
        names = tuple(self.index_levels)
        return names[: names.index(self.matrix_unit.level)]

    @functools.cached_property
    def levels_inside_matrix(self) -> tuple[str, ...]:
        """The index levels of which a matrix unit has several cells: PE."""
        names = tuple(self.index_levels)
        return names[names.index(self.matrix_unit.level) + 1 :]

    @functools.cached_property
    def local_memories(self) -> tuple[Memory, ...]:
        """The memories of the innermost level, where nodes compute: LM0 and LM1."""
        return tuple(memory for memory in self.memories if memory.level == self.levels[-1].name)

    def cells(self, level: str) -> int:
        """How many cells a level has in the whole machine."""
        result = 1
        for each in self.levels:
            result *= each.count
            if each.name == level:
                return result
        raise OptionError(f"machine {self.name} has no level {level!r}")

    def memory(self, name: str) -> Memory:
        """A memory by its name. Raises OptionError."""
        for memory in self.memories:
            if memory.name == name:
                return memory
        raise OptionError(
            f"machine {self.name} has no memory {name!r}; it has {', '.join(memory.name for memory in self.memories)}"
        )

    def matrix_mode(self, dtype: str) -> MatrixMode:
        """How weights of a dtype are multiplied: integers as Float."""
        return self.matrix_unit.modes[dtype if self.dtypes[dtype].is_float else SUM]

    def lanes(self, dtype: str) -> int:
        """Elements of a dtype in one long word. Raises OptionError."""
        if dtype not in self.dtypes:
            raise OptionError(f"machine {self.name} has no dtype {dtype!r}; it has {', '.join(self.dtypes)}")
        return self.dtypes[dtype].lanes


def load_machine(source: str | os.PathLike[str] = "mncore2") -> Machine:
    """The machine that a name ("mncore2") or a TOML file describes. Raises OptionError, naming the field."""
    text = _text(source)
    try:
        return Machine.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise OptionError(f"machine file {source}: not TOML: {error}") from error
    except pydantic.ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise OptionError(f"machine file {source}: {where}: {first['msg']}") from error


def _text(source: str | os.PathLike[str]) -> str:
    folder = importlib.resources.files(__package__) / "machines"
    shipped = {entry.name.removesuffix(".toml"): entry for entry in folder.iterdir() if entry.name.endswith(".toml")}
    if str(source) in shipped:
        return shipped[str(source)].read_text(encoding="utf-8")
    path = pathlib.Path(source)
    if not path.is_file():
        near = did_you_mean(source, shipped)
        raise OptionError(
            f"no machine {str(source)!r}{near}; shipped: {', '.join(sorted(shipped))}, or give a TOML file"
        )
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"machine file {path}: {one_line(error)}") from error
