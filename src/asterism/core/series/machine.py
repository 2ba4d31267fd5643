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
- an active item has at most one ``holder``, the name of who works on it: the first claim with a name. A claim with
  another name changes nothing. An item that waits in the queue belongs to nobody;
- an item that was claimed by force is ``forced`` as long as it is in the series.

``since`` is when the active item became active, ``by`` who activated it, and ``claim_id`` the id of that claim: a
caller whose reply was lost recognises its own claim by it.

A state has two written forms: ``to_document`` for issues, for people (``active_issue``, times in ISO 8601), and
``to_json`` for runs, for stores. Both are read strictly: an unreadable state counts as taken, so no claim succeeds.
Fields that are not set are left out: ``since``, ``claim``, ``by``, ``holder``, ``held_since``, ``lease``,
``lease_until``, ``paused``, ``leases``, the leases that queued items asked for, as pairs of an item and seconds, and
``forced``, the items that somebody put there although their titles do not name this series.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from asterism.core.errors import AsterismError, safe_repr
from asterism.core.history import step_time
from asterism.core.json_values import JsonObject
from asterism.core.record import Record, replace

SCHEMA = 1

SHORTEST_LEASE = 0.001
LONGEST_LEASE = 3650 * 86_400.0
"""Bounds of a lease, in seconds. A document cannot express less than a millisecond, nor a time without end."""

Item = str | int


class UnreadableSeries(AsterismError):
    """A document is not a valid state of a series. It counts as taken, never as free."""


class Live(NamedTuple):
    """An open issue: its number, its micro number within the series, and whether the bot is assigned to it."""

    item: Item
    micro: int
    assigned: bool = False


class Series(Record):
    """One state of a series. Items are run ids or issue numbers. ``revision`` counts changes; 0 is an unused series.
    Times are seconds, to the millisecond. ``lease`` is the length of the lease of the active item, in seconds;
    ``leases`` has the lengths that queued items asked for, in the order of the queue. ``forced`` are the items, the
    active one first, that somebody put into this series although their titles do not name it. ``holder`` is whose the
    active item is, and ``held_since`` since when."""

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
    holder: str | None = None
    held_since: float | None = None

    # -- getting a turn ------------------------------------------------------------------------------------------------

    def claim(
        self,
        item: Item,
        now: float,
        claim: str | None = None,
        lease: float | None = None,
        by: str | None = None,
        holder: str | None = None,
    ) -> Series:
        """Activate ``item`` if it is its turn; append it to the queue otherwise. ``claim`` is the id of this claim,
        ``by`` its author. With ``lease`` the item is active for that many seconds unless the lease is renewed; an
        active item without a lease gets this one. With ``holder`` an active item that nobody holds is theirs, and that
        of another holder does not change. Raises ValueError for an invalid lease."""
        if lease is not None and not SHORTEST_LEASE <= lease <= LONGEST_LEASE:
            raise ValueError(f"a lease is {SHORTEST_LEASE:g} to {LONGEST_LEASE:g} seconds long, not {lease}")
        if item == self.active:
            return self._claimed_again(now, lease, holder)
        if self.active is None and self.paused is None and self.queue[:1] in ((), (item,)):
            return self._activated(item, now, claim, lease, by, holder)
        queue = self.queue if item in self.queue else (*self.queue, item)
        leases = dict(self.leases) if lease is None else {**dict(self.leases), item: _rounded(lease)}
        if queue == self.queue and leases == dict(self.leases):
            return self
        return self._changed(now, queue=queue, leases=tuple(leases.items()))

    def _claimed_again(self, now: float, lease: float | None, holder: str | None) -> Series:
        if self.is_held_from(holder):
            return self
        taken = holder is not None and self.holder is None
        changes: dict[str, Any] = {"holder": holder, "held_since": _rounded(now)} if taken else {}
        if lease is not None and (taken or self.lease_until is None):
            changes |= {"lease": _rounded(lease), "lease_until": _rounded(now + lease)}
        return self._changed(now, **changes) if changes else self

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
        """Remove ``item``, which is done or was given up; it may come back as a new item. If it was active, no item is
        active now; ``promote`` activates the next."""
        if item == self.active:
            return self._changed(now, **_NO_ACTIVE_ITEM)
        return self._changed(now, queue=self._without(item)) if item in self.queue else self

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

    def is_held_from(self, holder: str | None) -> bool:
        """Whether the active item belongs to another holder than this one. A claim without a name is kept from none."""
        return holder is not None and self.holder not in (None, holder)

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

    def _activated(
        self, item: Item, now: float, claim: str | None, lease: float | None, by: str | None, holder: str | None = None
    ) -> Series:
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
            holder=holder or None,
            held_since=_rounded(now) if holder else None,
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
        forced, holder, since = (fields.get(key) for key in ("forced", "holder", "held_since"))
        held = active is not None and isinstance(holder, str) and holder != "" and _from_iso(since) is not None
        return cls(
            name,
            active=active,
            forced=(active,) if active is not None and isinstance(forced, list) and active in forced else (),
            holder=holder if held else None,
            held_since=_from_iso(since) if held else None,
            revision=revision if type(revision) is int and revision > 0 else 1,
            paused=paused if isinstance(paused, str) and paused else None,
        )


