"""Ops that compute nothing: marks for the profiler, and checks of values inside torch, which ONNX does not have."""

from __future__ import annotations

from typing import Any

import torch
from pfvm.compiler.capture.emit import Emitter

from .registry import rule

aten, profiler = torch.ops.aten, torch.ops.profiler
Node = torch.fx.Node


@rule(profiler._record_function_enter_new.default, profiler._record_function_exit._RecordFunction)
def record_function(e: Emitter, node: Node, *_: Any) -> None:
    """torch.profiler.record_function."""


@rule(aten._assert_async.msg, aten._assert_async.default)
def assert_async(e: Emitter, node: Node, *_: Any) -> None:
    """For example one_hot's class range. No result depends on it."""


@rule(aten._linalg_check_errors.default)
def check_errors(e: Emitter, node: Node, *_: Any, **__: Any) -> None:
    """A singular matrix gives infinities or NaN."""
