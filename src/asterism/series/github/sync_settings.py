"""Settings of a sync: the assignee, how issues are found, the mode and the limits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from asterism.series.compare_and_swap import RetryOptions
from asterism.series.github.discovery import LABEL_PATTERN, TITLE_PATTERN

Mode = Literal["observe", "enforce", "announce"]

LOCK_DEADLINE = 30.0
"""How long a sync waits for assignment locks, in seconds, over all series."""


@dataclass(frozen=True)
class SyncSettings:
    """How to sync the series of a repository.

    :param assignee: the login that series assign.
    :param mode: see ``sync``.
    :param pattern: the title pattern; ``label_pattern``: that of labels (see ``discovery``).
    :param label: a label that every issue of a series has, if it is given.
    :param assign_with: ``auto``, ``rest`` or ``graphql`` (see ``Assigner``).
    :param only: the series to sync, None for all; an event never extends it.
    :param by: the author, for the history.
    :param view: whether to maintain tracking issues.
    :param lock_deadline: how long to wait for assignment locks over all series, in seconds; 0 tries each one once.
    :param deadline: after so many seconds the sync neither waits nor starts anything.
    :param active_label: a label for active issues; ``queued_label``: for issues that wait.
    :param respect_unassign: if a person unassigns the active issue, pause its series; otherwise assign it again, with
        a comment.
    """

    assignee: str
    mode: Mode = "enforce"
    pattern: str = TITLE_PATTERN
    label_pattern: str = LABEL_PATTERN
    label: str | None = None
    assign_with: str = "auto"
    only: frozenset[str] | None = None
    by: str | None = None
    view: bool = True
    dry_run: bool = False
    lock_deadline: float = LOCK_DEADLINE
    deadline: float | None = None
    retry: RetryOptions = field(default_factory=RetryOptions)
    active_label: str | None = None
    queued_label: str | None = None
    respect_unassign: bool = False

    @property
    def acts(self) -> bool:
        return self.mode != "observe" and not self.dry_run
