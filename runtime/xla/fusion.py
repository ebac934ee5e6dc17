"""Which of XLA's CPU library fusions an executable is compiled with.

XLA's CPU compiler (jaxlib 0.10) hands some operations to a library of kernels (YNNPACK): convolutions and reductions by
default. Its reductions are faster than XLA's own (softmax about 2 times), its convolutions slower (ResNet-50 1.4 times,
MobileNetV2 1.2 times), and a reduction takes the convolutions before it along.

Timing both in the process that then runs the model was no better than the rule: MobileNetV2 ran 1.5 times slower where
the other setting had run before.

Its fusion of a windowed sum with what stands before it reads memory that nobody wrote (jaxlib 0.10.2: DenseNet-121's
average pools): programs with convolutions or windows do without its reductions. tests/test_xla_fusion.py shows it.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import jax
import jax.extend.core as jex
from pfvm.errors import OptionError

from .cache import compile_cached
from .prepared import Program

Fusion = Literal["auto", "default", "no_convolution"]
Setting = dict[str, str | bool]

_OPTION = "xla_cpu_experimental_ynn_fusion_type"
_NO_CONVOLUTION: Setting = {_OPTION: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
_CONVOLUTION: Setting = {_OPTION: "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT,LIBRARY_FUSION_TYPE_INDIVIDUAL_CONVOLUTION"}
_WINDOWS = ("conv_general_dilated", "reduce_window_sum", "reduce_window")


def check_fusion(fusion: str) -> Fusion:
    """Raises OptionError for a word that is none of `Fusion`."""
    if fusion not in get_args(Fusion):
        raise OptionError(f"fusion={fusion!r}: expected one of {', '.join(get_args(Fusion))}")
    return fusion  # type: ignore[return-value]  # just checked


def compile_program(program: Program, fusion: Fusion, device: jax.Device) -> tuple[jax.stages.Compiled, bool]:
    """The executable and whether it came from the disk."""
    lowered = program.traced.lower()
    setting = _setting(program.traced.jaxpr.jaxpr, fusion) if device.platform == "cpu" else {}
    return compile_cached(lowered, device, str(setting) if setting else "", lambda: lowered.compile(setting))


def _setting(jaxpr: Any, fusion: Fusion) -> Setting:
    if not any(_has(jaxpr, primitive) for primitive in _WINDOWS):
        return {}
    return _CONVOLUTION if fusion == "default" else _NO_CONVOLUTION


def _has(jaxpr: Any, primitive: str) -> bool:
    return any(
        eqn.primitive.name == primitive or any(_has(inner, primitive) for inner in jex.jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )
