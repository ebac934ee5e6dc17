"""PyTorch modules, from single layers to small networks, whose captures are compared with eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from capture_cases import IMG, X, ints, randn  # noqa: E402
from torch import nn  # noqa: E402


class ResidualBlock(nn.Module):
    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.down = nn.Sequential(nn.Conv2d(channels, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x: Any) -> Any:
        h = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        h += self.down(x)
        return self.relu(h)


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.layers = nn.Sequential(ResidualBlock(8, 8, 1), ResidualBlock(8, 16, 2))
        self.pool, self.fc = nn.AdaptiveAvgPool2d((1, 1)), nn.Linear(16, 10)

    def forward(self, x: Any) -> Any:
        return self.fc(torch.flatten(self.pool(self.layers(self.stem(x))), 1))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.position = nn.Parameter(torch.randn(12, 16) * 0.02)
        layer = nn.TransformerEncoderLayer(16, 4, 32, activation="gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.norm(self.encoder(self.embed(tokens) + self.position)).mean(1))


class CausalDecoder(nn.Module):
    """Fused qkv, F.scaled_dot_product_attention, tied embedding and head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.out = nn.Embedding(40, 16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.norm1, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.mlp = nn.Sequential(nn.Linear(16, 64), nn.GELU(approximate="tanh"), nn.Linear(64, 16))
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: Any) -> Any:
        h = self.embed(tokens)
        b, t, d = h.shape
        q, k, v = self.qkv(self.norm1(h)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        h = h + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d))
        return self.head(h + self.mlp(self.norm2(h)))


def seeded(make: Callable[[], Any]) -> Any:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = make()
    for m in module.modules():
        if isinstance(m, nn.BatchNorm2d) and m.running_mean is not None:  # statistics that are not the neutral ones
            m.running_mean.uniform_(-0.5, 0.5)
            m.running_var.uniform_(0.5, 1.5)
    return module.eval()


MODULES: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "linear": (lambda: nn.Linear(4, 5), (X,)),
    "linear_without_bias": (lambda: nn.Linear(4, 5, bias=False), (X[0],)),
    "bilinear": (lambda: nn.Bilinear(4, 4, 3), (X[0], X[1])),
    "conv1d": (lambda: nn.Conv1d(3, 4, 3, padding=1, dilation=2), (X,)),
    "conv2d": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=(1, 2)), (IMG,)),
    "conv2d_same": (lambda: nn.Conv2d(3, 4, 4, padding="same"), (IMG,)),
    "conv2d_groups": (lambda: nn.Conv2d(3, 6, 3, groups=3, padding=1, padding_mode="reflect"), (IMG,)),
    "conv2d_unbatched": (lambda: nn.Conv2d(3, 4, 3), (IMG[0],)),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2), (randn(1, 2, 4, 4, 4),)),
    "conv_transpose": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2, padding=1, output_padding=1), (IMG,)),
    "batch_norm": (lambda: nn.BatchNorm2d(3), (IMG,)),
    "batch_norm_1d": (lambda: nn.BatchNorm1d(3, affine=False), (X[..., 0],)),
    "batch_norm_of_batch": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (IMG,)),
    "layer_norm": (lambda: nn.LayerNorm([3, 4]), (X,)),
    "layer_norm_plain": (lambda: nn.LayerNorm(4, elementwise_affine=False), (X,)),
    "group_norm": (lambda: nn.GroupNorm(2, 4), (randn(2, 4, 5, 5),)),
    "instance_norm": (lambda: nn.InstanceNorm2d(3, affine=True), (IMG,)),
    "rms_norm": (lambda: nn.RMSNorm(4), (X,)),
    "local_response_norm": (lambda: nn.LocalResponseNorm(2), (IMG,)),
    "prelu": (lambda: nn.PReLU(3), (IMG,)),
    "embedding": (lambda: nn.Embedding(7, 4, padding_idx=0), (ints(7, 2, 3),)),
    "dropout_in_eval": (lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 2)), (X,)),
    "multihead_attention": (lambda: nn.MultiheadAttention(4, 2, batch_first=True), (X, X, X)),
    "gru": (lambda: nn.GRU(4, 5, batch_first=True), (X,)),
    "lstm": (lambda: nn.LSTM(4, 5, num_layers=2, bidirectional=True, batch_first=True), (X,)),
    "weight_norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), (X,)),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), (IMG,)),
    "transformer_encoder": (Encoder, (ints(50, 2, 12),)),
    "causal_decoder": (CausalDecoder, (ints(40, 2, 10),)),
    "resnet": (ResNet, (randn(2, 3, 32, 32),)),
}
