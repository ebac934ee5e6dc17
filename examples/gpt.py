"""A small GPT that predicts characters, with dropout, AdamW and clipped gradients, trained through compiled steps.

python examples/gpt.py --device xla:cpu

The text is Python's own language reference, which every Python brings along (pydoc_data). Ten steps run in one call.
Prints how many characters of the last tenth of the text are predicted right, and the same for eager PyTorch, whose
dropout draws other masks.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
from collections.abc import Callable

import pfvm
import torch
import torch.nn.functional as F
from torch import nn

CONTEXT, WIDTH, HEADS, LAYERS, DROPOUT = 32, 64, 4, 2, 0.05
BATCH, STEPS_PER_CALL = 24, 10
Batch = dict[str, torch.Tensor]
Step = Callable[[Batch], Batch]


class Block(nn.Module):
    """Causal attention and a feed-forward layer, each behind a normalization and beside a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(DROPOUT)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, T, WIDTH] → the same."""
        n, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.dropout(self.out(y.transpose(1, 2).reshape(n, t, WIDTH)))
        return x + self.dropout(self.down(F.gelu(self.up(self.norm2(x)))))


class Gpt(nn.Module):
    """Scores [N, T, characters] of the next character after each of [N, T]."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.tokens(x) + self.places.weight[: x.shape[1]]
        return self.head(self.norm(self.blocks(h)))


def make_train_step(model: Gpt, optimizer: torch.optim.Optimizer) -> Step:
    """One step on {"x": [N, CONTEXT], "t": [N, CONTEXT]}, both int64."""

    def train_step(inp: Batch) -> Batch:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inp["x"]).flatten(0, 1), inp["t"].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return {"loss": loss}

    return train_step


def read_text() -> tuple[torch.Tensor, int]:
    """The text as character numbers [length] int64, and how many different characters there are."""
    text = "\n".join(pydoc_data.topics.topics[name] for name in sorted(pydoc_data.topics.topics))
    known = {c: i for i, c in enumerate(sorted(set(text)))}
    return torch.tensor([known[c] for c in text]), len(known)


def windows(text: torch.Tensor, starts: torch.Tensor) -> Batch:
    """CONTEXT characters from each start, and the characters that follow them."""
    places = starts[..., None] + torch.arange(CONTEXT)
    return {"x": text[places], "t": text[places + 1]}


def eager(step: Step) -> Step:
    """As a compiled function of several steps a call: one after the other, losses stacked."""

    def steps(inp: Batch) -> Batch:
        parts = [{name: value[i] for name, value in inp.items()} for i in range(len(inp["x"]))]
        return {"loss": torch.stack([step(part)["loss"].detach() for part in parts])}

    return steps


def run(device: str, calls: int) -> float:
    """Trains a new model on a device ("torch": eagerly). Returns its accuracy."""
    text, characters = read_text()
    train, held = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]
    torch.manual_seed(0)
    model = Gpt(characters)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=calls + 1)
    step = make_train_step(model, optimizer)
    if device == "torch":
        train_steps = eager(step)
    else:
        sample = windows(train, torch.zeros(BATCH, dtype=torch.int64))
        train_steps = pfvm.compile(step, sample, device=device, steps_per_call=STEPS_PER_CALL)
    generator = torch.Generator().manual_seed(0)
    for call in range(calls):
        starts = torch.randint(len(train) - CONTEXT - 1, (STEPS_PER_CALL, BATCH), generator=generator)
        losses = train_steps(windows(train, starts))["loss"]
        scheduler.step()
        if (call + 1) % 10 == 0:
            print(f"{device:10s} step {(call + 1) * STEPS_PER_CALL:4d}  loss {losses.mean():.4f}")
    model.eval()
    batch = windows(held, torch.arange(0, len(held) - CONTEXT - 1, CONTEXT))
    with torch.no_grad():
        parts = zip(batch["x"].split(500), batch["t"].split(500))
        correct = sum(int((model(x).argmax(-1) == t).sum()) for x, t in parts)
    return correct / batch["t"].numel()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="pfvm:cpu", help="pfvm:cpu, xla:cpu, …")
    parser.add_argument("--steps", type=int, default=600, help="rounded up to full calls")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for device in ("torch", args.device):
        print(f"{device}: accuracy {run(device, -(-args.steps // STEPS_PER_CALL)):.4f}")


if __name__ == "__main__":
    main()
