"""A series: one active item, and a queue of those that wait for their turn.

The state is one small document, changed only by compare-and-swap of its revision, so two who claim at once cannot both
win. A newcomer never overtakes the queue. Claiming what one holds, queueing what is queued and releasing what is not
there change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from asterism.core.errors import AsterismError, shown

SCHEMA = 1

Item = str | int


class UnreadableSeries(AsterismError):
    """A state document that is not one. It counts as taken, never as free."""


@dataclass(frozen=True, slots=True)
class Series:
    """The items are ids of runs or numbers of issues. If anybody waits, somebody is active. ``revision`` counts
    changes; 0 is a series nobody has used."""

    name: str
    active: Item | None = None
    queue: tuple[Item, ...] = ()
    updated_at: float = 0.0
    revision: int = 0

    def claim(self, item: Item, now: float) -> Series:
        """With ``item`` active if nobody is, and at the end of the queue otherwise."""
        if item == self.active or item in self.queue:
            return self
        if self.active is None:
            return self._changed(now, active=item)
        return self._changed(now, queue=(*self.queue, item))

    def leave(self, item: Item, now: float) -> Series:
        """Without ``item``: if it was active, the first of the queue is active now."""
        if item == self.active:
            return self._changed(now, active=self.queue[0] if self.queue else None, queue=self.queue[1:])
        if item in self.queue:
            return self._changed(now, queue=tuple(other for other in self.queue if other != item))
        return self

    def position(self, item: Item) -> int | None:
        """0 for the active item, 1 for the next, None for one that is not here."""
        if item == self.active:
            return 0
        return self.queue.index(item) + 1 if item in self.queue else None

    def _changed(self, now: float, **changes: Any) -> Series:
        return replace(self, updated_at=now, revision=self.revision + 1, **changes)

    def to_json(self) -> dict[str, Any]:
        return {
            "series": self.name,
            "active": self.active,
            "queue": list(self.queue),
            "updated_at": self.updated_at,
            "version": SCHEMA,
            "revision": self.revision,
        }

    @classmethod
    def from_json(cls, data: object) -> Series:
        """Raises UnreadableSeries for anything that ``to_json`` would not have written: a field too few must not read
        as a series that is free, and a field too many would be lost with the next change."""
        if not isinstance(data, Mapping):
            raise UnreadableSeries(f"the state of a series is an object, not {shown(data)}")
        version = data.get("version")
        if type(version) is not int or version != SCHEMA:
            raise UnreadableSeries(f"this is version {shown(version)} of a series; {SCHEMA} is known here")
        if set(data) != _FIELDS:
            raise UnreadableSeries(f"the state of a series has {', '.join(sorted(_FIELDS))}, not {shown(data)}")
        if not _is_whole(**data):
            raise UnreadableSeries(f"the state of series {shown(data['series'])} contradicts itself: {shown(data)}")
        return cls(data["series"], data["active"], tuple(data["queue"]), data["updated_at"], data["revision"])


_FIELDS = frozenset(Series("").to_json())


def _is_whole(*, series: Any, active: Any, queue: Any, updated_at: Any, revision: Any, version: int) -> bool:
    return (
        isinstance(series, str)
        and (active is None or _is_item(active))
        and isinstance(queue, list)
        and all(_is_item(item) for item in queue)
        and len({active, *queue}) == len(queue) + 1
        and (active is not None or not queue)
        and isinstance(updated_at, int | float)
        and not isinstance(updated_at, bool)
        and abs(updated_at) < float("inf")
        and type(revision) is int
        and (revision > 0 or (revision == 0 and active is None))
    )


def _is_item(value: object) -> bool:
    return isinstance(value, str) or type(value) is int
