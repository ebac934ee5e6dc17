"""One program for several chips of a topology, compiled without them: what each gets, and what they send each other."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest

pytest.importorskip("jax")
pytest.importorskip("libtpu")

import pfvm
from pfvm.errors import OptionError

pytestmark = pytest.mark.tpu
WEIGHTS = ",".join("0.5" for _ in range(64 * 32))
PRODUCT = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["" : 18]> g (float[16,64] x) => (float[16,32] y)'
    f"<float[64,32] w = {{{WEIGHTS}}}> {{ y = MatMul (x, w) }}"
)
FAST = {"effort": "fast"}


def test_training_steps_of_four_chips(tmp_path: Path) -> None:
    """The gradient is summed over all four, in each of the two steps of a call."""
    step = pfvm.grad(PRODUCT, loss="y", loss_fn="mse", optimizer="momentum")
    steps = pfvm.loop(step, 2)
    pfvm.optimize(steps, device="xla:tpu@v5e:2x2", mesh="data=4", artifacts=tmp_path, **FAST)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["machine"]["name"] == "xla:tpu@v5e:2x2 on data=4"
    assert report["topology"]["devices_used"] == 4
    found = report["collectives"]["list"]
    assert found
    assert all((c["kind"], c["groups"]) == ("all-reduce", [[0, 1, 2, 3]]) for c in found)
    assert report["collectives"]["bytes"] >= 2 * 4 * 64 * 32
    assert "all-reduce" in (tmp_path / "l3ir.txt").read_text()


def test_a_weight_split_over_two_chips(tmp_path: Path) -> None:
    """Each product is a partial sum, added up by pairs of chips."""
    spread = {"mesh": "data=2,model=2", "shard": "w=model,None"}
    pfvm.optimize(PRODUCT, device="xla:tpu@v5e:2x2", artifacts=tmp_path, **spread, **FAST)
    report = json.loads((tmp_path / "report.json").read_text())
    (only,) = report["collectives"]["list"]
    assert (only["kind"], only["bytes"], only["groups"]) == ("all-reduce", 4 * 8 * 32, [[0, 1], [2, 3]])


def test_a_mesh_larger_than_the_topology_is_named() -> None:
    with pytest.raises(OptionError, match="mesh data=4 needs 4 devices, and xla:tpu@v5e:1x1 has 1"):
        pfvm.load(PRODUCT, "xla:tpu@v5e:1x1", mesh="data=4")
