"""Every module of torch.nn with sample arguments, for the test that trains through all of them.

A case makes the module and its arguments, in float64. Several cases of one module are named `Module.kind`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

Case = tuple[Callable[[], nn.Module], Callable[[], tuple[Any, ...]]]


def floats(*shape: int) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(*shape, dtype=torch.float64)


def chances(*shape: int) -> torch.Tensor:
    """Numbers from 0.1 to 0.9."""
    return torch.rand(*shape, dtype=torch.float64) * 0.8 + 0.1


def labels(*shape: int, classes: int = 4) -> torch.Tensor:
    """Numbers of classes."""
    return torch.randint(0, classes, shape)


def signs(*shape: int) -> torch.Tensor:
    """1 or -1."""
    return labels(*shape, classes=2).double() * 2 - 1


def on(make: Callable[[], nn.Module], *shape: int) -> Case:
    """A module of one tensor of floats."""
    return make, lambda: (floats(*shape),)


ROW, SIGNAL, IMAGE, VOLUME = (5, 8), (2, 4, 9), (2, 4, 7, 8), (2, 4, 6, 5, 6)
_SPACES = (SIGNAL, IMAGE, VOLUME)

ACTIVATIONS: dict[str, Case] = {
    **{
        name: on(getattr(nn, name), *ROW)
        for name in (
            *("CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU"),
            *("LogSigmoid", "Mish", "PReLU", "ReLU", "ReLU6", "SELU", "SiLU", "Sigmoid", "Softplus", "Softshrink"),
            *("Softsign", "Tanh", "Tanhshrink", "Identity", "Flatten"),
        )
    },
    "GELU.tanh": on(lambda: nn.GELU("tanh"), *ROW),
    "PReLU.channels": on(lambda: nn.PReLU(4), *IMAGE),
    "RReLU.eval": on(lambda: nn.RReLU().eval(), *ROW),
    "Threshold": on(lambda: nn.Threshold(0.1, -2.0), *ROW),
    "Softplus.beta": on(lambda: nn.Softplus(2.0, 1.5), *ROW),
    "Hardtanh.between": on(lambda: nn.Hardtanh(-0.5, 0.7), *ROW),
    "Softmax": on(lambda: nn.Softmax(-1), *ROW),
    "Softmin": on(lambda: nn.Softmin(0), *ROW),
    "LogSoftmax": on(lambda: nn.LogSoftmax(1), *IMAGE),
    "Softmax2d": on(nn.Softmax2d, *IMAGE),
    "AdaptiveLogSoftmaxWithLoss": (
        lambda: nn.AdaptiveLogSoftmaxWithLoss(8, 12, [4, 8], head_bias=True),
        lambda: (floats(*ROW), labels(5, classes=12)),
    ),
}

_LAYERS: dict[str, Case] = {}
for _rank, _shape in enumerate(_SPACES, 1):
    for _name, _make in {
        "Conv": lambda kind: kind(4, 6, 3, stride=2, padding=1, dilation=1),
        "ConvTranspose": lambda kind: kind(4, 3, 3, stride=2, padding=1, output_padding=1),
        "BatchNorm": lambda kind: kind(4),
        "InstanceNorm": lambda kind: kind(4, affine=True, track_running_stats=True),
        "AvgPool": lambda kind: kind(3, 2, 1),
        "MaxPool": lambda kind: kind(3, 2, 1),
        "LPPool": lambda kind: kind(2, 2),
        "AdaptiveAvgPool": lambda kind: kind(3),
        "AdaptiveMaxPool": lambda kind: kind(3),
        "CircularPad": lambda kind: kind(2),
        "ConstantPad": lambda kind: kind(2, 0.5),
        "ReflectionPad": lambda kind: kind(2),
        "ReplicationPad": lambda kind: kind(2),
        "ZeroPad": lambda kind: kind(2),
    }.items():
        _kind = getattr(nn, f"{_name}{_rank}d")
        _LAYERS[_kind.__name__] = on(lambda make=_make, kind=_kind: make(kind), *_shape)  # type: ignore[misc]
    for _name in ("LazyConv", "LazyConvTranspose"):
        _kind = getattr(nn, f"{_name}{_rank}d")
        _LAYERS[_kind.__name__] = on(lambda kind=_kind: kind(3, 2), *_shape)  # type: ignore[misc]
    for _name in ("LazyBatchNorm", "LazyInstanceNorm"):
        _LAYERS[f"{_name}{_rank}d"] = on(getattr(nn, f"{_name}{_rank}d"), *_shape)


class Unpooled(nn.Module):
    """MaxPool with its indices, and MaxUnpool."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.pool = getattr(nn, f"MaxPool{rank}d")(2, return_indices=True)
        self.back = getattr(nn, f"MaxUnpool{rank}d")(2)

    def forward(self, x: Any) -> Any:
        y, places = self.pool(x)
        return self.back(y * 2, places, output_size=x.shape)


