"""Which rows each step of an epoch takes, as a graph of its own."""

from __future__ import annotations

import onnx_ir as ir
import torch

from .export import capture


def row_order(rows: int, batch: int, shuffle: bool) -> ir.Model:
    """int64[steps, batch]: the rows in order, or a permutation that follows from a seed, the same on every device.

    Rows that do not fill a batch are left out; after a shuffle they are others in every epoch.
    """
    steps = rows // batch

    def order() -> torch.Tensor:
        every = torch.randperm(rows) if shuffle else torch.arange(rows)
        return every[: steps * batch].reshape(steps, batch)

    return capture(order, ()).model
