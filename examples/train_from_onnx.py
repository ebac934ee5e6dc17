"""Train a net that exists only as an ONNX file: no Python of it is needed, and no framework.

python examples/train_from_onnx.py --device pfvm:cpu

`pfvm.grad` makes a training step of the file (forward, backward, Adam), `pfvm.loop` makes 25 of them one call. The data
are two spirals. Prints the loss and how many of the points are told apart.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import onnx
import pfvm
from onnx import numpy_helper

NET = """<ir_version: 10, opset_import: ["" : 21]>
net (float[n,2] x) => (float[n,2] scores) {
  a = Gemm (x, w1, b1)  h = Tanh (a)  b = Gemm (h, w2, b2)  g = Tanh (b)  scores = Gemm (g, w3, b3)
}"""
BATCH, STEPS, CALLS = 200, 25, 60


def net() -> onnx.ModelProto:
    """Two hidden layers of 32, with random weights."""
    draw = np.random.default_rng(0)
    proto = onnx.parser.parse_model(NET)
    for number, (fan_in, fan_out) in enumerate(((2, 32), (32, 32), (32, 2)), 1):
        weight = draw.normal(0, fan_in**-0.5, (fan_in, fan_out)).astype(np.float32)
        proto.graph.initializer.append(numpy_helper.from_array(weight, f"w{number}"))
        proto.graph.initializer.append(numpy_helper.from_array(np.zeros(fan_out, np.float32), f"b{number}"))
    return proto


def spirals(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Points [count, 2] float32 of two arms that wind into each other, and to which arm each belongs [count] int64."""
    draw = np.random.default_rng(seed)
    arm, turn = draw.integers(0, 2, count), draw.uniform(0.3, 1.0, count)
    angle = 2.2 * np.pi * turn + np.pi * arm
    points = np.stack([turn * np.cos(angle), turn * np.sin(angle)], axis=1) + draw.normal(0, 0.015, (count, 2))
    return points.astype(np.float32), arm.astype(np.int64)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="pfvm:cpu", help="pfvm:cpu, xla:cpu, …")
    args = parser.parse_args()
    model = net()
    step = pfvm.optimize(pfvm.grad(model, "scores", loss_fn="cross_entropy", optimizer="adam", lr=0.01))
    steps = pfvm.load(pfvm.loop(step, STEPS), device=args.device)
    state: dict[str, Any] = {}  # weights and the optimizer's moments; the file's own until the first call
    for call in range(CALLS):
        x, t = spirals(STEPS * BATCH, seed=call)
        results = steps({"x": x.reshape(STEPS, BATCH, 2), "target": t.reshape(STEPS, BATCH), **state})
        state = {name.removesuffix(".new"): value for name, value in results.items() if name.endswith(".new")}
        if call in (0, CALLS - 1):
            losses = next(value for name, value in results.items() if "loss" in name)
            print(f"step {(call + 1) * STEPS}: loss {float(losses[-1]):.4f}")
    for tensor in model.graph.initializer:  # back into the file
        tensor.CopyFrom(numpy_helper.from_array(np.asarray(state[tensor.name]), tensor.name))
    x, t = spirals(2000, seed=CALLS)
    right = (pfvm.load(pfvm.optimize(model), device=args.device)({"x": x})["scores"].argmax(1) == t).mean()
    print(f"{args.device}: accuracy {right:.4f}")


if __name__ == "__main__":
    main()
