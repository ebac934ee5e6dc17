"""The models of the shared corpus, which nobody here wrote, on xla:cpu: equal to the unoptimized original, or refused.

Equal is what `corpus_on_xla` says: the tolerance, and the two rules for what lies outside of it (rounding, shown by how
far the original itself moves; the standard's own implementation, where it and ONNX Runtime disagree).
"""

from __future__ import annotations

import collections

import pytest

pytest.importorskip("jax")

import corpus_on_xla

if not (corpus_on_xla.CORPUS / "manifest.json").exists():
    pytest.skip("needs the corpus in ../shared", allow_module_level=True)


@pytest.mark.slow
def test_no_model_is_wrong_and_nearly_all_are_equal() -> None:
    verdicts = corpus_on_xla.run_corpus()
    counts = collections.Counter(verdict["status"] for verdict in verdicts.values())
    faults = {
        path: v for path, v in verdicts.items() if v["status"] not in ("equal", "rounding", "standard", "refused")
    }
    assert not faults
    assert counts["equal"] + counts["rounding"] >= 0.97 * len(verdicts)
    # An explained difference is rare; more of them mean that something has become less accurate.
    assert counts["rounding"] <= 0.015 * len(verdicts)
    assert counts["standard"] <= 0.02 * len(verdicts)
