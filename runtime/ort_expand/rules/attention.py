"""Attention in the forms that ONNX Runtime's kernel computes otherwise than the operator says."""

from __future__ import annotations

from pfvm.runtime.ort_expand.functions import inline, schema_body
from pfvm.runtime.ort_expand.node import Builder, Node

_MASK, _LENGTHS = 3, 6


def _by_its_function(node: Node, b: Builder) -> list[str] | None:
    """The schema's function for what the kernel gets wrong.

    Its third kind of intermediate (scores with the bias) lacks the causal mask; with nonpad_kv_seqlen it refuses a
    mask that is shorter than the keys.
    """
    wants_scores = node.wants(3) and node.attr("qk_matmul_output_mode") in (1, 2) and node.attr("is_causal")
    padded = node.has_input(_LENGTHS) and node.has_input(_MASK)
    if not (wants_scores or padded):
        return None
    body = schema_body(node)
    return inline(node, body, b) if body is not None else None


RULES = {("", "Attention"): _by_its_function}
