"""Promise: a part of torch that cannot be captured is refused at its line, by name, with what to write instead."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import pfvm  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from pfvm.compiler.capture.export import capture  # noqa: E402
from pfvm.errors import CaptureError, StaleWeightError  # noqa: E402
from torch import nn  # noqa: E402

from .train_support import Mlp, batches, bits, largest_step_error, make_step, trained_twins  # noqa: E402

BATCH = next(batches())
X = torch.ones(3, 8)


# Each of these returns the function that is refused and what it holds.


def scaled() -> Any:
    model, scaler = nn.Linear(8, 4), torch.amp.GradScaler("cpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: Any) -> Any:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    return step, [model, optimizer, scaler]


def packed() -> Any:
    layer = nn.LSTM(4, 4, batch_first=True)

    def run(x: Any) -> Any:
        return layer(nn.utils.rnn.pack_padded_sequence(x.view(3, 2, 4), [2, 2, 1], batch_first=True))[0].data

    return run, [layer]


def drawn() -> Any:
    generator = torch.Generator()
    return lambda x: x + torch.randn(x.shape, generator=generator), [generator]


def drawn_by_argument() -> Any:
    generator = torch.Generator()
    return lambda x: torch.bernoulli(torch.sigmoid(x), generator=generator), [generator]


def closure() -> Any:
    model = nn.Linear(8, 4)
    optimizer = torch.optim.LBFGS(model.parameters())

    def step(x: Any) -> Any:
        def evaluate() -> Any:
            optimizer.zero_grad()
            loss = model(x).square().mean()
            loss.backward()
            return loss

        return optimizer.step(evaluate)

    return step, [model, optimizer]


def sparse() -> Any:
    table = nn.Embedding(9, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())

    def step(x: Any) -> Any:
        loss = table(x.long()).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step, [table, optimizer]


def loop() -> Any:
    from torch._higher_order_ops.while_loop import while_loop

    layer = nn.Linear(8, 8)

    def step(x: Any) -> Any:
        loss = while_loop(lambda i, a: i < 3, lambda i, a: (i + 1, layer(a)), (torch.tensor(0), x))[1].sum()
        loss.backward()
        return loss

    return step, [layer]


REFUSED = {
    "scaler": (scaled, r"GradScaler.*GradScaler\(enabled=False\)"),
    "packed": (packed, r"pack_padded_sequence.*over the padded batch"),
    "generator": (drawn, r"generator of your own.*leave out generator="),
    "generator_argument": (drawn_by_argument, r"generator of your own.*leave out generator="),
    "lbfgs": (closure, r"torch\.optim\.LBFGS.*compile the closure"),
    "sparse_adam": (sparse, r"SparseAdam.*write torch\.optim\.Adam"),
    "while_loop": (loop, r"while_loop has no gradient.*torch\.scan over a fixed number of steps"),
}


def contents(holders: list[Any]) -> Any:
    """Every bit of them: parameters, buffers, gradients, states of optimizers, scalers and generators."""
    generators = [h.get_state() for h in holders if isinstance(h, torch.Generator)]
    states = [h.state_dict() for h in holders if not isinstance(h, torch.Generator)]
    parameters = [p for h in holders if isinstance(h, nn.Module) for p in h.parameters()]
    grads = [None if p.grad is None else p.grad.to_dense() for p in parameters]
    return bits((generators, states, grads, torch.get_rng_state(), X))


def refuses(name: str, step: Any, holders: list[Any]) -> None:
    before = contents(holders)
    with pytest.raises(CaptureError, match=rf"test_train_refusals\.py:\d+: .*{REFUSED[name][1]}"):
        capture(step, X)
    assert contents(holders) == before


@pytest.mark.parametrize("name", REFUSED)
def test_refusal(name: str) -> None:
    """New, and then with the gradients and the optimizer's state of a step in PyTorch."""
    step, holders = REFUSED[name][0]()
    refuses(name, step, holders)
    if holders:
        step(X)
        refuses(name, step, holders)


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_at_the_end_of_a_step(name: str) -> None:
    """When parameters, buffers, gradients and optimizer state were written already."""
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    last, holders = REFUSED[name][0]()

    def own(x: Any) -> Any:
        optimizer.zero_grad()
        loss = (model(x) - x[:, :4] * 2).square().mean()
        loss.backward()
        optimizer.step()

    def step(x: Any) -> Any:
        own(x)
        return last(x)

    new = contents([model, optimizer])
    own(X)
    assert contents([model, optimizer]) != new
    refuses(name, step, [model, optimizer, *holders])


