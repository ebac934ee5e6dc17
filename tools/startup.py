"""What a command does not wait for. onnx_ir and onnx_shape_inference import sympy, which takes as long as everything
else that is imported, to compute with open dims: here it is imported then, for files of fixed shapes never."""

from __future__ import annotations

import contextlib
import importlib
import importlib.machinery
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

_EAGER = ("onnx_ir", "onnx_shape_inference", "onnx_shape_inference._ops")
# sympy, and the modules of these packages that look into it while they are imported.
_DEFERRED = (
    "sympy",
    "onnx_ir._symbolic_shapes",
    "onnx_shape_inference._constraints",
    "onnx_shape_inference._symbolic_shapes",
)


def defer_sympy() -> None:
    """From here on, in this process, _EAGER packages get sympy when they first ask it for something."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder:
    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> Any:
        """The usual spec, of an _EAGER package with another loader."""
        spec = importlib.machinery.PathFinder.find_spec(name, path) if name in _EAGER else None
        if spec is None or spec.origin is None or not isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            return None
        spec.loader = _Loader(name, spec.origin)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module: types.ModuleType) -> None:
        with _deferred():
            super().exec_module(module)


@contextlib.contextmanager
def _deferred() -> Iterator[None]:
    """Inside, importing what is _DEFERRED gives a stand-in, unless it is loaded; who imports it later gets itself."""
    stand_ins = {name: _StandIn(name) for name in _DEFERRED if name not in sys.modules}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, stand_in in stand_ins.items():
            if sys.modules.get(name) is stand_in:
                del sys.modules[name]


class _StandIn(types.ModuleType):
    """Imports the module of its name when it is first asked for something, and has what that has."""

    def __getattr__(self, name: str) -> Any:
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]
        found = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, found)
        return found
