"""Settings of a sync (assignee, patterns, mode, limits), and what the syncs of all series of a repository share."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from asterism.series.compare_and_swap import RetryOptions
from asterism.series.github.assignment import Assigner, SeriesAssignmentLock
from asterism.series.github.discovery import LABEL_PATTERN, TITLE_PATTERN, Assignee, SeriesMatcher
from asterism.series.github.github_register import GitHubRegister
from asterism.series.github.observed_state import IssueObserver
from asterism.series.github.tracking_issue import PlaceLabels, TrackingIssues
from asterism.series.register import RegisterUnavailable
from asterism.series.series_metrics import SeriesMetrics

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


class SyncContext:
    """What the syncs of all series of a repository share. ``metrics`` adds up over all of them."""

    ends = math.inf
    """When the deadline of the present sync is over."""
    lock_wait_left = 0.0
    """How long the present sync may still wait for assignment locks, in seconds."""

    def __init__(
        self,
        register: GitHubRegister,
        settings: SyncSettings,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        client, self.assignee = register.client, Assignee(settings.assignee)
        self.register, self.settings, self.sleep, self.clock = register, settings, sleep, clock
        self.chance = random.SystemRandom()
        self.metrics = SeriesMetrics(facts={"repository": register.url, "mode": settings.mode})
        self.matcher = SeriesMatcher(settings.pattern, settings.label_pattern, self.assignee, settings.label)
        self.observer = IssueObserver(client, self.matcher)
        self.lock = SeriesAssignmentLock(register)
        self.assigner = Assigner(client, self.assignee, settings.assign_with)
        self.tracking = TrackingIssues(register, self.matcher.rules if settings.acts else None)
        self.labels = PlaceLabels(client, self.matcher, settings.active_label, settings.queued_label)

    def begin_sync(self) -> None:
        deadline = self.settings.deadline
        self.ends = math.inf if deadline is None else self.clock() + deadline
        self.lock_wait_left = self.settings.lock_deadline
        self.labels.begin_sync()

    def retry_options(self, name: str) -> RetryOptions:
        """The retry options, limited by the deadline of the sync. Raises RegisterUnavailable if it is over."""
        retry = self.settings.retry
        if self.ends == math.inf:
            return retry
        left = self.ends - self.clock()
        if left <= 0:
            raise RegisterUnavailable(f"the deadline ended before series {name} could be changed: nothing was written")
        return replace(retry, deadline=left if retry.deadline is None else min(left, retry.deadline))
