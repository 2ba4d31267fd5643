"""How the series of a repository are kept: whom they assign, how their issues are found, how far to go."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from asterism.series.compare_and_swap import Patience
from asterism.series.github.discovery import LABEL_PATTERN, TITLE_PATTERN

Mode = Literal["observe", "enforce", "announce"]

TURN_DEADLINE = 30.0
"""How long a sync waits while others assign in the same series, in seconds, over all series."""


@dataclass(frozen=True)
class Settings:
    """``assignee`` is the login that a series assigns. ``only`` names the series that are meant, all if it is None: no
    event makes it more. ``label`` is one that every issue of a series has, if it is given. A sync waits for turns up to
    the ``turn_deadline``, over all series; with 0 it tries each once. After the ``deadline``, in seconds from its
    beginning, it waits for nothing and begins nothing. ``active_label`` and ``queued_label`` are put on the issues
    themselves. With ``respect_unassign`` a person who unassigns the active issue pauses its series; otherwise it is
    assigned again, and a comment says so."""

    assignee: str
    mode: Mode = "enforce"
    pattern: str = TITLE_PATTERN
    label_pattern: str = LABEL_PATTERN
    label: str | None = None
    way: str = "auto"
    only: frozenset[str] | None = None
    by: str | None = None
    view: bool = True
    dry_run: bool = False
    turn_deadline: float = TURN_DEADLINE
    deadline: float | None = None
    patience: Patience = field(default_factory=Patience)
    active_label: str | None = None
    queued_label: str | None = None
    respect_unassign: bool = False

    @property
    def acts(self) -> bool:
        return self.mode != "observe" and not self.dry_run
