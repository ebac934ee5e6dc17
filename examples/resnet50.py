"""The programs of the first PyTorch/XLA release: x·y + y, a convolutional network for MNIST, and ResNet-50.

python examples/resnet50.py --device xla:cpu                   # all of them, small, beside PyTorch in the same run
python examples/resnet50.py resnet50 --device xla:cpu --mesh data=2   # on two replicas
python examples/resnet50.py resnet50 --device xla:tpu@v5e:1x1 --batch 128 --size 224   # compiled for a TPU elsewhere
python examples/resnet50.py resnet50 --device xla:tpu@v5e:2x2 --mesh data=4 --batch 512 --size 224   # for four

ResNet-50 is written by hand: inference, and training steps with SGD. With `--mesh data=2` the batch is split over two
devices, as replicas have it; gradients are those of the whole batch, and so are batch statistics. With random weights
and so few images it amplifies rounding: where images move by 1e-6, PyTorch's own loss of the third step moves by 1 %.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import pfvm
import torch
import torch.nn.functional as F
from mnist_data import load
from torch import nn

Batch = dict[str, torch.Tensor]
Step = Callable[[Batch], Batch]


class Bottleneck(nn.Module):
    """1×1, 3×3 and 1×1 convolutions beside a shortcut; `stride` is that of the 3×3."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv3, self.norm3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != 4 * width:
            projection = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, inputs, H, W] → [N, 4·width, H/stride, W/stride]."""
        y = torch.relu(self.norm1(self.conv1(x)))
        y = torch.relu(self.norm2(self.conv2(y)))
        return torch.relu(self.norm3(self.conv3(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet-50 with blocks (3, 4, 6, 3)."""

    def __init__(self, blocks: Sequence[int], classes: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        layers: list[nn.Module] = []
        inputs = 64
        for stage, count in enumerate(blocks):
            for block in range(count):
                width = 64 * 2**stage
                layers.append(Bottleneck(inputs, width, 2 if stage and not block else 1))
                inputs = 4 * width
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Scores [N, classes] of images [N, 3, size, size]; size is a multiple of 32."""
        x = F.max_pool2d(torch.relu(self.norm(self.stem(x))), 3, 2, 1)
        x = self.layers(x)
        x = F.avg_pool2d(x, x.shape[-1])
        return self.head(x.view(x.shape[0], -1))


class MnistNet(nn.Module):
    """Two convolutions of 5×5 with pools and batch normalization, two linear layers, log_softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, 10, 5), nn.BatchNorm2d(10)
        self.conv2, self.norm2 = nn.Conv2d(10, 20, 5), nn.BatchNorm2d(20)
        self.fc1, self.fc2 = nn.Linear(500, 50), nn.Linear(50, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logarithms of probabilities [N, 10] of images [N, 1, 32, 32]."""
        x = self.norm1(torch.relu(F.max_pool2d(self.conv1(x), 2)))
        x = self.norm2(torch.relu(F.max_pool2d(self.conv2(x), 2)))
        x = torch.relu(self.fc1(x.view(x.shape[0], -1)))
        return F.log_softmax(self.fc2(x), dim=1)


def product(inp: Batch) -> Batch:
    """x·y + y."""
    return {"z": inp["x"] * inp["y"] + inp["y"]}


def training(model: nn.Module, rate: float, loss_of: Callable[..., torch.Tensor]) -> Step:
    """A step of SGD with momentum on {"x": images, "t": labels}."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)

    def train_step(inp: Batch) -> Batch:
        optimizer.zero_grad()
        loss = loss_of(model(inp["x"]), inp["t"])
        loss.backward()
        optimizer.step()
        return {"loss": loss}

    return train_step


def inference(model: nn.Module) -> Step:
    """Scores of images."""
    return lambda inp: {"scores": model(inp["x"])}


def beside_pytorch(name: str, make: Callable[[], Step], batches: list[Batch], options: dict[str, Any]) -> float:
    """Prints and returns how far the results of all batches are apart, relative to PyTorch's largest number."""
    results: dict[str, list[torch.Tensor]] = {}
    seconds = {}
    for engine in ("pfvm", "torch"):
        torch.manual_seed(0)
        run = make()
        if engine == "pfvm":
            run = pfvm.compile(run, batches[0], **options)
        start = time.perf_counter()
        with torch.set_grad_enabled("train" in name):
            found = [next(iter(run(batch).values())).detach() for batch in batches]
        results[engine], seconds[engine] = found, (time.perf_counter() - start) / len(batches)
    pairs = list(zip(results["pfvm"], results["torch"]))
    apart = max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)
    loss = f"loss {float(pairs[0][1]):.3f} → {float(pairs[-1][1]):.3f}, " if "train" in name else ""
    where = options["device"] + (f" on {options['mesh']}" if options.get("mesh") else "")
    times = f"{seconds['pfvm']:.3f} s with compiling, PyTorch {seconds['torch']:.3f} s"
    print(f"{name} on {where}: {loss}largest difference {apart:.1e}; {times} a call")
    return apart


