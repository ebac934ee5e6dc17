"""VGG-19 on one core of a TPU v2 that is not here: how long would a batch of 100 images take?

python examples/vgg19.py                          # one executable for the forward pass, by XLA's TPU compiler
python examples/vgg19.py --backward               # forward and backward to the parameters
python examples/vgg19.py --device xla:cpu --batch 2   # run here, and compared with PyTorch in the same run

"Automatic Full Compilation of Julia Programs and ML Models to Cloud TPUs" (Fischer and Saba, 2018) reports 0.23 s for
the forward pass of 100 images on one TPU v2 core, and 52.4 s on its CPU. With a TPU device, prints the estimate of the
compiler beside that and beside the limit, the operations divided by the core's peak. Weights are random: time does not
depend on them.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import time
from collections.abc import Callable

import pfvm
import torch
import torch.nn.functional as F
from torch import nn

PUBLISHED = {"forward": 0.23}
"""Seconds of 100 images at 224×224 on one core of a TPU v2."""
CHANNELS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0)
"""Output channels of the 3×3 convolutions; 0 is a 2×2 pool."""
Batch = dict[str, torch.Tensor]


def vgg19(size: int) -> nn.Module:
    """Scores [N, 1000] of images [N, 3, size, size]; `size` is a multiple of 32."""
    layers: list[nn.Module] = []
    channels = 3
    for out in CHANNELS:
        layers += [nn.Conv2d(channels, out, 3, padding=1), nn.ReLU()] if out else [nn.MaxPool2d(2)]
        channels = out or channels
    features = channels * (size // 32) ** 2
    head = [nn.Linear(features, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers, nn.Flatten(), *head)


def forward_of(model: nn.Module) -> Callable[[Batch], Batch]:
    """Scores of images."""
    return lambda inp: {"scores": model(inp["x"])}


def backward_of(model: nn.Module) -> Callable[[Batch], Batch]:
    """The loss and its gradients with respect to every parameter."""

    def step(inp: Batch) -> Batch:
        loss = F.cross_entropy(model(inp["x"]), inp["t"])
        names, parameters = zip(*model.named_parameters())
        return {"loss": loss, **dict(zip(names, torch.autograd.grad(loss, parameters)))}

    return step


def sample(batch: int, size: int, backward: bool) -> Batch:
    """Random images, and labels where they are needed."""
    images = {"x": torch.randn(batch, 3, size, size)}
    return {**images, "t": torch.randint(0, 1000, (batch,))} if backward else images


def estimate(name: str, report: dict) -> str:
    """One line: the compiler's estimate, what was published, the limit, and which form of the model it is."""
    took, limit, forms = report["time_us"], report["least_time_us"], report["forms"]
    found = f"estimate {took / 1e6:.4f} s" if took is not None else f"no estimate, {report['cycles_missing']},"
    published = f"published {PUBLISHED[name]:.3f} s" if name in PUBLISHED else "not published"
    return (
        f"{name}: {found} ({report['precision']}), {published}, "
        f"limit {limit / 1e6:.3f} s, {report['schedule']['programs']} executable, "
        f"{report['peak_memory']['HBM']['bytes_per_cell'] / 2**30:.2f} GiB"
        + (f"; cycles {_cycles(forms)}: {forms['chosen']}" if forms is not None else "")
    )


def _cycles(forms: dict) -> str:
    """Of each form that was compiled: the total, or what is known of it."""
    at_least = forms["at_least"]
    totals = {
        name: f"more than {at_least[name]:,}" if name in at_least else total for name, total in forms["cycles"].items()
    }
    return ", ".join(
        f"{name} {total:,}" if isinstance(total, int) else f"{name} {total}" for name, total in totals.items()
    )


def compare(compiled: Callable[[Batch], Batch], eager: Callable[[Batch], Batch], batch: Batch) -> str:
    """One line: how far the results are apart, relative to the largest number of each, and both times."""
    apart, times = 0.0, []
    for run in (compiled, eager):
        run(batch)  # the first call compiles
        start = time.perf_counter()
        results = run(batch)
        times.append(time.perf_counter() - start)
        if run is compiled:
            found = results
    for name, value in results.items():
        difference = (found[name].detach() - value.detach()).abs().max() / value.detach().abs().max()
        apart = max(apart, float(difference))
    return f"largest difference {apart:.1e} of the largest number; {times[0]:.3f} s, PyTorch {times[1]:.3f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="xla:tpu@v2:1x1")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    parser.add_argument("--effort", default="full", choices=["fast", "full"])
    parser.add_argument("--outdir", default="out/vgg19")
    args = parser.parse_args()

    torch.manual_seed(0)
    model = vgg19(args.size)
    name = "forward + backward" if args.backward else "forward"
    eager = backward_of(model) if args.backward else forward_of(model)
    batch = sample(args.batch, args.size, args.backward)
    if "@" not in args.device:
        compiled = pfvm.compile(eager, batch, device=args.device)
        print(f"{name} on {args.device}: {compare(compiled, eager, batch)}")
        return
    folder = pathlib.Path(args.outdir) / name.replace(" ", "")
    options = {"effort": args.effort, "bf16": args.bf16}
    pfvm.compile(eager, batch, device=args.device, codegen_dir=folder, freeze=False, device_options=options)
    print(f"{args.device}, batch {args.batch}")
    print(estimate(name, json.loads((folder / "report.json").read_text())))


if __name__ == "__main__":
    main()
