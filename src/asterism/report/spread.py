"""Placing things on a line: each as near as can be to where it wants to be, in a given order, none too close.

This is least squares under order constraints (isotonic regression). It is solved exactly, in linear time, by
pooling neighbours that push against each other into blocks that move as one.
"""

from __future__ import annotations

from collections.abc import Sequence


def spread(wishes: Sequence[float], weights: Sequence[float], gaps: Sequence[float]) -> list[float]:
    """Positions nearest to the wishes such that each is at least `gaps[i]` after the one before it.

    `gaps[0]` is not used. A heavier weight gives way less.
    """
    offsets: list[float] = []
    offset = 0.0
    for number, gap in enumerate(gaps):
        offset += gap if number else 0.0
        offsets.append(offset)
    blocks: list[tuple[float, float, int]] = []  # (weighted mean, weight, members)
    for wish, weight, offset in zip(wishes, weights, offsets, strict=True):
        mean, total, members = wish - offset, weight, 1
        while blocks and blocks[-1][0] > mean:
            other_mean, other_total, other_members = blocks.pop()
            mean = (mean * total + other_mean * other_total) / (total + other_total)
            total += other_total
            members += other_members
        blocks.append((mean, total, members))
    means = (mean for mean, _, members in blocks for _ in range(members))
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
