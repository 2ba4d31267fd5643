"""What happened, in order, with the reason for each step."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """One line of a story. ``task`` is None for what concerns the whole constellation."""

    at: float
    what: str
    task: str | None
    why: str = ""

    def __str__(self) -> str:
        subject = f"{self.task} " if self.task is not None else ""
        reason = f": {self.why}" if self.why else ""
        return f"{self.at:.3f} {subject}{self.what}{reason}"
