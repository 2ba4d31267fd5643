"""History of a stored plan: its versions, the plan as it was at one of them, and its events with their positions.

Everything comes from the journal, replayed step by step (``core/plan/step_changes.py``): the records that are there,
and those that compaction has archived (``compaction.py``). So the history covers the whole life of a plan. If
the archive is lost, it begins later, with the oldest snapshot that is left.

A *position* names an event: the number of its record, and its number within that record. A position without the latter
stands for the whole record, and is that of a plan as it was loaded. Positions only grow. A reader that continues after
any position gets every later event once, whatever is written, compacted or archived meanwhile. If that is impossible,
because the plan was removed, replaced or restored from a backup, it gets ``reset``, and has to read the plan again.

``PlanFollower`` keeps a plan up to date and reads only what is new. ``plan_events`` is the same for one question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

from asterism.base import expressions
from asterism.base.expressions import Conditions
from asterism.core.errors import AsterismError, PlanError
from asterism.core.json_values import JsonObject
from asterism.core.plan.assignment_lock import EditCycle
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.journal import RecordedConstellation, RecordedLock, Step, UnreadableJournal
from asterism.core.plan.step_changes import Change, replay_step
from asterism.core.record import Record, encode, replace
from asterism.durable.compaction import read_archive
from asterism.durable.journal_store import (
    LOAD_ATTEMPTS,
    Head,
    UnknownConstellation,
    checked_record,
    decode_journal,
    fetch_results,
    read_head,
    record_key,
    record_number,
    steps_of,
)
from asterism.orchestrator.plan_mask import PlanMask
from asterism.store.protocol import Store
from asterism.store.store_errors import StoreBusy

WHOLE = 1 << 40
"""The number within a record that stands for the whole record: greater than that of any event."""

STEPS_PER_TURN = 50
"""How many steps are replayed before other tasks of the event loop have their turn."""

EVENTS_PER_READ = 1000
"""``PlanFollower.read`` returns when it has this many events, and continues with the next call."""


class VersionUnknown(PlanError):
    """The plan has no such version, or its history does not reach back to it."""


class Position(NamedTuple):
    """See the module. As text: ``1790000000000042.3``, or ``1790000000000042`` for the whole record."""

    number: int
    step: int = WHOLE

    def __str__(self) -> str:
        return str(self.number) if self.step == WHOLE else f"{self.number}.{self.step}"

    def to_json(self) -> str:
        return str(self)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        number, dot, step = text.partition(".")
        if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in (number, *([step] if dot else []))):
            raise ValueError(f"{text[:40]!r} is not a position in a journal (example: 1790000000000042.3)")
        return cls(int(number), int(step) if dot else WHOLE)


class PlanEvent(Record):
    """What happened to a plan. ``kind`` is ``task``, ``edit``, ``cycle`` or ``plan``, and ``data`` as described in
    ``core/plan/step_changes.py``; or ``reset``: the plan has to be read again, and events continue after ``position``;
    or ``gone``: the store has no such plan any more."""

    position: Position
    kind: str
    at: float
    data: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"position": str(self.position), "at": self.at, "kind": self.kind, **self.data}


class PlanEvents(NamedTuple):
    """The events after a position. ``position`` is that of the plan as it is now. With ``reset`` there are none: the
    reader has to read the plan again, and continues after ``position``."""

    events: list[PlanEvent]
    position: Position
    reset: bool = False


class PlanVersion(Record, forbid_unknown_fields=True):
    """A version of a plan, and the edit that made it; version 0 is the plan as it was stored. ``edits`` is the batch as
    JSON, ``diff`` what it changed in the structure, ``triggers`` the tasks whose ends it answers, ``undoes`` the
    version that it undoes."""

    version: int
    at: float
    position: Position
    author: str = ""
    reason: str = ""
    edits: Sequence[Mapping[str, Any]] = ()
    diff: Mapping[str, Any] | None = None
    triggers: Sequence[str] = ()
    undoes: int | None = None

    def to_json(self) -> JsonObject:
        at = {"version": self.version, "at": self.at, "position": str(self.position)}
        return {**encode(replace(self, position=Position(0, 0))), **at}


class ClosedCycle(NamedTuple):
    """An edit cycle that is closed, and the version that its answer made; None if it made none."""

    cycle: EditCycle
    version: int | None


class EditHistory(NamedTuple):
    """The versions of a plan and its closed edit cycles, oldest first."""

    versions: list[PlanVersion]
    cycles: list[ClosedCycle]


class PastPlan(Record):
    """A plan as it was when a version was made: right after the edit."""

    plan: Constellation
    lock: RecordedLock
    version: PlanVersion


# -- questions ---------------------------------------------------------------------------------------------------------


async def versions(store: Store, name: str) -> list[PlanVersion]:
    """Every version of a plan, oldest first. Raises UnknownConstellation and UnreadableJournal."""
    return (await edit_history(store, name)).versions


async def edit_history(store: Store, name: str) -> EditHistory:
    """Every version of a plan, and every closed edit cycle. Raises UnknownConstellation and UnreadableJournal."""
    history = await _History.read(store, name)
    plan_versions, answers = [history.base_version], dict[int, int]()

    def note(event: PlanEvent) -> None:
        _note_version(plan_versions, event)
        if event.kind == "cycle" and event.data.get("outcome") == "accepted":
            # an answer is applied right before its cycle is closed
            answers[event.data["cycle"]] = plan_versions[-1].version

    await history.replay(note)
    closed = [cycle for cycle in history.lock.history if cycle.closed_at is not None]
    return EditHistory(plan_versions, [ClosedCycle(cycle, answers.get(cycle.id)) for cycle in closed])


async def plan_at(store: Store, name: str, version: int) -> PastPlan:
    """The plan as it was when this version was made. Raises VersionUnknown, UnknownConstellation and
    UnreadableJournal."""
    history = await _History.read(store, name)
    plan_versions = [history.base_version]
    if version != plan_versions[0].version:
        await history.replay(
            lambda event: _note_version(plan_versions, event), lambda: plan_versions[-1].version >= version
        )
    if plan_versions[-1].version != version:
        known = f"versions {plan_versions[0].version} to {plan_versions[-1].version} are known"
        raise VersionUnknown(f"plan {name!r} has no version {version} in its history: {known}")
    return PastPlan(history.plan, history.lock, plan_versions[-1])


async def plan_events(store: Store, name: str, after: Position | None = None) -> PlanEvents:
    """The events of a plan after a position; all of them for None. Raises UnknownConstellation and
    UnreadableJournal."""
    history = await _History.read(store, name, after)
    events: list[PlanEvent] = []
    await history.replay(events.append)
    here = Position(history.number)
    if not (history.complete if after is None else history.base <= after <= here):
        return PlanEvents([], here, True)
    return PlanEvents([event for event in events if after is None or event.position > after], here)


def _note_version(plan_versions: list[PlanVersion], event: PlanEvent) -> None:
    if event.kind == "edit":
        plan_versions.append(PlanVersion(at=event.at, position=event.position, **event.data))


# -- replay ------------------------------------------------------------------------------------------------------------


class _Replay:
    """A plan at the end of a record, which replays the records after it and tells the events."""

    def __init__(self, head: Head, plan: RecordedConstellation, lock: RecordedLock, number: int) -> None:
        self.head, self.plan, self.lock, self.number = head, plan, lock, number
        self._mask = PlanMask(plan)
        self._steps = 0

    async def record(
        self,
        number: int,
        steps: Sequence[Step],
        tell: Callable[[PlanEvent], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Replay one record. Returns whether ``stop`` ended it after one of its steps."""
        told = 0
        for step in steps:
            for change in replay_step(self.plan, self.lock, step):
                tell(self._event(Position(number, told), change))
                told += 1
            if stop():
                return True
            self._steps += 1
            if self._steps % STEPS_PER_TURN == 0:
                await asyncio.sleep(0)
        self.number = number
        return False

    def _event(self, position: Position, change: Change) -> PlanEvent:
        mask = self._mask()
        return PlanEvent(position, change.kind, change.at, mask.data(change.data) if mask else change.data)


