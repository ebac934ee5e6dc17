"""Whose turn it is: one candidate computes at a time, and the order turns round from one round to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from .process import CandidateError, Process

T = TypeVar("T")


class Outcome(NamedTuple):
    """What became of one candidate: its rounds (median seconds, and CPU seconds, of a call), or its error."""

    name: str
    load_seconds: float | None = None
    first_call_seconds: float | None = None
    rounds: tuple[float, ...] = ()
    calls: int = 0
    peak_bytes: int | None = None
    error: str | None = None
    cpu: tuple[float, ...] = ()


class Timing(NamedTuple):
    """How long each step may take, and how long a turn is (all seconds)."""

    rounds: int
    turn: float
    load_timeout: float
    turn_timeout: float


def order(items: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """(round, item) for every turn; odd rounds run backwards, so that a drift of the machine hits all alike."""
    for number in range(rounds):
        yield from ((number, item) for item in (items if number % 2 == 0 else reversed(items)))


def take_turns(
    start: Mapping[str, Callable[[], Process]],
    load_request: Callable[[str], dict[str, Any]],
    timing: Timing,
    progress: Callable[[str, str], None] = lambda name, step: None,
) -> dict[str, Outcome]:
    """Starts and loads each candidate, then measures them in turns. An error ends its candidate, not the others."""
    running: dict[str, Process] = {}
    outcomes: dict[str, Outcome] = {}
    try:
        for name, make in start.items():
            progress(name, "load")
            running[name] = make()
            outcomes[name] = _attempt(name, running, Outcome(name), load_request(name), timing.load_timeout)
        for _, name in order(list(start), timing.rounds):
            progress(name, "measure")
            if name in running:
                request = {"do": "measure", "seconds": timing.turn}
                outcomes[name] = _attempt(name, running, outcomes[name], request, timing.turn_timeout)
        for name in list(running):
            outcomes[name] = _attempt(name, running, outcomes[name], {"do": "peak"}, timing.turn_timeout)
    finally:
        for process in running.values():
            process.close()
    return outcomes


def _attempt(
    name: str, running: dict[str, Process], outcome: Outcome, request: dict[str, Any], timeout: float
) -> Outcome:
    try:
        answer = running[name].ask(request, timeout)
    except CandidateError as error:
        del running[name]
        return outcome._replace(error=str(error))
    if request["do"] == "load":
        return outcome._replace(**answer)
    if request["do"] == "peak":
        return outcome._replace(peak_bytes=answer["bytes"])
    rounds, cpu = (*outcome.rounds, answer["median"]), (*outcome.cpu, answer["cpu"])
    return outcome._replace(rounds=rounds, cpu=cpu, calls=outcome.calls + answer["calls"])
