"""Ids of runs and sessions: in the order of creation, and never the same twice."""

from __future__ import annotations

import random


def new_id(now: float, chance: random.Random) -> str:
    """24 hexadecimal digits: 12 for the millisecond, 12 for chance."""
    return f"{int(now * 1000) & 0xFFFFFFFFFFFF:012x}{chance.getrandbits(48):012x}"
