"""The names in compiled Python code, those of functions that it makes included."""

from __future__ import annotations

import dis
import functools
import types

_LOOKUPS = ("LOAD_GLOBAL", "LOAD_NAME")


@functools.lru_cache(maxsize=4096)
def mentioned(code: types.CodeType) -> tuple[str, ...]:
    """Every name: globals, attributes, methods, in order of first use."""
    return _of_all(code, code.co_names, mentioned)


@functools.lru_cache(maxsize=4096)
def global_names(code: types.CodeType) -> tuple[str, ...]:
    """The names that are looked up among globals, in order of first use. An attribute of that name is none."""
    found = [step.argval for step in dis.get_instructions(code) if step.opname in _LOOKUPS]
    return _of_all(code, tuple(found), global_names)


@functools.lru_cache(maxsize=4096)
def texts(code: types.CodeType) -> tuple[str, ...]:
    """The constant strings of less than 100 characters: names that getattr or a dictionary may be asked for."""
    found = [text for text in code.co_consts if isinstance(text, str) and len(text) < 100]
    return _of_all(code, tuple(found), texts)


def _of_all(code: types.CodeType, own: tuple[str, ...], function: functools._lru_cache_wrapper) -> tuple[str, ...]:
    names = dict.fromkeys(own)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= dict.fromkeys(function(constant))
    return tuple(names)
