"""A model in whatever form it comes, and the result in the same form."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any, TypeVar

import onnx
import onnx_ir as ir
from pfvm.errors import InputError, OptionError, short

from .exporter import data_path, load_from, to_proto, write_model

Model = TypeVar("Model", str, os.PathLike, onnx.ModelProto, ir.Model)


def in_form_of(source: Model, what: str, output: str | os.PathLike[str] | None, make: Callable[[], ir.Model]) -> Model:
    """`make()` as a file at `output`, a ModelProto or an onnx_ir.Model: the form in which `source` came.

    what: the name of the function that the user called, for messages.
    Raises InputError for another type, OptionError for a path without `output`.
    """
    if not isinstance(source, (str, os.PathLike, onnx.ModelProto, ir.Model)):
        raise InputError(f"{what} takes a path, a ModelProto or an onnx_ir.Model, not {short(source)}")
    is_path = isinstance(source, (str, os.PathLike))
    if is_path and output is None:
        raise OptionError(f"{what}(path) needs output=PATH for the file to write")
    model = make()
    if output is not None:
        load_from(model, data_path(pathlib.Path(output)))  # weights may lie in a file that is about to be replaced
        write_model(model, output)
    result: Any = model
    if isinstance(source, onnx.ModelProto):
        result = to_proto(model)
    elif is_path:
        result = str(output) if isinstance(source, str) else output
    return result
