"""Promise: a captured step computes what PyTorch does, one step at a time from the same state, to 2e-5 in float32."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import Mlp, batches, largest_step_error, make_step, trained_twins  # noqa: E402

OPTIMIZERS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "sgd_all": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.2, "weight_decay": 0.1, "maximize": True}),
    "nesterov": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "fused": True}),
    "sgd_tensor_lr": (torch.optim.SGD, {"lr": torch.tensor(0.1)}),
    "adam": (torch.optim.Adam, {"foreach": True}),
    "amsgrad": (torch.optim.Adam, {"amsgrad": True, "weight_decay": 0.1}),
    "adamw": (torch.optim.AdamW, {"fused": True}),
    "rmsprop": (torch.optim.RMSprop, {"momentum": 0.9, "centered": True, "weight_decay": 0.1}),
    "adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "initial_accumulator_value": 0.2}),
    "adadelta": (torch.optim.Adadelta, {}),
    "adamax": (torch.optim.Adamax, {"weight_decay": 0.1}),
    "nadam": (torch.optim.NAdam, {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    "rprop": (torch.optim.Rprop, {}),
    "radam": (torch.optim.RAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "asgd": (torch.optim.ASGD, {"t0": 3.0}),
    "adafactor": (torch.optim.Adafactor, {"weight_decay": 0.1, "lr": 0.1}),
}


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_optimizers(kind: Any, options: Any) -> None:
    torch.manual_seed(0)
    model = Mlp()
    step = make_step(model, kind(model.parameters(), **options))
    assert largest_step_error(step, batches(), steps=8) < 2e-5  # RAdam takes another path from step 6 on


class Net(nn.Module):
    """Layers in a row; the loss of the first four numbers of each row."""

    def __init__(self, *layers: nn.Module, loss: Any = F.cross_entropy) -> None:
        super().__init__()
        self.layers, self.loss = nn.Sequential(*layers), loss

    def forward(self, x: Any, t: Any) -> Any:
        return {"loss": self.loss(self.layers(x).flatten(1)[:, :4], t)}


def error(net: nn.Module, data: Any) -> float:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    return largest_step_error(make_step(net, optimizer), data, steps=2)


CONVOLUTIONS = {
    "strided": (nn.Conv2d(4, 8, 3, stride=2, padding=1), (3, 4, 12, 11)),
    "grouped": (nn.Conv2d(4, 8, 3, groups=2, stride=2), (3, 4, 9, 9)),
    "depthwise": (nn.Conv2d(4, 4, 3, groups=4, padding=1), (3, 4, 5, 5)),
    "dilated": (nn.Conv2d(4, 4, 3, dilation=2, bias=False), (2, 4, 8, 8)),
    "1d": (nn.Conv1d(4, 8, 3, stride=2), (3, 4, 12)),
    "3d": (nn.Conv3d(4, 4, 2), (2, 4, 4, 5, 6)),
    "transposed": (nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), (3, 4, 5, 6)),
}


@pytest.mark.parametrize(("layer", "shape"), CONVOLUTIONS.values(), ids=list(CONVOLUTIONS))
def test_convolutions(layer: nn.Module, shape: tuple[int, ...]) -> None:
    point = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}[len(shape)](4, 4, 1)
    assert error(Net(point, nn.Tanh(), layer), batches(shape)) < 2e-5


LAYERS = {
    "batch_norm": nn.BatchNorm2d(4),
    "batch_norm_plain": nn.BatchNorm2d(4, affine=False, track_running_stats=False),
    "group_norm": nn.GroupNorm(2, 4),
    "instance_norm": nn.InstanceNorm2d(4, affine=True, track_running_stats=True),
    "layer_norm": nn.LayerNorm([4, 7, 9]),
    "rms_norm": nn.RMSNorm(9),
    "local_response": nn.LocalResponseNorm(2),
    "max_pool": nn.MaxPool2d(3, 2, 1, ceil_mode=True),
    "adaptive_max_pool": nn.AdaptiveMaxPool2d((7, 3)),
    "avg_pool": nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False),
    "avg_pool_divisor": nn.AvgPool2d(2, divisor_override=3),
    "global_pool": nn.AdaptiveAvgPool2d(1),
    "adaptive_pool": nn.AdaptiveAvgPool2d((3, 4)),
    "lp_pool": nn.LPPool2d(2, 2),
    "nearest": nn.Upsample(scale_factor=2),
    "bilinear": nn.Upsample(size=(11, 13), mode="bilinear", align_corners=True),
    "bicubic": nn.Upsample(scale_factor=1.5, mode="bicubic"),
    "reflect": nn.ReflectionPad2d(1),
    "replicate": nn.ReplicationPad2d((1, 2, 3, 1)),
    "pixel_shuffle": nn.PixelShuffle(2),
}


@pytest.mark.parametrize("layer", LAYERS.values(), ids=list(LAYERS))
def test_layers(layer: nn.Module) -> None:
    torch.manual_seed(0)
    # Without a bias, whose gradient before a normalization is nothing but rounding.
    assert error(Net(nn.Conv2d(3, 4, 3, bias=False), layer, nn.Tanh()), batches((2, 3, 9, 11))) < 2e-5


ACTIVATIONS = [
    *(nn.ReLU(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Sigmoid(), nn.LeakyReLU(), nn.ELU(), nn.SELU(), nn.CELU()),
    *(nn.Softplus(), nn.Softsign(), nn.Hardtanh(), nn.Hardswish(), nn.Hardsigmoid(), nn.Mish(), nn.PReLU(), nn.ReLU6()),
    *(nn.LogSigmoid(), nn.Tanhshrink(), nn.Softshrink(), nn.Hardshrink(), nn.Softmax(-1), nn.LogSoftmax(-1), nn.GLU()),
]


@pytest.mark.parametrize("layer", ACTIVATIONS, ids=repr)
def test_activations(layer: nn.Module) -> None:
    torch.manual_seed(0)
    assert error(Net(nn.Linear(8, 16), layer, nn.Flatten()), batches()) < 2e-5


def hot(t: Any) -> Any:
    return F.one_hot(t, 4).float()


LOSSES = {
    "weighted": lambda y, t: F.cross_entropy(y, t, torch.tensor([1.0, 2.0, 3.0, 4.0]), ignore_index=1),
    "smoothed": lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1),
    "probabilities": lambda y, t: F.cross_entropy(y, F.softmax(hot(t), -1)),
    "unreduced": lambda y, t: (F.cross_entropy(y, t, reduction="none") * torch.arange(5)).sum(),
    "mse": lambda y, t: F.mse_loss(y, hot(t)),
    "l1": lambda y, t: F.l1_loss(y, hot(t)),
    "smooth_l1": lambda y, t: F.smooth_l1_loss(y, hot(t)),
    "huber": lambda y, t: F.huber_loss(y, hot(t)),
    "bce": lambda y, t: F.binary_cross_entropy(torch.sigmoid(y), hot(t)),
    "bce_logits": lambda y, t: F.binary_cross_entropy_with_logits(y, hot(t), pos_weight=torch.arange(4.0)),
    "kl": lambda y, t: F.kl_div(F.log_softmax(y, -1), F.softmax(hot(t), -1), reduction="batchmean"),
    "hinge": lambda y, t: F.hinge_embedding_loss(y, hot(t) * 2 - 1),
    "soft_margin": lambda y, t: F.multilabel_soft_margin_loss(y, hot(t)),
    "poisson": lambda y, t: F.poisson_nll_loss(y, hot(t)),
    "cosine": lambda y, t: F.cosine_embedding_loss(y, hot(t), torch.ones(5)),
    "triplet": lambda y, t: F.triplet_margin_loss(y, hot(t), y.flip(0)),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_losses(loss: Any) -> None:
    torch.manual_seed(0)
    assert error(Net(nn.Linear(8, 4), loss=loss), batches()) < 2e-5


class Recurrent(nn.Module):
    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.cells, self.head = kind(5, 6, batch_first=True, num_layers=2), nn.Linear(6, 4)

    def forward(self, x: Any, t: Any) -> Any:
        return {"loss": F.cross_entropy(self.head(self.cells(x)[0][:, -1]), t)}


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_recurrent_nets(kind: Any) -> None:
    torch.manual_seed(0)
    assert error(Recurrent(kind), batches((3, 4, 5))) < 2e-5


class Transformer(nn.Module):
    """Embedding, two encoder layers, causal attention with shared weights at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 16, padding_idx=0)
        layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.qkv, self.norm = nn.Linear(16, 48), nn.LayerNorm(16)

    def forward(self, x: Any, t: Any) -> Any:
        h = self.layers(self.embed(x))
        q, k, v = self.qkv(self.norm(h)).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        h = h + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        return {"loss": F.cross_entropy((h @ self.embed.weight.t()).flatten(0, 1), t.flatten())}


