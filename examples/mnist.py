"""The MNIST example with its training and evaluation steps compiled by pfvm; `--device torch` runs it eagerly.

python examples/mnist.py --device pfvm:cpu --outdir out/mnist --option-json options.json

The training step is forward, backward and optimizer in one graph. Weights and momentum stay on the device; the
evaluation step, compiled before training too, and `model.state_dict()` see their current values. An option file looks
like {"args": ["--out_onnx=<codegen_dir>/pfvm.onnx"]}.
"""

from __future__ import annotations

import argparse
import pathlib

import pfvm
import torch
from mnist_data import EVAL_BATCH, SIZE, TRAIN_BATCH, Mlp, load
from mnist_infer import Step, count_correct, make_eval_step
from mnist_train import EPOCHS, make_train_step, train


def compile_step(
    step: Step,
    device: str,
    folder: pathlib.Path,
    option_json: str | None = None,
    batch: int = EVAL_BATCH,
    mesh: str | None = None,
) -> Step:
    """A step on a device; its model.onnx, pfvm.onnx and passes.json go to `folder`."""
    if device == "torch":
        return step
    sample = {"x": torch.zeros(batch, 1, SIZE, SIZE), "t": torch.zeros(batch, dtype=torch.int64)}
    return pfvm.compile(step, sample, device=device, codegen_dir=folder, options=option_json, mesh=mesh)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="pfvm:cpu", help="torch, pfvm:cpu, xla:cpu, …")
    parser.add_argument("--outdir", default="out/mnist", help="folder for checkpoint.pt, train_step/ and eval_step/")
    parser.add_argument("--option-json", help="compiler options for both steps")
    parser.add_argument("--data", help="folder with MNIST's IDX files")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--mesh", help="of xla devices: train on several, data=4")
    parser.add_argument("--prefetch", type=int, metavar="N", help="load the next N batches while a step runs")
    args = parser.parse_args()
    folder = pathlib.Path(args.outdir)
    folder.mkdir(parents=True, exist_ok=True)
    digits = load(args.data)
    print(f"{digits.source}: {len(digits.train_t)} images to train, {len(digits.eval_t)} to evaluate")
    torch.manual_seed(0)
    model = Mlp()
    train_step = compile_step(
        make_train_step(model), args.device, folder / "train_step", args.option_json, TRAIN_BATCH, args.mesh
    )
    eval_step = compile_step(make_eval_step(model), args.device, folder / "eval_step", args.option_json)
    if args.prefetch:
        train(digits, train_step, args.epochs, lambda batches: pfvm.prefetch(batches, train_step, args.prefetch))
    else:
        train(digits, train_step, args.epochs)
    torch.save(model.state_dict(), folder / "checkpoint.pt")
    correct, images = count_correct(eval_step, digits)
    print(f"{args.device}: {correct} of {images} right, accuracy {correct / images:.4f}")


if __name__ == "__main__":
    main()
