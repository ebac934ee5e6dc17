"""Promise: the time to capture a training step grows linearly with the network."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from growth import assert_linear

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.tools.bench.baselines.train_steps import step_of  # noqa: E402
from pfvm.tools.bench.baselines.train_transformer import Transformer  # noqa: E402


def capturing(layers: int) -> Callable[[], object]:
    """Of a transformer's step with AdamW and clipping."""
    model = Transformer(layers, width=32, heads=2, hidden=64, vocabulary=50, sequence=8)
    step = step_of(model, torch.optim.AdamW(model.parameters()), 1.0)
    tokens = torch.zeros(2, 8, dtype=torch.int64)
    return lambda: capture(step, {"x": tokens, "t": tokens})


@pytest.mark.slow
def test_capture_is_linear_in_layers() -> None:
    assert_linear(capturing, 2, times=3)
