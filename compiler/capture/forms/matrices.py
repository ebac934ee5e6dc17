"""Determinants and linear systems, whose gradients torch derives from a factorization: here from the inverse."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from pfvm.compiler.capture.backward.matrices import eliminated

Tensor = torch.Tensor


class _Slogdet(NamedTuple):
    sign: Tensor
    logabsdet: Tensor


def solve(a: Tensor, b: Tensor, *, left: bool = True, **_: Any) -> Tensor:
    """a⁻¹ b, or b a⁻¹; `b` may be a vector (a batch of them where it has one dimension less than `a`)."""
    if not left:
        return solve(a.mT, b.mT).mT
    is_vector = b.dim() == 1 or (b.dim() == a.dim() - 1 and b.shape == a.shape[:-1])
    x = torch.linalg.inv_ex(a).inverse @ (b.unsqueeze(-1) if is_vector else b)
    return x.squeeze(-1) if is_vector else x


def det(a: Tensor) -> Tensor:
    """By elimination, differentiated as it stands."""
    return eliminated(a, a[..., :0])[1]


def slogdet(a: Tensor) -> Any:
    """(sign, log of the absolute value)."""
    value = det(a)
    return _Slogdet(torch.sign(value).detach(), torch.log(value.abs()))


def logdet(a: Tensor) -> Tensor:
    """NaN for a negative determinant."""
    return torch.log(det(a))


FORMS: dict[Any, Any] = {
    **dict.fromkeys((torch.linalg.solve,), solve),
    **dict.fromkeys((torch.det, torch.linalg.det, torch.Tensor.det), det),
    **dict.fromkeys((torch.slogdet, torch.linalg.slogdet, torch.Tensor.slogdet), slogdet),
    **dict.fromkeys((torch.logdet, torch.Tensor.logdet), logdet),
}
