"""Ticks of a schedule: which are due, which were missed, and what an overlap means.

A tick is *missed* if it could not be decided within ``LATE`` seconds, because no coordinator was there or the clock
jumped ahead. Ticks that are less late are on time, whatever the catch-up policy says. A schedule is decided one tick
after the other: ``due_tick`` names the next one to create, with the ticks that were missed before it, and ``decided``
moves the cursor past it. If the clock was set back, ``rewound`` moves the cursor back to now: a tick between may then
come a second time, and is recognised by its key (``tick_key``).

The calendar of a schedule says what became of each of its ticks. A tick with a *work*, the plan or run that was created
for it, has the state of that work. Of a tick without one the history of the schedule says why. The history keeps the
latest entries only (``HISTORY_LENGTH``), so that of an old tick without work no more is known than that there is none.

The record of a backfill says which ticks of a schedule are made up for, and how far that has come. A backfill goes
through its ticks in their order, at most ``parallel`` at once. A tick is *decided* when the cursor ``after`` moves past
it: in the commit that creates its plan, or once it is known that its plan exists. So a process that is killed at any
point leaves each tick decided once or not yet. The name of a plan follows from schedule and tick, so a tick that the
schedule itself has created is found, and is not created again.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from asterism.core.record import InvalidRecord, Record, decode, replace
from asterism.core.schedule.schedule import Schedule

NextTick = Callable[[float], int | None]
"""The first tick after a time; None if there is none."""

LATE = 60.0
"""A tick that is later than so many seconds was missed. An election and some passes of the monitor take less."""

MOST_CAUGHT_UP = 100
"""How many missed ticks the catch-up policy ``all`` creates at most: the newest ones."""

MOST_OPEN = 100
"""How many runs or plans of one schedule are remembered as open; for a queue, and for plans, more are not created."""

HISTORY_LENGTH = 2 * MOST_CAUGHT_UP
"""How many entries the history of a schedule keeps: what was missed must not be forgotten for what is caught up."""

CREATED, SKIPPED, MISSED, FAILED, EXISTS = OUTCOMES = ("created", "skipped", "missed", "failed", "exists")


_TIME_AT_END = re.compile(r"(?<=.)-([0-9]{8}(T[0-9]{6}Z|(-[0-9]{4})?(-[0-9]{1,3})?)|event-[0-9]+)\Z")
_TICK_AT_END = re.compile(r"-([0-9]{8}T[0-9]{6}Z)\Z")


class DueTick(NamedTuple):
    """The next decision about a schedule. ``tick`` is to be created; None if no tick is. ``missed`` are ticks before
    it that are not created, ``more`` says that there are still older ones."""

    tick: int | None
    missed: Sequence[int]
    more: bool


class Overlap(NamedTuple):
    """Whether a tick is created although earlier work is open; ``why`` it is not; what it replaces."""

    create: bool
    why: str = ""
    replaced: tuple[str, ...] = ()


class TickEntry(NamedTuple):
    """One line of a history. ``tick`` is None for a run that a person asked for. ``what`` is the run or the plan that
    was created. ``number`` is how many ticks were missed; ``tick`` is the last of them."""

    at: float
    tick: int | None
    outcome: str
    what: str | None = None
    why: str = ""
    number: int = 1

    def to_json(self) -> list[Any]:
        return list(self)


def interval_ticks(start: int, every: int) -> NextTick:
    """The ticks of an interval: ``start`` + n · ``every``."""
    return lambda after: start + every * int((after - start) // every + 1)


def tick_text(tick: int) -> str:
    """A tick in UTC, such as ``20261116T030000Z``; part of keys and names."""
    return datetime.fromtimestamp(tick, UTC).strftime("%Y%m%dT%H%M%SZ")


def tick_of(plan: str) -> int | None:
    """The tick that the plan of a schedule is named after; None if a person asked for it."""
    match = _TICK_AT_END.search(plan)
    return None if match is None else int(datetime.strptime(f"{match[1]}+0000", "%Y%m%dT%H%M%SZ%z").timestamp())


def without_time(name: str) -> str:
    """The name of a plan without the tick, event or start that it is named after (``core/plan/plan_name.py``), so that
    the plans of a schedule or of a plan file can be counted together."""
    return _TIME_AT_END.sub("", name)


def tick_key(name: str, tick: int) -> str:
    """The idempotency key of the run that a tick creates."""
    return f"schedule:{name}/{tick_text(tick)}"


def fires_at(schedule: Schedule, tick: int, following: int | None) -> float:
    """When a tick fires: later by its share of the jitter, but before the ``following`` tick. The share is derived from
    the schedule and the tick, so that all coordinators agree."""
    if not schedule.jitter:
        return float(tick)
    digest = hashlib.sha256(tick_key(schedule.name, tick).encode()).digest()
    share = int.from_bytes(digest[:6], "big") / 2**48
    room = schedule.jitter if following is None else min(schedule.jitter, following - tick)
    return tick + share * room


def moved_to(schedule: Schedule, after: float, next_tick: NextTick) -> Schedule:
    """The schedule with its cursor at ``after``, and its next tick."""
    tick = next_tick(after)
    due = None if tick is None else fires_at(schedule, tick, next_tick(tick) if schedule.jitter else None)
    return schedule.changed(after=after, next=tick, due=due)


def is_due(schedule: Schedule, now: float) -> bool:
    """Whether there is something to decide, without computing ticks."""
    if schedule.paused is not None:
        return False
    return schedule.after > now + LATE or (schedule.due is not None and schedule.due <= now)


def rewound(schedule: Schedule, now: float, next_tick: NextTick) -> Schedule:
    """A schedule whose cursor is in the future, since the clock was set back, continues from now. Else it stays."""
    return moved_to(schedule, float(int(now)), next_tick) if schedule.after > now + LATE else schedule


def due_tick(schedule: Schedule, now: float, next_tick: NextTick) -> DueTick | None:
    """The next tick to decide, by the catch-up policy; None if none is due."""
    ticks, more = recent_ticks(schedule.after, now, MOST_CAUGHT_UP + 1, next_tick)
    fires = [fires_at(schedule, tick, _following(ticks, place, next_tick)) for place, tick in enumerate(ticks)]
    if fires and fires[-1] > now:
        del ticks[-1], fires[-1]
    if not ticks:
        return None
    on_time = [tick for tick, at in zip(ticks, fires, strict=True) if now - at <= LATE]
    if schedule.catch_up == "all":
        chosen = ticks[-MOST_CAUGHT_UP:]
    elif schedule.catch_up == "last":
        chosen = on_time or ticks[-1:]
    else:
        chosen = on_time
    missed = len(ticks) - len(chosen)
    return DueTick(chosen[0] if chosen else None, ticks[:missed], more)


def recent_ticks(after: float, until: float, most: int, next_tick: NextTick) -> tuple[list[int], bool]:
    """The newest ``most`` ticks from after ``after`` up to ``until``, oldest first; and whether there are older ones.

    Searches ever longer times before ``until``: after a long absence there may be millions of ticks."""
    width = LATE
    while True:
        start = max(after, until - width)
        number, ticks = 0, deque[int](maxlen=most)
        tick = next_tick(start)
        while tick is not None and tick <= until:
            number += 1
            ticks.append(tick)
            tick = next_tick(tick)
        if start == after or number >= most:
            first = next_tick(after)
            return list(ticks), bool(ticks) and first is not None and first < ticks[0]
        width *= 4


def _following(ticks: Sequence[int], place: int, next_tick: NextTick) -> int | None:
    return ticks[place + 1] if place + 1 < len(ticks) else next_tick(ticks[place])


def decided(schedule: Schedule, due: DueTick, next_tick: NextTick) -> Schedule:
    """The schedule after a decision: the cursor is at its tick, or at the last missed one."""
    return moved_to(schedule, float(due.tick if due.tick is not None else due.missed[-1]), next_tick)


def overlap(schedule: Schedule, open_work: Sequence[str]) -> Overlap:
    """What happens to a tick while ``open_work``, the runs or plans of earlier ticks, has not ended."""
    most = schedule.parallel
    if len(open_work) < most or (schedule.overlap == "allow" and schedule.plan is None):
        return Overlap(True)
    if schedule.overlap == "skip":
        return Overlap(False, f"{open_work[-1]} has not ended")
    if schedule.overlap == "replace":
        return Overlap(True, replaced=tuple(open_work[: len(open_work) - most + 1]))
    if len(open_work) >= MOST_OPEN:
        return Overlap(False, f"{len(open_work)} earlier ones have not ended, and more may not wait")
    return Overlap(True)


def with_work(schedule: Schedule, open_work: Sequence[str], new: str, replaced: Sequence[str]) -> Schedule:
    """The schedule with one more run or plan."""
    kept = (*open_work, new)[-MOST_OPEN:]
    unique = dict.fromkeys((*schedule.replaced, *replaced))
    late = tuple(name for name in schedule.late if name in kept)
    return schedule.changed(open=kept, replaced=tuple(unique)[-MOST_OPEN:], made=schedule.made + 1, late=late)


def late_times(schedule: Schedule) -> dict[str, float]:
    """When the open plans of a schedule are late, by name; those that have been looked at since are left out."""
    if schedule.late_after is None:
        return {}
    ticks = {name: tick_of(name) for name in schedule.open if name not in schedule.late}
    return {name: tick + schedule.late_after for name, tick in ticks.items() if tick is not None}


def history_of(data: object) -> list[TickEntry]:
    """The entries of a history, oldest first, from JSON. Raises TypeError or InvalidRecord."""
    return [
        decode(TickEntry, TickEntry(*values))
        for values in decode(list[list[Any]], data if isinstance(data, list) else [])
    ]


def with_entries(data: object, entries: Sequence[TickEntry]) -> list[list[Any]]:
    """A history with further entries, as JSON: the newest ``HISTORY_LENGTH``. One that cannot be read begins anew."""
    known: Sequence[TickEntry] = ()
    with contextlib.suppress(TypeError, InvalidRecord):
        known = history_of(data)
    return [entry.to_json() for entry in (*known, *entries)][-HISTORY_LENGTH:]


def entries_of(due: DueTick, now: float) -> list[TickEntry]:
    """The entry about missed ticks; none if no tick was missed."""
    if not due.missed:
        return []
    why = "and older ones" if due.more else ""
    return [TickEntry(now, due.missed[-1], MISSED, None, why, len(due.missed))]


# -- calendar ----------------------------------------------------------------------------------------------------------


SUCCEEDED, CANCELLED, RUNNING, WAITING, NONE, DUE = "succeeded", "cancelled", "running", "waiting", "none", "due"
TICK_STATES = (SUCCEEDED, FAILED, CANCELLED, RUNNING, WAITING, SKIPPED, MISSED, NONE, DUE)
"""The states of a tick. The work of one that is ``waiting`` is created and not begun; for one with ``none`` nothing was
created, and it is not known why; one that is ``due`` is not decided yet."""


class TickWork(NamedTuple):
    """The plan or run of a tick. ``state`` is one of the first five of TICK_STATES."""

    name: str
    state: str
    started_at: float | None
    ended_at: float | None
    why: str = ""


class CalendarTick(NamedTuple):
    """One tick. ``work`` is None if nothing was created. ``late`` is whether the work has not ended in time, or did not
    end in time."""

    tick: int
    state: str
    work: TickWork | None
    late: bool
    why: str


class Calendar:
    """What is known of the ticks of a schedule at one moment. ``history`` is that of the schedule, oldest first, and
    ``caught_up`` the first of the missed ticks that are still to be created; None if there is none."""

    def __init__(
        self, schedule: Schedule, history: Sequence[TickEntry], now: float, caught_up: int | None = None
    ) -> None:
        self._schedule, self._now, self._caught_up = schedule, now, caught_up
        self._entries: Mapping[int, TickEntry] = {entry.tick: entry for entry in history if entry.tick is not None}
        forgets = len(history) >= HISTORY_LENGTH and bool(self._entries)
        self._known_from = max(schedule.start, min(self._entries)) if forgets else schedule.start

    def tick(self, tick: int, work: TickWork | None) -> CalendarTick:
        """What became of a tick whose work is known."""
        if work is not None:
            return CalendarTick(tick, work.state, work, self._is_late(tick, work), work.why)
        state, why = self._without_work(tick)
        return CalendarTick(tick, state, None, False, why)

    def _is_late(self, tick: int, work: TickWork) -> bool:
        limit = self._schedule.late_after
        if limit is None or tick < self._schedule.start:  # a backfill of the time before the schedule is not late
            return False
        return (self._now if work.ended_at is None else work.ended_at) > tick + limit

    def _without_work(self, tick: int) -> tuple[str, str]:
        schedule, entry = self._schedule, self._entries.get(tick)
        if entry is not None and entry.outcome in (SKIPPED, FAILED):
            return entry.outcome, entry.why
        if tick > schedule.after and tick + schedule.jitter + LATE > self._now:
            return DUE, ""
        if tick > schedule.after and self._caught_up is not None and tick >= self._caught_up:
            return DUE, "it was missed, and is created when a coordinator is back"
        if tick < self._known_from:
            return NONE, ""
        if tick > schedule.after and schedule.paused is not None:
            return MISSED, f"the schedule was paused {schedule.paused}"
        return MISSED, ""


# -- backfills ---------------------------------------------------------------------------------------------------------


MOST_TICKS = 10_000
"""How many ticks one backfill has at most."""

MOST_FAILURES = 20
"""How many of the plans that did not succeed are named: the last ones."""


class Backfill(Record, omit_defaults=True, forbid_unknown_fields=True):
    """``first`` and ``last`` are the first and the last tick, ``total`` is how many there are. With ``every`` they are
    so many seconds apart, otherwise those of the schedule. ``open`` are the plans that have not ended, oldest first;
    ``skipped`` counts the ticks whose plan had succeeded before, with ``only_missing`` all whose plan had ended.
    ``cancelled`` says who cancelled it, and why."""

    schedule: str
    first: int
    last: int
    total: int
    parallel: int
    created_by: str
    started_at: float
    after: float
    every: int | None = None
    only_missing: bool = False
    open: tuple[str, ...] = ()
    succeeded: int = 0
    failed: int = 0
    skipped: int = 0
    failures: tuple[str, ...] = ()
    cancelled: str | None = None
    ended_at: float | None = None

    @property
    def decided(self) -> int:
        """How many ticks have ended: they succeeded, failed or were skipped."""
        return self.succeeded + self.failed + self.skipped

    def changed(self, **changes: Any) -> Backfill:
        return replace(self, **changes)

    def time_left(self, now: float) -> float | None:
        """How many seconds it will take, at the pace so far; None while nothing has ended, and after its end. Ticks
        that were skipped took no time."""
        worked = self.succeeded + self.failed
        if not worked or self.ended_at is not None:
            return None
        return (now - self.started_at) / worked * (self.total - self.decided)


def backfill_ticks(backfill: Backfill, next_tick: NextTick) -> NextTick:
    """The ticks of a backfill; ``next_tick`` are those of its schedule."""
    return next_tick if backfill.every is None else interval_ticks(backfill.first, backfill.every)


def ticks_between(first: float, last: float, next_tick: NextTick) -> Iterator[int]:
    """The ticks from one time to another, both ends included."""
    tick = next_tick(first - 1)
    while tick is not None and tick <= last:
        yield tick
        tick = next_tick(tick)


def due_for_backfill(backfill: Backfill, next_tick: NextTick) -> int | None:
    """The next tick to create; None if there is none now."""
    if backfill.cancelled is not None or backfill.ended_at is not None or len(backfill.open) >= backfill.parallel:
        return None
    tick = backfill_ticks(backfill, next_tick)(backfill.after)
    return tick if tick is not None and tick <= backfill.last else None


def settle(backfill: Backfill, ends: Mapping[str, bool], now: float) -> Backfill:
    """The backfill with the plans that have ended: whether each of them succeeded, by name. If none is left, and no
    tick either, it has ended."""
    failures = [name for name in backfill.open if ends.get(name) is False]
    settled = backfill.changed(
        open=tuple(name for name in backfill.open if name not in ends),
        succeeded=backfill.succeeded + sum(ends.get(name, False) for name in backfill.open),
        failed=backfill.failed + len(failures),
        failures=(*backfill.failures, *failures)[-MOST_FAILURES:],
    )
    over = settled.cancelled is not None or settled.after >= settled.last
    return settled.changed(ended_at=now) if over and not settled.open and settled.ended_at is None else settled
