"""Ops over lists of tensors (torch._foreach_*), which optimizers and gradient clipping use: one op for each tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Tensor = torch.Tensor
_PREFIX = "_foreach_"
_AS_TENSOR_OP: dict[str, Callable[..., Any]] = {
    "norm": torch.linalg.vector_norm,
    "max": torch.amax,
    "copy": lambda x, source, non_blocking=False: source.to(x.dtype).expand(x.shape).clone(),
    "zero": torch.zeros_like,
    "maximum": torch.clamp_min,
    "minimum": torch.clamp_max,
    "powsum": lambda x, order: x.abs().pow(order).sum(),
}


def _decomposition(name: str) -> Callable[..., Any] | None:
    one = _AS_TENSOR_OP.get(name) or getattr(torch, name, None)
    if one is None:
        return None

    def each(first: Any, *args: Any, **kwargs: Any) -> list[Tensor]:
        count = len(first) if isinstance(first, (list, tuple)) else len(args[0])

        def at(argument: Any, i: int) -> Any:
            return argument[i] if isinstance(argument, (list, tuple)) else argument

        return [_call(name, one, at(first, i), [at(a, i) for a in args], kwargs, i) for i in range(count)]

    return each


def _call(name: str, one: Callable[..., Any], x: Any, args: list[Any], kwargs: dict[str, Any], i: int) -> Tensor:
    if name in ("addcmul", "addcdiv"):
        *tensors, value = [*args, kwargs.get("value", 1)][:3]
        value = kwargs.get("scalars", value)
        value = value[i] if isinstance(value, (list, tuple)) or (isinstance(value, Tensor) and value.dim()) else value
        product = tensors[0] * tensors[1] if name == "addcmul" else tensors[0] / tensors[1]
        return x + value * product
    if name == "lerp":
        weight = args[1]
        return x + weight * (args[0] - x)
    if name in ("norm", "powsum"):
        kwargs = {key: value for key, value in kwargs.items() if value is not None}
    return one(x, *args, **kwargs)


def _all() -> dict[Any, Callable[..., Any]]:
    found = {}
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = qualified.partition("::")
        name, _, overload = rest.partition(".")
        if namespace != "aten" or not name.startswith(_PREFIX) or name.endswith("_") or overload.endswith("out"):
            continue
        decomposition = _decomposition(name.removeprefix(_PREFIX))
        if decomposition is not None:
            found[getattr(getattr(torch.ops.aten, name), overload or "default")] = decomposition
    return found


DECOMPOSITIONS = _all()
