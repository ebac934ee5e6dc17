"""`pfvm loop`: K steps in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def loop(
    model: Annotated[Path, typer.Argument(help="ONNX file.", show_default=False)],
    steps: Annotated[int, typer.Option("-k", "-K", "--steps", help="Steps in one call.", show_default=False)],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.", show_default=False)],
    until: Annotated[
        str | None,
        typer.Option(
            "--until", help="'loss < 0.1': end behind the first step of which that is so.", show_default=False
        ),
    ] = None,
) -> None:
    """Turn a training step into K steps in one call.

    K batches in, K losses out, state carried between. With --until, an output `steps` says how many ran.
    """
    from pfvm.compiler.loop import loop as loop_steps
    from pfvm.compiler.progress import remark

    from .working import working

    with working(f"writing {output}"):
        loop_steps(model, steps, until=until, output=output)
    remark(f"{output}: {f'at most {steps} steps a call, until {until}' if until else f'{steps} steps a call'}")
