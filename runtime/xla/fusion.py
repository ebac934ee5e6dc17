"""Which of XLA's CPU library fusions an executable is compiled with.

XLA 0.10's CPU compiler hands some operations to a library of kernels (YNNPACK): convolutions and reductions by default.
Its reductions are faster than XLA's own (softmax about 2 times), its convolutions mostly slower (ResNet-50: 1.4 times)
but not all (a first layer of three channels). So programs with convolutions are compiled both ways and timed.

Its fusion of a windowed sum with what stands before it reads memory that nobody wrote (jaxlib 0.10.2: DenseNet-121's
average pools): programs with convolutions or windows do without its reductions. tests/test_xla_fusion.py shows it.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from typing import Any, Literal, get_args

import jax
import jax.extend.core as jex
import numpy as np
from pfvm.errors import OptionError

from .cache import compile_cached
from .prepared import Program

Fusion = Literal["auto", "default", "no_convolution"]

_OPTION = "xla_cpu_experimental_ynn_fusion_type"
_SETTINGS: dict[str, dict[str, str | bool]] = {
    "default": {_OPTION: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"},
    "no_convolution": {_OPTION: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"},
}
_ROUNDS, _SECONDS = 5, 2.0
_LONGEST_COMPILATION = 10.0  # seconds, to do it twice

_choices: dict[str, str] = {}
_lock = threading.Lock()


def check_fusion(fusion: str) -> Fusion:
    """Raises OptionError for a word that is none of `Fusion`."""
    if fusion not in get_args(Fusion):
        raise OptionError(f"fusion={fusion!r}: expected one of {', '.join(get_args(Fusion))}")
    return fusion  # type: ignore[return-value]  # just checked


def compile_program(program: Program, fusion: Fusion, device: jax.Device) -> tuple[jax.stages.Compiled, bool]:
    """The executable and whether it came from the disk. "auto" keeps the faster setting's, there and in memory."""
    lowered = program.traced.lower()
    setting = f"{fusion} of {_SETTINGS}"  # what a name means may change
    return compile_cached(lowered, device, setting, lambda: _compile(lowered, program, fusion))


def _compile(lowered: jax.stages.Lowered, program: Program, fusion: Fusion) -> jax.stages.Compiled:
    jaxpr = program.traced.jaxpr.jaxpr
    if not any(_has(jaxpr, primitive) for primitive in ("conv_general_dilated", "reduce_window_sum", "reduce_window")):
        return lowered.compile()
    if fusion != "auto":
        return lowered.compile(_SETTINGS[fusion])
    if not _has(jaxpr, "conv_general_dilated"):
        return lowered.compile(_SETTINGS["no_convolution"])
    if _has(jaxpr, "while"):  # on made-up inputs it might not end
        return lowered.compile(_SETTINGS["no_convolution"])
    key = hashlib.sha256(lowered.as_text().encode()).hexdigest()
    with _lock:  # one at a time: what runs meanwhile disturbs the clock
        if key in _choices:
            return lowered.compile(_SETTINGS[_choices[key]])
        start = time.perf_counter()
        usual = lowered.compile(_SETTINGS["no_convolution"])
        if time.perf_counter() - start > _LONGEST_COMPILATION:
            _choices[key] = "no_convolution"
            return usual
        compiled = {"no_convolution": usual, "default": lowered.compile(_SETTINGS["default"])}
        _choices[key] = _faster({name: _runner(each, program) for name, each in compiled.items()})
        return compiled[_choices[key]]


def _has(jaxpr: Any, primitive: str) -> bool:
    return any(
        eqn.primitive.name == primitive or any(_has(inner, primitive) for inner in jex.jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )


def _runner(compiled: jax.stages.Compiled, program: Program) -> Callable[[], Any]:
    avals = program.traced.jaxpr.in_avals
    inputs = avals[: len(avals) - len(program.weights)]
    zeros = [np.zeros(aval.shape, aval.dtype) for aval in inputs]
    return lambda: jax.block_until_ready(compiled(*zeros, *program.weights))


def _faster(runners: dict[str, Callable[[], Any]]) -> str:
    """The name of the one whose best time is smaller, after a few rounds of turns."""
    best = dict.fromkeys(runners, float("inf"))
    end = time.perf_counter() + _SECONDS
    for run in runners.values():
        run()
    for _ in range(_ROUNDS):
        for name, run in runners.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
        if time.perf_counter() > end:
            break
    return min(best, key=best.__getitem__)