_OF_THE_ACTIVE_ITEM = ("active", "since", "claim_id", "by", "lease", "lease_until", "holder", "held_since")
_NO_ACTIVE_ITEM: dict[str, Any] = dict.fromkeys(_OF_THE_ACTIVE_ITEM)


def _first_of_each(pairs: list[tuple[str, Any]]) -> JsonObject:
    """The first non-null value of each key: of a duplicate key, an active issue wins over null."""
    return {key: value for key, value in reversed(pairs) if value is not None}


def _order(item: Item, micro: int) -> tuple[int, bool, Item]:
    return micro, isinstance(item, str), item


def _rounded(seconds: float) -> float:
    """To the millisecond, the precision of a document: a state that is read back is the same."""
    return round(float(seconds), 3)


# -- the written forms -------------------------------------------------------------------------------------------------


class Form(NamedTuple):
    """The differences between the two forms: the key of the active item, its type, the form of a time."""

    active: str
    is_item: Callable[[object], bool]
    write_time: Callable[[float], Any]
    read_time: Callable[[Any], float | None]
    may_wait_unblocked: bool
    """Whether items may be queued while no item is active and the series is not paused. For runs never: the step that
    frees the series promotes the next."""


_KEYS = {"claim": "claim_id"}
"""Keys of a document whose field has another name, beside ``series`` and the active item."""

_TIMES = ("since", "lease_until", "held_since")
_TEXTS = ("claim", "by", "paused", "holder")
_ONLY_ACTIVE = {"since", "claim", "by", "lease_until", "holder"}
_SOMETIMES = {*_TIMES, *_TEXTS, "lease", "leases", "forced"}


def encode(series: Series, form: Form) -> JsonObject:
    """The document of a series."""
    sometimes = {
        key: getattr(series, _KEYS.get(key, key))
        for key in ("since", "claim", "by", "holder", "held_since", "lease", "lease_until", "paused")
    }
    sometimes["leases"] = [list(pair) for pair in series.leases] or None
    sometimes["forced"] = list(series.forced) or None
    return {
        "series": series.name,
        form.active: series.active,
        "queue": list(series.queue),
        **{
            key: form.write_time(value) if key in _TIMES else value
            for key, value in sometimes.items()
            if value is not None
        },
        "updated_at": form.write_time(series.updated_at),
        "version": SCHEMA,
        "revision": series.revision,
    }


def decode(data: object, form: Form) -> JsonObject:
    """The fields of a series. Raises UnreadableSeries for anything that ``encode`` would not write: a missing field
    must not read as a free series, and an unknown field would be lost with the next change."""
    if not isinstance(data, Mapping):
        raise UnreadableSeries(f"the state of a series is an object, not {safe_repr(data)}")
    version = data.get("version")
    if type(version) is not int or version != SCHEMA:
        raise UnreadableSeries(
            f"the state has version {safe_repr(version)}, and this version of Asterism reads version {SCHEMA}"
        )
    always = {"series", form.active, "queue", "updated_at", "version", "revision"}
    if not always <= set(data) <= always | _SOMETIMES:
        raise UnreadableSeries(f"the state of a series has {', '.join(sorted(always))}, not {safe_repr(data)}")
    if not _are_right(data, form) or not _fit(data, form):
        raise UnreadableSeries(f"the state of series {safe_repr(data['series'])} contradicts itself: {safe_repr(data)}")
    fields = {_KEYS.get(key, key): data[key] for key in _SOMETIMES & set(data)}
    fields |= {key: form.read_time(data[key]) for key in (*_TIMES, "updated_at") if key in data}
    if "leases" in data:
        fields["leases"] = tuple((item, seconds) for item, seconds in data["leases"])
    if "forced" in data:
        fields["forced"] = tuple(data["forced"])
    shared = {"name": data["series"], "active": data[form.active], "queue": tuple(data["queue"])}
    return {**fields, **shared, "revision": data["revision"]}


