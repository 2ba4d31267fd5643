"""The delay before another try: it doubles with each failure, up to a longest one, and varies at random."""

from __future__ import annotations

from typing import Protocol


class Chance(Protocol):
    """A source of chance, such as ``random.Random``."""

    def uniform(self, a: float, b: float, /) -> float: ...


def retry_delay(
    failures: int, first: float, longest: float = float("inf"), chance: Chance | None = None, spread: float = 0.5
) -> float:
    """Seconds before the next try, after so many failures in a row. With ``chance`` it varies by ``spread`` of itself,
    so that those who failed together do not try again together."""
    delay = min(first * 2.0 ** min(max(failures - 1, 0), 62), longest)
    return delay if chance is None else delay * chance.uniform(1.0 - spread, 1.0 + spread)
