"""What the processes of tests/test_processes.py run: a training step on a mesh of all their devices.

`train MESH SHARD` prints the losses and a checksum of the weights; `prefetched MESH` the losses of a net with labels,
whose batches another thread loads; `forever MESH` calls a model until it is ended.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pfvm

sys.path.insert(0, str(Path(__file__).parent))


def report(result: object) -> None:
    """In one write: the processes share a pipe, which keeps up to 4 KiB together."""
    os.write(1, f"result {result}\n".encode())


def train(mesh: str, shard: str) -> None:
    import torch
    from mesh_nets import batch, make_step  # type: ignore[import-not-found]

    spread = {"mesh": mesh, "shard": None if shard == "-" else shard} if mesh != "-" else {}
    model, step = make_step("mlp")
    compiled = pfvm.compile(step, batch("mlp"), device="xla:cpu", **spread)
    torch.manual_seed(11)
    losses = [compiled(batch("mlp"))["loss"].item() for _ in range(3)]
    state = {name: value.double().sum().item() for name, value in model.state_dict().items()}
    report(json.dumps({"losses": losses, "state": state}))


def prefetched(mesh: str) -> None:
    import torch

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(inp: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inp["x"]), inp["t"])
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    batches = [{"x": torch.randn(8, 4), "t": torch.randint(0, 3, (8,))} for _ in range(3)]
    compiled = pfvm.compile(step, batches[0], device="xla:cpu", mesh=None if mesh == "-" else mesh)
    losses = [compiled(batch)["loss"].item() for batch in pfvm.prefetch(batches, compiled)]
    batches[0]["t"][1] = 7
    try:
        next(compiled(batch) for batch in pfvm.prefetch(batches, compiled))
    except pfvm.PfvmError as error:
        report(json.dumps({"losses": losses, "error": str(error)}))


def forever(mesh: str) -> None:
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[8] x) => (float y) { y = ReduceSum <keepdims = 0> (x) }'
    )
    run: Any = pfvm.load(proto, "xla:cpu", mesh=mesh)
    x = np.ones(8, np.float32)
    report(run({"x": x})["y"])
    while True:
        run({"x": x})
        time.sleep(0.01)


def entropy(mesh: str) -> None:
    """Random numbers without a seed: the same in every process, new in every call."""
    proto = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 18]> g (float[8] x) => (float[8] y) { y = RandomUniformLike (x) }'
    )
    run = pfvm.load(proto, "xla:cpu", mesh=mesh)
    x = np.zeros(8, np.float32)
    report(json.dumps([run({"x": x})["y"].tolist() for _ in range(2)]))


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
