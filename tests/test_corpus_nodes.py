"""Promise: on models that every peer gets right, no peer leaves fewer nodes in all.

`corpus_nodes.json` has the peers' counts, of nodes in all bodies with functions inlined and Constants left out.
"""

from __future__ import annotations

import json
import pathlib

import pfvm
import pytest
from pfvm.tools.bench.optimizers.optimizing import nodes

TABLE = json.loads(pathlib.Path(__file__).with_name("corpus_nodes.json").read_text())
CORPUS = pathlib.Path(__file__).parents[2] / "shared" / "corpus"


@pytest.mark.slow
@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus ../shared/corpus is not there")
def test_no_peer_leaves_fewer_nodes(tmp_path: pathlib.Path) -> None:
    ours: dict[str, int] = {}
    for name in TABLE["models"]:
        pfvm.optimize(str(CORPUS / name), output=str(tmp_path / "o.onnx"))
        ours[name] = nodes(tmp_path / "o.onnx")
    given, *peers = map(sum, zip(*TABLE["models"].values()))
    more = {name: (count, best) for name, count in ours.items() if count > (best := min(TABLE["models"][name][1:]))}
    print(f"{sum(ours.values())} of {given} nodes, peers {peers}; more than the best peer: {more}")
    assert sum(ours.values()) <= min(peers)
