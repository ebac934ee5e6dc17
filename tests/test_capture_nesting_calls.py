"""Arguments and results are taken apart and put together as pytree does it; other nestings are left to others."""

from __future__ import annotations

import collections
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torch.utils._pytree as pytree  # noqa: E402
from pfvm.compiler.capture.nesting_calls import flattener, packer  # noqa: E402

Pair = collections.namedtuple("Pair", "a b")
NESTINGS = {
    "leaf": 1,
    "arguments": (1, {"x": 2, "y": [3, (4, 5)]}, []),
    "keys": {2: 1, "b": 2, ("a", 1): {"c": 3}},
    "named": (1, Pair(2, {"x": 3})),
    "ordered": collections.OrderedDict(b=1, a=[2]),
}


@pytest.mark.parametrize("nesting", NESTINGS.values(), ids=list(NESTINGS))
def test_as_pytree(nesting: Any) -> None:
    leaves, spec = pytree.tree_flatten(nesting)
    built = packer(spec)(leaves)
    assert built == nesting and type(built) is type(nesting)
    found: list[Any] = []
    if flattener(spec)(nesting, found):
        assert found == leaves
    else:
        assert "named" in str(spec) or "Ordered" in str(spec)


@pytest.mark.parametrize(
    "other",
    [((1, 2),), ({"x": 1},), ({"x": 1, "z": 2},), ({"x": 1, "y": 2, "z": 3},), ({"x": 1, "y": [2]},), (), [{}]],
    ids=repr,
)
def test_another_nesting_is_noticed(other: Any) -> None:
    spec = pytree.tree_structure(({"x": 1, "y": 2},))
    assert not flattener(spec)(other, [])
    assert flattener(spec)(({"y": 1, "x": 2},), [])
