"""A series: one active item, and a queue of those that wait for their turn.

The state is one small document, changed only by compare-and-swap, so two who claim at once cannot both win. Each
operation is a function of the state and returns the next one, or the same object when nothing changes: claiming what
one holds, queueing what is queued and releasing what is not there change nothing.

The rules, which every operation keeps:

- at most one item is active; none is active and queued, none is queued twice, none gets lost;
- a newcomer never overtakes the queue: if anybody waits it is appended, even while nobody is active; the head of the
  queue may claim its turn, and ``promote`` gives it its turn;
- while a series is paused nobody becomes active. Who is active already stays so;
- an active item may have a lease. When that has run out ``expire`` frees the series. Who asks for one and has to wait
  gets it when it is promoted, so who died while it waited holds nobody up for longer than that. Who asked for none has
  none, whatever others asked for.

``since`` is when the active item became active, ``by`` who made it so, and ``claim_id`` the id of that claim: by it a
caller whose reply was lost recognises itself.

The same state has two written forms: ``to_document`` for issues, which people read (`active_issue`, times in ISO 8601),
and ``to_json`` for runs, which stores keep beside them. Both are read strictly: see UnreadableSeries.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from asterism.core.history import step_time
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
    """An issue that is open: its number, its micro number within the series, and whether the bot is assigned to it."""

    item: Item
    micro: int
    assigned: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """The items are ids of runs or numbers of issues. ``revision`` counts changes; 0 is a series nobody has used. Times
    are seconds, to the millisecond. ``lease`` is for how long the active item asked, in seconds; ``leases`` has those
    for which items of the queue asked, in the order of the queue."""

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

    # -- getting a turn ------------------------------------------------------------------------------------------------

    def claim(
        self, item: Item, now: float, claim: str | None = None, lease: float | None = None, by: str | None = None
    ) -> Series:
        """With ``item`` active if it is its turn, and at the end of the queue otherwise. ``claim`` is the id of this
        claim, ``by`` who makes it. With ``lease`` it is active for that long, unless it is renewed; one that is active
        without a lease has this one from now on. Raises ValueError for a lease that is none."""
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
        """With the head of the queue active, if nobody is and the series is not paused."""
        if self.active is not None or self.paused is not None or not self.queue:
            return self
        return self._activated(self.queue[0], now, claim, None, by)

    def enqueue(self, found: Iterable[tuple[Item, int]], now: float) -> Series:
        """With those of ``found`` that are not here yet at the end of the queue. They are (item, micro number): what is
        found together goes in the order of the micro numbers."""
        known = {self.active, *self.queue}
        ordered = [item for item, micro in sorted(found, key=lambda one: _order(one[0], one[1]))]
        new = tuple(item for item in dict.fromkeys(ordered) if item not in known)
        return self._changed(now, queue=(*self.queue, *new)) if new else self

    def front(self, item: Item, now: float) -> Series:
        """With ``item``, which waits, at the head of the queue."""
        if item not in self.queue or self.queue[0] == item:
            return self
        return self._changed(now, queue=(item, *self._without(item)))

    # -- leaving -------------------------------------------------------------------------------------------------------

    def release(self, item: Item, now: float) -> Series:
        """Without ``item``. If it was active nobody is now: ``promote`` says who is next."""
        if item == self.active:
            return self._changed(now, **_NOBODY)
        return self._changed(now, queue=self._without(item)) if item in self.queue else self

    def complete(self, item: Item, now: float) -> Series:
        """``item`` is done: it leaves, wherever it stands."""
        return self.release(item, now)

    def abandon(self, item: Item, now: float) -> Series:
        """``item`` was given up without being done. It leaves too, and may come back as a newcomer."""
        return self.release(item, now)

    def leave(self, item: Item, now: float, by: str | None = None) -> Series:
        """Without ``item``; if it was active, the first of the queue is active now, by ``by``. All of it is one
        change."""
        released = self.release(item, now)
        return released.promote(now, by=by).as_one_change_of(self) if item == self.active else released

    def expire(self, now: float) -> Series:
        """Free, if the lease of the active item has run out."""
        if self.lease_until is None or now < self.lease_until:
            return self
        return self._changed(now, **_NOBODY)

    def renew(self, item: Item, now: float, until: float, claim: str | None = None) -> Series:
        """With the lease of ``item`` until then, if that is later. An item that is not active any more, or was made so
        by another claim than the one that is named, renews nothing."""
        until = _rounded(until)
        mine = item == self.active and claim in (None, self.claim_id)
        if not mine or (self.lease_until is not None and until <= self.lease_until):
            return self
        return self._changed(now, lease_until=until, lease=_rounded(max(until - now, 0.001)))

    # -- steering ------------------------------------------------------------------------------------------------------

    def pause(self, now: float, by: str, reason: str = "") -> Series:
        """Paused, which says by whom and why. A series that is paused stays so, for its first reason."""
        if self.paused is not None:
            return self
        return self._changed(now, paused=f"by {by}: {reason}" if reason else f"by {by}")

    def resume(self, now: float) -> Series:
        """Not paused any more. Nobody is promoted by that alone."""
        return self if self.paused is None else self._changed(now, paused=None)

    def rebuild(self, live: Iterable[Live], now: float) -> Series:
        """What the living items say: all of them and no others, queued in the order of their micro numbers. An active
        one that lives stays active; if there is none, the first that is assigned is, unless the series is paused."""
        ordered = sorted({one.item: one for one in live}.values(), key=lambda one: _order(one.item, one.micro))
        items = [one.item for one in ordered]
        assigned = [one.item for one in ordered if one.assigned and self.paused is None]
        active = self.active if self.active in items else next(iter(assigned), None)
        queue = tuple(item for item in items if item != active)
        if (active, queue) == (self.active, self.queue):
            return self
        if active == self.active:
            return self._changed(now, queue=queue)
        if active is None:
            return self._changed(now, queue=queue, **_NOBODY)
        freed = replace(self, queue=(active, *queue), **_NOBODY)
        return freed._activated(active, now, None, None, None)

    # -- looking -------------------------------------------------------------------------------------------------------

    def position(self, item: Item) -> int | None:
        """0 for the active item, 1 for the next, None for one that is not here."""
        if item == self.active:
            return 0
        return self.queue.index(item) + 1 if item in self.queue else None

    def as_one_change_of(self, before: Series) -> Series:
        """This state, reached from ``before`` in one change: however many operations it took, it is written once."""
        if self is before:
            return before
        once = replace(self, revision=before.revision + 1)
        unchanged = replace(once, updated_at=before.updated_at, revision=before.revision) == before
        return before if unchanged else once

    def counted_from(self, revision: int) -> Series:
        """The same, whose next change has a higher revision than this one, and than its own."""
        return self if revision <= self.revision else replace(self, revision=revision)

    def active_since(self, item: Item | None, since: float | None) -> Series:
        """The same, and if ``item`` is the active one, it has been so since then: what is rebuilt need not know."""
        return self if item is None or item != self.active or since is None else replace(self, since=since)

    def stamped(self, now: float) -> Series:
        """The same as a change of its own: what was salvaged is written anew, although nothing in it is new."""
        return self._changed(now)

    def _activated(self, item: Item, now: float, claim: str | None, lease: float | None, by: str | None) -> Series:
        """With the lease that is named, or the one it asked for when it was queued."""
        length = dict(self.leases).get(item) if lease is None else _rounded(lease)
        until = None if length is None else _rounded(now + length)
        return self._changed(
            now,
            active=item,
            queue=self._without(item),
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
        return changed if leases == changed.leases else replace(changed, leases=leases)

    def _fields(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}

    # -- written down --------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """As stores keep it for runs."""
        return encode(self._fields(), RUNS)

    @classmethod
    def from_json(cls, data: object) -> Series:
        """Raises UnreadableSeries for anything that ``to_json`` would not have written: a field too few must not read
        as a series that is free, and a field too many would be lost with the next change."""
        return cls(**decode(data, RUNS))

    def to_document(self) -> dict[str, Any]:
        """As people read it, for issues."""
        return encode(self._fields(), ISSUES)

    @classmethod
    def from_document(cls, data: object) -> Series:
        """Raises UnreadableSeries, as ``from_json``."""
        return cls(**decode(data, ISSUES))

    def to_text(self) -> str:
        """The document for issues as text, the same for the same state."""
        return json.dumps(self.to_document(), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_text(cls, text: str | None, name: str) -> Series:
        """The series ``name`` as a register holds it; None is one that nobody has used. Raises UnreadableSeries, also
        for the state of another series."""
        if text is None:
            return cls(name)
        series = cls.from_document(parse_text(text, name))
        if series.name != name:
            raise UnreadableSeries(f"the state of series {name} is that of series {series.name}")
        return series

    @classmethod
    def salvaged(cls, text: str | None, name: str, earlier: Iterable[str] = ()) -> Series:
        """What can still be told from a state that cannot be read, or is lost, to rebuild upon: the active issue, the
        pause and the number of changes, each if it is what it should be. It is nothing to act upon by itself.
        ``earlier`` are states before it, the newest first: by them the revision goes on where it was, and it is known
        since when the active issue is active."""
        last = cls._last_of(earlier, name)
        try:
            found = cls.from_text(text, name)
            return found if text is not None else found.counted_from(last.revision)
        except UnreadableSeries:
            found = cls._remains_of(text, name)
        return found.counted_from(last.revision).active_since(last.active, last.since)

    @classmethod
    def _last_of(cls, earlier: Iterable[str], name: str) -> Series:
        """The last state that can be read, counted on by one for each that came after it and cannot."""
        for place, text in enumerate(earlier):
            try:
                found = cls.from_text(text, name)
            except UnreadableSeries:
                continue
            return found.counted_from(found.revision + place)
        return cls(name)

    @classmethod
    def _remains_of(cls, text: str | None, name: str) -> Series:
        try:
            data = json.loads(text or "", object_pairs_hook=_first_of_each)
        except (ValueError, RecursionError):
            data = None
        found = data if isinstance(data, dict) else {}
        active, paused, revision = (found.get(key) for key in ("active_issue", "paused", "revision"))
        return cls(
            name,
            active=active if is_issue(active) else None,
            revision=revision if type(revision) is int and revision > 0 else 1,
            paused=paused if isinstance(paused, str) and paused else None,
        )


_NOBODY: dict[str, Any] = dict.fromkeys(("active", "since", "claim_id", "by", "lease", "lease_until"))


def _first_of_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """If a key was written twice, what it says first: an active issue, rather than nobody."""
    return {key: value for key, value in reversed(pairs) if value is not None}


def _order(item: Item, micro: int) -> tuple[int, bool, Item]:
    return micro, isinstance(item, str), item


def _rounded(seconds: float) -> float:
    """To the millisecond, which is what a document can say: what is read back is then the same."""
    return round(float(seconds), 3)
