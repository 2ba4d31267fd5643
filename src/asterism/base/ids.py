"""Ids of runs and sessions: unique, and sorted by the time of creation."""

from __future__ import annotations

import random


def new_id(now: float, chance: random.Random) -> str:
    """24 hexadecimal digits: 12 for the millisecond, 12 random."""
    return f"{int(now * 1000) & 0xFFFFFFFFFFFF:012x}{chance.getrandbits(48):012x}"
