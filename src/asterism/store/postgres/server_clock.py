"""The server's clock, as far as it can be known from here.

What the server said the time was lies between the moment we asked and the moment we heard: that gives the offset of
its clock to one of ours, give or take half the journey. Ours is the monotonic clock: nobody sets it, and nothing that
sets or fakes the date moves it. It stands still while the machine is suspended, so the estimate is late by that until
the next sample, and never early: a clock that is late takes nothing from anybody. A sample replaces the one before if
it is sharper, allowing for what two clocks drift apart meanwhile, or if the two cannot both be true: then the server's
clock was set, it is another server, or the machine was suspended.
"""

from __future__ import annotations

import time
from collections.abc import Callable

DRIFT = 0.0002
"""So many seconds a second may two clocks drift apart; a quartz does a tenth of it."""


class ServerClock:
    """``clock()`` is the estimate; it needs a first sample."""

    def __init__(self, own: Callable[[], float] = time.monotonic) -> None:
        self.own = own
        self._offset = 0.0
        self._error = float("inf")
        self._sampled_at = 0.0

    def __call__(self) -> float:
        return self.own() + self._offset

    def learn(self, said: float, asked: float) -> None:
        """The server said ``said`` to a question of ``asked``, by our own clock, and it has just arrived."""
        heard = self.own()
        error = (heard - asked) / 2
        offset = said - (asked + heard) / 2
        known = self._error + DRIFT * (heard - self._sampled_at)
        if error <= known or abs(offset - self._offset) > error + known:
            self._offset, self._error, self._sampled_at = offset, error, heard
