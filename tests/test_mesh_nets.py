"""A program on eight devices computes what it computes on one: forward, and whole training steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

import pfvm  # noqa: E402
from pfvm.errors import InputError  # noqa: E402

from .mesh_nets import BATCH, NETS, RULES, batch, make_step  # noqa: E402

STEPS = 3
MESHES = [("data=8", False), ("data=4,model=2", True), ("model=8", "auto")]
_references: dict[Any, Any] = {}


def _shard(name: str, how: Any) -> list[str] | str | None:
    return RULES[name] if how is True else how or None


def _trained(name: str, optimizer: str, dtype: Any, **spread: Any) -> tuple[Any, dict[str, Any], Any]:
    model, step = make_step(name, optimizer, dtype)
    inputs = batch(name, dtype)
    compiled = pfvm.compile(step, inputs, device="xla:cpu", **spread)
    torch.manual_seed(11)  # of dropout
    losses = torch.stack([compiled(inputs)["loss"] for _ in range(STEPS)])
    return losses, {key: value.clone() for key, value in model.state_dict().items()}, compiled


def _reference(name: str, optimizer: str, dtype: Any) -> tuple[Any, dict[str, Any]]:
    key = (name, optimizer, dtype)
    if key not in _references:
        _references[key] = _trained(*key)[:2]
    return _references[key]


def _assert_trains_alike(name: str, optimizer: str, mesh: str, how: Any) -> None:
    expected = _reference(name, optimizer, torch.float64)
    losses, state, _ = _trained(name, optimizer, torch.float64, mesh=mesh, shard=_shard(name, how))
    torch.testing.assert_close(losses, expected[0], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state, expected[1], rtol=1e-10, atol=1e-9)


@pytest.mark.parametrize(("mesh", "how"), MESHES)
def test_a_step_with_batch_norm_dropout_and_adam(mesh: str, how: Any) -> None:
    _assert_trains_alike("mlp", "adam", mesh, how)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "optimizer", "mesh", "how"), [("cnn", "sgd", *MESHES[0]), ("transformer", "adam", *MESHES[1])]
)
def test_steps_of_convolutions_and_attention(name: str, optimizer: str, mesh: str, how: Any) -> None:
    _assert_trains_alike(name, optimizer, mesh, how)


def test_a_step_in_float32() -> None:
    expected = _reference("mlp", "sgd", torch.float32)
    losses, state, _ = _trained("mlp", "sgd", torch.float32, mesh="data=4,model=2", shard=RULES["mlp"])
    torch.testing.assert_close(losses, expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(state, expected[1], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", NETS)
def test_forward(name: str) -> None:
    """Weights as constants, prepared before they are split, and weights as state."""
    torch.manual_seed(0)
    model = NETS[name]().eval()
    x = batch(name, torch.float32)["x"]
    expected = model(x).detach().numpy()
    for freeze, mesh, how in ((False, "data=4,model=2", True), (True, "data=8", False), (True, "model=8", "auto")):
        run = pfvm.compile(model, x, device="xla:cpu", freeze=freeze, mesh=mesh, shard=_shard(name, how))
        np.testing.assert_allclose(run(x).numpy(), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.slow
def test_several_steps_a_call_and_epochs() -> None:
    inputs = batch("mlp", rows=4 * BATCH)
    results = []
    for spread in ({}, {"mesh": "data=4,model=2", "shard": RULES["mlp"]}):
        model, step = make_step("mlp")
        sample = {key: value[:BATCH] for key, value in inputs.items()}
        torch.manual_seed(5)
        steps = pfvm.compile(step, sample, device="xla:cpu", steps_per_call=4, **spread)
        stacked = {key: value.reshape(4, BATCH, *value.shape[1:]) for key, value in inputs.items()}
        losses = steps(stacked)["loss"]
        epoch = pfvm.epoch(step, inputs, BATCH, device="xla:cpu", **spread)
        results.append((losses, epoch(seed=1)["loss"], dict(model.state_dict())))
        # Each device computes its rows, also where they are taken from the data inside the program.
        if spread:
            for program in (steps.executable.hlo()[0], epoch.executable.hlo()[0]):
                assert f"f64[{BATCH // 4},32]" in program or f"f64[{BATCH // 4},16]" in program
                assert f"f64[{BATCH},32]" not in program
    torch.testing.assert_close(results[1], results[0], rtol=1e-10, atol=1e-9)


def test_an_epoch_s_batch_that_does_not_divide_is_named() -> None:
    _, step = make_step("mlp")
    with pytest.raises(InputError, match=r"batch_size=10 cannot be split over the mesh data=4: .*multiple of data=4"):
        pfvm.epoch(step, batch("mlp", rows=40), 10, device="xla:cpu", mesh="data=4")


def test_state_is_split_as_the_rules_say_and_stays_so() -> None:
    spread = {"mesh": "data=4,model=2", "shard": "linear1.weight=model,None"}
    _, step = make_step("mlp")
    compiled = pfvm.compile(step, batch("mlp"), device="xla:cpu", **spread)
    for _ in range(2):
        compiled(batch("mlp"))
    parts = {slot.name: slot.values.array for slot in compiled.step._slots if slot.values is not None}
    shapes = {name: array.addressable_shards[0].data.shape for name, array in parts.items()}
    assert shapes["linear1.weight"] == (16, 8)  # of [32, 8]
    assert shapes["linear1.weight.exp_avg"] == (16, 8)  # an optimizer's state goes with its parameter
    assert shapes["linear2.weight"] == (4, 32)
    assert "x, t split over data" in compiled.executable.spread
    assert compiled.executable.compilations == 1
