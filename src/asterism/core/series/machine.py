"""The state machine of a series: one active item and a queue, as immutable states.

The state is one small document that changes only by compare-and-swap, so of two concurrent claims only one wins. Each
operation returns the next state, or the same object if nothing changes: to claim the active item, to queue a queued
item and to release an absent item change nothing.

Every operation keeps these rules:

- at most one item is active; no item is active and queued, or queued twice; no item gets lost;
- a new item never overtakes the queue: if any item waits, it is appended, even if no item is active. The head of the
  queue may claim its turn, and ``promote`` activates it;
- while a series is paused, no item becomes active. An active item stays active;
- an active item may have a lease. When the lease has run out, ``expire`` frees the series. An item that asks for a
  lease and has to wait gets it when it is promoted, so an item whose claimer died while it waited blocks the others
  only that long. An item that asked for no lease has none;
- an item that was claimed by force is ``forced`` as long as it is in the series.

``since`` is when the active item became active, ``by`` who activated it, and ``claim_id`` the id of that claim: a
caller whose reply was lost recognises its own claim by it.

A state has two written forms: ``to_document`` for issues, for people (``active_issue``, times in ISO 8601), and
``to_json`` for runs, for stores. Both are read strictly: see UnreadableSeries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from asterism.core.history import step_time
from asterism.core.json_values import JsonObject
from asterism.core.series.document import (
    ISSUES,
    LONGEST_LEASE,
    RUNS,
    SCHEMA,
    SHORTEST_LEASE,
    Item,
    UnreadableSeries,
    decode,
    encode,
    is_issue,
    parse_text,
)

__all__ = ["LONGEST_LEASE", "SCHEMA", "SHORTEST_LEASE", "Item", "Live", "Series", "UnreadableSeries"]


class Live(NamedTuple):
    """An open issue: its number, its micro number within the series, and whether the bot is assigned to it."""

    item: Item
    micro: int
    assigned: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """One state of a series. Items are run ids or issue numbers. ``revision`` counts changes; 0 is an unused series.
    Times are seconds, to the millisecond. ``lease`` is the length of the lease of the active item, in seconds;
    ``leases`` has the lengths that queued items asked for, in the order of the queue. ``forced`` are the items, the
    active one first, that somebody put into this series although their titles do not name it."""

    name: str
    active: Item | None = None
    queue: tuple[Item, ...] = ()
    updated_at: float = 0.0
    revision: int = 0
    since: float | None = None
    claim_id: str | None = None
    by: str | None = None
    lease: float | None = None
    lease_until: float | None = None
    paused: str | None = None
    leases: tuple[tuple[Item, float], ...] = ()
    forced: tuple[Item, ...] = ()

    # -- getting a turn ------------------------------------------------------------------------------------------------

    def claim(
        self, item: Item, now: float, claim: str | None = None, lease: float | None = None, by: str | None = None
    ) -> Series:
        """Activate ``item`` if it is its turn; append it to the queue otherwise. ``claim`` is the id of this claim,
        ``by`` its author. With ``lease`` the item is active for that many seconds unless the lease is renewed; an
        active item without a lease gets this one. Raises ValueError for an invalid lease."""
        if lease is not None and not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
            raise ValueError(f"a lease is {SHORTEST_LEASE:g} to {LONGEST_LEASE:g} seconds long, not {lease}")
        if item == self.active:
            if lease is None or self.lease_until is not None:
                return self
            return self._changed(now, lease=_rounded(lease), lease_until=_rounded(now + lease))
        if self.active is None and self.paused is None and self.queue[:1] in ((), (item,)):
            return self._activated(item, now, claim, lease, by)
        queue = self.queue if item in self.queue else (*self.queue, item)
        leases = dict(self.leases) if lease is None else {**dict(self.leases), item: _rounded(lease)}
        if queue == self.queue and leases == dict(self.leases):
            return self
        return self._changed(now, queue=queue, leases=tuple(leases.items()))

    def promote(self, now: float, claim: str | None = None, by: str | None = None) -> Series:
        """Activate the head of the queue, if no item is active and the series is not paused."""
        if self.active is not None or self.paused is not None or not self.queue:
            return self
        return self._activated(self.queue[0], now, claim, None, by)

    def enqueue(self, items: Iterable[tuple[Item, int]], now: float) -> Series:
        """Append the items that are not in the series. They are pairs (item, micro number) and go in the
        order of their micro numbers."""
        known = {self.active, *self.queue}
        ordered = [item for item, micro in sorted(items, key=lambda pair: _order(pair[0], pair[1]))]
        new = tuple(item for item in dict.fromkeys(ordered) if item not in known)
        return self._changed(now, queue=(*self.queue, *new)) if new else self

    def force(self, item: Item, now: float) -> Series:
        """Record that ``item`` belongs to this series by force, whatever its title is."""
        if self.position(item) is None or item in self.forced:
            return self
        return self._changed(now, forced=(*self.forced, item))

    def front(self, item: Item, now: float) -> Series:
        """Move a queued ``item`` to the head of the queue."""
        if item not in self.queue or self.queue[0] == item:
            return self
        return self._changed(now, queue=(item, *self._without(item)))

    # -- leaving -------------------------------------------------------------------------------------------------------

    def release(self, item: Item, now: float) -> Series:
        """Remove ``item``. If it was active, no item is active now; ``promote`` activates the next."""
        if item == self.active:
            return self._changed(now, **_NO_ACTIVE_ITEM)
        return self._changed(now, queue=self._without(item)) if item in self.queue else self

    def complete(self, item: Item, now: float) -> Series:
        """Remove ``item``, which is done."""
        return self.release(item, now)

    def abandon(self, item: Item, now: float) -> Series:
        """Remove ``item``, which was given up. It may come back as a new item."""
        return self.release(item, now)

    def leave(self, item: Item, now: float, by: str | None = None) -> Series:
        """Remove ``item`` and, if it was active, activate the head of the queue, by ``by``. This is one change."""
        released = self.release(item, now)
        return released.promote(now, by=by).as_one_change_of(self) if item == self.active else released

    def expire(self, now: float) -> Series:
        """Free the series if the lease of the active item has run out."""
        if self.lease_until is None or now < self.lease_until:
            return self
        return self._changed(now, **_NO_ACTIVE_ITEM)

    def renew(self, item: Item, now: float, until: float, claim: str | None = None) -> Series:
        """Extend the lease of ``item`` to ``until``. Changes nothing if the item is not active, or was activated by
        another claim than ``claim``, or if its lease lasts longer."""
        until = _rounded(until)
        mine = item == self.active and claim in (None, self.claim_id)
        if not mine or (self.lease_until is not None and until <= self.lease_until):
            return self
        return self._changed(now, lease_until=until, lease=_rounded(max(until - now, 0.001)))

    # -- steering ------------------------------------------------------------------------------------------------------

    def pause(self, now: float, by: str, reason: str = "") -> Series:
        """Pause the series. A paused series keeps its first author and reason."""
        if self.paused is not None:
            return self
        return self._changed(now, paused=f"by {by}: {reason}" if reason else f"by {by}")

    def resume(self, now: float) -> Series:
        """Resume the series. This alone promotes no item."""
        return self if self.paused is None else self._changed(now, paused=None)

    def rebuild(self, live: Iterable[Live], now: float) -> Series:
        """Rebuild the series from the live items: exactly those, queued in the order of their micro numbers. A live
        active item stays active. If there is none, the first assigned item becomes active, unless the series is
        paused."""
        ordered = sorted(
            {entry.item: entry for entry in live}.values(), key=lambda entry: _order(entry.item, entry.micro)
        )
        items = [entry.item for entry in ordered]
        assigned = [entry.item for entry in ordered if entry.assigned and self.paused is None]
        active = self.active if self.active in items else next(iter(assigned), None)
        queue = tuple(item for item in items if item != active)
        if (active, queue) == (self.active, self.queue):
            return self
        if active == self.active:
            return self._changed(now, queue=queue)
        if active is None:
            return self._changed(now, queue=queue, **_NO_ACTIVE_ITEM)
        freed = replace(self, queue=(active, *queue), **_NO_ACTIVE_ITEM)
        return freed._activated(active, now, None, None, None)

    # -- reading -------------------------------------------------------------------------------------------------------

    def position(self, item: Item) -> int | None:
        """0 for the active item, 1 for the next, None for an item that is not in the series."""
        if item == self.active:
            return 0
        return self.queue.index(item) + 1 if item in self.queue else None

    def as_one_change_of(self, before: Series) -> Series:
        """This state as one change of ``before``, whatever number of operations led to it."""
        if self is before:
            return before
        once = replace(self, revision=before.revision + 1)
        unchanged = replace(once, updated_at=before.updated_at, revision=before.revision) == before
        return before if unchanged else once

    def counted_from(self, revision: int) -> Series:
        """The same state with at least this revision, so that the next change gets a higher one."""
        return self if revision <= self.revision else replace(self, revision=revision)

    def active_since(self, item: Item | None, since: float | None) -> Series:
        """The same state with ``since``, if ``item`` is the active one: a rebuilt state may not know it."""
        return self if item is None or item != self.active or since is None else replace(self, since=since)

    def stamped(self, now: float) -> Series:
        """The same state as a new change, to write a salvaged state again."""
        return self._changed(now)

    def _activated(self, item: Item, now: float, claim: str | None, lease: float | None, by: str | None) -> Series:
        """Activate ``item``, which is the head of the queue if there is one, with this lease, or with the one it asked
        for when it was queued."""
        length = dict(self.leases).get(item) if lease is None else _rounded(lease)
        until = None if length is None else _rounded(now + length)
        return self._changed(
            now,
            active=item,
            queue=self.queue[1:],
            since=_rounded(now),
            claim_id=claim or None,
            by=by or None,
            lease=length,
            lease_until=until,
        )

    def _without(self, item: Item) -> tuple[Item, ...]:
        return tuple(other for other in self.queue if other != item)

    def _changed(self, now: float, **changes: Any) -> Series:
        changed = replace(
            self, updated_at=_rounded(step_time(self.updated_at, now)), revision=self.revision + 1, **changes
        )
        asked = dict(changed.leases)
        leases = tuple((item, asked[item]) for item in changed.queue if item in asked)
        forced = tuple(item for item in (changed.active, *changed.queue) if item is not None and item in changed.forced)
        same = leases == changed.leases and forced == changed.forced
        return changed if same else replace(changed, leases=leases, forced=forced)

    # -- written down --------------------------------------------------------------------------------------------------

    def to_json(self) -> JsonObject:
        """The form for runs, which stores keep."""
        return encode(self, RUNS)

    @classmethod
    def from_json(cls, data: object) -> Series:
        """Raises UnreadableSeries for anything that ``to_json`` would not write: a missing field must not read as a
        free series, and an unknown field would be lost with the next change."""
        return cls(**decode(data, RUNS))

    def to_document(self) -> JsonObject:
        """The form for issues, which people read."""
        return encode(self, ISSUES)

    @classmethod
    def from_document(cls, data: object) -> Series:
        """Raises UnreadableSeries, as ``from_json``."""
        return cls(**decode(data, ISSUES))

    def to_text(self) -> str:
        """The document for issues as text. The same state gives the same text."""
        return json.dumps(self.to_document(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_text(cls, text: str | None, name: str) -> Series:
        """The state of series ``name`` from the text of a register; None is an unused series. Raises UnreadableSeries,
        also for the state of another series."""
        if text is None:
            return cls(name)
        series = cls.from_document(parse_text(text, name))
        if series.name != name:
            raise UnreadableSeries(f"the state of series {name} is that of series {series.name}")
        return series

    @classmethod
    def salvaged(cls, text: str | None, name: str, earlier: Iterable[str] = ()) -> Series:
        """What can be recovered from an unreadable or lost state, as a base for ``rebuild``: the active issue and
        whether it is forced, the pause and the revision, each if it is valid. Do not act on it without a rebuild.
        ``earlier`` are the states before it, the newest first: they give the revision to continue from, and since when
        the active issue is active."""
        last = cls._last_of(earlier, name)
        try:
            series = cls.from_text(text, name)
            return series if text is not None else series.counted_from(last.revision)
        except UnreadableSeries:
            series = cls._remains_of(text, name)
        return series.counted_from(last.revision).active_since(last.active, last.since)

    @classmethod
    def _last_of(cls, earlier: Iterable[str], name: str) -> Series:
        """The last readable state, with its revision increased by one for each unreadable state after it."""
        for place, text in enumerate(earlier):
            try:
                series = cls.from_text(text, name)
            except UnreadableSeries:
                continue
            return series.counted_from(series.revision + place)
        return cls(name)

    @classmethod
    def _remains_of(cls, text: str | None, name: str) -> Series:
        try:
            data = json.loads(text or "", object_pairs_hook=_first_of_each)
        except (ValueError, RecursionError):
            data = None
        fields = data if isinstance(data, dict) else {}
        active, paused, revision = (fields.get(key) for key in ("active_issue", "paused", "revision"))
        active = active if is_issue(active) else None
        forced = fields.get("forced")
        return cls(
            name,
            active=active,
            forced=(active,) if active is not None and isinstance(forced, list) and active in forced else (),
            revision=revision if type(revision) is int and revision > 0 else 1,
            paused=paused if isinstance(paused, str) and paused else None,
        )


_NO_ACTIVE_ITEM: dict[str, Any] = dict.fromkeys(("active", "since", "claim_id", "by", "lease", "lease_until"))


def _first_of_each(pairs: list[tuple[str, Any]]) -> JsonObject:
    """The first non-null value of each key: of a duplicate key, an active issue wins over null."""
    return {key: value for key, value in reversed(pairs) if value is not None}


def _order(item: Item, micro: int) -> tuple[int, bool, Item]:
    return micro, isinstance(item, str), item


def _rounded(seconds: float) -> float:
    """To the millisecond, the precision of a document: a state that is read back is the same."""
    return round(float(seconds), 3)
