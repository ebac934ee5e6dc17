"""`pfvm bench --train capture`: how long the capture of a GPT's training step takes, by its number of layers.

`python -m pfvm.tools.bench.capture LAYERS` measures one, in a fresh process, and prints it as JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from pfvm.errors import PfvmError
from pfvm.tools.console import out, table

LAYERS = (3, 6, 12)
# The 12 layers have 91 million parameters.
_WIDTH, _HEADS, _VOCABULARY, _SEQUENCE, _ROWS = 768, 12, 4096, 128, 4


def measure_all(timeout: float) -> list[dict[str, Any]]:
    """{"layers", "parameters", "nodes", "seconds", "cpu_seconds"} of each.

    Raises PfvmError with a process's last words.
    """
    found = []
    for count in LAYERS:
        command = [sys.executable, "-m", "pfvm.tools.bench.capture", str(count)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            raise PfvmError(f"capture of {count} layers: no answer within {timeout:g} s") from None
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            raise PfvmError(f"capture of {count} layers: {last[:300]}")
        found.append(json.loads(done.stdout.splitlines()[-1]))
    return found


def measure(layers: int) -> dict[str, Any]:
    """A transformer's step with AdamW and clipping. A small one is captured before: imports do not count."""
    _capture(1, 64, 2, 50)
    return _capture(layers, _WIDTH, _HEADS, _VOCABULARY)


def _capture(layers: int, width: int, heads: int, vocabulary: int) -> dict[str, Any]:
    import torch
    from pfvm.compiler.capture.export import capture

    from .baselines.train_steps import step_of
    from .baselines.train_transformer import CLIP, LR, Transformer

    model = Transformer(layers, width, heads, 4 * width, vocabulary, _SEQUENCE)
    step = step_of(model, torch.optim.AdamW(model.parameters(), lr=LR), CLIP)
    tokens = torch.zeros(_ROWS, _SEQUENCE, dtype=torch.int64)
    start, used = time.perf_counter(), time.process_time()
    captured = capture(step, {"x": tokens, "t": tokens})
    seconds, cpu = time.perf_counter() - start, time.process_time() - used
    return {
        "layers": layers,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "nodes": len(captured.model.graph),
        "seconds": seconds,
        "cpu_seconds": cpu,
    }


def print_all(measured: Sequence[dict[str, Any]]) -> None:
    shown = table("capture of a GPT", "parameters", "nodes", "s", "cpu s")
    for row in measured:
        millions = f"{row['parameters'] / 1e6:.1f} M"
        shown.add_row(
            f"{row['layers']} layers", millions, str(row["nodes"]), f"{row['seconds']:.1f}", f"{row['cpu_seconds']:.1f}"
        )
    out().print(shown)


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
