"""Promise: the evaluation step of examples/mnist.py runs on the emulator at any batch, as its dtypes say."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
from emulator_plans import emulated, feeds_for  # noqa: E402
from pfvm.compiler.plan.planner import plan  # noqa: E402
from pfvm.runtime.emulator.reference import Reference  # noqa: E402
from pfvm.tools.four_way import relative_l2  # noqa: E402

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("batch", [64, 125, 250])
@pytest.mark.parametrize("exact", [False, True], ids=["rounded", "exact"])
def test_the_evaluation_step(monkeypatch: pytest.MonkeyPatch, batch: int, exact: bool) -> None:
    """Bit for bit the reference on plain tensors; without rounding PyTorch in float64 to 1e-5, and its count."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import mnist_data
    import mnist_infer

    torch.manual_seed(0)
    net = mnist_data.Mlp()
    count = mnist_infer.make_eval_step(net)

    def eval_step(inp):
        return {**count(inp), "y": net.classify(inp["x"])}

    sample = {"x": torch.zeros(batch, 1, 32, 32), "t": torch.zeros(batch, dtype=torch.int64)}
    model = pfvm.compile(eval_step, sample).model
    planned = plan(model, {})
    feeds = feeds_for(model)
    got = emulated(planned, feeds, exact)
    for name, value in Reference(planned.model, planned.machine, exact)(feeds).items():
        assert np.array_equal(got[name], value), name
    if exact:
        expected = net.double().classify(torch.from_numpy(feeds["x"]).double())
        assert relative_l2(expected.detach().numpy(), got["y"]) <= 1e-5
        assert int(got["correct"]) == int((expected.max(1)[1].numpy() == feeds["t"]).sum())
