"""Labels on the issues themselves: which one is active, which ones wait.

They are a view, as the tracking issue is: written from the state, and never read as it. What an issue shows is known
from the list that a sync reads anyhow, so where all is right nothing is asked. A label that the repository does not
have is made. An issue that leaves loses its label before it leaves the state: whoever dies in between does it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from asterism.core.series.machine import Series
from asterism.series.github.discovery import TRACKING_LABEL, Finder, Found, labels_of
from asterism.series.github.github_client import GitHubClient, Refused
from asterism.series.github.observed_state import Fate
from asterism.series.register import RegisterUnavailable, SeriesError, Unsure

ACTIVE_LABEL = "series-active"
QUEUED_LABEL = "series-queued"
MOST_AT_ONCE = 50
"""Changes of labels in one sync: of a long queue the rest comes with the next ones."""

_FORMS = {
    "active": {"color": "0e8a16", "description": "The active issue of its series: it is being worked on."},
    "queued": {"color": "fbca04", "description": "Waits for its turn in its series."},
}


class BadLabel(SeriesError):
    """A label for the places in a series that would say something else too."""


class PlaceLabels:
    """``active`` and ``queued`` are the names of the labels; None for one that is not wanted. Raises BadLabel."""

    def __init__(self, client: GitHubClient, finder: Finder, active: str | None, queued: str | None) -> None:
        self._client = client
        self._names = {place: name for place, name in (("active", active), ("queued", queued)) if name is not None}
        self._there: set[str] = set()
        self.left = MOST_AT_ONCE
        for name in self._names.values():
            _check(name, finder)
        if len({name.casefold() for name in self._names.values()}) < len(self._names):
            raise BadLabel(f"the label {active!r} cannot say both that an issue is active and that it is queued")

    def begin(self) -> None:
        """A new sync."""
        self.left = MOST_AT_ONCE

    async def take_off(self, number: int, fate: Fate) -> None:
        """From an issue that is about to leave. One that cannot be reached any more keeps what it has."""
        if fate not in (Fate.DELETED, Fate.TRANSFERRED):
            for name in self._names.values():
                await self._remove(number, name)

    async def show(self, series: Series, live: Mapping[int, Found]) -> None:
        """Let the open issues of a series show their places. What cannot be written now comes with the next sync."""
        if not self._names:
            return
        for found in live.values():
            self._there |= {label.casefold() for label in labels_of(found.form)}
        for number, found in live.items():
            place = series.position(number)
            wanted = None if place is None else self._names.get("active" if place == 0 else "queued")
            here = {label.casefold() for label in labels_of(found.form)}
            for name in self._names.values():
                if name != wanted and name.casefold() in here:
                    await self._remove(number, name)
            if wanted is not None and wanted.casefold() not in here:
                await self._add(number, wanted)

    async def _add(self, number: int, name: str) -> None:
        if self.left <= 0:
            return
        self.left -= 1
        await self._make(name)
        await self._sent("POST", f"issues/{number}/labels", {"labels": [name]})

    async def _remove(self, number: int, name: str) -> None:
        if self.left > 0:
            self.left -= 1
            await self._sent("DELETE", f"issues/{number}/labels/{quote(name, safe='')}", None)

    async def _make(self, name: str) -> None:
        """Unless it is known to be there."""
        if name.casefold() not in self._there:
            place = next(place for place, known in self._names.items() if known == name)
            await self._sent("POST", "labels", {"name": name, **_FORMS[place]})
            self._there.add(name.casefold())

    async def _sent(self, method: str, path: str, body: Any) -> None:
        """What is refused is so already, or cannot be: a label that is there, or is not there, or may not be set."""
        try:
            await self._client.send(method, path, body)
        except (Refused, RegisterUnavailable, Unsure):
            return


def _check(name: str, finder: Finder) -> None:
    """A label that puts an issue into a series, or takes it out, is not ours to set and remove."""
    if not name.strip() or not name.isprintable() or "," in name:
        raise BadLabel(f"{name!r} is not a usable name for a label (examples: {ACTIVE_LABEL}, {QUEUED_LABEL})")
    if name.casefold() in (TRACKING_LABEL, (finder.required or "").casefold()):
        raise BadLabel(f"the label {name!r} is used to find issues: choose another for their places")
    if finder.find({"number": 1, "title": "", "labels": [name, finder.required]}) is not None:
        raise BadLabel(f"the label {name!r} names a series itself: choose another (examples: {ACTIVE_LABEL})")
