"""The nets of the graphs that plans are tested and measured on: every one classifies images of digits."""

from __future__ import annotations

import functools

import torch
import torch.nn.functional as F
from torch import nn


def mlp(size: int, widths: tuple[int, ...], act: type[nn.Module] = nn.ReLU) -> nn.Module:
    """Linear layers of these widths over a flat image of size², 10 scores."""
    layers: list[nn.Module] = [nn.Flatten()]
    before = size * size
    for width in widths:
        layers += [nn.Linear(before, width), act()]
        before = width
    return nn.Sequential(*layers, nn.Linear(before, 10))


class Cnn(nn.Module):
    """Twice convolution → batch normalization → ReLU → pool, then one linear layer."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.norm2 = nn.Conv2d(width, 2 * width, 3, padding=1), nn.BatchNorm2d(2 * width)
        self.head = nn.Linear(2 * width * (size // 4) ** 2, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(F.relu(self.norm2(self.conv2(x))), 2)
        return self.head(x.flatten(1))


class Depthwise(nn.Module):
    """A strided convolution, two inverted residuals with depthwise convolutions, the mean over positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.Hardswish())
        self.blocks = nn.ModuleList(self._block(width, 4 * width) for _ in range(2))
        self.head = nn.Linear(width, 10)

    @staticmethod
    def _block(width: int, inner: int) -> nn.Module:
        return nn.Sequential(
            *(nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner), nn.SiLU()),
            *(nn.Conv2d(inner, inner, 3, 1, 1, groups=inner, bias=False), nn.BatchNorm2d(inner), nn.ReLU6()),
            *(nn.Conv2d(inner, width, 1, bias=False), nn.BatchNorm2d(width)),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean((2, 3)))


class Basic(nn.Module):
    """ResNet's block of two 3×3 convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.same: nn.Module = nn.Identity()
        if stride > 1:
            self.same = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.same(x))


class ResNet18(nn.Module):
    """ResNet-18 for 3 channels; digits are enlarged and repeated to fit. 1,000 scores, as published."""

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512)) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, widths[0], 7, 2, 3, bias=False), nn.BatchNorm2d(widths[0])
        blocks, inputs = [], widths[0]
        for i, width in enumerate(widths):
            blocks += [Basic(inputs, width, 2 if i else 1), Basic(width, width, 1)]
            inputs = width
        self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(inputs, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.fc(self.blocks(x).mean((2, 3)))


class Attention(nn.Module):
    """Attention of several heads over the rows of an image: causal; rows without ink are seen by themselves only."""

    def __init__(self, size: int, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.rows, self.places = nn.Linear(size, width), nn.Parameter(torch.randn(size, width) * 0.1)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.head = nn.Linear(width, 10)
        self.register_buffer("causal", torch.tril(torch.ones(size, size, dtype=torch.bool)))
        self.register_buffer("own", torch.eye(size, dtype=torch.bool))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        image = x.squeeze(1)
        inked = (image.amax(-1) > 0)[:, None, None, :]
        seen = (inked & self.causal) | self.own
        h = self.rows(image) + self.places
        return self.head((h + self.attend(h, seen)).mean(1))

    def attend(self, h: torch.Tensor, seen: torch.Tensor | None) -> torch.Tensor:
        b, s, w = h.shape
        q, k, v = (each(h).view(b, s, self.heads, w // self.heads).transpose(1, 2) for each in (self.q, self.k, self.v))
        scores = q @ k.transpose(-1, -2) * (w // self.heads) ** -0.5
        if seen is not None:
            scores = scores.masked_fill(~seen, float("-inf"))
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, w))


class Transformer(Attention):
    """A transformer block (normalized first, GELU) over the rows of an image."""

    def __init__(self, size: int, width: int, heads: int) -> None:
        super().__init__(size, width, heads)
        self.norm1, self.norm2, self.norm = (nn.LayerNorm(width) for _ in range(3))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.rows(x.squeeze(1)) + self.places
        h = h + self.attend(self.norm1(h), None)
        h = h + self.down(F.gelu(self.up(self.norm2(h))))
        return self.head(self.norm(h).mean(1))


class Recurrent(nn.Module):
    """An LSTM or GRU that reads the rows of an image."""

    def __init__(self, kind: type[nn.RNNBase], size: int, width: int) -> None:
        super().__init__()
        self.reader, self.head = kind(size, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.reader(x.squeeze(1))[0][:, -1])


lstm, gru = functools.partial(Recurrent, nn.LSTM), functools.partial(Recurrent, nn.GRU)
