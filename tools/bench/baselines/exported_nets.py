"""ONNX files as users have them: nets with random weights, written by PyTorch's own exporter, and a training step.

``python -m pfvm.tools.bench.baselines.exported_nets DIR [NAME …]`` writes NAME.onnx and NAME.npz, inputs for it. Batch
and length are symbolic. BERT and GPT-2 have the opset that the libraries around transformers ask for by default: theirs
are layer normalizations and Gelus of many nodes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pfvm.compiler.capture.export import capture
from pfvm.compiler.exporter import write_model
from pfvm.tools.npz import write_npz
from torch import nn

from . import torch_nets, train_transformer
from .train_steps import step_of

WIDTH, HEADS, LAYERS, VOCABULARY, POSITIONS = 768, 12, 6, 50257, 1024
LENGTH = 128


class Conv1D(nn.Module):
    """GPT-2's linear layer: weights inputs × outputs, one addmm over all rows."""

    def __init__(self, outputs: int, inputs: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(inputs, outputs) * 0.02), nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight)
        return rows.view(*x.size()[:-1], self.bias.size(0))


def gelu_new(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3.0))))


class Gpt2Block(nn.Module):
    bias: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = Conv1D(3 * WIDTH, WIDTH), Conv1D(WIDTH, WIDTH)
        self.up, self.down = Conv1D(4 * WIDTH, WIDTH), Conv1D(WIDTH, 4 * WIDTH)
        self.register_buffer("bias", torch.ones(POSITIONS, POSITIONS, dtype=torch.bool).tril()[None, None])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = (x.size(0), x.size(1), HEADS, WIDTH // HEADS)
        q, k, v = (part.view(heads).permute(0, 2, 1, 3) for part in self.qkv(self.norm1(x)).split(WIDTH, 2))
        scores = q @ k.transpose(-1, -2) / torch.full([], (WIDTH // HEADS) ** 0.5, dtype=q.dtype)
        mask = self.bias[:, :, k.size(-2) - q.size(-2) : k.size(-2), : k.size(-2)]
        scores = torch.where(mask, scores, torch.full([], torch.finfo(q.dtype).min, dtype=q.dtype))
        y = (torch.softmax(scores, -1) @ v).permute(0, 2, 1, 3).contiguous()
        x = x + self.out(y.view(x.size(0), x.size(1), WIDTH))
        return x + self.down(gelu_new(self.up(self.norm2(x))))


class Gpt2(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(POSITIONS, WIDTH)
        self.blocks = nn.Sequential(*(Gpt2Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        places = torch.arange(0, ids.size(-1), dtype=torch.int64).unsqueeze(0).view(-1, ids.size(-1))
        return self.head(self.norm(self.blocks(self.words(ids) + self.places(places))))


def gpt2() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Gpt2().eval().requires_grad_(False), torch.randint(0, VOCABULARY, (1, LENGTH))


VGG_CHANNELS = (64, 64, 0, 128, 128, 0, 256, 256, 256, 256, 0, 512, 512, 512, 512, 0, 512, 512, 512, 512, 0)


def vgg19(size: int = 224) -> tuple[nn.Module, torch.Tensor]:
    """The net, and an image of size × size."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    inputs = 3
    for outputs in VGG_CHANNELS:
        layers += [nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU()] if outputs else [nn.MaxPool2d(2)]
        inputs = outputs or inputs
    features = (size // 32) ** 2 * inputs
    head = [nn.Linear(features, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000)]
    return nn.Sequential(*layers, nn.Flatten(), *head).eval().requires_grad_(False), torch.randn(1, 3, size, size)


def _image(name: str, opset: int) -> Callable[[Path], Any]:
    return lambda path: _export(*torch_nets.make(name), path, {0: "batch"}, opset)


def _text(name: str, opset: int) -> Callable[[Path], Any]:
    return lambda path: _export(*torch_nets.make(name), path, {0: "batch", 1: "length"}, opset)


def _train_step(path: Path) -> None:
    """Forward, backward and AdamW of four layers, as pfvm captures it: no other exporter writes such a file."""
    torch.manual_seed(0)
    model = train_transformer.Transformer(layers=4)
    step = step_of(model, torch.optim.AdamW(model.parameters(), lr=train_transformer.LR), train_transformer.CLIP)
    batch = {name: torch.tensor(value) for name, value in train_transformer.batch().items()}
    captured = capture(step, batch)
    write_model(captured.model, path)
    write_npz(path.with_suffix(".npz"), train_transformer.batch())


Batch = dict[str, torch.Tensor]


def vgg19_training(size: int = 224) -> tuple[nn.Module, Callable[[Batch], Batch], Batch]:
    """The net, a step that gives the loss and its gradients with respect to every parameter, and a batch of two."""
    model = vgg19(size)[0].requires_grad_()

    def step(batch: Batch) -> Batch:
        loss = nn.functional.cross_entropy(model(batch["x"]), batch["t"])
        names, parameters = zip(*model.named_parameters())
        return {"loss": loss, **dict(zip(names, torch.autograd.grad(loss, parameters)))}

    return model, step, {"x": torch.randn(2, 3, size, size), "t": torch.randint(0, 1000, (2,))}


def _vgg19_training(path: Path) -> None:
    _, step, batch = vgg19_training()
    captured = capture(step, batch, dynamic={name: {0: "batch"} for name in batch})
    write_model(captured.model, path)
    write_npz(path.with_suffix(".npz"), {name: value.numpy() for name, value in batch.items()})


NETS: dict[str, Callable[[Path], Any]] = {
    "resnet50": _image("resnet50", 17),
    "mobilenet_v2": _image("mobilenet_v2", 17),
    "bert": _text("bert", 14),
    "gpt2": lambda path: _export(*gpt2(), path, {0: "batch", 1: "length"}, 14),
    "llama6": _text("llama6", 17),
    "vit": _image("vit", 17),
    "convnext_t": _image("convnext_t", 17),
    "vgg19": lambda path: _export(*vgg19(), path, {0: "batch"}, 17),
    "vgg19_training": _vgg19_training,
    "train_step": _train_step,
}


def _export(net: nn.Module, x: torch.Tensor, path: Path, axes: dict[int, str], opset: int) -> None:
    with warnings.catch_warnings(action="ignore"):  # the exporter says that it is old
        torch.onnx.export(
            net,
            (x,),
            str(path),
            input_names=["x"],
            output_names=["y"],
            dynamic_axes={"x": axes, "y": {0: "batch"}},
            opset_version=opset,
            dynamo=False,
        )
    write_npz(path.with_suffix(".npz"), {"x": x.numpy()})


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[2:] or NETS:
        NETS[name](folder / f"{name}.onnx")
