"""Losses whose own code asks for the values of a tensor."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.modules import adaptive

Tensor = torch.Tensor


def gaussian_nll_loss(
    x: Tensor, target: Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """torch raises for a negative variance; a graph cannot, so that loss is NaN."""
    var = torch.full_like(x, var) if not isinstance(var, Tensor) else var
    if var.shape != x.shape and x.shape[:-1] == var.shape:
        var = var.unsqueeze(-1)
    if var.shape != x.shape and (x.shape[:-1] != var.shape[:-1] or var.shape[-1] != 1):
        raise ValueError("var is of incorrect size")
    if reduction not in ("none", "mean", "sum"):
        raise ValueError(f"{reduction} is not valid")
    clamped = var.clone()
    with torch.no_grad():
        clamped.clamp_(min=eps)
    loss = 0.5 * (torch.log(clamped) + (x - target) ** 2 / clamped)
    loss = loss + 0.5 * math.log(2 * math.pi) if full else loss
    loss = torch.where(var < 0, math.nan, loss)
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """The forward recursion over time, step by step (Graves et al. 2006, equations 6 to 8).

    log_probs [time, batch, classes] or [time, classes]; targets [batch, longest], or all in one row.
    """
    is_batch = log_probs.dim() == 3
    log_probs = log_probs if is_batch else log_probs.unsqueeze(1)
    times, batch, _ = log_probs.shape
    ends, lengths = (_numbers(n, batch) for n in (input_lengths, target_lengths))
    labels = _rows_of_labels(targets if is_batch or targets.dim() == 1 else targets.unsqueeze(0), lengths, batch)
    final = _log_likelihood(log_probs, labels, ends, lengths, blank)
    loss = -final
    if zero_infinity:
        loss = torch.where(torch.isinf(loss), 0.0, loss)
    # torch's gradient is that of the logits below a log_softmax: probabilities are added to the gradient proper.
    probabilities = torch.exp(log_probs)
    counts = torch.arange(times).unsqueeze(1) < ends
    counts = counts & torch.isfinite(final.detach())
    loss = loss + torch.where(counts.unsqueeze(-1), probabilities - probabilities.detach(), 0.0).sum((0, 2))
    if reduction == "mean":
        return (loss / lengths.clamp(min=1).to(loss.dtype)).mean()
    return loss.sum() if reduction == "sum" else loss if is_batch else loss.squeeze(0)


def _numbers(values: Any, count: int) -> Tensor:
    values = values.to(torch.int64) if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.int64)
    return values.reshape(-1).expand(count)


def _rows_of_labels(targets: Tensor, lengths: Tensor, batch: int) -> Tensor:
    """[batch, longest possible]: labels that are written one after the other, too."""
    if targets.dim() == 2:
        return targets.to(torch.int64)
    starts = torch.cumsum(lengths, 0) - lengths
    places = starts.unsqueeze(1) + torch.arange(targets.shape[0])
    return targets.to(torch.int64)[places.clamp(max=targets.shape[0] - 1)]


def _log_likelihood(log_probs: Tensor, labels: Tensor, ends: Tensor, lengths: Tensor, blank: int) -> Tensor:
    """log p(labels) of each sequence, -inf where no path leads there.

    By the probabilities of prefixes, scaled to a sum of 1 at each time; in float64, whose exponent is wide enough.
    """
    batch = labels.shape[0]
    states = torch.stack([torch.full_like(labels, blank), labels], -1).flatten(1)
    states = torch.cat([states, states.new_full((batch, 1), blank)], 1)
    scores = log_probs.to(torch.float64).gather(2, states.clamp(min=0).expand(log_probs.shape[0], -1, -1))
    largest = scores.detach().amax(2, keepdim=True)
    steps = _steps(states, blank)
    prefixes, total = (torch.arange(states.shape[1]) < 2).to(torch.float64).unsqueeze(0), torch.zeros(batch)
    total = total.to(torch.float64)
    for time, chances in enumerate(torch.exp(scores - largest).unbind()):
        come = (prefixes.unsqueeze(1) @ steps).squeeze(1) if time else prefixes
        reached = come * chances
        weight = reached.sum(1, keepdim=True)
        is_running = (time < ends).unsqueeze(1)
        scale = torch.where(is_running & (weight > 0), weight, 1.0)
        prefixes = torch.where(is_running, reached / scale, prefixes)
        total = total + torch.log(scale).squeeze(1) + torch.where(is_running, largest[time], 0.0).squeeze(1)
    last = torch.stack([2 * lengths, (2 * lengths - 1).clamp(min=0)], 1)
    final = prefixes.gather(1, last)
    chance = torch.where(lengths > 0, final.sum(1), final[:, 0])
    possible = chance > 0
    return torch.where(possible, total + torch.log(torch.where(possible, chance, 1.0)), -math.inf).to(log_probs.dtype)


def _steps(states: Tensor, blank: int) -> Tensor:
    """[batch, from, to]: 1 where a path may stay, go to the next state, or leave out the blank between two labels."""
    count = states.shape[1]
    distance = torch.arange(count) - torch.arange(count).unsqueeze(1)
    before = F.pad(states, (2, 0), value=blank)[:, :-2]
    may_skip = (states != blank) & (states != before)
    allowed = (distance == 0) | (distance == 1) | ((distance == 2) & may_skip.unsqueeze(1))
    return allowed.to(torch.float64)


def adaptive_log_softmax(self: torch.nn.AdaptiveLogSoftmaxWithLoss, x: Tensor, target: Tensor) -> Any:
    """AdaptiveLogSoftmaxWithLoss.forward with every cluster computed for every row; which rows is data."""
    is_batched = target.dim() > 0
    rows, labels = (x, target) if is_batched else (x.unsqueeze(0), target.unsqueeze(0))
    head = F.log_softmax(self.head(rows), dim=1)
    cutoffs: Sequence[int] = self.cutoffs
    output = head.gather(1, labels.clamp(0, cutoffs[0] - 1).unsqueeze(1)).squeeze(1)
    for i, (low, high) in enumerate(itertools.pairwise(cutoffs)):
        inside = F.log_softmax(self.tail[i](rows), dim=1)
        chosen = inside.gather(1, (labels - low).clamp(0, high - low - 1).unsqueeze(1)).squeeze(1)
        output = torch.where((labels >= low) & (labels < high), head[:, cutoffs[0] + i] + chosen, output)
    loss = (-output).mean()
    return adaptive._ASMoutput(output if is_batched else output.squeeze(0), loss)


FORMS: dict[Any, Any] = {F.gaussian_nll_loss: gaussian_nll_loss, F.ctc_loss: ctc_loss}
