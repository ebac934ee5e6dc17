"""Functions of torch with sample arguments, for the test that trains through all of them; see sweep_modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from .sweep_modules import chances, floats, labels

Case = tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]


def of(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Case:
    """A function of tensors of normal numbers."""
    return function, lambda: tuple(floats(*shape) for shape in shapes)


def positive(function: Callable[..., Any]) -> Case:
    """A function of numbers from 0.1 to 0.9."""
    return function, lambda: (chances(4, 5),)


def regular(function: Callable[..., Any], *shapes: tuple[int, ...]) -> Case:
    """A function of two 4 x 4 matrices far from singular, then other tensors."""
    eye = torch.eye(4, dtype=torch.float64) * 3
    return function, lambda: (floats(2, 4, 4) * 0.5 + eye, *(floats(*shape) for shape in shapes))


def _spd(x: Any) -> Any:
    return x @ x.mT + torch.eye(4, dtype=x.dtype)


def _turned(x: Any, angles: Any) -> Any:
    """Rotary positions by complex numbers."""
    turns = torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(torch.view_as_complex(x.unflatten(-1, (-1, 2))) * turns).flatten(-2)


def _written(x: Any, y: Any) -> Any:
    z = x.clone()
    z[:, 1:3] = y
    z[z > 1] = 0.5
    z[0] *= 2
    return z


ROW, SQUARE = (4, 5), (4, 4)
_I = torch.tensor([[0, 2, 1, 1, 0], [3, 3, 2, 0, 1]])

ELEMENTWISE: dict[str, Case] = {
    **{
        name: of(getattr(torch, name), ROW)
        for name in (
            *("abs", "atan", "ceil", "cos", "cosh", "deg2rad", "erf", "erfc", "exp", "exp2", "expm1", "floor", "frac"),
            *("log_softmax", "neg", "nan_to_num", "relu", "round", "sigmoid", "sign", "sin", "sinc", "sinh", "square"),
            *("tan", "tanh", "trunc", "asinh", "arctan", "selu", "celu", "positive", "i0"),
        )
        if name != "log_softmax"
    },
    **{
        name: positive(getattr(torch, name))
        for name in (
            *(
                "log",
                "log1p",
                "log2",
                "log10",
                "sqrt",
                "rsqrt",
                "reciprocal",
                "acos",
                "asin",
                "atanh",
                "erfinv",
                "logit",
            ),
            *("lgamma", "digamma", "xlogy_"),
        )
        if name != "xlogy_"
    },
    "acosh": (lambda x: torch.acosh(x + 1.5), lambda: (chances(4, 5),)),
    "polygamma": (lambda x: torch.polygamma(2, x + 2), lambda: (chances(4, 5),)),
    "mvlgamma": (lambda x: torch.mvlgamma(x + 2, 2), lambda: (chances(4, 5),)),
    "lgamma.negative": of(lambda x: torch.lgamma(x * 3 - 0.05), (6, 7)),
    "digamma.negative": of(lambda x: torch.digamma(x * 3 - 0.05), (6, 7)),
    "ndtr": of(torch.special.ndtr, ROW),
    "log_ndtr": of(torch.special.log_ndtr, ROW),
    "entr": positive(torch.special.entr),
    "i0e": of(torch.special.i0e, ROW),
    "i1": of(torch.special.i1, ROW),
    "xlogy": (torch.xlogy, lambda: (floats(*ROW), chances(*ROW))),
    "xlog1py": (torch.special.xlog1py, lambda: (floats(*ROW), chances(*ROW))),
    **{
        name: of(getattr(torch, name), ROW, ROW)
        for name in (
            *("add", "atan2", "copysign", "div", "fmax", "fmin", "hypot", "logaddexp", "logaddexp2", "maximum"),
            *("minimum", "mul", "sub", "fmod", "remainder", "dist"),
        )
    },
    "pow": (torch.pow, lambda: (chances(*ROW), floats(*ROW))),
    "pow.scalar": of(lambda x: x**3 + x.abs() ** 0.5 + 2.0**x, ROW),
    "clamp": of(lambda x: x.clamp(-0.5, 0.7) + x.clamp(min=0.1), ROW),
    "clamp.tensors": of(torch.clamp, ROW, (5,), (4, 1)),
    "lerp": of(lambda x, y: torch.lerp(x, y, 0.3) + torch.lerp(x, y, y), ROW, ROW),
    "addcmul": of(lambda x, y, z: torch.addcmul(x, y, z, value=0.3) + torch.addcdiv(x, y, z.exp()), ROW, ROW, ROW),
    "div.rounded": of(
        lambda x, y: x * torch.div(x, y, rounding_mode="floor") + x * torch.div(x, y, rounding_mode="trunc"), ROW, ROW
    ),
    "where": of(lambda x, y: torch.where(x > y, x, 0.0) + torch.where(x > 0, 1.0, y) + x.where(y > 0, y), ROW, ROW),
    "where.broadcast": of(lambda x, y: torch.where(x[:, :1] > 0, x, y), ROW, (5,)),
    "masked_fill": of(lambda x, y: x.masked_fill(y > 0, -2.0).masked_scatter(y < -1, y), ROW, ROW),
    "heaviside": of(lambda x, y: x * torch.heaviside(x.detach(), y.detach()), ROW, ROW),
    "nanmean": of(lambda x: torch.nanmean(x) + torch.nansum(x, 0), ROW),
    "gelu.functions": of(lambda x: F.gelu(x, approximate="tanh") + F.softplus(x, 3.0) + F.silu(x) + F.mish(x), ROW),
    "gumbel_like": of(lambda x: F.normalize(x, dim=0) + F.normalize(x, p=1, dim=1) + F.softmin(x, 1), ROW),
    "dropouts_off": of(lambda x: F.dropout(x, 0.5, False) + F.alpha_dropout(x, 0.5, False), ROW),
    "rrelu_off": of(lambda x: F.rrelu(x, training=False), ROW),
}


def _along(function: Callable[..., Any]) -> Case:
    """Along the last dimension."""
    return of(lambda x: function(x, 1), ROW)


_NAMES = (
    "amax amin cumsum cumprod logcumsumexp cummax cummin logsumexp max mean median min mode nanmedian prod std "
    "std_mean sum var var_mean sort softmax log_softmax norm nansum"
)
REDUCTIONS: dict[str, Case] = {
    **{name: _along(getattr(torch, name)) for name in _NAMES.split()},
    "aminmax": of(lambda x: torch.aminmax(x, dim=0), ROW),
    "quantile": of(lambda x: torch.quantile(x, torch.tensor([0.2, 0.7], dtype=x.dtype), dim=1), ROW),
    "kthvalue": of(lambda x: torch.kthvalue(x, 2, 0), ROW),
    "topk": of(lambda x: x.topk(3, 1, sorted=True).values + x.topk(3, 1, largest=False).values, ROW),
    "sort.down": of(lambda x: x.sort(0, descending=True).values, ROW),
    "sorted_gather": of(lambda x: x.gather(1, x.argsort(1, descending=True)), ROW),
    "norms": of(
        lambda x: torch.stack([x.norm(), x.norm(1), x.norm(3), x.norm(float("inf")), torch.linalg.vector_norm(x, 0.5)]),
        ROW,
    ),
    "matrix_norms": of(lambda x: torch.stack([torch.linalg.matrix_norm(x, p) for p in ("fro", 1, -1, torch.inf)]), ROW),
    "max.whole": of(lambda x: x.max() + x.min() + x.median() + x.prod() + x.std() + x.amax() + x.var(), ROW),
    "cov": of(lambda x: torch.cov(x) + torch.corrcoef(x), ROW),
    "diff": of(lambda x: torch.diff(x, n=2), ROW),
    "trapezoid": of(lambda x: torch.trapezoid(x) + torch.cumulative_trapezoid(x).sum(1), ROW),
    "renorm": of(lambda x: torch.renorm(x, 2, 0, 1.0), ROW),
    "logdet_gram": of(lambda x: torch.logdet(_spd(x)), (2, 4, 4)),
    "count": of(lambda x: x * (x > 0).sum() + x * torch.count_nonzero(x > 0.5, 0), ROW),
}

MATRICES: dict[str, Case] = {
    "matmul": of(torch.matmul, (2, 3, 4), (4, 5)),
    "matmul.vectors": of(lambda x, y: x @ y + torch.dot(x[0], y) + torch.mv(x, y).outer(y).sum(1), SQUARE, (4,)),
    "addmm": of(lambda x, y, z: torch.addmm(x, y, z, beta=0.5, alpha=2), (4, 5), (4, 3), (3, 5)),
    "baddbmm": of(lambda x, y, z: torch.baddbmm(x, y, z, alpha=2), (2, 4, 5), (2, 4, 3), (2, 3, 5)),
    "addbmm": of(
        lambda x, y, z: torch.addbmm(x, y, z) + torch.addmv(x[:, 0], y[0], z[0, :, 0]).sum(),
        (4, 5),
        (2, 4, 3),
        (2, 3, 5),
    ),
    "addr": of(torch.addr, (4, 5), (4,), (5,)),
    "einsum": of(lambda x, y: torch.einsum("bij,bjk->bik", x, y), (2, 3, 4), (2, 4, 5)),
    "einsum.diagonal": of(
        lambda x, y: torch.einsum("bii,j->bj", x, y) + torch.einsum("bii->bi", x).sum(), (2, 4, 4), (5,)
    ),
    "einsum.dots": of(lambda x, y: torch.einsum("...ij,...kj->...ik", x, y), (2, 3, 4), (2, 5, 4)),
    "einsum.outer": of(lambda x, y, z: torch.einsum("a,bc,c->ab", x, y, z), (2,), (3, 4), (4,)),
    "tensordot": of(lambda x, y: torch.tensordot(x, y, dims=([0, 1], [1, 0])), (2, 3, 4), (3, 2, 5)),
    "kron": of(torch.kron, (2, 3), (3, 2)),
    "cross": of(torch.linalg.cross, (4, 3), (4, 3)),
    "cdist": of(torch.cdist, (2, 4, 3), (2, 5, 3)),
    "pdist": of(F.pdist, (5, 3)),
    "trace": of(lambda x: torch.trace(x) + x.diagonal() + torch.diag(x) + torch.diag_embed(x).sum(0), SQUARE),
    "tril": of(lambda x: torch.tril(x, 1) + torch.triu(x, -1), SQUARE),
    "matrix_power": of(lambda x: torch.linalg.matrix_power(x, 3), SQUARE),
    "matrix_exp": of(lambda x: torch.matrix_exp(x), SQUARE),
    "chain": of(lambda x, y, z: torch.linalg.multi_dot([x, y, z]), (3, 4), (4, 2), (2, 5)),
    "det": regular(torch.det),
    "slogdet": regular(lambda x: torch.slogdet(x)[1]),
    "logdet": regular(lambda x: torch.logdet(x @ x.mT)),
    "inverse": regular(torch.inverse),
    "inv_ex": regular(lambda x: torch.linalg.inv_ex(x)[0]),
    "solve": regular(torch.linalg.solve, (2, 4, 3)),
    "solve.vector": regular(torch.linalg.solve, (2, 4)),
    "cholesky": regular(lambda x: torch.linalg.cholesky(_spd(x))),
    "cholesky_solve": regular(lambda x, y: torch.cholesky_solve(y, torch.linalg.cholesky(_spd(x))), (2, 4, 3)),
    "cholesky_inverse": regular(lambda x: torch.cholesky_inverse(torch.linalg.cholesky(_spd(x)))),
    "triangular": regular(lambda x, y: torch.linalg.solve_triangular(x, y, upper=True), (2, 4, 3)),
    "triangular.left": regular(
        lambda x, y: torch.linalg.solve_triangular(x.mT, y, upper=False, left=False, unitriangular=True), (2, 3, 4)
    ),
    "qr": regular(lambda x: torch.linalg.qr(x)),
    "eigh": regular(lambda x: torch.linalg.eigh(_spd(x))[0]),
    "eigvalsh": regular(lambda x: torch.linalg.eigvalsh(_spd(x))),
    "svdvals": regular(lambda x: torch.linalg.svdvals(x)),
    "svd": regular(lambda x: torch.linalg.svd(x)[1]),
    "pinv": regular(lambda x: torch.linalg.pinv(x)),
    "lstsq": regular(lambda x, y: torch.linalg.lstsq(x, y)[0], (2, 4, 3)),
    "nuclear": regular(lambda x: torch.linalg.matrix_norm(x, "nuc")),
    "spectral": regular(lambda x: torch.linalg.matrix_norm(x, 2)),
    "householder": of(lambda x, y: torch.linalg.householder_product(x, y), (4, 3), (3,)),
}

SHAPES: dict[str, Case] = {
    "views": of(lambda x: x.view(2, 10).t().reshape(5, 4).unflatten(0, (5, 1)).squeeze(1).unsqueeze(0), ROW),
    "moves": of(lambda x: x.movedim(0, 2).swapaxes(0, 1).permute(2, 0, 1).transpose(0, 1), (2, 3, 4)),
    "parts": of(
        lambda x: [*x.chunk(3, 1), *x.split([1, 3], 0), *x.unbind(1), *x.tensor_split(2), *torch.hsplit(x, [2])], ROW
    ),
    "joins": of(
        lambda x, y: [torch.cat([x, y]), torch.stack([x, y], 1), torch.hstack([x, y]), torch.dstack([x, y])], ROW, ROW
    ),
    "repeats": of(
        lambda x: [x.repeat(2, 3), x.repeat_interleave(2, 1), torch.tile(x, (2, 1)), x[:1].expand(3, 5)], ROW
    ),
    "repeat_each": of(lambda x: x.repeat_interleave(torch.tensor([1, 3, 0, 2]), 0, output_size=6), ROW),
    "rolls": of(
        lambda x: [x.roll(2, 1), x.roll((1, 2), (0, 1)), x.flip(0), torch.rot90(x), x.fliplr(), x.roll(3)], ROW
    ),
    "unfold.tensor": of(lambda x: x.unfold(1, 3, 2), (2, 9)),
    "unfold.images": of(lambda x: F.unfold(x, 3, dilation=2, padding=2), (2, 3, 6, 5)),
    "fold.images": of(lambda x: F.fold(x, (4, 5), 2, padding=1), (2, 12, 30)),
    "as_strided": of(lambda x: torch.as_strided(x, (3, 3), (5, 2), 1), ROW),
    "pads": of(
        lambda x: [F.pad(x, (1, -1, 2, 0), value=2.0), F.pad(x, (1, 2), "circular"), F.pad(x, (1, 2), "reflect")],
        (2, 3, 5),
    ),
    "combinations": of(
        lambda x: [torch.combinations(x), torch.cartesian_prod(x, x), *torch.meshgrid(x, x, indexing="ij")], (4,)
    ),
    "block_diag": of(lambda x, y: torch.block_diag(x, y), (2, 3), (3, 2)),
    "writes": of(_written, ROW, (4, 2)),
    "slices": of(
        lambda x, y: [x.slice_scatter(y, 1, 1, 3), x.select_scatter(y[:, 0], 1, 2), x[..., ::2], x[:, -1]], ROW, (4, 2)
    ),
    "diagonals": of(lambda x, y: [torch.diagonal_scatter(x, y), x.diagonal(1)], SQUARE, (4,)),
}

INDICES: dict[str, Case] = {
    "index": of(
        lambda x: [
            x[torch.tensor([0, 2, 2])],
            x[:, torch.tensor([1, 1])],
            x[torch.tensor([0, 1]), torch.tensor([2, -1])],
        ],
        ROW,
    ),
    "index.mixed": of(
        lambda x: [x[:, torch.tensor([0, 1]), :, torch.tensor([1, 1])], x[None, ..., torch.tensor([1])]], (2, 3, 2, 4)
    ),
    "gather": of(lambda x: x.gather(0, _I) + torch.take_along_dim(x, _I, 0), (4, 5)),
    "take": of(lambda x: torch.take(x, _I) + x.index_select(1, torch.tensor([0, 0, 3, 3, 1]))[:2], (4, 5)),
    "put": of(lambda x, y: x.put(_I[:, :2], y, accumulate=True), ROW, (2, 2)),
    "scatter": of(
        lambda x, y: [x.scatter(0, _I[:1], y[:1]), x.scatter_add(0, _I, y), x.scatter(0, _I[:1], 1.5)], ROW, (2, 5)
    ),
    **{
        f"scatter_reduce.{kind}": of(
            lambda x, y, k=kind: [x.scatter_reduce(0, _I, y, k), x.scatter_reduce(0, _I, y, k, include_self=False)],  # type: ignore[misc]
            ROW,
            (2, 5),
        )
        for kind in ("sum", "prod", "mean", "amax", "amin")
    },
    **{
        f"index_reduce.{kind}": of(
            lambda x, y, k=kind: [  # type: ignore[misc]
                x.index_reduce(0, torch.tensor([1, 0, 1]), y, k, include_self=keep) for keep in (True, False)
            ],
            ROW,
            (3, 5),
        )
        for kind in ("prod", "mean", "amax", "amin")
    },
    "index_add": of(lambda x, y: x.index_add(0, torch.tensor([1, 0, 1]), y, alpha=2), ROW, (3, 5)),
    "index_copy": of(
        lambda x, y: [x.index_copy(0, torch.tensor([1, 0, 3]), y), x.index_fill(1, torch.tensor([1, 3]), 2.0)],
        ROW,
        (3, 5),
    ),
    "index_put": of(lambda x, y: x.index_put((torch.tensor([1, 1, 0]),), y, accumulate=True), ROW, (3, 5)),
    "embedding": (
        lambda w, i: [F.embedding(i, w, padding_idx=0), F.one_hot(i, 6).to(w.dtype) @ w, w[i]],
        lambda: (floats(6, 3), labels(2, 3, classes=6)),
    ),
    "searchsorted": of(lambda x, y: y * torch.searchsorted(x.sort(1).values.detach(), y.detach()), ROW, (4, 3)),
    "bucketize": of(lambda x: x * torch.bucketize(x.detach(), torch.tensor([-1.0, 0.0, 1.0], dtype=x.dtype)), ROW),
    "segment": (
        lambda x, i: torch.segment_reduce(x, "mean", lengths=i),
        lambda: (floats(6, 3), torch.tensor([2, 3, 1])),
    ),
}

IMAGES: dict[str, Case] = {
    **{
        f"grid_sample.{mode}.{border}.{align}": of(
            lambda x, g, m=mode, b=border, a=align: F.grid_sample(x, g * 0.7, m, b, a),  # type: ignore[misc]
            (2, 3, 5, 6),
            (2, 4, 3, 2),
        )
        for mode in ("bilinear", "nearest", "bicubic")
        for border in ("zeros", "border", "reflection")
        for align in (False, True)
    },
    "grid_sample.volume": of(
        lambda x, g: F.grid_sample(x, g * 0.7, align_corners=False), (2, 2, 4, 5, 6), (2, 3, 2, 2, 3)
    ),
    "affine_grid": of(lambda t: F.affine_grid(t, [2, 1, 3, 4], align_corners=False), (2, 2, 3)),
    **{
        f"interpolate.{mode}.{i}": of(
            lambda x, m=mode, how=how: F.interpolate(x, mode=m, **how),  # type: ignore[misc]
            (2, 3, 7, 6),
        )
        for mode in ("bilinear", "bicubic")
        for i, how in enumerate(
            (
                {"size": (3, 9), "antialias": True},
                {"scale_factor": 0.4, "antialias": True},
                {"scale_factor": 0.6, "align_corners": True},
            )
        )
    },
    "interpolate.area": of(lambda x: F.interpolate(x, size=(3, 4), mode="area"), (2, 3, 7, 6)),
    "interpolate.nearest-exact": of(lambda x: F.interpolate(x, size=(3, 9), mode="nearest-exact"), (2, 3, 7, 6)),
    "interpolate.linear": of(lambda x: F.interpolate(x, scale_factor=1.7, mode="linear"), (2, 3, 7)),
    "lp_pool3": of(lambda x: F.lp_pool2d(x.abs() + 0.1, 3.0, 2, ceil_mode=True), (2, 3, 5, 6)),
    "conv.dilated": of(
        lambda x, w: F.conv2d(x, w, stride=(2, 1), padding=(2, 1), dilation=(2, 3), groups=2),
        (2, 4, 9, 8),
        (6, 2, 3, 2),
    ),
    "conv_transpose.groups": of(
        lambda x, w: F.conv_transpose2d(x, w, stride=2, padding=1, groups=2, dilation=2), (2, 4, 5, 4), (4, 3, 3, 2)
    ),
    "conv_tbc": of(lambda x, w, b: torch.conv_tbc(x, w, b, 1), (5, 2, 3), (3, 3, 4), (4,)),
    "fractional": (
        lambda x, s: F.fractional_max_pool2d(x, 2, output_size=(4, 3), _random_samples=s.detach()),
        lambda: (floats(2, 3, 7, 6), chances(2, 3, 2)),
    ),
    "fractional.volume": (
        lambda x, s: F.fractional_max_pool3d(x, 2, output_size=(3, 3, 2), _random_samples=s.detach()),
        lambda: (floats(2, 3, 5, 6, 4), chances(2, 3, 3)),
    ),
}

COMPLEX: dict[str, Case] = {
    "rotary": of(_turned, (2, 3, 8), (3, 4)),
    "products": of(
        lambda x, y: (z := torch.complex(x, y), torch.view_as_real(z * z.conj() + z / (z + 3) - z.exp()))[1], ROW, ROW
    ),
    "parts.complex": of(lambda x, y: (z := torch.complex(x, y), [z.real, z.imag, z.abs(), z.angle()])[1], ROW, ROW),
    "matmul.complex": of(lambda x, y: torch.view_as_real(torch.complex(x, y) @ torch.complex(y, x).mH), ROW, ROW),
    "rfft": of(lambda x: torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(x.flip(1)), 6), (3, 6)),
    "fft": of(lambda x: torch.fft.fft(x).abs() + torch.fft.fft2(x).real + torch.fft.ifft(x).imag, (3, 6)),
    "stft": of(
        lambda x: torch.stft(x, 8, 4, window=torch.hann_window(8, dtype=x.dtype), return_complex=True).abs(), (2, 32)
    ),
}

ATTENTION: dict[str, Case] = {
    "sdpa": of(F.scaled_dot_product_attention, (2, 2, 4, 3), (2, 2, 5, 3), (2, 2, 5, 3)),
    "sdpa.causal": of(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3), *[(2, 2, 4, 3)] * 3
    ),
    "sdpa.mask": of(lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m), *[(2, 2, 4, 3)] * 3, (4, 4)),
    "sdpa.bools": of(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, torch.ones(4, 4).tril().bool()), *[(2, 2, 4, 3)] * 3
    ),
    "rms_norm": of(lambda x, w: F.rms_norm(x, (5,), w, 1e-5) + F.layer_norm(x, (5,), w), ROW, (5,)),
    "checkpoint": of(
        lambda x, y: torch.utils.checkpoint.checkpoint(lambda a, b: torch.tanh(a @ b.t()), x, y, use_reentrant=False),
        ROW,
        ROW,
    ),
    "vmap": of(lambda x, y: torch.vmap(lambda a, b: torch.tanh(a) * b)(x, y), ROW, ROW),
    "jacobian": of(lambda x: torch.func.jacrev(lambda a: torch.sin(a) * a.sum())(x), (4,)),
    "hessian": of(lambda x: torch.func.hessian(lambda a: (torch.sin(a) * a.sum()).sum())(x), (4,)),
}

CASES = {**ELEMENTWISE, **REDUCTIONS, **MATRICES, **SHAPES, **INDICES, **IMAGES, **COMPLEX, **ATTENTION}

UNSUPPORTED = {
    *("i0", "i0e", "i1", "log_ndtr", "mode", "nanmedian", "cov", "pdist", "matrix_exp", "qr", "eigh", "eigvalsh"),
    *("svdvals", "svd", "pinv", "lstsq", "nuclear", "spectral", "householder", "combinations", "segment", "conv_tbc"),
    *("rfft", "fft", "stft", "products", "parts.complex", "matmul.complex", "rotary"),
    *("interpolate.bilinear.0", "interpolate.bilinear.1", "interpolate.bicubic.0", "interpolate.bicubic.1"),
}
"""Functions that are refused with a CaptureError that names the line."""
