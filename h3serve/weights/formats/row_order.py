"""What the weights themselves say about their row order, where nothing is recorded.

Statistics, not proof, and not verified on the released weights: they may only ever warn. On random
weights they have no opinion.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

Opinion = Literal["as expected", "against", "none"]

EXPLAINED = 0.3  # share of variance between the parts that makes an opinion
MARGIN = 2.0  # times the next best explanation
BLOCKS = 48  # fewer blocks of head rows than this say nothing
COLUMNS = 512  # of each row that are looked at: enough, and a small copy


def qkv_order(weight: torch.Tensor, *, heads: int) -> tuple[Opinion, str]:
    """Tells whether the rows of `[q; k; v]` (3*heads*head_dim) look stacked, with the reason in words.

    Rows of q, k and v differ in size, and by how much they vary within a head, more than heads of
    one kind do. So each possible order labels the blocks of head_dim rows as q, k or v, and the true
    one explains most of the variance of those two numbers.
    """
    if 3 * heads < BLOCKS:
        return "none", "too few heads to tell"
    norms = weight[:, :COLUMNS].float().norm(dim=1).view(3 * heads, -1)
    features = torch.stack([norms.mean(1).log(), norms.std(1) / norms.mean(1)])
    block = torch.arange(3 * heads, device=weight.device)
    in_third, third = block % heads, block // heads
    labels = {
        "stacked": third,
        "grouped per head": block % 3,
        "taken apart per head though stacked": (3 * in_third + third) // heads,
    }
    shares = {name: _explained(features, label) for name, label in labels.items()}
    best, second = sorted(shares.values(), reverse=True)[:2]
    if best < EXPLAINED or best < MARGIN * second:
        return "none", "the rows give no clue"
    winner = max(shares, key=shares.__getitem__)
    return ("as expected" if winner == "stacked" else "against"), f"the rows look {winner}"


def gate_up_order(weight: torch.Tensor) -> tuple[Opinion, str]:
    """Tells whether the rows look like `[gate; up]` in this order, with the reason in words.

    Turning the sign of an up row and of its column in the next matrix changes nothing, so up rows
    have no common direction; gate rows, whose sign matters, drift into one in training.
    """
    gate, up = (_common_direction(half) for half in weight[:, :COLUMNS].float().chunk(2))
    if max(gate, up) < MARGIN * min(gate, up):
        return "none", "the halves give no clue"
    return (
        ("as expected", "the first half looks like the gate")
        if gate > up
        else (
            "against",
            "the second half looks like the gate",
        )
    )


def overall(opinions: Sequence[Opinion]) -> Opinion:
    """The opinion of several layers: theirs if it is the same one, else none."""
    held = {opinion for opinion in opinions if opinion != "none"}
    return held.pop() if len(held) == 1 else "none"


def _explained(features: torch.Tensor, labels: torch.Tensor) -> float:
    """Mean over features `[n, blocks]` of the share of variance that three labels explain."""
    centred = features - features.mean(1, keepdim=True)
    within = torch.zeros(len(features), device=features.device)
    for label in range(3):
        part = centred[:, labels == label]
        within += (part - part.mean(1, keepdim=True)).square().sum(1)
    total = centred.square().sum(1).clamp_min(torch.finfo(torch.float32).tiny)
    return float((1 - within / total).mean())


def _common_direction(rows: torch.Tensor) -> float:
    """1 for independent rows of random sign, up to their number for equal rows."""
    return float(len(rows) * rows.mean(0).square().sum() / rows.square().sum(1).mean())
