"""Labels on the issues of a series that show which one is active and which ones wait.

They are a view, like the tracking issue: written from the state, and never read. The list that a sync reads anyway has
the present labels, so if all are right no request is made. A label that the repository lacks is created. An issue that
leaves the series loses its label before it leaves the state, so a process that dies in between repeats it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from asterism.core.series.machine import Series
from asterism.series.github.discovery import TRACKING_LABEL, SeriesIssue, SeriesMatcher, labels_of
from asterism.series.github.github_client import GitHubClient, RequestRejected
from asterism.series.github.observed_state import Departure
from asterism.series.register import OutcomeUnknown, RegisterUnavailable, SeriesError

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
