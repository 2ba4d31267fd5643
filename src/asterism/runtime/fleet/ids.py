"""Ids of runs: in the order of creation, and never the same twice."""

from __future__ import annotations

import random

_LETTERS = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's: no i, l, o, u


def new_id(now: float, chance: random.Random) -> str:
    """26 letters: 10 for the millisecond, 16 for chance."""
    number = (int(now * 1000) & (1 << 48) - 1) << 80 | chance.getrandbits(80)
    letters = []
    for _ in range(26):
        letters.append(_LETTERS[number & 31])
        number >>= 5
    return "".join(reversed(letters))
