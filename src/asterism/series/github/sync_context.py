"""Settings of a sync (assignee, patterns, mode, limits), and what the syncs of all series of a repository share.

Labels on the issues of a series that show which one is active and which ones wait.

They are a view, like the tracking issue: written from the state, and never read. The list that a sync reads anyway has
the present labels, so if all are right no request is made. A label that the repository lacks is created. An issue that
leaves the series loses its label before it leaves the state, so a process that dies in between repeats it.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from asterism.core.series.machine import Series
from asterism.series.compare_and_swap import RetryOptions
from asterism.series.github.discovery import (
    LABEL_PATTERN,
    TITLE_PATTERN,
    TRACKING_LABEL,
    Assignee,
    SeriesIssue,
    SeriesMatcher,
    labels_of,
)
from asterism.series.github.github_client import GitHubClient, RequestRejected
from asterism.series.github.observed_state import Departure
from asterism.series.register import OutcomeUnknown, RegisterUnavailable, SeriesError

if TYPE_CHECKING:
    from asterism.series.github.assignment import Assigner, SeriesAssignmentLock
    from asterism.series.github.github_register import GitHubRegister
    from asterism.series.github.observed_state import IssueObserver
    from asterism.series.github.tracking_issue import TrackingIssues
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


@dataclass
class SyncContext:
    """What the syncs of all series of a repository share."""

    register: GitHubRegister
    settings: SyncSettings
    metrics: SeriesMetrics
    matcher: SeriesMatcher
    assignee: Assignee
    observer: IssueObserver
    lock: SeriesAssignmentLock
    assigner: Assigner
    tracking: TrackingIssues
    labels: PlaceLabels
    sleep: Callable[[float], Awaitable[None]]
    clock: Callable[[], float]
    chance: random.Random = field(default_factory=random.SystemRandom)
    ends: float = math.inf
    """When the deadline of the present sync is over."""
    lock_wait_left: float = 0.0
    """How long the present sync may still wait for assignment locks, in seconds."""

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


# -- place labels ------------------------------------------------------------------------------------------------------


ACTIVE_LABEL = "series-active"
QUEUED_LABEL = "series-queued"
MAX_CHANGES = 50
"""Label changes per sync; those of a long queue are spread over the next syncs."""

_DEFINITIONS = {
    "active": {"color": "0e8a16", "description": "The active issue of its series: it is being worked on."},
    "queued": {"color": "fbca04", "description": "Waits for its turn in its series."},
}


class BadLabel(SeriesError):
    """A label that cannot be used for the places in a series."""


class PlaceLabels:
    """``active`` and ``queued`` are the names of the labels; None for a label that is not wanted. Raises BadLabel."""

    def __init__(self, client: GitHubClient, matcher: SeriesMatcher, active: str | None, queued: str | None) -> None:
        self._client = client
        self._names = {place: name for place, name in (("active", active), ("queued", queued)) if name is not None}
        self._existing: set[str] = set()
        self.changes_left = MAX_CHANGES
        for name in self._names.values():
            _check(name, matcher)
        if len({name.casefold() for name in self._names.values()}) < len(self._names):
            raise BadLabel(f"the label {active!r} cannot be both the active and the queued label")

    def begin_sync(self) -> None:
        self.changes_left = MAX_CHANGES

    async def remove_all(self, number: int, departure: Departure) -> None:
        """Remove the labels of an issue that is about to leave, unless it is no longer accessible."""
        if departure not in (Departure.DELETED, Departure.TRANSFERRED):
            for name in self._names.values():
                await self._remove(number, name)

    async def show(self, series: Series, issues: Mapping[int, SeriesIssue]) -> None:
        """Label the open issues of a series with their places. A failed request is repeated by the next sync."""
        if not self._names:
            return
        for issue in issues.values():
            self._existing |= {label.casefold() for label in labels_of(issue.data)}
        for number, issue in issues.items():
            place = series.position(number)
            wanted = None if place is None else self._names.get("active" if place == 0 else "queued")
            present = {label.casefold() for label in labels_of(issue.data)}
            for name in self._names.values():
                if name != wanted and name.casefold() in present:
                    await self._remove(number, name)
            if wanted is not None and wanted.casefold() not in present:
                await self._add(number, wanted)

    async def _add(self, number: int, name: str) -> None:
        if self.changes_left <= 0:
            return
        self.changes_left -= 1
        await self._create(name)
        await self._send("POST", f"issues/{number}/labels", {"labels": [name]})

    async def _remove(self, number: int, name: str) -> None:
        if self.changes_left > 0:
            self.changes_left -= 1
            await self._send("DELETE", f"issues/{number}/labels/{quote(name, safe='')}", None)

    async def _create(self, name: str) -> None:
        """Create a label, unless it is known to exist."""
        if name.casefold() not in self._existing:
            place = next(place for place, known in self._names.items() if known == name)
            await self._send("POST", "labels", {"name": name, **_DEFINITIONS[place]})
            self._existing.add(name.casefold())

    async def _send(self, method: str, path: str, body: Any) -> None:
        """A refused request is done already (the label exists, or is not on the issue), or not allowed."""
        with contextlib.suppress(RequestRejected, RegisterUnavailable, OutcomeUnknown):
            await self._client.send(method, path, body)


def _check(name: str, matcher: SeriesMatcher) -> None:
    """A label that puts an issue into a series, or takes it out, must not be set here."""
    if not name.strip() or not name.isprintable() or "," in name:
        raise BadLabel(f"{name!r} is not a valid label (examples: {ACTIVE_LABEL}, {QUEUED_LABEL})")
    if name.casefold() in (TRACKING_LABEL, (matcher.required or "").casefold()):
        raise BadLabel(f"the label {name!r} is used to find issues: choose another one for their places")
    if matcher.match({"number": 1, "title": "", "labels": [name, matcher.required]}) is not None:
        raise BadLabel(f"the label {name!r} names a series: choose another one (example: {ACTIVE_LABEL})")
