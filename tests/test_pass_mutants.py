"""Promise: `--verify` notices a broken rule, on the graph that its pass is tested with.

`python tests/pass_mutants.py` tries every mistake in every pass, in every setting; here are some of each pass.
"""

from __future__ import annotations

import collections

import pytest
from near_misses import NEAR
from pass_mutants import Apart, mutants, source_of
from test_every_pass import EXAMPLES

_OF_EACH = 20


def test_mistakes_are_made_everywhere() -> None:
    source = """
def rule(node, rw):
    if node.op_type != "Sub" and node.name:
        return rw.reject("rule", "why")
    new = rw.op("Sub", node.inputs[0], node.inputs[1], at=node, axis=-1)
    return True
"""
    kinds = collections.Counter(mutant.kind for mutant in mutants(source))
    assert kinds == {
        "guard left out": 1, "and for or": 1, "comparison turned": 1, "number one too large": 3, "sign lost": 1,
        "operands swapped": 1, "attribute forgotten": 1,
    }  # fmt: skip
    assert all(mutant.source != source for mutant in mutants(source))
    assert set(NEAR) <= set(EXAMPLES)


@pytest.mark.slow
def test_verify_notices_broken_rules() -> None:
    counts: collections.Counter[str] = collections.Counter()
    missed, passes_caught = [], set()
    apart = Apart(with_settings=False)
    for name in EXAMPLES:
        all_of_it = mutants(source_of(name))
        for mutant in all_of_it[:: max(1, len(all_of_it) // _OF_EACH)]:
            outcome = apart.judge(mutant.source, name)
            counts[outcome.partition(":")[0]] += 1
            if outcome.startswith("missed"):
                missed.append(f"{name}:{mutant.line}: {mutant.kind}: {mutant.text}: {outcome}")
            elif outcome == "caught":
                passes_caught.add(name)
    apart.close()
    assert missed == []
    assert counts["caught"] >= 30 and len(passes_caught) >= 12, counts
