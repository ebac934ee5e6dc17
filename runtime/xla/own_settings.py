"""The settings of jax that programs are traced, compiled and run with, whatever else the user's jax is set to."""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import jax
import jax.extend.core as jex

# A setting, what sets it for a while, and the values of which the first is ours and the others do no harm.
_SETTINGS: tuple[tuple[str, Callable[[Any], AbstractContextManager[Any]], tuple[Any, ...]], ...] = (
    ("jax_disable_jit", jax.disable_jit, (False,)),
    ("jax_debug_nans", jax.debug_nans, (False,)),  # a NaN is a result like others
    ("jax_debug_infs", jax.debug_infs, (False,)),
    ("jax_numpy_rank_promotion", jax.numpy_rank_promotion, ("allow",)),
    ("jax_numpy_dtype_promotion", jax.numpy_dtype_promotion, ("standard",)),
    ("jax_default_matmul_precision", jax.default_matmul_precision, (None,)),
    ("jax_transfer_guard_host_to_device", jax.transfer_guard_host_to_device, ("allow", "log", None)),
    ("jax_transfer_guard_device_to_host", jax.transfer_guard_device_to_host, ("allow", "log", None)),
)
_current = operator.attrgetter(*(name for name, *_ in _SETTINGS))
_EAGER = jex.get_opaque_trace_state()
_UNTOUCHED = tuple(harmless[-1] for *_, harmless in _SETTINGS)


def own_settings() -> AbstractContextManager[Any]:
    """Inside, 64-bit types are on and nothing that the user's code has set in this process changes a program."""
    found = _current(jax.config)
    eager = jex.get_opaque_trace_state() == _EAGER
    if eager and found == _UNTOUCHED:  # entering them all in every call would cost more than a small program
        return jax.enable_x64(True)
    stack = contextlib.ExitStack()
    if not eager:  # called while the user's function is traced, where even weights would become part of that trace
        stack.enter_context(jax.ensure_compile_time_eval())
    for value, (_, setter, harmless) in zip(found, _SETTINGS):
        if value not in harmless:
            stack.enter_context(setter(harmless[0]))
    stack.enter_context(jax.enable_x64(True))
    return stack
