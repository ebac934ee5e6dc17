"""`pfvm grad model.onnx`: a training step, and a line about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pfvm.compiler.importer import read_model
from pfvm.compiler.signature import read_manifest
from pfvm.runtime.grad import grad as make_step
from pfvm.runtime.synthesis import parse_shapes


def grad(model: Path, output: Path, shapes: Sequence[str], settings: Mapping[str, Any], **options: Any) -> str:
    """Writes the step of `model` to `output`; returns a line that says what it trains.

    Raises what `pfvm.grad` raises.
    """
    make_step(model, output=output, shapes=parse_shapes(shapes), **options, **settings)
    step = read_model(output)
    trained = [e.name for e in read_manifest(step) if e.kind == "param" and e.output]
    numbers = sum(v.const_value.size for n in trained if (v := step.graph.initializers[n]).const_value is not None)
    roots = (step.graph, *(function.graph for function in step.functions.values()))  # as compile counts them
    nodes = sum(1 for root in roots for _ in root.all_nodes())
    return f"{output}: {len(trained)} parameters ({numbers:,} numbers), {nodes} nodes"
