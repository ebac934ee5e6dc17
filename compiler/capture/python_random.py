"""Random numbers of Python's and numpy's: a trace would bake them in, also where two traces happen to agree."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from pfvm.errors import CaptureError

from .source import here

_DRAWING = {
    random: (
        "random",
        "uniform",
        "randint",
        "randrange",
        "choice",
        "choices",
        "sample",
        "shuffle",
        "gauss",
        "getrandbits",
    ),
    np.random: (
        "rand",
        "randn",
        "randint",
        "random",
        "uniform",
        "normal",
        "choice",
        "permutation",
        "shuffle",
        "binomial",
    ),
}
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)


@contextlib.contextmanager
def kept_generators(drawn: dict[str, None]) -> Iterator[None]:
    """Puts back torch's, Python's and numpy's generators. Lines that draw from the last two are added to `drawn`."""
    torch_state, python_state, numpy_state = torch.get_rng_state(), random.getstate(), np.random.get_state()
    own = [(module, name, getattr(module, name)) for module, names in _DRAWING.items() for name in names]
    lines: dict[str, None] = {}
    try:
        for module, name, function in own:
            setattr(module, name, _noted(function, lines))
        yield
    finally:
        for module, name, function in own:
            setattr(module, name, function)
        if random.getstate() != python_state or not _equal(np.random.get_state(), numpy_state):
            drawn.update(lines or {"": None})
        torch.set_rng_state(torch_state)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def _noted(function: Callable[..., Any], lines: dict[str, None]) -> Callable[..., Any]:
    def draw(*args: Any, **kwargs: Any) -> Any:
        lines[here()] = None
        return function(*args, **kwargs)

    return draw


def state_of(generator: Any) -> Any:
    """What a generator of the program's own will draw next, to compare and to set again."""
    if isinstance(generator, random.Random):
        return generator.getstate()
    return generator.bit_generator.state if isinstance(generator, np.random.Generator) else generator.get_state()


def set_state(generator: Any, state: Any) -> None:
    """The reverse of `state_of`."""
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def has_drawn(generator: Any, state: Any) -> bool:
    """Whether the generator is no longer in that state."""
    return not _equal(state_of(generator), state)


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_equal(v, b[k]) for k, v in a.items())
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(_equal, a, b))
    return bool(np.array_equal(a, b))


def refuse_draws(drawn: dict[str, None], function_line: str) -> None:
    """Raises CaptureError where a number was drawn."""
    for line in drawn:
        raise CaptureError(
            f"{line or function_line}: a random number of Python's or numpy's would be baked into the graph; draw it "
            "with torch (torch.rand(())) and keep it a tensor, or draw it outside and pass it in as a tensor input"
        )