LAYERS: dict[str, Case] = {
    **_LAYERS,
    **{f"MaxUnpool{rank}d": on(lambda r=rank: Unpooled(r), *shape) for rank, shape in enumerate(_SPACES, 1)},  # type: ignore[misc]
    "Linear": on(lambda: nn.Linear(8, 3), *ROW),
    "LazyLinear": on(lambda: nn.LazyLinear(3), *ROW),
    "Bilinear": (lambda: nn.Bilinear(8, 3, 4), lambda: (floats(5, 8), floats(5, 3))),
    "ChannelShuffle": on(lambda: nn.ChannelShuffle(2), *IMAGE),
    "PixelShuffle": on(lambda: nn.PixelShuffle(2), *IMAGE),
    "PixelUnshuffle": on(lambda: nn.PixelUnshuffle(2), 2, 3, 6, 8),
    "Fold": on(lambda: nn.Fold((5, 6), (2, 3), padding=(1, 0), stride=(1, 2), dilation=(2, 1)), 2, 12, 10),
    "Unfold": on(lambda: nn.Unfold((2, 3), padding=1, stride=2), *IMAGE),
    "Unflatten": on(lambda: nn.Unflatten(1, (2, 4)), *ROW),
    "Upsample": on(lambda: nn.Upsample(scale_factor=1.5, mode="bicubic"), *IMAGE),
    "Upsample.trilinear": on(lambda: nn.Upsample(size=(7, 3, 8), mode="trilinear", align_corners=True), *VOLUME),
    "UpsamplingBilinear2d": on(lambda: nn.UpsamplingBilinear2d((9, 5)), *IMAGE),
    "UpsamplingNearest2d": on(lambda: nn.UpsamplingNearest2d(scale_factor=2), *IMAGE),
    "GroupNorm": on(lambda: nn.GroupNorm(2, 4), *IMAGE),
    "LayerNorm": on(lambda: nn.LayerNorm((7, 8)), *IMAGE),
    "RMSNorm": on(lambda: nn.RMSNorm(8), *IMAGE),
    "LocalResponseNorm": on(lambda: nn.LocalResponseNorm(3, 0.1), *IMAGE),
    "CosineSimilarity": (lambda: nn.CosineSimilarity(), lambda: (floats(*ROW), floats(*ROW))),
    "PairwiseDistance": (lambda: nn.PairwiseDistance(3.0), lambda: (floats(*ROW), floats(*ROW))),
    "BatchNorm1d.eval": on(lambda: nn.BatchNorm1d(4).eval(), *SIGNAL),
    "Conv2d.same": on(lambda: nn.Conv2d(4, 4, (3, 2), padding="same", padding_mode="reflect", groups=2), *IMAGE),
    "AvgPool2d.ceil": on(lambda: nn.AvgPool2d(3, 2, ceil_mode=True, count_include_pad=False), *IMAGE),
    "AdaptiveMaxPool2d.uneven": on(lambda: nn.AdaptiveMaxPool2d((5, 3)), *IMAGE),
    "AdaptiveAvgPool2d.uneven": on(lambda: nn.AdaptiveAvgPool2d((5, None)), *IMAGE),
    "Dropout.eval": on(lambda: nn.Dropout().eval(), *ROW),
}

