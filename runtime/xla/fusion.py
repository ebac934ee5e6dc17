"""Which of XLA's CPU library fusions an executable is compiled with.

XLA's CPU compiler (jaxlib 0.10) hands some operations to a library of kernels (YNNPACK): products, convolutions and
reductions by default. Its reductions are faster than XLA's own (softmax about 2 times). Its convolutions are slower
(ResNet-50 1.4 times, MobileNetV2 1.2 times), and so are its float32 products (BERT and Llama-style 1.15 times,
ConvNeXt-T 1.1 times, on one thread); those of 8-bit integers are 4 times faster. A reduction takes the convolutions
before it along.

In a training step the library's products are the faster ones (an MLP's step 1.4 times, 50 of them in a loop 1.8 times;
a transformer's step alike): weights change there, so that they cannot be brought into XLA's preferred layout once. Such
a program is known by its donated state.

Timing both in the process that then runs the model was no better than the rule: MobileNetV2 ran 1.5 times slower where
the other setting had run before.

Its fusion of a windowed sum with what stands before it reads memory that nobody wrote (jaxlib 0.10.2: DenseNet-121's
average pools): programs with convolutions or windows do without its reductions. tests/test_xla_fusion.py shows it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

import jax
import jax.extend.core as jex
from pfvm.errors import OptionError

from .cache import compile_cached
from .mesh import PATIENCE
from .placement import OnMesh, Placement
from .prepared import Program

Fusion = Literal["auto", "default", "no_convolution"]
Setting = dict[str, str | bool]

_OPTION = "xla_cpu_experimental_ynn_fusion_type"
_WINDOWS = {"conv_general_dilated", "reduce_window_sum", "reduce_window_max", "reduce_window_min", "reduce_window"}


def check_fusion(fusion: str) -> Fusion:
    """Raises OptionError for a word that is none of `Fusion`."""
    if fusion not in get_args(Fusion):
        raise OptionError(f"fusion={fusion!r}: expected one of {', '.join(get_args(Fusion))}")
    return fusion  # type: ignore[return-value]  # just checked


def compile_program(program: Program, fusion: Fusion, placement: Placement) -> tuple[jax.stages.Compiled, bool]:
    """The executable and whether it came from the disk."""
    lowered = program.traced.lower()
    device = placement.first
    if fusion == "auto" and program.traced.donate_argnums:
        fusion = "no_convolution"
    setting = _setting(program.traced.jaxpr.jaxpr, fusion) if device.platform == "cpu" else {}
    if isinstance(placement, OnMesh):  # a program of several devices is not kept on disk
        return lowered.compile({**setting, **(PATIENCE if device.platform == "cpu" else {})}), False
    return compile_cached(lowered, device, str(setting) if setting else "", lambda: lowered.compile(setting))


def _setting(jaxpr: Any, fusion: Fusion) -> Setting:
    """What the library takes of this program."""
    found = list(_equations(jaxpr))
    windows = any(eqn.primitive.name in _WINDOWS for eqn in found)
    if fusion == "default" and not windows:
        return {}
    kinds = set() if windows else {"REDUCE"}
    products = [eqn for eqn in found if eqn.primitive.name == "dot_general"]
    if fusion != "auto" or any(eqn.invars[0].aval.dtype.itemsize == 1 for eqn in products):
        kinds.add("INDIVIDUAL_DOT")
    if fusion == "default":
        kinds.add("INDIVIDUAL_CONVOLUTION")
    return {_OPTION: ",".join(f"LIBRARY_FUSION_TYPE_{kind}" for kind in sorted(kinds))}


def _equations(jaxpr: Any) -> Iterator[Any]:
    for eqn in jaxpr.eqns:
        yield eqn
        for inner in jex.jaxprs_in_params(eqn.params):
            yield from _equations(inner)
