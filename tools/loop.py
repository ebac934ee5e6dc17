"""`pfvm loop`: K steps in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def loop(
    model: Annotated[Path, typer.Argument(help="ONNX file.", show_default=False)],
    steps: Annotated[int, typer.Option("-k", "-K", "--steps", help="Steps in one call.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.", show_default=False)],
) -> None:
    """Turn a training step into K steps in one call.

    K batches in, K losses out, state carried between.
    """
    from pfvm.compiler.loop import loop as loop_steps
    from pfvm.compiler.progress import remark

    from .working import working

    with working(f"writing {output}"):
        loop_steps(model, steps, output=output)
    remark(f"{output}: {steps} steps a call")
