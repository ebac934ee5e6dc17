"""Random numbers as part of the graph: a counter-based generator over one seed, the same numbers on every device.

Element i of draw k is a hash of (seed, k, i) in integer arithmetic. The seed is an input of kind "rng"; every call
takes a new one from torch's default generator, so torch.manual_seed and torch.get_rng_state mean what they always do.
The numbers are not those that torch itself would draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .reach import Place, ReachedTensor

aten = torch.ops.aten
Tensor = torch.Tensor
Uniform = Callable[[Sequence[Any]], Tensor]

_WORD = 0xFFFFFFFF
# A 32-bit mixer with two multipliers below 2**31, so that products of a word fit int64 (cf. Wellons, hash-prospector).
_MULTIPLIERS = (0x21F0AAAD, 0x735A2D97)
SEED_NAME = "rng.seed"


def seed_state() -> ReachedTensor:
    """The seed as state: reading its place draws a new one."""
    place = Place(None, lambda _: torch.randint(2**31 - 1, (), dtype=torch.int64))
    return ReachedTensor(SEED_NAME, torch.zeros((), dtype=torch.int64), place, "rng")


def is_seed(state: Any) -> bool:
    """Made by `seed_state`."""
    return bool(state.kind == "rng")


class RandomStreams:
    """Numbers draws within one run. Without a seed it only notes that one is needed.

    A draw is numbered by the state of torch's generator, which it advances: code that puts the generator back (as
    activation checkpointing does) draws the same numbers again.
    """

    def __init__(self, seed: Tensor | None) -> None:
        self.is_used = False
        self._seed = seed
        self._streams: dict[bytes, int] = {}

    def knows(self, func: Any) -> bool:
        """Whether a random ATen op can be drawn here."""
        return func in _DRAWS

    def draw(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The op's result. In-place ops write to their first argument."""
        self.is_used = True
        if self._seed is None:
            return func(*args, **kwargs)
        calls = iter(range(1 << 16))
        stream = self._stream()
        seed = self._seed

        def uniform(sizes: Sequence[Any]) -> Tensor:
            return _uniform(seed, stream * 8 + next(calls), sizes)

        result = _DRAWS[func](uniform, *args, **kwargs)
        return args[0].copy_(result) if func._schema.is_mutable else result

    def _stream(self) -> int:
        with _disable_current_modes():
            state = torch.default_generator.get_state().numpy().tobytes()
            torch.rand(1)
        return self._streams.setdefault(state, len(self._streams))


def _mix(word: Tensor) -> Tensor:
    """A bijection of 32-bit words held in int64."""
    word = ((word ^ _shifted(word, 16)) * _MULTIPLIERS[0]) & _WORD
    word = ((word ^ _shifted(word, 15)) * _MULTIPLIERS[1]) & _WORD
    return word ^ _shifted(word, 15)


def _shifted(word: Tensor, bits: int) -> Tensor:
    """To the right. ONNX shifts unsigned integers only; words are not negative, so truncation is the same."""
    return torch.div(word, 2**bits, rounding_mode="trunc")


def _uniform(seed: Tensor, stream: int, sizes: Sequence[Any]) -> Tensor:
    """float32 in [0, 1), multiples of 2**-24."""
    key = _mix((seed * 2 + stream * 0x2545F491 + 1) & _WORD)
    counter = torch.arange(math.prod(sizes), dtype=torch.int64)
    word = _mix(_mix((counter + key) & _WORD) ^ key)
    return (_shifted(word, 8).to(torch.float32) * 2.0**-24).reshape(list(sizes))


def _normal(uniform: Uniform, sizes: Sequence[Any]) -> Tensor:
    """Box and Muller's transform."""
    radius = torch.sqrt(-2.0 * torch.log(1.0 - uniform(sizes)))
    return radius * torch.cos(2 * math.pi * uniform(sizes))


def _dtype(kwargs: dict[str, Any], like: Tensor | None = None) -> torch.dtype:
    default = torch.get_default_dtype() if like is None else like.dtype
    return kwargs.get("dtype") or default


def _bernoulli(uniform: Uniform, x: Tensor, p: Any = None, **_: Any) -> Tensor:
    chance = x if p is None else p
    return (uniform(x.shape) < chance).to(x.dtype)


def _bernoulli_in_place(uniform: Uniform, x: Tensor, p: Any = 0.5, **_: Any) -> Tensor:
    return _bernoulli(uniform, x, p)