class _History(_Replay):
    """The history of a plan as it was read. It begins with the plan as it was stored (``complete``), or with a snapshot
    that is enough to tell the events after a position."""

    def __init__(
        self,
        head: Head,
        last: int,
        plan: RecordedConstellation,
        lock: RecordedLock,
        records: list[tuple[int, Sequence[Step]]],
    ) -> None:
        super().__init__(head, plan, lock, last - len(records))
        self.records = records
        self.complete = head.snapshot is None
        self.base = Position(head.began, 0) if self.complete else Position(self.number)
        """The events after it are known."""

        self.base_version = PlanVersion(plan.version, head.created_at, Position(self.number))

    @classmethod
    async def read(
        cls, store: Store, name: str, after: Position | None = None, conditions: Conditions = expressions
    ) -> _History:
        for _ in range(LOAD_ATTEMPTS):
            head, _ = await read_head(store, name)
            # the journal before the archive: a record may be moved in between
            records = {record_number(record): record.value for record in await store.registers(f"journal/{name}/")}
            parts, whole = {}, False
            if head.snapshot is not None and (after is None or after < Position(head.snapshot)):
                records = {**await read_archive(store, name, head.began), **records}
                whole = head.began in records  # else the archive is lost
            if whole:
                head = head.changed(first=head.began, snapshot=None, parts=0)
            elif head.snapshot is not None:
                parts = {part.key: part.value for part in await store.registers(f"snapshot/{name}/")}
            if whole or (await read_head(store, name))[0].first == head.first:  # else it was compacted meanwhile
                try:
                    return cls(
                        head, max(records, default=0), *await decode_journal(store, head, records, parts, conditions)
                    )
                except AsterismError:
                    raise
                except (LookupError, TypeError, ValueError, AttributeError) as error:
                    raise UnreadableJournal(f"the journal of plan {name!r} is damaged: {error!r}") from error
        raise StoreBusy(f"the journal of plan {name!r} is compacted faster than it can be read; try again")

    async def replay(self, tell: Callable[[PlanEvent], None], stop: Callable[[], bool] = lambda: False) -> None:
        """Replay all records, or until ``stop`` after a step."""
        for number, steps in self.records:
            if await self.record(number, steps, tell, stop):
                return


