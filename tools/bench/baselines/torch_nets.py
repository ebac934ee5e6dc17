"""The yardstick nets as PyTorch modules with random weights, the source of the ONNX files that are measured.

``python -m pfvm.tools.bench.baselines.torch_nets DIR`` writes one ONNX file per net. Batch 1, float32. Weights that the
nets in JAX beside this file use have the same shapes, not the same values.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import torch
from torch import nn

SEQUENCE = 128
WIDTH, HEADS, LAYERS, HIDDEN = 768, 12, 6, 3072
VOCABULARY = 30522
LLAMA_HIDDEN = 2048


def conv_bn(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True
) -> nn.Sequential:
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([nn.ReLU()] if act else []))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_bn(inputs, width, 1), conv_bn(width, width, 3, stride), conv_bn(width, 4 * width, 1, act=False)
        )
        same = stride == 1 and inputs == 4 * width
        self.shortcut = nn.Identity() if same else conv_bn(inputs, 4 * width, 1, stride, act=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet50() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = [conv_bn(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for stage, (count, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        for i in range(count):
            layers.append(Bottleneck(inputs, width, 2 if i == 0 and stage > 0 else 1))
            inputs = 4 * width
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))
    return net, torch.randn(1, 3, 224, 224)


class InvertedResidual(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = inputs * expand
        layers = [conv6(inputs, hidden, 1)] if expand > 1 else []
        layers += [conv6(hidden, hidden, 3, stride, hidden), conv_bn(hidden, outputs, 1, act=False)]
        self.body = nn.Sequential(*layers)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x) if self.residual else self.body(x)


def conv6(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(*conv_bn(inputs, outputs, kernel, stride, groups, act=False), nn.ReLU6())


MOBILENET_STAGES = [
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
]


def mobilenet_v2() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = [conv6(3, 32, 3, 2)]
    inputs = 32
    for expand, outputs, count, stride in MOBILENET_STAGES:
        for i in range(count):
            layers.append(InvertedResidual(inputs, outputs, stride if i == 0 else 1, expand))
            inputs = outputs
    head = [conv6(inputs, 1280, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000)]
    return nn.Sequential(*layers, *head), torch.randn(1, 3, 224, 224)


class Attention(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=bias) for _ in range(4))

    def heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(x.shape[0], x.shape[1], HEADS, WIDTH // HEADS).transpose(1, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.heads(self.q(x)), self.heads(self.k(x)), self.heads(self.v(x))
        return self.attend(q, k, v)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None = None
    ) -> torch.Tensor:
        scores = q @ k.transpose(2, 3) / math.sqrt(WIDTH // HEADS)
        scores = scores if mask is None else scores + mask
        y = torch.softmax(scores, -1) @ v
        return self.o(y.transpose(1, 2).reshape(q.shape[0], q.shape[2], WIDTH))


class Block(nn.Module):
    """A transformer layer, normalized after (BERT) or before (ViT) its two halves."""

    def __init__(self, before: bool) -> None:
        super().__init__()
        self.before = before
        self.attention = Attention()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, HIDDEN), nn.Linear(HIDDEN, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.before:
            x = x + self.attention(self.norm1(x))
            return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        x = self.norm1(x + self.attention(x))
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))


class Bert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.randn(SEQUENCE, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.blocks = nn.Sequential(*(Block(before=False) for _ in range(LAYERS)))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.blocks(self.norm(self.words(ids) + self.positions[: ids.shape[1]]))


def bert() -> tuple[nn.Module, torch.Tensor]:
    return Bert(), torch.randint(0, VOCABULARY, (1, SEQUENCE))


class ViT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.positions = nn.Parameter(torch.randn(1, 197, WIDTH))
        self.blocks = nn.Sequential(*(Block(before=True) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = self.blocks(torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions)
        return self.head(self.norm(x)[:, 0])


def vit() -> tuple[nn.Module, torch.Tensor]:
    return ViT(), torch.randn(1, 3, 224, 224)


class RmsNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * self.weight


class LlamaBlock(nn.Module):
    """Rotary positions, causal attention, SiLU-gated layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = Attention(bias=False)
        self.norm1, self.norm2 = RmsNorm(), RmsNorm()
        self.gate, self.up = nn.Linear(WIDTH, LLAMA_HIDDEN, bias=False), nn.Linear(WIDTH, LLAMA_HIDDEN, bias=False)
        self.down = nn.Linear(LLAMA_HIDDEN, WIDTH, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        y, a = self.norm1(x), self.attention
        q, k, v = a.heads(a.q(y)), a.heads(a.k(y)), a.heads(a.v(y))
        x = x + a.attend(rotate(q, cos, sin), rotate(k, cos, sin), v, mask)
        y = self.norm2(x)
        return x + self.down(nn.functional.silu(self.gate(y)) * self.up(y))


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Llama(nn.Module):
    cos: torch.Tensor
    sin: torch.Tensor
    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        size = WIDTH // HEADS
        angles = torch.outer(torch.arange(SEQUENCE), 10000.0 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.register_buffer("mask", torch.full((SEQUENCE, SEQUENCE), -1e9).triu(1))
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(LlamaBlock() for _ in range(LAYERS))
        self.norm = RmsNorm()

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x, n = self.words(ids), ids.shape[1]
        for block in self.blocks:
            x = block(x, self.cos[:n], self.sin[:n], self.mask[:n, :n])
        return self.norm(x)


def llama6() -> tuple[nn.Module, torch.Tensor]:
    return Llama(), torch.randint(0, VOCABULARY, (1, SEQUENCE))


class ChannelNorm(nn.LayerNorm):
    """Normalizes the channels of N, C, H, W."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.spatial = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-5)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.spatial(x).permute(0, 2, 3, 1))
        y = self.down(nn.functional.gelu(self.up(y))) * self.scale
        return x + y.permute(0, 3, 1, 2)


CONVNEXT_STAGES = [(3, 96), (3, 192), (9, 384), (3, 768)]


def convnext_t() -> tuple[nn.Module, torch.Tensor]:
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96)]
    inputs = 96
    for count, width in CONVNEXT_STAGES:
        if width != inputs:
            layers += [ChannelNorm(inputs), nn.Conv2d(inputs, width, 2, 2)]
        layers += [ConvNextBlock(width) for _ in range(count)]
        inputs = width
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), ChannelNorm(768), nn.Flatten(), nn.Linear(768, 1000))
    return net, torch.randn(1, 3, 224, 224)


NETS = {
    "resnet50": resnet50,
    "mobilenet_v2": mobilenet_v2,
    "bert": bert,
    "vit": vit,
    "llama6": llama6,
    "convnext_t": convnext_t,
}


def make(name: str) -> tuple[nn.Module, torch.Tensor]:
    """(module in evaluation mode, input), always with the same weights. Activations keep their scale."""
    torch.manual_seed(0)
    net, x = NETS[name]()
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight)
    return net.eval().requires_grad_(False), x


def write(folder: Path) -> None:
    """One compiled ONNX file for each net."""
    import pfvm

    folder.mkdir(parents=True, exist_ok=True)
    for name in NETS:
        net, x = make(name)
        pfvm.export(net, x, folder / f"{name}.onnx", freeze=True)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