def test_nothing_of_torch_stays_changed() -> None:
    own = torch.amp.GradScaler.scale, nn.utils.rnn.pack_padded_sequence, torch.optim.LBFGS.step
    with pytest.raises(CaptureError):
        capture(scaled()[0], X)
    assert own == (torch.amp.GradScaler.scale, nn.utils.rnn.pack_padded_sequence, torch.optim.LBFGS.step)


def test_a_scaler_that_is_off() -> None:
    model, scaler = Mlp(), torch.amp.GradScaler("cpu", enabled=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(inp: Any) -> Any:
        optimizer.zero_grad()
        loss = model(**inp)["loss"]
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return {"loss": loss}

    assert largest_step_error(step, batches()) < 2e-5


def test_sparse_embeddings_have_dense_gradients() -> None:
    def new() -> Any:
        table = nn.Embedding(4, 4, sparse=True)
        return Table(table), torch.optim.SGD(table.parameters(), lr=0.5)

    model, twin = trained_twins(new, batches(), "pfvm:cpu")
    torch.testing.assert_close(model.table.weight, twin.table.weight)


class Table(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, x: Any, t: Any) -> Any:
        return {"loss": F.cross_entropy(self.table(t), t)}


def test_muon() -> None:
    def new() -> Any:
        model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Tanh(), nn.Linear(16, 4, bias=False))
        return Whole(model), torch.optim.Muon(model.parameters(), lr=0.01)

    model, twin = trained_twins(new, batches(), "pfvm:cpu")
    for actual, expected in zip(model.parameters(), twin.parameters()):
        torch.testing.assert_close(actual, expected, rtol=1e-3, atol=1e-4)  # it rounds to bfloat16


class Whole(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Any, t: Any) -> Any:
        return {"loss": F.cross_entropy(self.body(x), t)}


@pytest.mark.parametrize("freeze", [True, False])
def test_what_a_function_took_for_granted_is_checked_at_every_call(freeze: bool) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.LayerNorm(8)).eval()
    compiled = pfvm.compile(lambda x: model(x), X, freeze=freeze)
    compiled(X)
    model.train()
    with pytest.raises(StaleWeightError, match=r"module 'model\.1' was in eval mode.*eval\(\)"):
        compiled(X)
    model.eval()
    compiled(X)
    model[2].eps = 0.1
    with pytest.raises(StaleWeightError, match=r"eps of module 'model\.2' was 1e-05 at compile and is 0\.1 now"):
        compiled(X)


def test_what_a_step_took_for_granted_is_checked_at_every_call() -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5))
    step = pfvm.compile(make_step(Whole(model), torch.optim.SGD(model.parameters(), lr=0.1)), BATCH)
    step(BATCH)
    model[1].p = 0.1
    with pytest.raises(StaleWeightError, match=r"p of module .* was 0\.5 at compile"):
        step(BATCH)


def test_a_number_of_an_optimizer_that_a_function_reads() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(X)], lr=0.5)
    scaled_by_rate = pfvm.compile(lambda x: x * optimizer.param_groups[0]["lr"], X)
    assert scaled_by_rate(X).mean() == 0.5
    optimizer.param_groups[0]["lr"] = 0.25
    assert scaled_by_rate(X).mean() == 0.25