# -- following ---------------------------------------------------------------------------------------------------------


class PlanFollower:
    """Follows a plan: ``plan`` and ``lock`` are as of ``position``; ``read`` brings them up to date and returns the
    events since. One follower serves any number of readers. A look that finds nothing new costs two small reads."""

    def __init__(self, store: Store, name: str, replay: _Replay, pending: Sequence[PlanEvent] = ()) -> None:
        self._store, self.name = store, name
        self._replay, self._pending, self._gone = replay, list(pending), False

    @classmethod
    async def open(cls, store: Store, name: str, after: Position | None = None) -> PlanFollower:
        """Follow a plan from a position on; for None, from how it is now. The first ``read`` returns the events since
        ``after``, or a ``reset``. Raises UnknownConstellation and UnreadableJournal."""
        newest = (await read_head(store, name))[0].snapshot
        start = after if after is not None or newest is None else Position(newest)
        history = await _History.read(store, name, start)
        events: list[PlanEvent] = []
        await history.replay(events.append if after is not None else lambda event: None)
        follower = cls(store, name, history)
        if after is not None and history.base <= after <= follower.position:
            follower._pending = [event for event in events if event.position > after]
        elif after is not None:
            follower._pending = [follower._reset()]
        history.records = []
        return follower

    @property
    def plan(self) -> Constellation:
        return self._replay.plan

    @property
    def lock(self) -> RecordedLock:
        return self._replay.lock

    @property
    def position(self) -> Position:
        return Position(self._replay.number)

    async def read(self) -> list[PlanEvent]:
        """The events since the last call, and bring the plan up to date. ``gone`` is the last event. If the store fails
        meanwhile, the next call returns the events that were read before."""
        events = self._pending
        while len(events) < EVENTS_PER_READ and not self._gone:
            try:
                records = await self._new_records()
            except UnknownConstellation:
                self._gone = True
                events.append(PlanEvent(self.position, "gone", self._store.clock(), {}))
                break
            if records is None:
                events.append(await self._start_again())
                break
            if not records:
                break
            for number, value in records:
                steps = steps_of(checked_record(self.name, number, value))
                await fetch_results(self._store, steps)
                await self._replay.record(number, steps, events.append)
        self._pending = []
        return events

    async def _new_records(self) -> list[tuple[int, Any]] | None:
        """The next records, some at a time; None if they are lost."""
        number = self._replay.number + 1
        key = record_key(self.name, number)
        if await self._store.register(key) is not None:
            records = {record_number(record): record.value for record in await self._store.registers(key[:-1])}
            if number in records:
                return _consecutive(records, number)
        head, _ = await read_head(self._store, self.name)
        if head.began != self._replay.head.began:
            return None
        if number >= head.first:
            return []
        return _consecutive(await read_archive(self._store, self.name, number), number) or None

    async def _start_again(self) -> PlanEvent:
        fresh = await PlanFollower.open(self._store, self.name)
        self._replay = fresh._replay
        return self._reset()

    def _reset(self) -> PlanEvent:
        return PlanEvent(self.position, "reset", self._store.clock(), {})


def _consecutive(records: Mapping[int, Any], first: int) -> list[tuple[int, Any]]:
    consecutive = []
    while first in records:
        consecutive.append((first, records[first]))
        first += 1
    return consecutive
