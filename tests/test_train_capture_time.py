"""Promise: the time to capture a training step grows linearly with the network."""

from __future__ import annotations

import time

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.tools.bench.baselines.train_steps import step_of  # noqa: E402
from pfvm.tools.bench.baselines.train_transformer import Transformer  # noqa: E402


def seconds(layers: int) -> float:
    """CPU time, of a transformer's step with AdamW and clipping."""
    model = Transformer(layers, width=32, heads=2, hidden=64, vocabulary=50, sequence=8)
    step = step_of(model, torch.optim.AdamW(model.parameters()), 1.0)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    start = time.process_time()
    capture(step, {"x": tokens, "t": tokens})
    return time.process_time() - start


@pytest.mark.slow
def test_capture_is_linear_in_layers() -> None:
    seconds(1)  # imports, caches
    first, second = seconds(2), seconds(6)
    assert second < 3 * 2 * first, (first, second)  # a quadratic one takes 9 times as long
