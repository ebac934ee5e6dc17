"""PyTorch functions of every kind that a forward pass is made of, and the comparison with eager PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from pfvm.compiler.capture.dtypes import to_numpy  # noqa: E402
from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.runtime.ort import evaluate  # noqa: E402

Case = tuple[Callable[..., Any], tuple[Any, ...]]


def randn(*shape: int) -> Any:
    """Seeded by the shape, so that a case does not depend on those before it."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(math.prod(shape) + len(shape)))


def ints(high: int, *shape: int) -> Any:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(high))


def check(fn: Callable[..., Any], args: tuple[Any, ...], tolerance: float = 2e-5) -> None:
    exported = capture(fn, args)
    feeds = {n: to_numpy(v) for n, v in exported.inputs.unpack(args).items()}
    results = evaluate(exported.model, feeds)
    expected = exported.outputs.unpack(fn(*args))
    for name, want in expected.items():
        reference = to_numpy(want)
        assert results[name].dtype == reference.dtype, name
        assert results[name].shape == reference.shape, name
        if reference.dtype.kind == "f":
            np.testing.assert_allclose(results[name], reference, rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(results[name], reference, err_msg=name)


X = randn(2, 3, 4)
IMG = randn(2, 3, 8, 8)

FUNCTIONS: dict[str, Case] = {
    # arithmetic
    "add_alpha": (lambda x, y: torch.add(x, y, alpha=2.5), (X, X + 1)),
    "int_float_add": (lambda x, y: x + y, (ints(5, 3), randn(3))),
    "scalar_mix": (lambda x: 2 - x * 3 + x / 4 - 1 / (x.abs() + 1), (X,)),
    "int_divide": (lambda x: (x / 2, x // 2, x % 3), (torch.arange(-5, 6),)),
    "int_floor_by_negative": (lambda x: (x // -2, torch.div(x, 3, rounding_mode="trunc")), (torch.arange(-5, 6),)),
    "float_floor": (lambda x: (x // 0.7, x % 0.7, torch.fmod(x, 0.7), torch.trunc(x * 3)), (X,)),
    "floor_at_whole_numbers": (
        lambda x, y: (x // y, x % y, torch.div(x, y, rounding_mode="trunc"), x // -0.1, x % -0.1),
        (torch.tensor([1.0, -1.0, 0.3, 6.0, -0.7, 5e8]), torch.tensor([0.1, 0.1, 0.1, 2.0, 0.7, 0.1])),
    ),
    "rarer": (
        lambda x: (x.erfc(), torch.hypot(x, x + 1), x.round(decimals=2), torch.addbmm(x[0, :, :3], x, x.mT, alpha=2)),
        (X,),
    ),
    "digits_of_small_numbers": (
        lambda x: (torch.log1p(x) / x, torch.expm1(x) / x, torch.log1p(x.abs() * 1e12), torch.expm1(-x.abs() * 1e12)),
        (torch.tensor([1e-9, -1e-9, 1e-5, -1e-4, 0.2, -0.6, 3.0]),),
    ),
    "pow": (lambda x: (x**2, x.abs() ** 0.5, 2**x, x.abs() ** x), (X,)),
    "unary": (
        lambda x: (
            x.exp(),
            x.abs().log(),
            x.abs().sqrt(),
            x.sin(),
            x.cos(),
            x.tanh(),
            x.sigmoid(),
            x.erf(),
            -x,
            x.sign(),
        ),
        (X,),
    ),
    "unary_more": (
        lambda x: (x.abs().rsqrt(), x.abs().log2(), x.abs().log10(), x.abs().log1p(), x.expm1(), x.floor(), x.ceil()),
        (X,),
    ),
    "round_half_even": (lambda x: x.round(), (torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5]),)),
    "trig": (lambda x: (x.tan(), x.atan(), x.sinh(), x.cosh(), x.asinh(), torch.atan2(x, x + 1)), (X,)),
    "int_unary_to_float": (lambda x: (x.exp(), x.sqrt(), x.sigmoid(), -x, x.abs()), (torch.arange(1, 5),)),
    "compare": (lambda x, y: (x > y, x >= y, x < 0, x <= 0.5, x == y, x != y), (X, X.flip(0))),
    "compare_int_with_float": (lambda x: x > 1.5, (torch.arange(4),)),
    "compare_bools": (lambda x, y: (x == y, x < y), (X > 0, X.flip(0) > 0)),
    "logic": (lambda x, y: (x & y, x | y, x ^ y, ~x, torch.logical_and(x, y)), (X > 0, X > 1)),
    "bitwise_int": (lambda x: (x & 3, x | 4, x ^ 1, ~x), (torch.arange(8),)),
    "where": (lambda x: (torch.where(x > 0, x, 0.0), torch.where(x > 0, 1, 0), torch.where(x > 0, x, x.exp())), (X,)),
    "masked_fill": (lambda x: x.masked_fill(x > 0, float("-inf")).masked_fill(x < -1, 3), (X,)),
    "clamp": (lambda x: (x.clamp(-0.5, 0.5), x.clamp(min=0), x.clamp_max(0.1), x.clamp(x - 1, x * 0.5)), (X,)),
    "minmax": (lambda x, y: (torch.maximum(x, y), torch.minimum(x, y)), (X, X.flip(0))),
    "nan_inf": (
        lambda x: (x.isnan(), x.isinf(), x.isfinite(), x.nan_to_num(7.0)),
        (torch.tensor([1.0, float("nan"), float("inf")]),),
    ),
    "casts": (lambda x: (x.double(), x.half(), x.int(), x.bool(), x.long().float(), x.to(torch.uint8)), (X.abs() * 3,)),
    "lerp_addcmul": (
        lambda x, y: (torch.lerp(x, y, 0.3), torch.addcmul(x, x, y, value=2), torch.addcdiv(x, x, y + 9)),
        (X, X + 1),
    ),
    "renorm_half": (lambda x: torch.renorm(x, 2, 0, 100.0), (X.half(),)),
    "lerp_of_other_strides": (
        lambda x, y: (torch.lerp(x[:, :1], y, 0.3), torch.lerp(x.mT, y.mT, y[:1].mT)),
        (X, X + 1),
    ),
    # activations
    "activations": (
        lambda x: (
            F.relu(x),
            F.gelu(x),
            F.gelu(x, approximate="tanh"),
            F.silu(x),
            F.leaky_relu(x, 0.2),
            F.elu(x),
            F.selu(x),
        ),
        (X,),
    ),
    "activations_more": (
        lambda x: (
            F.softplus(x),
            F.softplus(x, 2.0),
            F.hardswish(x),
            F.hardsigmoid(x),
            F.hardtanh(x),
            F.relu6(x),
            F.mish(x),
        ),
        (X * 3,),
    ),
    "activations_rare": (
        lambda x: (
            F.celu(x, 0.7),
            F.logsigmoid(x),
            F.threshold(x, 0.1, 5.0),
            F.softsign(x),
            F.tanhshrink(x),
            F.hardshrink(x),
        ),
        (X * 3,),
    ),
    "softmax": (lambda x: (x.softmax(-1), x.log_softmax(1), F.softmin(x, 0), F.glu(x)), (X,)),
    # reductions
    "sum": (lambda x: (x.sum(), x.sum(1), x.sum((0, -1), keepdim=True), x.sum(0, dtype=torch.float64)), (X,)),
    "sum_of_bool": (lambda x: ((x > 0).sum(), (x > 0).sum(1)), (X,)),
    "sum_of_int32": (lambda x: x.sum(0), (ints(9, 3, 4).int(),)),
    "mean": (lambda x: (x.mean(), x.mean(1), x.mean((0, 2), keepdim=True)), (X,)),
    "var_std": (lambda x: (x.var(), x.var(1, unbiased=False), x.std(-1, keepdim=True), *torch.var_mean(x, 1)), (X,)),
    "extremes": (lambda x: (x.max(), x.min(), x.amax(1), x.amin((0, 2), keepdim=True)), (X,)),
    "max_pair": (lambda x: (*torch.max(x, 1), *torch.min(x, -1, keepdim=True)), (X,)),
    "arg": (lambda x: (x.argmax(), x.argmax(1), x.argmin(-1, keepdim=True)), (X,)),
    "any_all": (lambda x: ((x > 0).any(), (x > 0).all(1), (x > 9).any(0, keepdim=True)), (X,)),
    "prod_norm": (
        lambda x: (x.prod(1), x.prod(), x.norm(), x.norm(dim=1), x.norm(1, 2), torch.linalg.vector_norm(x, 3)),
        (X,),
    ),
    "logsumexp": (lambda x: (x.logsumexp(1), x.logsumexp((0, 2), keepdim=True)), (X * 50,)),
    "cumsum": (lambda x, i: (x.cumsum(1), i.cumsum(0)), (X, ints(9, 4))),
    "normalize": (lambda x: F.normalize(x, dim=1), (X,)),
    "cosine": (lambda x, y: F.cosine_similarity(x, y, dim=-1), (X, X + 1)),
    # shape
    "views": (lambda x: (x.view(6, 4), x.reshape(2, -1), x.flatten(1), x.unflatten(2, (2, 2)), x.view(-1)), (X,)),
    "transposes": (
        lambda x: (x.permute(2, 0, 1), x.transpose(0, -1), x.mT, x[0].t(), x.movedim(0, 2), x.permute(0, 1, 2)),
        (X,),
    ),
    "squeezes": (lambda x: (x[:, :1].squeeze(1), x.squeeze(1), x[:, :1].squeeze(), x.unsqueeze(-1), x[None]), (X,)),
    "expand_repeat": (
        lambda x: (x[:, :1].expand(-1, 5, -1), x.repeat(2, 1, 3), x.repeat(2, 1, 1, 1), x.expand(4, 2, 3, 4)),
        (X,),
    ),
    "repeat_interleave": (lambda x: x.repeat_interleave(3, 1), (X,)),
    "joins": (lambda x, y: (torch.cat([x, y], 1), torch.stack([x, y], -1), torch.cat([x, x.double()], 0)), (X, X + 1)),
    "splits": (lambda x: (*x.split(2, 2), *x.split([1, 2], 1), *x.chunk(2, 2), *x.unbind(1)), (X,)),
    "slices": (lambda x: (x[:, 1:], x[..., -2:], x[:, ::2], x[0], x[:, -1], x[1, 2, 3], x[..., 1:3, None]), (X,)),
    "flip_roll": (lambda x: (x.flip(0, 2), x.roll(1, 1), x.roll((1, -2), (0, 2)), x.roll(5)), (X,)),
    "pads": (lambda x: (F.pad(x, (1, 2)), F.pad(x, (1, 1, 0, 2), value=3.5), F.pad(x, (-1, 1))), (X,)),
    "pad_modes": (
        lambda x: (
            F.pad(x, (1, 2, 3, 1), "reflect"),
            F.pad(x, (1, 2, 3, 1), "replicate"),
            F.pad(x, (1, 1, 2, 2), "circular"),
        ),
        (IMG,),
    ),
    "triangles": (lambda x: (x.tril(), x.triu(1), torch.ones(4, 4, dtype=torch.bool).tril()), (X,)),
    "as_strided": (
        lambda x: (x.as_strided((3, 4), (2, 1)), (x * 1).transpose(0, 2).as_strided((2, 2), (1, 3), 1)),
        (X,),
    ),
    "pool_of_channels_last": (lambda x: torch.nn.functional.adaptive_avg_pool2d(x[None].permute(0, 3, 1, 2), 1), (X,)),
    "diagonal": (lambda x: (x.diagonal(0, 1, 2), torch.diag_embed(x[0])), (X,)),
    "unfold": (lambda x: (x.unfold(2, 2, 1), x.unfold(1, 2, 1)), (X,)),
    "im2col": (lambda x: F.unfold(x, 3, padding=1), (IMG,)),
    "pixel_shuffle": (lambda x: (F.pixel_shuffle(x, 2), F.pixel_unshuffle(x, 2)), (randn(1, 8, 4, 4),)),
    "meshgrid": (lambda x: torch.meshgrid(x[0, 0], x[0, 1], indexing="ij"), (X,)),
    # creation
    "creation": (
        lambda x: (
            torch.zeros(2, 3) + x[0, :2, :3],
            torch.ones_like(x),
            torch.full((2,), 7),
            x.new_zeros(3),
            torch.arange(5),
            torch.arange(1.0, 2.0, 0.25),
        ),
        (X,),
    ),
    "full_of_a_tensor": (
        lambda x, i: (
            torch.full((2,), x[0, 0, 0]),
            torch.full_like(x, i),
            x.new_full((3,), i),
            torch.full((2,), i > 0),
        ),
        (X, torch.tensor(3)),
    ),
    "tensor_of_tensors": (
        lambda x: (
            torch.tensor([x.sum(), 1]),
            torch.tensor([[x.max().double(), x.min()]]),
            torch.tensor([x[:1, 0, 0], -x[0, 1, 1]]),
        ),
        (X,),
    ),
    "running_integers": (lambda i: (*i.cummax(0), *i.cummin(0)), (torch.tensor([3, -1, 4, -5, 9]),)),
    "eye_linspace": (lambda x: (x + torch.eye(3, 4), torch.linspace(0, 1, 5) + 0), (X,)),
    "tensor_literal": (lambda x: x * torch.tensor([1.0, 2.0, 3.0, 4.0]), (X,)),
    "one_hot": (lambda i: F.one_hot(i, 5), (ints(5, 4),)),
    # indexing
    "gathers": (
        lambda x, i: (x[i], x[:, i], x.index_select(2, i), x.gather(1, i.expand(2, 2, 2))),
        (X, torch.tensor([1, 0])),
    ),
    "negative_index": (lambda x, i: (x[i], x[:, :, i]), (X, torch.tensor([-1, 0]))),
    "several_indices": (
        lambda x, i, j: (x[i, j], x[:, i, j], x[i, :, j], x[i[:, None], j]),
        (X, torch.tensor([1, 0]), torch.tensor([2, 1])),
    ),
    "index_of_no_dimension": (
        lambda x, i: (
            x[i],
            x[0, ..., i],
            x[:, None, i, 1:],
            x.select(-1, i),
            x[torch.tensor(-1)],
            x.index_select(0, i),
        ),
        (X, torch.tensor(1)),
    ),
    "index_of_no_dimension_gradient": (
        lambda x, i: torch.autograd.grad((x[i] ** 2).sum() + x[:, i].sum(), x)[0],
        (X.clone().requires_grad_(), torch.tensor(-1)),
    ),
    "topk_sort": (lambda x: (*x.topk(2), *x.sort(1, descending=True), x.argsort(-1)), (X,)),
    "scatters": (
        lambda x, i: (x.scatter(1, i, 5.0), x.scatter_add(1, i, x), x.scatter(1, i, x[:, :1].expand(2, 1, 4))),
        (X, ints(3, 2, 1, 4)),
    ),
    "index_add": (lambda x, i: (x.index_add(0, i, x), x.index_fill(1, i, 2.0)), (X, torch.tensor([1, 0]))),
    "take": (
        lambda x, i: (torch.take_along_dim(x, i, 2), torch.bucketize(x, torch.tensor([-1.0, 0.0, 1.0]))),
        (X, ints(4, 2, 3, 1)),
    ),
    # products
    "matmuls": (lambda x, y: (x @ y, x[0] @ y, x @ y[:, 0], x[0, 0] @ y[:, 0], torch.bmm(x, x.mT)), (X, randn(4, 5))),
    "addmm": (
        lambda x, y: (torch.addmm(y[0], x[0], y, beta=0.5, alpha=2), torch.baddbmm(x[:, :, :3], x, x.mT, alpha=0.5)),
        (X, randn(4, 5)),
    ),
    "int_matmul": (lambda x: x @ x, (ints(5, 3, 3),)),
    "einsum": (
        lambda x, y: (
            torch.einsum("bij,jk->bik", x, y),
            torch.einsum("bij,bij->b", x, x),
            torch.outer(x[0, 0], y[:, 0]),
        ),
        (X, randn(4, 5)),
    ),
    "attention": (lambda q: F.scaled_dot_product_attention(q, q, q), (randn(2, 2, 5, 4),)),
    "attention_causal": (lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (randn(2, 2, 5, 4),)),
    "attention_mask": (
        lambda q, m: F.scaled_dot_product_attention(q, q, q, attn_mask=m),
        (randn(2, 2, 5, 4), torch.eye(5, dtype=torch.bool)),
    ),
    # losses
    "cross_entropy": (
        lambda x, t: (
            F.cross_entropy(x, t),
            F.cross_entropy(x, t, reduction="none"),
            F.cross_entropy(x, t, label_smoothing=0.1),
            F.nll_loss(x, t, reduction="sum"),
        ),
        (randn(6, 5), ints(5, 6)),
    ),
    "cross_entropy_ignored": (
        lambda x, t: F.cross_entropy(x, t),
        (randn(6, 5), torch.tensor([0, 1, -100, 2, -100, 4])),
    ),
    "cross_entropy_weighted": (
        lambda x, t: F.cross_entropy(x, t, weight=torch.tensor([1.0, 2.0, 0.5, 1.0, 3.0])),
        (randn(6, 5), ints(5, 6)),
    ),
    "cross_entropy_2d": (lambda x, t: F.cross_entropy(x, t), (IMG, ints(3, 2, 8, 8))),
    "losses": (
        lambda x, y: (
            F.mse_loss(x, y),
            F.l1_loss(x, y),
            F.smooth_l1_loss(x, y),
            F.huber_loss(x, y),
            F.binary_cross_entropy_with_logits(x, y.sigmoid()),
            F.kl_div(x, y.softmax(-1), reduction="sum"),
        ),
        (X, X.flip(0)),
    ),
    "bce": (lambda x, y: F.binary_cross_entropy(x.sigmoid(), y.sigmoid()), (X, X.flip(0))),
    # images
    "max_pool": (
        lambda x: (
            F.max_pool2d(x, 2),
            F.max_pool2d(x, 3, 2, 1),
            F.max_pool2d(x, 3, 2, 1, ceil_mode=True),
            F.max_pool1d(x[0], 2),
        ),
        (IMG,),
    ),
    "max_pool_indices": (lambda x: F.max_pool2d(x, 2, return_indices=True), (IMG,)),
    "avg_pool": (
        lambda x: (
            F.avg_pool2d(x, 2),
            F.avg_pool2d(x, 3, 2, 1),
            F.avg_pool2d(x, 3, 2, 1, count_include_pad=False),
            F.avg_pool1d(x[0], 2),
            F.avg_pool2d(x, 2, divisor_override=3),
        ),
        (IMG,),
    ),
    "avg_pool_ceil": (
        lambda x: (F.avg_pool2d(x, 3, 2, ceil_mode=True), F.avg_pool2d(x, 3, 2, 1, ceil_mode=True)),
        (IMG,),
    ),
    "adaptive": (
        lambda x: (
            F.adaptive_avg_pool2d(x, 1),
            F.adaptive_avg_pool2d(x, (2, 4)),
            F.adaptive_avg_pool2d(x, 3),
            F.adaptive_max_pool2d(x, 2),
        ),
        (IMG,),
    ),
    "adaptive_1d": (
        lambda x: (F.adaptive_avg_pool1d(x[0], 4), F.adaptive_avg_pool1d(x[0], 3), F.adaptive_max_pool1d(x[0], 2)),
        (IMG,),
    ),
    "interpolate_nearest": (
        lambda x: (
            F.interpolate(x, scale_factor=2),
            F.interpolate(x, size=(5, 11)),
            F.interpolate(x[0], scale_factor=1.5),
        ),
        (IMG,),
    ),
    "interpolate_exact": (lambda x: F.interpolate(x, size=(5, 11), mode="nearest-exact"), (IMG,)),
    "interpolate_bilinear": (
        lambda x: (
            F.interpolate(x, scale_factor=2, mode="bilinear"),
            F.interpolate(x, size=(5, 11), mode="bilinear"),
            F.interpolate(x, size=(5, 11), mode="bilinear", align_corners=True),
        ),
        (IMG,),
    ),
    "interpolate_bicubic": (lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), (IMG,)),
    "grid_sample": (lambda x, g: F.grid_sample(x, g, align_corners=False), (IMG, randn(2, 4, 4, 2).tanh())),
    "instance_norm": (lambda x: F.instance_norm(x), (IMG,)),
    "input_gradient": (
        lambda x: torch.autograd.grad((x**3).sum(), x)[0],
        (X.clone().requires_grad_(),),
    ),
    "forward_mode": (
        lambda x, v: (
            *torch.func.jvp(lambda z: z.sin() * z.sum(), (x,), (v,)),
            torch.func.jacfwd(lambda z: torch.outer(z, z.exp()))(x[0, 0]),
            torch.func.vmap(torch.func.hessian(lambda z: (z.tanh() ** 2 * z[0]).sum()))(x[0]),
        ),
        (X, X + 1),
    ),
    # updates of locals
    "inplace_add": (lambda x: (lambda y: y.add_(1).mul_(y))(x.clone()), (X,)),
    "dtype_mix": (lambda x: (x.double() + x, x.half() * 2, (x > 0).float() * x), (X,)),
}
