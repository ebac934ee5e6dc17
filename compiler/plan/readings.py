"""The other readings of a machine's figures: where sources leave one open, totals are given under each."""

from __future__ import annotations

from typing import Any

from pfvm.errors import OptionError

from .machine import Ambiguous, Machine


def readings(machine: Machine, entry: Ambiguous) -> dict[str, Machine]:
    """The machine under each reading of one of its ambiguous figures; the first is the machine as it is.

    A key is `table.name.field`; of a path, `paths.NAME.MODE`, which is its rate. Raises OptionError.
    """
    return {name: _with(machine, entry, value) for name, value in entry.readings.items()}


def _with(machine: Machine, entry: Ambiguous, value: float) -> Machine:
    data: dict[str, Any] = machine.model_dump()
    table, *where = entry.key.split(".")
    try:
        if table == "paths":
            target = next(path for path in data["paths"] if [path["name"], path["mode"]] == where)
            field = "rate"
        else:
            target = data[table]
            for key in where[:-1]:
                target = target[key]
            field = where[-1]
        _ = target[field]
    except (KeyError, StopIteration, IndexError) as error:
        raise OptionError(f"machine {machine.name}: ambiguous figure {entry.key!r} is not in its file") from error
    target[field] = value
    return Machine.model_validate(data)
