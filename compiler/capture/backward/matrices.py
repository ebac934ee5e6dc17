"""Solving, determinants and Cholesky's factor of small matrices, a row at a time: what ONNX has no operator for."""

from __future__ import annotations

from typing import Any

import torch
from pfvm.errors import CaptureError

aten = torch.ops.aten
Tensor = torch.Tensor
_LARGEST = 64  # the graph grows with the rows, a dozen nodes each


def _size(a: Tensor) -> int:
    size = a.shape[-1]
    if size > _LARGEST:
        from pfvm.compiler.capture.source import here

        raise CaptureError(
            f"{here()}: a {size}×{size} matrix is solved or factored; up to {_LARGEST} rows are captured. Do this "
            "outside the compiled function, or build it from products"
        )
    return int(size)


def _row(x: Tensor, k: int) -> Tensor:
    return x[..., k : k + 1, :]


def eliminated(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """(a⁻¹ b, determinant) by Gauss and Jordan's elimination with the largest pivot of each column."""
    size = _size(a)
    rows = torch.arange(size).unsqueeze(-1)
    work = torch.cat([a, b], -1)
    determinant = torch.ones_like(a[..., 0, 0])
    for k in range(size):
        column = work[..., k : k + 1].abs()
        pivot = torch.where(rows >= k, column, -1.0).argmax(-2, keepdim=True)
        chosen = work.gather(-2, pivot.expand([*work.shape[:-2], 1, work.shape[-1]]))
        swapped = torch.where(rows == pivot, _row(work, k), work)
        head = chosen[..., k : k + 1]
        determinant = determinant * torch.where(pivot == k, head, -head)[..., 0, 0]
        scaled = chosen / head
        work = torch.where(rows == k, scaled, swapped - swapped[..., k : k + 1] * scaled)
    return work[..., size:], determinant


def solve(a: Tensor, b: Tensor) -> Tensor:
    """a⁻¹ b of batches of matrices."""
    return eliminated(a, b.expand([*a.shape[:-2], *b.shape[-2:]]))[0]


def _identity(a: Tensor) -> Tensor:
    return torch.eye(a.shape[-1], dtype=a.dtype).expand(a.shape)


def _info(a: Tensor) -> Tensor:
    return torch.zeros(a.shape[:-2], dtype=torch.int32)


def inverse(a: Tensor, *, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """(a⁻¹, no error)."""
    return solve(a, _identity(a)), _info(a)


def cholesky(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> tuple[Tensor, Tensor]:
    """(the factor, no error): a column at a time, of the lower triangle. NaN where a is not positive definite."""
    size = _size(a)
    a = a.mT if upper else a
    rows = torch.arange(size).unsqueeze(-1)
    columns: list[Tensor] = []
    for k in range(size):
        rest = a[..., k : k + 1]
        if columns:
            known = torch.cat(columns, -1)
            rest = rest - known @ _row(known, k).mT
        columns.append(torch.where(rows >= k, rest / torch.sqrt(_row(rest, k)), 0.0))
    factor = torch.cat(columns, -1)
    return (factor.mT if upper else factor), _info(a)


def solve_triangular(a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Tensor:
    """Substitution, a row at a time."""
    if not left:
        return solve_triangular(a.mT, b.mT, upper=not upper, unitriangular=unitriangular).mT
    size = _size(a)
    lead = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = a.expand([*lead, *a.shape[-2:]]), b.expand([*lead, *b.shape[-2:]])
    found: dict[int, Tensor] = {}
    for k in range(size - 1, -1, -1) if upper else range(size):
        rest = _row(b, k)
        if found:
            first, last = min(found), max(found) + 1
            rest = rest - _row(a, k)[..., first:last] @ torch.cat([found[i] for i in range(first, last)], -2)
        found[k] = rest if unitriangular else rest / a[..., k : k + 1, k : k + 1]
    return torch.cat([found[i] for i in range(size)], -2)


def cholesky_solve(b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """(L Lᵀ)⁻¹ b."""
    lower = factor.mT if upper else factor
    half = solve_triangular(lower, b, upper=False)
    return solve_triangular(lower.mT, half, upper=True)


def cholesky_inverse(factor: Tensor, upper: bool = False) -> Tensor:
    """(L Lᵀ)⁻¹."""
    return cholesky_solve(_identity(factor), factor, upper)


DECOMPOSITIONS: dict[Any, Any] = {
    aten.linalg_inv_ex.default: inverse,
    aten.linalg_cholesky_ex.default: cholesky,
    aten.linalg_solve_triangular.default: solve_triangular,
    aten.cholesky_solve.default: cholesky_solve,
    aten.cholesky_inverse.default: cholesky_inverse,
}
