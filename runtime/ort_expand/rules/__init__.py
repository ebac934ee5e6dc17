"""Rules by (domain, operator), one file per family. Each applies where ONNX Runtime has no kernel or a wrong one."""

from __future__ import annotations

from collections.abc import Mapping

from pfvm.runtime.ort_expand.node import Rule

from . import (
    attention,
    batch_norm,
    blocks,
    convolution,
    doubles,
    float4,
    integers,
    made,
    old_forms,
    recurrent,
    scans,
    spectral,
    strings,
    training,
)

_TABLES: tuple[Mapping[tuple[str, str], Rule], ...] = (
    attention.RULES,
    batch_norm.RULES,
    blocks.RULES,
    convolution.RULES,
    doubles.RULES,
    float4.RULES,
    integers.RULES,
    made.RULES,
    recurrent.RULES,
    scans.RULES,
    spectral.RULES,
    strings.RULES,
    training.RULES,
)

RULES: Mapping[tuple[str, str], tuple[Rule, ...]] = {
    key: tuple(table[key] for table in _TABLES if key in table) for table in _TABLES for key in table
}

OLD_FORMS: Mapping[tuple[str, str], tuple[Rule, ...]] = {key: (rule,) for key, rule in old_forms.RULES.items()}
"""For models of opset 1 to 6, before they are raised."""

UNSAFE: Mapping[tuple[str, str], tuple[Rule, ...]] = {
    key: (rule,) for table in (batch_norm.RULES, scans.RULES) for key, rule in table.items()
}
"""For kernels that write into their inputs or end the process, wherever they run: nodes with one of UNSAFE_MARKS."""

UNSAFE_MARKS = (batch_norm.TRAINING_MODE, scans.AXES)
"""Attributes; the default is safe, and so is 0."""

WITHOUT_AN_ERROR: frozenset[tuple[str, str]] = frozenset(
    {*attention.RULES, *blocks.RULES, *spectral.RULES, ("", "ReduceMax"), ("", "ReduceMin"), ("", "ConvInteger")}
)
"""What ONNX Runtime loads, and then computes less well or fails at. The other rules wait until it refuses a model."""
