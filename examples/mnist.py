"""The MNIST example with its evaluation step compiled by pfvm; `--device torch` runs it eagerly.

python examples/mnist.py --device pfvm:cpu --outdir out/mnist --option-json options.json

The step is compiled before training: a compiled function reads the current weights at every call. An option file looks
like {"args": ["--out_onnx=<codegen_dir>/pfvm.onnx"]}.
"""

from __future__ import annotations

import argparse
import pathlib

import pfvm
import torch
from mnist_data import EVAL_BATCH, SIZE, Mlp, load
from mnist_infer import Step, count_correct, make_eval_step
from mnist_train import EPOCHS, train


def compile_step(step: Step, device: str, folder: pathlib.Path, option_json: str | None = None) -> Step:
    """The evaluation step on a device; its model.onnx, pfvm.onnx and passes.json go to `folder`."""
    if device == "torch":
        return step
    sample = {"x": torch.zeros(EVAL_BATCH, 1, SIZE, SIZE), "t": torch.zeros(EVAL_BATCH, dtype=torch.int64)}
    return pfvm.compile(step, sample, device=device, codegen_dir=folder, options=option_json)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="pfvm:cpu", help="torch, pfvm:cpu, xla:cpu, …")
    parser.add_argument("--outdir", default="out/mnist", help="folder for checkpoint.pt and eval_step/")
    parser.add_argument("--option-json", help="compiler options for eval_step")
    parser.add_argument("--data", help="folder with MNIST's IDX files")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    args = parser.parse_args()
    folder = pathlib.Path(args.outdir)
    folder.mkdir(parents=True, exist_ok=True)
    digits = load(args.data)
    print(f"{digits.source}: {len(digits.train_t)} images to train, {len(digits.eval_t)} to evaluate")
    torch.manual_seed(0)
    model = Mlp()
    step = compile_step(make_eval_step(model), args.device, folder / "eval_step", args.option_json)
    train(digits, model, args.epochs)
    torch.save(model.state_dict(), folder / "checkpoint.pt")
    correct, images = count_correct(step, digits)
    print(f"{args.device}: {correct} of {images} right, accuracy {correct / images:.4f}")


if __name__ == "__main__":
    main()
