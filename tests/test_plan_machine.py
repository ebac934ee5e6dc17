"""The machine file: what the shipped one says, that another one serves as well, and errors that name the field."""

import pytest
from pfvm.compiler.plan.machine import Machine, load_machine
from pfvm.compiler.plan.readings import readings
from pfvm.errors import OptionError
from plan_support import MNCORE2, POND, TWO_LEVELS, write_pond


def test_the_shipped_machine_has_the_published_sizes():
    machine = load_machine()
    assert machine.index_levels == MNCORE2
    assert machine.cells("PE") == 4096
    assert [machine.lanes(dtype) for dtype in ("Half", "Float", "Double", "Int")] == [4, 2, 1, 2]
    assert [memory.name for memory in machine.local_memories] == ["LM0", "LM1"]
    assert machine.memory("LM0").size * machine.cells("PE") * 8 == 64 * 2**20
    assert machine.memory("DRAM").size * machine.cells("Group") * 8 == 16 * 2**30
    half = machine.matrix_unit.modes["Half"]
    peak = 2 * half.inputs * half.outputs * machine.cells("MAB") * machine.clock_mhz * 1e6
    assert peak == pytest.approx(393.2e12, rel=1e-3)


def test_a_machine_of_other_levels_and_one_memory_is_read(tmp_path):
    machine = load_machine(write_pond(tmp_path))
    assert machine.index_levels == POND
    assert [memory.name for memory in machine.local_memories] == ["SRAM"]
    assert machine.memory("SRAM").units_per_long_word == 1
    assert machine.ambiguous == ()


def test_every_table_has_a_source_and_every_unstated_latency_is_zero():
    machine = load_machine()
    tables = [*machine.levels, *machine.dtypes.values(), *machine.memories, *machine.paths]
    assert all(table.source for table in [*tables, machine.matrix_unit, machine.vector_unit])
    assert all(path.latency == 0 for path in machine.paths)


def test_the_reading_in_force_is_the_first_and_others_change_that_one_figure():
    machine = load_machine()
    assert machine.ambiguous
    for entry in machine.ambiguous:
        found = readings(machine, entry)
        assert list(found) == list(entry.readings)
        first, *others = found.values()
        assert first == machine
        assert all(other != machine for other in others)
    broadcast = readings(machine, machine.ambiguous[0])["in all"]
    changed = [path for path, old in zip(broadcast.paths, machine.paths) if path != old]
    assert [(path.name, path.mode, path.rate) for path in changed] == [("DRAM→L2BM", "broadcast", 2.0)]


def test_an_ambiguous_figure_that_the_file_does_not_have_is_an_error():
    machine = load_machine()
    entry = machine.ambiguous[0].model_copy(update={"key": "paths.DRAM→Moon.broadcast"})
    with pytest.raises(OptionError, match="DRAM→Moon"):
        readings(machine, entry)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('parent = "Tile"', 'parent = "Chip"', "level 'Core': its parent is the level before it, 'Tile'"),
        ("lanes = 8", "lanes = 0", r"dtypes.Half.lanes: Input should be greater than 0"),
        ("rate = 12.0", "rates = 12.0", r"paths.0.rate: Field required"),
        ('level = "Core"\nsize', 'level = "Nest"\nsize', "level 'Nest' is none of Chip, Tile, Core"),
        ('name = "SRAM"\nlevel = "Core"', 'name = "SRAM"\nlevel = "Tile"', "one or more memories at 'Core'"),
        ('level = "Core"\nload', 'level = "Chip"\nload', "matrix units, so that 'Chip' is indexed"),
        ('name = "pond"', "name = pond", "not TOML"),
        ('name = "Tile"', 'name = "W"', "level"),
        ("[dtypes.Float]", "[dtypes.Single]", "dtypes needs 'Float'"),
        ("[matrix_unit.modes.Half]", "[matrix_unit.modes.Quad]", "matrix_unit.modes needs one for 'Half'"),
        ("Int = 4\n", "", "vector_unit.rate needs one for 'Int'"),
        ('mode = "distribute"', 'mode = "broadcast"', "paths needs one from DRAM of mode individual, distribute"),
        ('mode = "collect"\nlevel = "Chip"', 'mode = "reduce"\nlevel = "Chip"', "paths needs one back to DRAM of mode"),
        ("count = 1\n", "count = 2\n", "paths needs one from DRAM of mode broadcast: several cells have DRAM"),
    ],
)
def test_a_bad_file_is_an_error_that_names_the_field(tmp_path, old, new, message):
    path = tmp_path / "bad.toml"
    path.write_text(TWO_LEVELS.replace(old, new, 1), encoding="utf-8")
    with pytest.raises(OptionError, match=f"bad.toml: .*{message}"):
        load_machine(path)


def test_integers_are_multiplied_as_float_and_every_other_dtype_as_itself():
    machine = load_machine()
    modes = machine.matrix_unit.modes
    assert [machine.matrix_mode(dtype) for dtype in machine.dtypes] == [*modes.values(), modes["Float"]]


def test_what_a_machine_does_not_have_is_an_error_that_lists_what_it_has():
    machine: Machine = load_machine()
    with pytest.raises(OptionError, match="no memory 'LM7'; it has DRAM, LM0, LM1"):
        machine.memory("LM7")
    with pytest.raises(OptionError, match="no dtype 'Quad'; it has Half, Float, Double, Int"):
        machine.lanes("Quad")
    with pytest.raises(OptionError, match="no level 'Row'"):
        machine.cells("Row")
    with pytest.raises(OptionError, match=r"no machine 'mncore3'.*mncore2"):
        load_machine("mncore3")
