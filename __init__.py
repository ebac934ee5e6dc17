"""pfvm: an ONNX graph compiler. See README.md; every name here is loaded when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name → module that defines it. `import pfvm` itself loads none of them.
_HOME = {
    "optimize": "pfvm.runtime.api",
    "run_passes": "pfvm.runtime.library",
    "load": "pfvm.runtime.api",
    "loop": "pfvm.compiler.loop",
    "grad": "pfvm.runtime.grad",
    "devices": "pfvm.runtime.device",
    "compile": "pfvm.runtime.compiled",
    "epoch": "pfvm.runtime.epoch",
    "export": "pfvm.compiler.capture.export",
    "prefetch": "pfvm.runtime.prefetch",
    "lint": "pfvm.compiler.capture.lint",
    "Context": "pfvm.runtime.mlsdk.context",
    "CompiledFunction": "pfvm.runtime.compiled",
    "Options": "pfvm.compiler.options",
    "PfvmError": "pfvm.errors",
}
# Module that a name needs → extra that brings it.
_EXTRA = {"torch": "torch", "jax": "xla", "jaxlib": "xla"}
_SUBPACKAGES = ("compiler", "errors", "passes", "runtime", "tools")

__all__ = [
    "CompiledFunction",
    "Context",
    "Options",
    "PfvmError",
    "compile",
    "devices",
    "epoch",
    "export",
    "grad",
    "lint",
    "load",
    "loop",
    "optimize",
    "prefetch",
    "run_passes",
]

if TYPE_CHECKING:
    from pfvm.compiler.capture.export import export
    from pfvm.compiler.capture.lint import lint
    from pfvm.compiler.loop import loop
    from pfvm.compiler.options import Options
    from pfvm.errors import PfvmError
    from pfvm.runtime.api import load, optimize
    from pfvm.runtime.compiled import CompiledFunction, compile
    from pfvm.runtime.device import devices
    from pfvm.runtime.epoch import epoch
    from pfvm.runtime.grad import grad
    from pfvm.runtime.library import run_passes
    from pfvm.runtime.mlsdk.context import Context
    from pfvm.runtime.prefetch import prefetch


def __getattr__(name: str) -> Any:
    if name in _HOME:
        try:
            value = getattr(importlib.import_module(_HOME[name]), name)
        except ModuleNotFoundError as error:
            if error.name not in _EXTRA:
                raise
            return _missing(name, _EXTRA[error.name])
        globals()[name] = value
        return value
    if name in _SUBPACKAGES:
        return importlib.import_module(f"pfvm.{name}")
    raise AttributeError(f"module 'pfvm' has no attribute {name!r}")


def _missing(name: str, extra: str) -> Any:
    """Stands for a function whose extra is not installed: to look at it is fine, to call it says what to install."""

    def call(*_args: Any, **_kwargs: Any) -> Any:
        from pfvm.errors import MissingExtraError

        raise MissingExtraError(f"pfvm.{name}", extra)

    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Needs the {extra!r} extra: pip install 'pfvm[{extra}]'"
    return call


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_SUBPACKAGES})