def _native_dropout(uniform: Uniform, x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = uniform(x.shape) >= p
    scale = 0.0 if p == 1 else 1 / (1 - p)
    return x * kept.to(x.dtype) * scale, kept


def _rand(uniform: Uniform, sizes: Sequence[Any], **kwargs: Any) -> Tensor:
    return uniform(sizes).to(_dtype(kwargs))


def _rand_like(uniform: Uniform, x: Tensor, **kwargs: Any) -> Tensor:
    return uniform(x.shape).to(_dtype(kwargs, x))


def _randn(uniform: Uniform, sizes: Sequence[Any], **kwargs: Any) -> Tensor:
    return _normal(uniform, sizes).to(_dtype(kwargs))


def _randn_like(uniform: Uniform, x: Tensor, **kwargs: Any) -> Tensor:
    return _normal(uniform, x.shape).to(_dtype(kwargs, x))


def _uniform_between(uniform: Uniform, x: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
    return uniform(x.shape).to(x.dtype) * (high - low) + low


def _normal_with(uniform: Uniform, x: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
    return _normal(uniform, x.shape).to(x.dtype) * std + mean


def _normal_around(uniform: Uniform, mean: Any, std: Any, sizes: Sequence[Any] | None = None, **kwargs: Any) -> Tensor:
    """Either may be a tensor. The results have the dtype of the first that is one, and the shape of both."""
    given = [value for value in (mean, std) if isinstance(value, Tensor)]
    sizes = torch.broadcast_shapes(*(value.shape for value in given)) if sizes is None else sizes
    return (_normal(uniform, sizes) * std + mean).to(_dtype(kwargs, given[0] if given else None))


def _waits(uniform: Uniform, sizes: Sequence[Any]) -> Tensor:
    """For the first arrival at a rate of 1.

    Half a step of the uniform numbers keeps 0 out: a weight over it comes first, however small, and 0 / 0 is NaN.
    """
    return -torch.log(1.0 - uniform(sizes)) + 2.0**-25


def _multinomial(uniform: Uniform, weights: Tensor, count: int, replacement: bool = False, **_: Any) -> Tensor:
    """The first arrivals where each index arrives at its weight's rate; with replacement of `count` races."""
    rates = weights.unsqueeze(-2).expand(*weights.shape[:-1], count, -1) if replacement else weights
    speeds = rates / _waits(uniform, rates.shape)
    return speeds.argmax(-1) if replacement else speeds.topk(count, -1).indices


def _exponential(uniform: Uniform, x: Tensor, rate: float = 1.0, **_: Any) -> Tensor:
    return _waits(uniform, x.shape).to(x.dtype) / rate


def _cauchy(uniform: Uniform, x: Tensor, median: float = 0.0, sigma: float = 1.0, **_: Any) -> Tensor:
    return torch.tan(math.pi * (uniform(x.shape) - 0.5)).to(x.dtype) * sigma + median


def _integers(uniform: Uniform, low: int, high: int, sizes: Sequence[Any]) -> Tensor:
    """From low to high - 1; 24 bits of randomness."""
    return (uniform(sizes).to(torch.float64) * (high - low)).to(torch.int64) + low


def _randint(uniform: Uniform, high: int, sizes: Sequence[Any], **kwargs: Any) -> Tensor:
    return _integers(uniform, 0, high, sizes).to(kwargs.get("dtype") or torch.int64)


def _randint_low(uniform: Uniform, low: int, high: int, sizes: Sequence[Any], **kwargs: Any) -> Tensor:
    return _integers(uniform, low, high, sizes).to(kwargs.get("dtype") or torch.int64)


def _randint_like(uniform: Uniform, x: Tensor, high: int, **kwargs: Any) -> Tensor:
    return _integers(uniform, 0, high, x.shape).to(_dtype(kwargs, x))


def _randperm(uniform: Uniform, count: int, **kwargs: Any) -> Tensor:
    return torch.argsort(uniform([count])).to(kwargs.get("dtype") or torch.int64)


_DRAWS: dict[Any, Callable[..., Any]] = {
    aten.bernoulli.default: _bernoulli,
    aten.bernoulli.p: _bernoulli,
    aten.bernoulli_.float: _bernoulli_in_place,
    aten.bernoulli_.Tensor: _bernoulli_in_place,
    aten.native_dropout.default: _native_dropout,
    aten.rand.default: _rand,
    aten.rand_like.default: _rand_like,
    aten.randn.default: _randn,
    aten.randn_like.default: _randn_like,
    aten.uniform_.default: _uniform_between,
    aten.normal_.default: _normal_with,
    aten.normal.Tensor_Tensor: _normal_around,
    aten.normal.Tensor_float: _normal_around,
    aten.normal.float_Tensor: _normal_around,
    aten.normal.float_float: _normal_around,
    aten.multinomial.default: _multinomial,
    aten.exponential_.default: _exponential,
    aten.cauchy_.default: _cauchy,
    aten.randint.default: _randint,
    aten.randint.low: _randint_low,
    aten.randint_like.default: _randint_like,
    aten.randperm.default: _randperm,
}
