"""State that torch's optimizers will create in their first step, without a trial run to discover it.

A guess: an entry that the function does not use is no state of the graph, and a run discovers what is missing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from inspect import signature
from typing import Any

import torch

from .numbers import ReachedNumber
from .optimizers import PLAIN, new_entry
from .reach import Reach, ReachedTensor

# Optimizers whose first state is zeros (ones for a product), whatever the parameter, gradient and learning rate are.
_KNOWN = frozenset(
    {
        *(torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax),
        *(torch.optim.Adadelta, torch.optim.RMSprop, torch.optim.SGD),
    }
)


def predicted_entries(reach: Reach) -> list[ReachedTensor | ReachedNumber]:
    """An entry for every key that the reached optimizers lack."""
    names = {id(t.tensor): t.name for t in reach.tensors}
    found = []
    for name, optimizer in reach.optimizers:
        if type(optimizer) in _KNOWN:
            for parameter, key, value in _first_state(optimizer):
                owner = names.get(id(parameter), name)
                entry = new_entry(optimizer, parameter, owner, key, value, is_initial=True)
                found += [entry] if entry is not None else []
    return found


def _first_state(optimizer: Any) -> Iterator[tuple[torch.Tensor, str, torch.Tensor]]:
    """(parameter, key, first value)."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not _takes_part(parameter) or optimizer.state.get(parameter):
                continue
            if isinstance(optimizer, torch.optim.SGD):
                if group["momentum"]:
                    yield parameter, "momentum_buffer", torch.zeros_like(parameter, requires_grad=False)
                continue
            for key, value in _made_by(optimizer, group, parameter).items():
                yield parameter, key, value


def _takes_part(parameter: torch.Tensor) -> bool:
    return (
        parameter.requires_grad
        and not torch.nn.parameter.is_lazy(parameter)
        and parameter.layout is torch.strided
        and parameter.device.type == "cpu"
    )


def _made_by(optimizer: Any, group: dict[str, Any], parameter: torch.Tensor) -> dict[str, Any]:
    """What the optimizer's own code makes for a tensor like this one; nothing of the user's is touched."""
    like = torch.empty_strided(parameter.size(), parameter.stride(), dtype=parameter.dtype)
    like.grad = like.detach()
    twin = object.__new__(type(optimizer))
    vars(twin).update(vars(optimizer), state=defaultdict(dict))
    plain = {key: value for key, value in PLAIN.items() if key in group}
    lists: list[list[Any]] = [[] for _ in signature(twin._init_group).parameters][1:]
    twin._init_group({**group, **plain, "params": [like]}, *lists)
    return twin.state[like]
