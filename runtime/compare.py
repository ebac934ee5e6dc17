"""When two results are equal: integers, bools and strings exactly, floats within a tolerance that is always stated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from pfvm.errors import OptionError


@dataclass(frozen=True)
class Tolerance:
    """Floats agree when |a - b| ≤ atol · max(1, max|a|) + rtol · |a|, with a the reference. NaN agrees with NaN.

    The scale max|a| keeps the order of summation from counting as a difference. rtol is at least two units in the last
    place of the element type, which only matters below float32. Raises OptionError for a negative one.
    """

    rtol: float = 1e-3
    atol: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            if not getattr(self, name) >= 0:  # NaN, too
                raise OptionError(f"--{name} must be 0 or more, not {getattr(self, name)}")

    def rtol_of(self, dtype: np.dtype) -> float:
        return max(self.rtol, 2 * float(ml_dtypes.finfo(dtype).eps))

    def __str__(self) -> str:
        return f"|a-b| <= {self.atol:g}*max(1, max|a|) + {self.rtol:g}*|a|; integers, bools and strings exactly"


class Difference(NamedTuple):
    """The worst place where two values differ."""

    name: str
    reason: str  # one line, starting lower case
    error: float = 0.0  # |a - b| there, in units of what was allowed; 0 where the values cannot be subtracted

    def __str__(self) -> str:
        return f"{self.name!r}: {self.reason}"


def difference(name: str, reference: Any, other: Any, tolerance: Tolerance) -> Difference | None:
    """None when the two agree, else where and by how much they do not."""
    if reference is None or other is None:
        return None if reference is other else Difference(name, f"{_kind(reference)} against {_kind(other)}")
    if isinstance(reference, dict) and isinstance(other, dict):
        if set(reference) != set(other):
            return Difference(name, "maps with different keys")
        pairs = [(f"{name}[{key}]", reference[key], other[key]) for key in reference]
        return _first(pairs, tolerance)
    if isinstance(reference, (list, tuple)) and isinstance(other, (list, tuple)):
        if len(reference) != len(other):
            return Difference(name, f"a sequence of {len(reference)} against one of {len(other)}")
        return _first([(f"{name}[{i}]", a, b) for i, (a, b) in enumerate(zip(reference, other))], tolerance)
    if isinstance(reference, (list, tuple, dict)) or isinstance(other, (list, tuple, dict)):
        return Difference(name, f"{_kind(reference)} against {_kind(other)}")
    return _tensors(name, np.asarray(reference), np.asarray(other), tolerance)


def scaled_error(reference: Any, other: Any) -> float:
    """Largest |a - b| / max(1, max|a|) over all floats of two results with the same structure (for reports)."""
    if isinstance(reference, (list, tuple)):
        return max((scaled_error(a, b) for a, b in zip(reference, other)), default=0.0)
    if reference is None or isinstance(reference, dict) or not _is_float(np.asarray(reference).dtype):
        return 0.0
    a, b = _wide(np.asarray(reference)), _wide(np.asarray(other))
    finite = np.isfinite(a) & np.isfinite(b)
    if not finite.any():
        return 0.0
    return float(np.abs(a[finite] - b[finite]).max() / max(1.0, np.abs(a[finite]).max()))


def is_finite(value: Any) -> bool:
    """Whether no float in a result, or in the sequence that it is, is infinite or no number."""
    if isinstance(value, (list, tuple)):
        return all(is_finite(each) for each in value)
    if value is None or isinstance(value, dict) or not _is_float(np.asarray(value).dtype):
        return True
    return bool(np.isfinite(_wide(np.asarray(value))).all())


def _first(pairs: list[tuple[str, Any, Any]], tolerance: Tolerance) -> Difference | None:
    return next((d for d in (difference(name, a, b, tolerance) for name, a, b in pairs) if d is not None), None)


def _kind(value: Any) -> str:
    if value is None:
        return "an absent optional"
    if isinstance(value, (list, tuple)):
        return "a sequence"
    return "a map" if isinstance(value, dict) else "a tensor"


def _is_text(dtype: np.dtype) -> bool:
    return dtype.kind in "OUST"


def _is_float(dtype: np.dtype) -> bool:
    """True for real and complex floats, those of ml_dtypes included (whose `kind` says little)."""
    if dtype.kind in "fc":
        return True
    return dtype.isbuiltin == 2 and "int" not in dtype.name


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if array.dtype.kind == "c" else np.float64)


def _tensors(name: str, a: np.ndarray, b: np.ndarray, tolerance: Tolerance) -> Difference | None:
    if _is_text(a.dtype) and _is_text(b.dtype):
        a, b = _text(a), _text(b)
    elif a.dtype != b.dtype:
        return Difference(name, f"dtype {a.dtype.name} against {b.dtype.name}")
    if a.shape != b.shape:
        return Difference(name, f"shape {list(a.shape)} against {list(b.shape)}")
    if a.size == 0:
        return None
    if not _is_float(a.dtype):
        wrong = a != b
        return _report(name, a, b, wrong, wrong.astype(np.float64)) if wrong.any() else None
    return _floats(name, a, b, tolerance)


def _text(array: np.ndarray) -> np.ndarray:
    words = [w.decode("utf-8", "replace") if isinstance(w, bytes) else str(w) for w in array.reshape(-1).tolist()]
    return np.array(words, dtype=object).reshape(array.shape)


def _floats(name: str, a: np.ndarray, b: np.ndarray, tolerance: Tolerance) -> Difference | None:
    x, y = _wide(a), _wide(b)
    same = (x == y) | (np.isnan(x) & np.isnan(y))  # equal infinities are the same, too
    comparable = np.isfinite(x) & np.isfinite(y)
    scale = max(1.0, float(np.abs(x[np.isfinite(x)]).max(initial=0.0)))
    with np.errstate(invalid="ignore", over="ignore"):
        allowed = tolerance.atol * scale + tolerance.rtol_of(a.dtype) * np.abs(x)
        excess = np.where(comparable, np.abs(x - y) / np.maximum(allowed, np.finfo(np.float64).tiny), np.inf)
    excess = np.where(same, 0.0, excess)
    wrong = excess > 1.0
    return _report(name, a, b, wrong, excess) if wrong.any() else None


def _report(name: str, a: np.ndarray, b: np.ndarray, wrong: np.ndarray, excess: np.ndarray) -> Difference:
    worst = np.unravel_index(int(np.argmax(excess)), a.shape)
    index = "[" + ", ".join(str(int(i)) for i in worst) + "]"
    expected, actual = a[worst], b[worst]
    reason = f"{int(wrong.sum())} of {a.size} elements differ, worst at {index}: {expected} against {actual}"
    if _is_float(a.dtype):
        reason += (
            f", error {abs(_wide(a)[worst] - _wide(b)[worst]):.3g}, {float(excess[worst]):.3g} times the tolerance"
        )
    return Difference(name, reason, float(excess[worst]))