def tokens() -> Any:
    generator = torch.Generator().manual_seed(1)
    while True:
        x, t = torch.randint(0, 20, (2, 3, 6), generator=generator)
        yield {"x": x, "t": t}


def test_transformer() -> None:
    torch.manual_seed(0)
    assert error(Transformer(), tokens()) < 2e-5


def conv_net() -> nn.Module:
    layers = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 4, 3, stride=2)
    return Net(*layers, nn.GroupNorm(2, 4), nn.AdaptiveAvgPool2d(1))


NETS = {
    "mlp": (lambda: Net(nn.Linear(8, 16), nn.GELU("tanh"), nn.Linear(16, 4)), batches, torch.optim.Adam),
    "conv_net": (conv_net, lambda dtype: batches((4, 3, 12, 12), dtype=dtype), torch.optim.RMSprop),
    "transformer": (Transformer, lambda dtype: tokens(), torch.optim.SGD),
}


@pytest.mark.parametrize("device", ["pfvm:cpu", "xla:cpu"])
@pytest.mark.parametrize(("make", "data", "kind"), NETS.values(), ids=list(NETS))
def test_doubles_over_five_steps(make: Any, data: Any, kind: Any, device: str) -> None:
    """1e-8, over steps that each start from the last one's state."""

    def new() -> Any:
        model = make().double()
        return model, kind(model.parameters(), lr=1e-3)

    model, twin = trained_twins(new, data(dtype=torch.float64), device)
    for (name, a), e in zip(model.state_dict().items(), twin.state_dict().values()):
        torch.testing.assert_close(a, e, rtol=1e-8, atol=1e-8, msg=lambda m, name=name: f"{name}: {m}")
