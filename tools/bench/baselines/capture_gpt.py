"""The capture of a GPT's training step, timed: `pfvm bench --train capture`.

`python -m pfvm.tools.bench.baselines.capture_gpt LAYERS` measures one and prints it as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
from pfvm.compiler.capture.export import capture

from .train_steps import step_of
from .train_transformer import CLIP, LR, Transformer

# The 12 layers have 91 million parameters.
_WIDTH, _HEADS, _VOCABULARY, _SEQUENCE, _ROWS = 768, 12, 4096, 128, 4


def measure(layers: int) -> dict[str, Any]:
    """A transformer's step with AdamW and clipping. A small one is captured before: imports do not count."""
    _capture(1, 64, 2, 50)
    return _capture(layers, _WIDTH, _HEADS, _VOCABULARY)


def _capture(layers: int, width: int, heads: int, vocabulary: int) -> dict[str, Any]:
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


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
