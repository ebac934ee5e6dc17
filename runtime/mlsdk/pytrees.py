"""Classes that may be part of the nesting of a function's arguments and results."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import torch.utils._pytree as pytree
from pfvm.errors import OptionError, short

Class = TypeVar("Class", bound=type)


def register_pytree_namedtuple(cls: Class) -> Class:
    """Decorates a NamedTuple. Raises OptionError for another class."""
    if not (isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")):
        raise OptionError(f"register_pytree_namedtuple decorates a NamedTuple, not {short(cls)}")
    pytree._register_namedtuple(cls, serialized_type_name=_name(cls))
    return cls


def register_pytree_dataclass(cls: Class) -> Class:
    """Decorates a dataclass, above @dataclass. Raises OptionError for another class."""
    if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
        raise OptionError(
            f"register_pytree_dataclass decorates a dataclass (write it above @dataclass), not {short(cls)}"
        )
    if cls not in pytree.SUPPORTED_NODES:
        pytree.register_dataclass(cls, serialized_type_name=_name(cls))
    return cls


def _name(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
