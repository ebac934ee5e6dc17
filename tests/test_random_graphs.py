"""Random graphs compile to valid, equal, stable models."""

from __future__ import annotations

import onnx
import pfvm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_graphs import random_model
from support import assert_same_but_for_rounding


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.integers(0, 10**9))
def test_compiled_random_graphs_are_valid_equal_and_stable(seed: int) -> None:
    model = random_model(seed)
    onnx.checker.check_model(model)
    compiled = pfvm.optimize(model)
    onnx.checker.check_model(compiled)
    assert_same_but_for_rounding(model, compiled)
    again = pfvm.optimize(compiled)
    assert again.SerializeToString(deterministic=True) == compiled.SerializeToString(deterministic=True)
