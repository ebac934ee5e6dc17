"""Views as copies (`aten.select_copy`), which torch writes into bodies of control flow: the same nodes as the views."""

from __future__ import annotations

import torch

from .registry import TABLE

_VIEWS = (
    "alias", "as_strided", "detach", "diagonal", "expand", "permute", "select", "slice", "split", "split_with_sizes",
    "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze", "view",
)  # fmt: skip

for _name in _VIEWS:
    _view, _copy = getattr(torch.ops.aten, _name), getattr(torch.ops.aten, f"{_name}_copy")
    for _overload in set(_view.overloads()) & set(_copy.overloads()):
        if getattr(_view, _overload) in TABLE:
            TABLE[getattr(_copy, _overload)] = TABLE[getattr(_view, _overload)]
