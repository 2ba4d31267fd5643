"""The clock of a server, estimated from its replies."""

from __future__ import annotations

import time
from collections.abc import Callable

DRIFT = 0.0002
"""The assumed drift of two clocks, in seconds per second: ten times that of a quartz."""


class ServerClock:
    """An estimate of the server's clock: call it. It needs a first sample.

    The server's time in a reply lies between the moments of the request and of the reply, which gives its offset to our
    clock, plus or minus half the round trip. Ours is the monotonic clock, which no change of the date moves. It stands
    still while the machine is suspended, so the estimate is late by that until the next sample, and never early: a late
    clock expires nothing too soon. A sample replaces the previous one if it is more precise, allowing for the drift of
    the two clocks since, or if the two contradict each other: then the server's clock was set, it is another server, or
    the machine was suspended."""

    def __init__(self, own: Callable[[], float] = time.monotonic) -> None:
        self.own = own
        self._offset = 0.0
        self._error = float("inf")
        self._sampled_at = 0.0

    def __call__(self) -> float:
        return self.own() + self._offset

    def learn(self, server_time: float, asked: float) -> None:
        """Take a sample: a reply with the server's time has just arrived, to a request sent at ``asked`` by our own
        clock."""
        received = self.own()
        error = (received - asked) / 2
        offset = server_time - (asked + received) / 2
        known = self._error + DRIFT * (received - self._sampled_at)
        if error <= known or abs(offset - self._offset) > error + known:
            self._offset, self._error, self._sampled_at = offset, error, received