def _are_right(data: Mapping[str, Any], form: Form) -> bool:
    """Whether every field has a valid type."""
    active, queue = data[form.active], data["queue"]
    return (
        isinstance(data["series"], str)
        and (active is None or form.is_item(active))
        and isinstance(queue, list)
        and all(form.is_item(item) for item in queue)
        and type(data["revision"]) is int
        and all(form.read_time(data[key]) is not None for key in (*_TIMES, "updated_at") if key in data)
        and all(isinstance(data[key], str) and data[key] for key in _TEXTS if key in data)
        and ("lease" not in data or (_finite(data["lease"]) or 0) > 0)
        and ("leases" not in data or _are_leases(data["leases"], queue))
        and ("forced" not in data or _are_forced(data["forced"], [active, *queue]))
    )


def _are_leases(leases: Any, queue: list[Any]) -> bool:
    """Whether these are pairs of a queued item and seconds, in the order of the queue, at least one."""
    if not isinstance(leases, list) or not leases:
        return False
    if not all(isinstance(pair, list) and len(pair) == 2 for pair in leases):
        return False
    named = [item for item, _ in leases]
    if not all(type(item) in (int, str) for item in named):
        return False
    right = all(SHORTEST_LEASE <= (_finite(seconds) or 0) <= LONGEST_LEASE for _, seconds in leases)
    among = set(named)
    return right and named == [item for item in queue if item in among]


def _are_forced(forced: Any, items: list[Any]) -> bool:
    """Whether these are items of the series, in its order, at least one."""
    if not isinstance(forced, list) or not forced or not all(type(item) in (int, str) for item in forced):
        return False
    among = set(forced)
    return forced == [item for item in items if item in among]


def _fit(data: Mapping[str, Any], form: Form) -> bool:
    """Whether the fields are consistent."""
    active, queue, revision = data[form.active], data["queue"], data["revision"]
    if revision < 1:  # an unused series
        return revision == 0 and active is None and not queue and not _SOMETIMES & set(data)
    if ("holder" in data) != ("held_since" in data):
        return False
    if active is not None:
        return len({active, *queue}) == len(queue) + 1 and ("lease_until" not in data or "lease" in data)
    queue_allowed = not queue or form.may_wait_unblocked or "paused" in data
    return queue_allowed and len(set(queue)) == len(queue) and not _ONLY_ACTIVE & set(data)


def parse_text(text: str, name: str) -> Any:
    """The JSON data in a text. Raises UnreadableSeries."""
    try:
        return json.loads(text, object_pairs_hook=_each_once)
    except (ValueError, RecursionError):
        raise UnreadableSeries(f"the state of series {name} is not JSON: {safe_repr(text)}") from None


def _each_once(pairs: list[tuple[str, Any]]) -> JsonObject:
    """Refuse a duplicate key: readers would differ about its value."""
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key occurs twice")
    return fields


def is_issue(value: object) -> bool:
    return type(value) is int and value > 0


def _is_run(value: object) -> bool:
    return isinstance(value, str) or type(value) is int


def _finite(value: Any) -> float | None:
    return value if type(value) in (int, float) and abs(value) < float("inf") else None


_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{3})?Z", re.ASCII)


def _to_iso(seconds: float) -> str:
    at = _BEGINNING + timedelta(milliseconds=round(seconds * 1000))
    return at.isoformat(timespec="milliseconds" if at.microsecond else "seconds").replace("+00:00", "Z")


def _from_iso(text: Any) -> float | None:
    if not isinstance(text, str) or not _TIME.fullmatch(text):
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    seconds = ((at - _BEGINNING) // timedelta(milliseconds=1)) / 1000
    return seconds if _to_iso(seconds) == text else None  # 12:00:00.000 is 12:00:00


RUNS = Form("active", _is_run, float, _finite, may_wait_unblocked=False)
ISSUES = Form("active_issue", is_issue, _to_iso, _from_iso, may_wait_unblocked=True)
