"""The brake: when most of a fleet vanishes at once, it is likely the network or a clock, not the devices.

Taking all their work away would start it a second time wherever something is left, only to find everybody back a
moment later. So for a while nothing is taken away; after that it is, since nothing may block for ever.
"""

from __future__ import annotations

from collections.abc import Sequence

from asterism.core.run.session import OPEN, Session

FEWEST = 3
"""A smaller fleet has no majority worth the name."""


def braked_until(sessions: Sequence[Session], now: float, hold: float) -> float | None:
    """Until when expiry waits, counted from when the last of them fell silent; None if all is as usual."""
    open_ones = [session for session in sessions if session.state == OPEN]
    silent = [session for session in open_ones if not session.reachable(now)]
    # those that fell silent long ago, one by one, are simply gone
    recent = [session for session in silent if now <= session.beat_at + session.timeout + hold]
    if len(recent) < FEWEST or 2 * len(recent) <= len(open_ones) - (len(silent) - len(recent)):
        return None
    return max(session.beat_at + session.timeout for session in recent) + hold
