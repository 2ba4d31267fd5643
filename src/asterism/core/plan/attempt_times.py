"""The times of an attempt that a fleet made: created, assigned, begun, ended; and as text in the story of a plan.

A plan counts a task as running from the moment at which it offers it to the fleet. ``AttemptTimes.phase`` tells more:
the task is *queued* until a device has it, *starting* until it has begun there, and only then *running*.
"""

from __future__ import annotations

import re
from typing import NamedTuple

QUEUED, STARTING, RUNNING = "queued", "starting", "running"

NEVER_BEGAN = "never began"

_TEXT = re.compile(r", waited ([0-9.]+) s, ran ([0-9.]+) s$")


class AttemptTimes(NamedTuple):
    """None for what did not happen, or is not known."""

    created: float
    assigned: float | None = None
    begun: float | None = None
    ended: float | None = None
    executed: bool | None = None
    """Whether a device has begun to execute the task, in this attempt or an earlier one."""

    @property
    def phase(self) -> str:
        """The phase of an attempt that has not ended."""
        if self.begun is not None:
            return RUNNING
        return QUEUED if self.assigned is None else STARTING

    def to_json(self) -> dict[str, float | None]:
        return {f"{name}_at": at for name, at in zip(self._fields[:4], self[:4], strict=True)}

    def __str__(self) -> str:
        """How long it waited and ran, for the story; ``read_seconds`` reads it."""
        if self.begun is None or self.ended is None:
            return NEVER_BEGAN
        return f"waited {max(0.0, self.begun - self.created):.3f} s, ran {max(0.0, self.ended - self.begun):.3f} s"


def read_seconds(why: str) -> tuple[float, float] | None:
    """How long an attempt waited and ran, from its entry in the story; None if it never began."""
    found = _TEXT.search(why)
    return None if found is None else (float(found[1]), float(found[2]))
