"""`steps_per_call=K, until="loss < 0.1"`: one call trains until the loss is low, as single calls that stop would."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("jax")

import pfvm  # noqa: E402
from pfvm.errors import OptionError  # noqa: E402
from torch import nn  # noqa: E402

K = 8
DEVICES = ["pfvm:cpu", "xla:cpu"]


def classifier(dropout: float = 0.0) -> tuple[Any, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)

    def step(x: Any, t: Any) -> Any:
        optimizer.zero_grad()
        scores = model(x)
        loss = nn.functional.cross_entropy(scores, t)
        loss.backward()
        optimizer.step()
        return {"loss": loss, "right": (scores.argmax(1) == t).sum()}

    return step, model


def batches() -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 8, generator=generator)
    return x.expand(K, 5, 8).contiguous(), torch.tensor([0, 1, 2, 3, 0]).expand(K, 5).contiguous()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_one_call_is_the_calls_until_the_loss_is_low(dropout: float, device: str) -> None:
    """Results, weights, and the state of torch's generator: bit for bit."""
    x, t = batches()
    step, model = classifier(dropout)
    single = pfvm.compile(step, (x[0], t[0]), device=device)
    torch.manual_seed(3)
    results = [single(x[i], t[i]) for i in range(K)]
    lowest = sorted(float(r["loss"]) for r in results)[K // 2]
    count = next(i + 1 for i, r in enumerate(results) if float(r["loss"]) <= lowest)
    assert 1 < count < K

    step, model = classifier(dropout)
    single = pfvm.compile(step, (x[0], t[0]), device=device)
    torch.manual_seed(3)
    results = [single(x[i], t[i]) for i in range(count)]
    after = torch.rand(3)

    step, other = classifier(dropout)
    many = pfvm.compile(step, (x[0], t[0]), device=device, steps_per_call=K, until=f"loss <= {lowest!r}")
    torch.manual_seed(3)
    found = many(x, t)
    assert many.steps_done == count
    for name in ("loss", "right"):
        assert torch.equal(found[name], torch.stack([r[name] for r in results]))
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert torch.equal(torch.rand(3), after)


def test_the_whole_run_is_one_executable_with_one_loop() -> None:
    x, t = batches()
    step, _ = classifier()
    many = pfvm.compile(step, (x[0], t[0]), device="xla:cpu", steps_per_call=K, until="loss < 0.5")
    while not many.steps_done or many.steps_done == K:
        many(x, t)
    (segment,), (text,) = many.executable.segments, many.executable.hlo()
    assert (segment.kind, many.executable.compilations) == ("device", 1)
    assert text.count(" while(") == 1
    assert many(x, t)["loss"].shape == (1,)  # it is low already
    assert [n.op_type for n in many.model.graph].count("Loop") == 1


@pytest.mark.parametrize("device", DEVICES)
def test_a_condition_that_is_never_met_is_k_steps(device: str) -> None:
    """Bit for bit those of a call without a condition."""
    x, t = batches()
    found = []
    for until in (None, "loss < -1"):
        step, model = classifier()
        many = pfvm.compile(step, (x[0], t[0]), device=device, steps_per_call=K, until=until)
        found.append([*many(x, t).values(), *(p.detach() for p in model.parameters())])
        assert many.steps_done == K
    assert all(map(torch.equal, *found))


def test_without_until_every_step_runs() -> None:
    x, t = batches()
    step, _ = classifier()
    many = pfvm.compile(step, (x[0], t[0]), steps_per_call=K)
    assert many.steps_done == 0
    assert many(x, t)["loss"].shape == (K,)
    assert many.steps_done == K
    assert pfvm.compile(step, (x[0], t[0])).steps_done is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"until": "loss < 1"}, "give steps_per_call"),
        ({"until": "los < 1", "steps_per_call": K}, r"no output 'los'; did you mean 'loss'"),
        ({"until": "right > 3", "steps_per_call": K}, r"'right' is INT64.*expected one float"),
        ({"until": "soon", "steps_per_call": K}, r"expected OUTPUT < NUMBER"),
    ],
)
def test_conditions_that_do_not_fit(options: dict[str, Any], message: str) -> None:
    x, t = batches()
    step, model = classifier()
    before = model[0].weight.clone()
    with pytest.raises(OptionError, match=message):
        pfvm.compile(step, (x[0], t[0]), **options)
    assert torch.equal(model[0].weight, before)