SEQUENCES: dict[str, Case] = {
    "RNN": on(lambda: nn.RNN(5, 4, 2, nonlinearity="relu", bidirectional=True), 3, 2, 5),
    "GRU": on(lambda: nn.GRU(5, 4, batch_first=True), 3, 2, 5),
    "LSTM": on(lambda: nn.LSTM(5, 4, 2, proj_size=3), 3, 2, 5),
    "RNNCell": on(lambda: nn.RNNCell(5, 4), 3, 5),
    "GRUCell": on(lambda: nn.GRUCell(5, 4), 3, 5),
    "LSTMCell": on(lambda: nn.LSTMCell(5, 4), 3, 5),
    "MultiheadAttention": (
        lambda: nn.MultiheadAttention(8, 2, kdim=6, vdim=4, add_bias_kv=True, add_zero_attn=True),
        lambda: (floats(3, 2, 8), floats(4, 2, 6), floats(4, 2, 4)),
    ),
    "Transformer": (
        lambda: nn.Transformer(8, 2, 1, 1, 12, dropout=0.0, activation="gelu"),
        lambda: (floats(3, 2, 8), floats(4, 2, 8)),
    ),
    "TransformerEncoder": on(
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 12, 0.0), 2, enable_nested_tensor=False), 3, 2, 8
    ),
    "TransformerDecoder": (
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 12, 0.0, norm_first=True), 2),
        lambda: (floats(3, 2, 8), floats(4, 2, 8)),
    ),
    "TransformerEncoderLayer": on(lambda: nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True), 3, 2, 8),
    "TransformerDecoderLayer": (
        lambda: nn.TransformerDecoderLayer(8, 2, 12, 0.0),
        lambda: (floats(3, 2, 8), floats(4, 2, 8)),
    ),
    "Embedding": (lambda: nn.Embedding(9, 4, padding_idx=2), lambda: (labels(3, 5, classes=9),)),
    "Embedding.by_frequency": (lambda: nn.Embedding(9, 4, scale_grad_by_freq=True), lambda: (labels(3, 5, classes=9),)),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(9, 4), lambda: (labels(3, 5, classes=9),)),
    "EmbeddingBag.sum": (
        lambda: nn.EmbeddingBag(9, 4, mode="sum", padding_idx=1),
        lambda: (labels(3, 5, classes=9), None, floats(3, 5)),
    ),
    "EmbeddingBag.max": (lambda: nn.EmbeddingBag(9, 4, mode="max"), lambda: (labels(3, 5, classes=9),)),
    "EmbeddingBag.offsets": (
        lambda: nn.EmbeddingBag(9, 4, mode="mean", padding_idx=1),
        lambda: (torch.tensor([1, 5, 2, 1, 8, 3, 3]), torch.tensor([0, 3, 3, 6])),
    ),
    "EmbeddingBag.last_offset": (
        lambda: nn.EmbeddingBag(9, 4, mode="sum", include_last_offset=True),
        lambda: (torch.tensor([1, 5, 2, 1, 8, 3, 3]), torch.tensor([0, 3, 7]), floats(7)),
    ),
}


def _pair(make: Callable[[], nn.Module], target: Callable[[], torch.Tensor]) -> Case:
    return make, lambda: (floats(5, 4), target())


