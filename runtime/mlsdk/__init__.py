"""The names and calls of MN-Core's MLSDK over pfvm: a program for it runs after changing the import and the device.

    from pfvm.runtime.mlsdk import Context, MNDevice, storage

    context = Context(MNDevice("xla:cpu"))
    step = context.compile(train_step, sample, storage.path("out") / "train_step")
    loss = step(batch)["loss"].item()

State is found by the trace and always current: registering and `synchronize` are possible, not needed. Which calls,
options and variables mean the same here, differ, or are refused: `python -m pfvm.runtime.mlsdk`, data in names.py.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING, Any

_HOME = {
    "MNDevice": "device",
    "Context": "context",
    "CompiledFunction": "function",
    "TensorProxy": "proxy",
    "TensorLike": "proxy",
    "IOSpec": "io_spec",
    "CacheOptions": "compile_options",
    "MLSDKWarning": "names",
    "path": "storage",
    "set_tensor_name": "tensor_names",
    "get_tensor_name": "tensor_names",
    "set_tensor_name_in_module": "tensor_names",
    "set_buffer_name_in_optimizer": "tensor_names",
    "register_pytree_namedtuple": "pytrees",
    "register_pytree_dataclass": "pytrees",
    "trace_scope": "tracing",
    "trace_event": "tracing",
    "MNCoreOptimizer": "optimizers",
    "MNCoreSGD": "optimizers",
    "MNCoreAdam": "optimizers",
    "MNCoreAdamW": "optimizers",
    "MNCoreLRScheduler": "optimizers",
    "lint": "linter",
    "LintLevel": "linter",
    "LintResult": "linter",
}
_MODULES = ("linter", "storage")

__all__ = [  # noqa: RUF022 - as in _HOME
    "MNDevice",
    "Context",
    "CompiledFunction",
    "TensorProxy",
    "TensorLike",
    "IOSpec",
    "CacheOptions",
    "MLSDKWarning",
    "path",
    "set_tensor_name",
    "get_tensor_name",
    "set_tensor_name_in_module",
    "set_buffer_name_in_optimizer",
    "register_pytree_namedtuple",
    "register_pytree_dataclass",
    "trace_scope",
    "trace_event",
    "MNCoreOptimizer",
    "MNCoreSGD",
    "MNCoreAdam",
    "MNCoreAdamW",
    "MNCoreLRScheduler",
    "lint",
    "LintLevel",
    "LintResult",
]

if TYPE_CHECKING:
    from . import linter as linter
    from . import storage as storage
    from .compile_options import CacheOptions
    from .context import Context
    from .device import MNDevice
    from .function import CompiledFunction
    from .io_spec import IOSpec
    from .linter import LintLevel, LintResult, lint
    from .names import MLSDKWarning
    from .optimizers import MNCoreAdam, MNCoreAdamW, MNCoreLRScheduler, MNCoreOptimizer, MNCoreSGD
    from .proxy import TensorLike, TensorProxy
    from .pytrees import register_pytree_dataclass, register_pytree_namedtuple
    from .storage import path
    from .tensor_names import get_tensor_name, set_buffer_name_in_optimizer, set_tensor_name, set_tensor_name_in_module
    from .tracing import trace_event, trace_scope


def __getattr__(name: str) -> Any:
    if name not in _HOME and name not in _MODULES:
        raise AttributeError(f"module 'pfvm.runtime.mlsdk' has no attribute {name!r}")
    if importlib.util.find_spec("torch") is None:
        from pfvm.errors import MissingExtraError

        raise MissingExtraError("pfvm.runtime.mlsdk", "torch")
    if name in _MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
