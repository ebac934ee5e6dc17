"""`pfvm compile --explain`: what runs where on a device, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from pfvm.errors import describe_node
from pfvm.runtime.device import load_executable, parse_devices
from pfvm.runtime.image_decoding import decodes
from pfvm.runtime.synthesis import workable

from .console import out

_NAMES = 6


def print_segments(model: ir.Model, device: str) -> None:
    """One line per segment, and one per reason for a cut.

    The model is run once, with made-up inputs: some cuts show only when it is compiled. (For a TPU a cut is an error,
    which compiling has raised by now.) Raises the errors of `pfvm.load` and of the call.
    """
    target = parse_devices(device)[0]
    executable: Any = load_executable(model, target)
    segments = getattr(executable, "segments", None)
    if segments is None:
        decoders = [node for node in model.graph if decodes(node)]
        _print(f"{device}: one segment, {len(model.graph) - len(decoders)} nodes in ONNX Runtime")
        for node in decoders:
            _print(f"  {describe_node(node)}: image decoding, in Pillow")
        return
    if target.topology is None:
        feeds, _ = workable(model, executable, 0, {})
        executable(feeds)
    for number, segment in enumerate(executable.segments):
        engine = device if segment.kind == "device" else "the host (ONNX Runtime)"
        count = len(segment.nodes)
        nodes = f"{count} node{'' if count == 1 else 's'}"
        _print(f"segment {number}: {nodes} on {engine}: {_listed(segment.names)}")
        for name, reason in segment.reasons:
            _print(f"  {name}: {reason}")


def _print(line: str) -> None:
    out().print(line, soft_wrap=True)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
