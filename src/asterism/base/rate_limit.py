"""How often something may happen: events counted by key within a window of time."""

from __future__ import annotations

from collections.abc import Callable

from asterism.base.http_limits import RequestRefused

MAX_REMEMBERED = 1000
"""How many keys are remembered."""


class RecentEvents:
    """Counts events by key, at most ``most`` within ``window`` seconds. Forgets the oldest keys."""

    def __init__(self, now: Callable[[], float], most: int, window: float) -> None:
        self._now, self._most, self._window = now, most, window
        self._times: dict[str, list[float]] = {}

    def wait(self, key: str) -> float | None:
        """How long to wait until one more is allowed, in seconds; None if it is now."""
        since = self._now() - self._window
        recent = [at for at in self._times.get(key, ()) if at > since]
        return recent[-self._most] - since if len(recent) >= self._most else None

    def check(self, key: str, excess: str) -> None:
        """Raises RequestRefused if one more is not allowed now; ``excess`` says of what there were too many."""
        wait = self.wait(key)
        if wait is not None:
            raise RequestRefused(429, f"{excess}: wait {wait:.0f} s", wait)

    def knows(self, key: str) -> bool:
        """Whether there was an event of this key, however long ago, that is not forgotten."""
        return key in self._times

    def add(self, key: str) -> None:
        times = self._times.pop(key, [])
        self._times[key] = [*times, self._now()][-self._most :]
        while len(self._times) > MAX_REMEMBERED:
            del self._times[next(iter(self._times))]

    def take_back(self, key: str) -> None:
        """Count the last event of a key no longer."""
        if self._times.get(key):
            self._times[key].pop()
