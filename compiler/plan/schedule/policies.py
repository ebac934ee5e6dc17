"""What leaves the local memories after each node: the three policies that schedules are made of."""

from __future__ import annotations

from .problem import Op
from .simulation import NEVER, Policy, Simulation


def _leave(simulation: Simulation, buffer: int, memory: int) -> None:
    kept = simulation.problem.buffers[buffer].kept
    if kept or simulation.next_use[buffer] != NEVER:
        simulation.store(buffer)
    simulation.drop(buffer, memory)


def _all_leave(simulation: Simulation, following: Op | None) -> None:
    for memory, arena in enumerate(simulation.arenas):
        for block in list(arena):
            _leave(simulation, block.key, memory)  # type: ignore[arg-type]


def _next_stay(simulation: Simulation, following: Op | None) -> None:
    staying = () if following is None else following.reads
    for memory, arena in enumerate(simulation.arenas):
        for block in list(arena):
            if block.key not in staying:
                _leave(simulation, block.key, memory)  # type: ignore[arg-type]


def _all_stay(simulation: Simulation, following: Op | None) -> None:
    """Blocks go when room is needed."""


ALWAYS_FROM_DRAM = Policy(_all_leave)
REUSE_CONSECUTIVE = Policy(_next_stay)
# By next use: a victim's weight is what it costs to have it back, over the time until then. The second forgets time,
# the third cost, all but.
KEEPING = (
    Policy(_all_stay, relocate=True, distance=1.0),
    Policy(_all_stay, relocate=True, distance=0.25),
    Policy(_all_stay, relocate=True, distance=3.0),
    Policy(_all_stay, relocate=True, sorted=True),
    Policy(_all_stay, relocate=True, distance=3.0, sorted=True),
)
