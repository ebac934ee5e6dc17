"""Elementwise operators on arrays of float64, int64, uint64 or bool: each takes the attributes and gives a function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
Function = Callable[..., Any]
Attributes = Callable[[str, Any], Any]  # (name, default) → value


def quotient(a: Array, b: Array) -> Any:
    """Integers truncate towards zero; a zero divisor gives 0 there, as padding must not stop a program."""
    if a.dtype.kind == "f":
        return np.divide(a, b)
    safe = np.where(b == 0, 1, b)
    result = a // safe + ((a % safe != 0) & ((a < 0) != (safe < 0)))  # the floor, or one more
    return np.where(b == 0, 0, result)


def _modulo(attribute: Attributes) -> Function:
    function = np.fmod if attribute("fmod", 0) else np.mod
    return lambda a, b: function(a, b if a.dtype.kind == "f" else np.where(b == 0, 1, b))


def _sigmoid(x: Array) -> Array:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def _softplus(x: Array) -> Array:
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


_ERF = np.frompyfunc(math.erf, 1, 1)


def _erf(x: Array) -> Array:
    return np.asarray(_ERF(x), dtype=np.float64)


def _gelu(attribute: Attributes) -> Function:
    if attribute("approximate", "none") == "tanh":
        return lambda x: 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))
    return lambda x: 0.5 * x * (1.0 + _erf(x * math.sqrt(0.5)))


def _clip(x: Array, low: Array | None = None, high: Array | None = None) -> Array:
    x = x if low is None else np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def _fold(function: Function) -> Function:
    def apply(first: Array, *others: Array) -> Array:
        for other in others:
            first = function(first, other)
        return first

    return apply


def _mean(*values: Array) -> Array:
    return _fold(np.add)(*values) / len(values)


def _leaky(attribute: Attributes) -> Function:
    alpha = attribute("alpha", 0.01)
    return lambda x: np.where(x < 0, alpha * x, x)


def _elu(attribute: Attributes) -> Function:
    alpha = attribute("alpha", 1.0)
    return lambda x: np.where(x < 0, alpha * np.expm1(np.minimum(x, 0.0)), x)


def _selu(attribute: Attributes) -> Function:
    alpha, gamma = attribute("alpha", 1.67326319217681884765625), attribute("gamma", 1.05070102214813232421875)
    return lambda x: gamma * np.where(x <= 0, alpha * np.expm1(np.minimum(x, 0.0)), x)


def _hard_sigmoid(attribute: Attributes) -> Function:
    alpha, beta = attribute("alpha", 0.2), attribute("beta", 0.5)
    return lambda x: np.clip(alpha * x + beta, 0.0, 1.0)


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind == "f":
        return np.power(a, b.astype(np.float64))
    if b.dtype.kind == "f":
        return np.power(a.astype(np.float64), b).astype(a.dtype)
    whole = np.power(a, np.where(b < 0, b & 1, b).astype(a.dtype))
    return np.where((b < 0) & (np.abs(a) != 1), 0, whole)  # of fractions only 1 and -1 are whole


def _is_infinite(attribute: Attributes) -> Function:
    positive, negative = attribute("detect_positive", 1), attribute("detect_negative", 1)
    return lambda x: (np.isposinf(x) & bool(positive)) | (np.isneginf(x) & bool(negative))


def _shift(attribute: Attributes) -> Function:
    return np.left_shift if attribute("direction", "LEFT") == "LEFT" else np.right_shift


def _always(function: Function) -> Callable[[Attributes], Function]:
    return lambda attribute: function


_PLAIN: dict[str, Function] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": quotient,
    "Neg": np.negative,
    "Abs": np.abs,
    "Sign": np.sign,
    "Relu": lambda x: np.maximum(x, 0),
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "Reciprocal": np.reciprocal,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Round": np.rint,
    "Sin": np.sin,
    "Cos": np.cos,
    "Tan": np.tan,
    "Asin": np.arcsin,
    "Acos": np.arccos,
    "Atan": np.arctan,
    "Sinh": np.sinh,
    "Cosh": np.cosh,
    "Tanh": np.tanh,
    "Asinh": np.arcsinh,
    "Acosh": np.arccosh,
    "Atanh": np.arctanh,
    "Sigmoid": _sigmoid,
    "Softplus": _softplus,
    "Softsign": lambda x: x / (1.0 + np.abs(x)),
    "Erf": _erf,
    "Mish": lambda x: x * np.tanh(_softplus(x)),
    "HardSwish": lambda x: x * np.clip(x / 6.0 + 0.5, 0.0, 1.0),
    "Pow": _power,
    "PRelu": lambda x, slope: np.where(x < 0, slope * x, x),
    "Min": _fold(np.minimum),
    "Max": _fold(np.maximum),
    "Sum": _fold(np.add),
    "Mean": _mean,
    "Equal": np.equal,
    "Less": np.less,
    "Greater": np.greater,
    "LessOrEqual": np.less_equal,
    "GreaterOrEqual": np.greater_equal,
    "Not": np.logical_not,
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "BitwiseAnd": np.bitwise_and,
    "BitwiseOr": np.bitwise_or,
    "BitwiseXor": np.bitwise_xor,
    "BitwiseNot": np.bitwise_not,
    "Where": np.where,
    "IsNaN": np.isnan,
    "Identity": lambda x: x,
}

ELEMENTWISE: dict[str, Callable[[Attributes], Function]] = {
    **{name: _always(function) for name, function in _PLAIN.items()},
    "Mod": _modulo,
    "Gelu": _gelu,
    "LeakyRelu": _leaky,
    "Elu": _elu,
    "Celu": lambda attribute: (
        lambda x: np.maximum(x, 0.0) + np.minimum(0.0, attribute("alpha", 1.0) * np.expm1(x / attribute("alpha", 1.0)))
    ),
    "Selu": _selu,
    "HardSigmoid": _hard_sigmoid,
    "ThresholdedRelu": lambda attribute: lambda x: np.where(x > attribute("alpha", 1.0), x, 0.0),
    "IsInf": _is_infinite,
    "BitShift": _shift,
    "Swish": lambda attribute: lambda x: x * _sigmoid(attribute("alpha", 1.0) * x),
}


def clip(low: float | None, high: float | None, from_inputs: bool) -> Function:
    """Clip, whose bounds are attributes before opset 11."""
    if from_inputs:
        return _clip
    bounds = [None if bound is None else np.array(bound, np.float64) for bound in (low, high)]
    return lambda x: _clip(x, *bounds)
