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
    """One line per segment, and one per reason for a cut. Raises what `segments` raises."""
    found = segments(model, device)
    for number, each in enumerate(found):
        engine = device if each["place"] == "device" else f"the host ({each['engine']})"
        count = f"{len(each['nodes'])} node{'' if len(each['nodes']) == 1 else 's'}"
        if each["place"] == "device" and each["engine"] is not None:
            _print(f"{device}: one segment, {len(each['nodes'])} nodes in {each['engine']}")
        else:
            _print(f"segment {number}: {count} on {engine}: {_listed(each['nodes'])}")
        for reason in each["reasons"]:
            _print(f"  {reason['node']}: {reason['reason']}")


def segments(model: ir.Model, device: str) -> list[dict[str, Any]]:
    """[{"place": "device" or "host", "engine": the runtime or None, "nodes": [name], "reasons": [{"node", "reason"}]}].

    The model is run once, with made-up inputs: some cuts show only when it is compiled. (For a TPU a cut is an error,
    which compiling has raised by now.) Raises the errors of `pfvm.load` and of the call.
    """
    target = parse_devices(device)[0]
    executable: Any = load_executable(model, target)
    if getattr(executable, "segments", None) is None:
        decoders = [node for node in model.graph if decodes(node)]
        reasons = [{"node": describe_node(node), "reason": "image decoding, in Pillow"} for node in decoders]
        nodes = [describe_node(node) for node in model.graph if not decodes(node)]
        return [{"place": "device", "engine": "ONNX Runtime", "nodes": nodes, "reasons": reasons}]
    if target.topology is None:
        feeds, _ = workable(model, executable, 0, {})
        executable(feeds)
    return [
        {
            "place": "device" if segment.kind == "device" else "host",
            "engine": None if segment.kind == "device" else "ONNX Runtime",
            "nodes": list(segment.names),
            "reasons": [{"node": name, "reason": reason} for name, reason in segment.reasons],
        }
        for segment in executable.segments
    ]


def _print(line: str) -> None:
    out().print(line, soft_wrap=True)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
    return ", ".join(names[:_NAMES]) + more