def ahead(name: str, make: Callable[[], Step], batch: Batch, options: dict[str, Any], folder: pathlib.Path) -> None:
    """Compiles for a TPU that is not here, and prints the estimate of its compiler."""
    target = folder / name.replace(" ", "-")
    pfvm.compile(make(), batch, codegen_dir=target, freeze=False, **options)
    report = json.loads((target / "report.json").read_text())
    took = report["time_us"]
    estimate = "no estimate" if took is None else f"compiler's estimate {took / 1e3:.3f} ms a call"
    print(f"{name} on {options['device']}: {estimate} ({report['precision']})")


def programs(args: argparse.Namespace) -> dict[str, tuple[Callable[[], Step], list[Batch]]]:
    """What is to be run: a function that makes it, and its batches."""
    blocks = [int(count) for count in args.blocks.split(",")]
    images = [
        {"x": torch.randn(args.batch, 3, args.size, args.size), "t": torch.randint(0, args.classes, (args.batch,))}
        for _ in range(args.steps)
    ]
    digits = load()
    rows = [slice(64 * i, 64 * (i + 1)) for i in range(args.steps)]
    handwritten = [{"x": digits.train_x[r], "t": digits.train_t[r]} for r in rows]

    def resnet() -> ResNet:
        return ResNet(blocks, args.classes)

    return {
        "product": (lambda: product, [{"x": torch.randn(3, 2), "y": torch.randn(3, 2)}]),
        "mnist train": (lambda: training(MnistNet(), 0.01, F.nll_loss), handwritten),
        "resnet50 inference": (lambda: inference(resnet().eval()), [{"x": images[0]["x"]}]),
        "resnet50 train": (lambda: training(resnet(), 0.001, F.cross_entropy), images),
    }


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", nargs="*", metavar="{product,mnist,resnet50}", help="default: all")
    parser.add_argument("--device", default="pfvm:cpu", help="pfvm:cpu, xla:cpu, xla:tpu@v5e:1x1, …")
    parser.add_argument("--mesh", help="data=2: on so many replicas, for xla devices")
    parser.add_argument("--effort", choices=["fast", "full"], help="of the compiler, for a TPU that is not here")
    parser.add_argument("--batch", type=int, default=8, help="images of ResNet-50's batch")
    parser.add_argument("--size", type=int, default=64, help="of its images")
    parser.add_argument("--classes", type=int, default=100)
    parser.add_argument("--blocks", default="3,4,6,3", help="in each of its four stages")
    parser.add_argument("--steps", type=int, default=3, help="of training")
    parser.add_argument("--outdir", default="out/resnet50", help="of what is compiled for a TPU")
    args = parser.parse_args()
    unknown = set(args.program) - {"product", "mnist", "resnet50"}
    if unknown:
        parser.error(f"no program {', '.join(sorted(unknown))}; choose from product, mnist, resnet50")
    torch.manual_seed(0)
    for name, (make, batches) in programs(args).items():
        if args.program and name.split()[0] not in args.program:
            continue
        options = {"device": args.device, "mesh": None if name == "product" else args.mesh}  # it has no batch to split
        if "@" in args.device:
            effort = {"device_options": {"effort": args.effort}} if args.effort else {}
            ahead(name, make, batches[0], {**options, **effort}, pathlib.Path(args.outdir))
        else:
            beside_pytorch(name, make, batches, options)


if __name__ == "__main__":
    main()
