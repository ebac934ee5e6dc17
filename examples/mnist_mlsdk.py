"""The MNIST example as a program for MN-Core's MLSDK: only the import and the device string are pfvm's.

python examples/mnist_mlsdk.py --device xla:cpu --outdir out/mnist_mlsdk

With that SDK installed the same program reads `from mlsdk import …` and `--device mncore2:auto`.
"""

from __future__ import annotations

import argparse

import torch
from mnist_data import EVAL_BATCH, SIZE, TRAIN_BATCH, Mlp, load
from mnist_infer import count_correct
from pfvm.runtime.mlsdk import (
    Context,
    MNCoreSGD,
    MNDevice,
    set_buffer_name_in_optimizer,
    set_tensor_name_in_module,
    storage,
    trace_event,
    trace_scope,
)

Batch = dict[str, torch.Tensor]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="pfvm:cpu", help="pfvm:cpu, xla:cpu, …")
    parser.add_argument("--outdir", default="out/mnist_mlsdk", help="folder for train_step/, eval_step/, trace.pb")
    parser.add_argument("--data", help="folder with MNIST's IDX files")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()
    with trace_scope(storage.path(args.outdir) / "trace.pb"):
        run(args.device, args.outdir, args.data, args.epochs)


def run(device: str, outdir: str, data: str | None, epochs: int) -> None:
    """Train and evaluate, each step compiled by a Context."""
    digits = load(data)
    torch.manual_seed(0)
    model = Mlp()
    context = Context(MNDevice(device))
    Context.switch_context(context)
    set_tensor_name_in_module(model, "model")
    for p in model.parameters():
        context.register_param(p)
    optimizer = MNCoreSGD(model.parameters(), 0.1, 0.9, 0.0)
    set_buffer_name_in_optimizer(optimizer, "optimizer")
    context.register_optimizer_buffers(optimizer)

    def train_step(inp: Batch) -> Batch:
        optimizer.zero_grad()
        loss = model(inp["x"], inp["t"])["loss"]
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    def eval_step(inp: Batch) -> Batch:
        _, predicted = torch.max(model(inp["x"], inp["t"])["y"], 1)
        return {"correct": (predicted == inp["t"]).sum()}

    step = context.compile(train_step, sample(TRAIN_BATCH), storage.path(outdir) / "train_step")
    evaluate = context.compile(eval_step, sample(EVAL_BATCH), storage.path(outdir) / "eval_step", training=False)
    generator = torch.Generator().manual_seed(0)
    for epoch in range(epochs):
        with trace_event(f"epoch {epoch + 1}"):
            losses = [step(batch)["loss"].item() for batch in digits.train_batches(generator)]
        print(f"epoch {epoch + 1:2d}  loss {sum(losses) / len(losses):.4f}")
    context.synchronize()
    torch.save(model.state_dict(), storage.path(outdir) / "checkpoint.pt")
    correct, images = count_correct(evaluate, digits)
    print(f"{device}: {correct} of {images} right, accuracy {correct / images:.4f}")


def sample(size: int) -> Batch:
    """Of a batch only shapes and dtypes matter."""
    return {"x": torch.zeros(size, 1, SIZE, SIZE), "t": torch.zeros(size, dtype=torch.int64)}


if __name__ == "__main__":
    main()
