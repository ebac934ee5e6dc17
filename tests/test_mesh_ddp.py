"""A mesh over the batch trains as PyTorch's DistributedDataParallel of as many processes, on a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this PyTorch has no processes", allow_module_level=True)

import pfvm  # noqa: E402

from .ddp_program import CASES, LOSSES, OWN_WAY, batches, net, optimizer_of  # noqa: E402

pytestmark = pytest.mark.slow
PROGRAM = Path(__file__).with_name("ddp_program.py")
WORLD = 2
BOUNDS = {"float64": 1e-10, "float32": 1e-5}


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """What the processes arrived at in each case."""
    folder = tmp_path_factory.mktemp("ddp")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    arguments = [str(WORLD), str(folder / "store"), str(folder / "result.pt")]
    processes = [
        subprocess.Popen([sys.executable, str(PROGRAM), str(rank), *arguments], env=environment, stderr=subprocess.PIPE)
        for rank in range(WORLD)
    ]
    try:
        errors = [process.communicate(timeout=120)[1].decode()[-2000:] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert all(process.returncode == 0 for process in processes), errors
    return torch.load(folder / "result.pt")


def on_a_mesh(name: str, optimizer: str, kind: str, dtype: str) -> dict[str, Any]:
    """The same, as one program on as many devices."""
    loss, inputs, model = LOSSES[kind], batches(name, kind, dtype), net(name, dtype)
    steps = optimizer_of(optimizer, model)

    def step(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        steps.zero_grad()
        value = loss(model(batch["x"]), batch["t"])
        value.backward()
        gradients = {key: p.grad.clone() for key, p in model.named_parameters()}
        steps.step()
        return {"loss": value, **gradients}

    compiled = pfvm.compile(step, inputs[0], device="xla:cpu", mesh=f"data={WORLD}")
    found = [compiled(batch) for batch in inputs]
    losses = torch.stack([each.pop("loss") for each in found])
    return {"losses": losses, "gradients": found, "state": dict(model.state_dict())}


@pytest.mark.parametrize("case", CASES, ids=" ".join)
def test_gradients_parameters_and_batch_statistics(case: tuple[str, ...], ddp: dict[Any, Any]) -> None:
    found, expected, bound = on_a_mesh(*case), ddp[(*case, False)], BOUNDS[case[-1]]
    assert expected["state"].keys() == found["state"].keys()
    torch.testing.assert_close(found, expected, rtol=bound, atol=bound)


@pytest.mark.parametrize("case", OWN_WAY, ids=" ".join)
def test_processes_for_themselves_train_otherwise(case: tuple[str, ...], ddp: dict[Any, Any]) -> None:
    """What the guide says is different under DDP is so: these cases would show a mesh that computed for its parts."""
    alone, together = ddp[(*case, True)], ddp[(*case, False)]
    assert not torch.allclose(
        alone["gradients"][0]["linear1.weight"], together["gradients"][0]["linear1.weight"], rtol=0.01
    )
    assert not torch.allclose(alone["state"]["norm.running_var"], together["state"]["norm.running_var"], rtol=0.01)