LOSSES: dict[str, Case] = {
    "BCELoss": (nn.BCELoss, lambda: (chances(5, 4), chances(5, 4))),
    "BCEWithLogitsLoss": _pair(nn.BCEWithLogitsLoss, lambda: chances(5, 4)),
    "CrossEntropyLoss": _pair(nn.CrossEntropyLoss, lambda: labels(5)),
    "CrossEntropyLoss.smoothed": (
        lambda: nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 3.0, 4.0]), label_smoothing=0.2, ignore_index=1),
        lambda: (floats(2, 4, 3), labels(2, 3)),
    ),
    "CosineEmbeddingLoss": (nn.CosineEmbeddingLoss, lambda: (floats(5, 4), floats(5, 4), signs(5))),
    "CTCLoss": (
        nn.CTCLoss,
        lambda: (
            floats(8, 3, 5).log_softmax(-1),
            torch.tensor([[1, 2, 2], [3, 1, 4], [1, 0, 0]]),
            torch.tensor([8, 7, 8]),
            torch.tensor([3, 3, 1]),
        ),
    ),
    "CTCLoss.concatenated": (
        lambda: nn.CTCLoss(blank=2, reduction="sum", zero_infinity=True),
        lambda: (
            floats(6, 3, 5).log_softmax(-1),
            torch.tensor([1, 3, 3, 1, 4, 1, 1, 1, 1]),
            torch.tensor([6, 5, 5]),
            torch.tensor([3, 2, 4]),
        ),
    ),
    "GaussianNLLLoss": (nn.GaussianNLLLoss, lambda: (floats(5, 4), floats(5, 4), chances(5, 4))),
    "HingeEmbeddingLoss": _pair(nn.HingeEmbeddingLoss, lambda: signs(5, 4)),
    "HuberLoss": _pair(nn.HuberLoss, lambda: floats(5, 4)),
    "KLDivLoss": (
        lambda: nn.KLDivLoss(reduction="batchmean", log_target=True),
        lambda: (floats(5, 4), floats(5, 4)),
    ),
    "L1Loss": _pair(nn.L1Loss, lambda: floats(5, 4)),
    "LinearCrossEntropyLoss": (lambda: nn.LinearCrossEntropyLoss(8, 4), lambda: (floats(5, 8), labels(5))),
    "MSELoss": _pair(nn.MSELoss, lambda: floats(5, 4)),
    "MarginRankingLoss": (nn.MarginRankingLoss, lambda: (floats(5), floats(5), signs(5))),
    "MultiLabelMarginLoss": _pair(nn.MultiLabelMarginLoss, lambda: torch.tensor([[3, 0, -1, 1]] * 5)),
    "MultiLabelSoftMarginLoss": _pair(nn.MultiLabelSoftMarginLoss, lambda: labels(5, 4, classes=2).double()),
    "MultiMarginLoss": _pair(lambda: nn.MultiMarginLoss(p=2), lambda: labels(5)),
    "NLLLoss": _pair(nn.NLLLoss, lambda: labels(5)),
    "NLLLoss2d": (nn.NLLLoss, lambda: (floats(2, 4, 3, 3), labels(2, 3, 3))),
    "PoissonNLLLoss": _pair(lambda: nn.PoissonNLLLoss(full=True), lambda: labels(5, 4).double()),
    "SmoothL1Loss": _pair(nn.SmoothL1Loss, lambda: floats(5, 4)),
    "SoftMarginLoss": _pair(nn.SoftMarginLoss, lambda: signs(5, 4).long()),
    "TripletMarginLoss": (
        lambda: nn.TripletMarginLoss(swap=True),
        lambda: (floats(5, 4), floats(5, 4), floats(5, 4)),
    ),
    "TripletMarginWithDistanceLoss": (
        nn.TripletMarginWithDistanceLoss,
        lambda: (floats(5, 4), floats(5, 4), floats(5, 4)),
    ),
}

CASES = {**ACTIVATIONS, **LAYERS, **SEQUENCES, **LOSSES}

RANDOM: dict[str, Case] = {
    "Dropout": on(nn.Dropout, *ROW),
    "Dropout1d": on(nn.Dropout1d, *SIGNAL),
    "Dropout2d": on(nn.Dropout2d, *IMAGE),
    "Dropout3d": on(nn.Dropout3d, *VOLUME),
    "AlphaDropout": on(nn.AlphaDropout, *ROW),
    "FeatureAlphaDropout": on(nn.FeatureAlphaDropout, *IMAGE),
    "RReLU": on(nn.RReLU, *ROW),
    "FractionalMaxPool2d": on(lambda: nn.FractionalMaxPool2d(2, output_size=(4, 3)), *IMAGE),
    "FractionalMaxPool3d": on(lambda: nn.FractionalMaxPool3d(2, output_ratio=0.6), *VOLUME),
}
"""Modules that draw random numbers, which are not those of PyTorch."""

REFUSED: dict[str, tuple[Case, str]] = {
    "CrossMapLRN2d": (on(lambda: nn.CrossMapLRN2d(3, 0.1), *IMAGE), "write torch.nn.LocalResponseNorm"),
}
"""Modules that are refused, and what the message says."""

NOT_LAYERS = {
    *("Container", "DataParallel", "Module", "ModuleDict", "ModuleList", "ParameterDict", "ParameterList"),
    *("RNNBase", "RNNCellBase", "Sequential", "SyncBatchNorm"),
}
