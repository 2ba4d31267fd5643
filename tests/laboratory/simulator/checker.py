"""The checker of a simulation: receives every write and every execution, and reports broken promises."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asterism.core.run.merge import own_story
from asterism.core.run.run import (
    ASSIGNED,
    CLAIMED,
    COMPLETED,
    FAILED,
    OWNED,
    PROCESSING,
    TERMINAL,
    TRANSITIONS,
    Run,
    RunStatus,
)
from asterism.core.run.session import ENDED
from asterism.store.memory import MemoryStore
from asterism.store.protocol import HeartbeatReply, Notice, ProgressReport, PutRun, PutSession, Write
from asterism.store.watches import LocalWatch, Watches

if TYPE_CHECKING:
    from tests.laboratory.simulator.machines import Machine

CATCH_UP_TIME = 2.0
"""How long a machine may take after it thaws to find out what it missed, in seconds."""

MAX_ENTRY_AGE = 600.0
"""How old the time of an entry may be when it is written, in seconds: machines freeze in between."""

WORK_ERROR = "it did not work out"
"""The error of an execution that fails."""

MIN_SILENT_PART = 0.9
"""The part of its timeout that an owner must be silent before its run may be taken away: clock rates differ."""


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Execution:
    """An execution of a run. ``ended`` is None while it continues."""

    run: str
    epoch: int
    machine: Machine
    began: float
    ended: float | None = None


@dataclass
class Checker:
    """Records what happens, and which promises are broken. ``now`` returns the true time of the world. ``acknowledged``
    are records that were returned to a caller. ``heard`` maps each session to its last heartbeat, by the true time,
    and ``timeouts`` to its timeout."""

    now: Callable[[], float]
    owners: dict[tuple[str, int], str] = field(default_factory=dict)
    acknowledged: list[Run] = field(default_factory=list)
    heard: dict[str, float] = field(default_factory=dict)
    timeouts: dict[str, float] = field(default_factory=dict)
    executions: list[Execution] = field(default_factory=list)
    completions: dict[str, int] = field(default_factory=dict)
    right_time: Callable[[], float] | None = None
    """The store's clock, in worlds where every entry must have its time."""
    log: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def broken(self, text: str) -> None:
        """Record a broken promise. It is not raised, since the runtime would take it for an error of the store."""
        self.note(f"VIOLATION: {text}")
        self.violations.append(text)

    def note(self, text: str) -> None:
        self.log.append(f"{self.now():9.3f}  {text}")

    # -- the store ---------------------------------------------------------------------------------------------------

    def check_write(self, before: Run | None, after: Run, writer: str) -> None:
        """Check a write. ``writer`` is the session that wrote it."""
        self.note(
            f"{after.id[-6:]} {before.status if before else '-'} -> {after.status} epoch {after.epoch} "
            f"{after.device or ''} {after.story[-1].why}"
        )
        self._check_times(before, after)
        if before is not None:
            if before.ended:
                self.broken(f"run {after.id} had ended as {before.status} and was written again")
            if after.revision <= before.revision:
                self.broken(f"run {after.id} went from revision {before.revision} to {after.revision}")
            if not before.epoch <= after.epoch <= before.epoch + 1:
                self.broken(f"run {after.id} jumped from epoch {before.epoch} to {after.epoch}")
            if after.status not in _reachable(before.status):
                self.broken(f"run {after.id} went from {before.status} to {after.status}")
            if not _continues(before, after):
                self.broken(f"the story of run {after.id} was rewritten")
            if writer != before.session:
                self._check_owner_was_silent(before, after)
            if before.status in OWNED and _is_owner_step(before, after) and before.session != writer:
                self.broken(
                    f"run {after.id} went from {before.status} to {after.status} in epoch {after.epoch} by "
                    f"{writer}, but {before.session} owned it"
                )
        if after.status in OWNED:
            owner = self.owners.setdefault((after.id, after.epoch), after.session or "")
            if owner != after.session:
                self.broken(f"run {after.id} has two owners in epoch {after.epoch}: {owner} and {after.session}")
        if after.status is COMPLETED:
            self.completions[after.id] = self.completions.get(after.id, 0) + 1
            if self.completions[after.id] > 1:
                self.broken(f"run {after.id} was completed twice")

    def _check_times(self, before: Run | None, after: Run) -> None:
        times = [entry.at for entry in own_story(after)]
        marks = [at for at in (after.assigned_at, after.claimed_at, after.started_at, after.ended_at) if at is not None]
        if times != sorted(times) or marks != sorted(marks):
            self.broken(f"the times of run {after.id} go backwards: {times}, {marks}")
        if self.right_time is not None:
            new, now = times[len(before.story) if before is not None else 0 :], self.right_time()
            if any(abs(now - at) > MAX_ENTRY_AGE for at in new):
                self.broken(f"run {after.id} has entries with a wrong time: {new}; the time is {now}")

    def _check_owner_was_silent(self, before: Run, after: Run) -> None:
        taken = len(after.previous) > len(before.previous) and after.previous[-1].reason == "timeout"
        if before.status is not PROCESSING or not taken or before.session not in self.heard:
            return
        silent = self.now() - self.heard[before.session]
        timeout = min(before.timeout, self.timeouts.get(before.session, before.timeout))
        if silent < MIN_SILENT_PART * timeout:
            self.broken(
                f"run {after.id} was taken from {before.device}, which sent a heartbeat {silent:.1f} s before and "
                f"has a timeout of {timeout:g} s"
            )

    def ended(self, session: str) -> None:
        """Note that a session has ended."""
        self.heard.pop(session, None)

    def check_series(self, runs: Sequence[Run]) -> None:
        active: dict[str, str] = {}
        for run in runs:
            if run.series is not None and run.session is not None:
                other = active.setdefault(run.series, run.id)
                if other != run.id:
                    self.broken(f"series {run.series} has two active runs: {other} and {run.id}")

    # -- the machines ------------------------------------------------------------------------------------------------

    def begins(self, run: str, epoch: int, machine: Machine) -> Execution:
        self.note(f"{run[-6:]} epoch {epoch} begins on {machine.name}")
        now = self.now()
        for other in self.executions:
            if work_of(other.run) != work_of(run):
                continue
            if other.epoch == epoch:
                self.broken(f"run {run} was begun twice in epoch {epoch}: on {other.machine.name} and {machine.name}")
            continues = other.ended is None and not other.machine.dead
            # a machine that was frozen finds out a moment after it thaws: nothing else could stop it
            if continues and not other.machine.was_frozen_between(max(other.began, now - CATCH_UP_TIME), now):
                self.broken(
                    f"run {run} began on {machine.name} (epoch {epoch}) while {other.machine.name} still executed it "
                    f"(epoch {other.epoch})"
                )
        execution = Execution(run, epoch, machine, now)
        self.executions.append(execution)
        return execution

    def ends(self, execution: Execution, how: str) -> None:
        execution.ended = self.now()
        self.note(f"{execution.run[-6:]} epoch {execution.epoch} {how} on {execution.machine.name}")

    # -- at the end --------------------------------------------------------------------------------------------------

    def check_end(self, runs: Sequence[Run], notices: Iterable[Notice] = ()) -> None:
        """Check all runs, long after the last fault."""
        by_id = {run.id: run for run in runs}
        for run in self.acknowledged:
            if run.id not in by_id:
                self.broken(f"run {run.id} was acknowledged and is lost")
            elif not _continues(run, by_id[run.id]):
                self.broken(f"run {run.id} was acknowledged as {run.status}, but its story does not contain that")
        for notice in notices:
            self._check_late_result(notice, by_id)
        for run in runs:
            if run.status is FAILED and not run.cancelled and WORK_ERROR not in (run.error or ""):
                self.broken(f"run {run.id} was given up: {run.error}")
            if not run.ended:
                self.broken(f"run {run.id} is still {run.status}, long after the last fault: {run.story[-1]}")
        for execution in self.executions:
            if execution.ended is None and not execution.machine.dead:
                self.broken(f"run {execution.run} (epoch {execution.epoch}) is still executed")

    def _check_late_result(self, notice: Notice, by_id: Mapping[str, Run]) -> None:
        late = re.search(r"epoch (\d+) can no longer complete", notice.message) if notice.kind == "late" else None
        run = by_id.get(notice.run or "")
        if late is None or run is None or run.status is not COMPLETED:
            return
        if (run.device, run.epoch) == (notice.device, int(late[1])):
            self.broken(f"the result of run {run.id} was called late, and it is the one that counts")


def work_of(run: str) -> str:
    """What a run does. The executions of a task by the process of its plan are named by the plan, the task and the
    epoch."""
    return run.rpartition("/")[0] if run.startswith("plan:") else run


def _continues(before: Run, after: Run) -> bool:
    """Whether a story lost no entry. Besides its own entries a record may have those of other stores."""
    line = own_story(before)
    return own_story(after)[: len(line)] == line and (
        len(line) == len(before.story) or set(before.story) <= set(after.story)
    )


def _is_owner_step(before: Run, after: Run) -> bool:
    """Whether only the owner of a run may take this step."""
    moved = after.epoch > before.epoch
    if not moved and (after.status in OWNED or after.status is COMPLETED):
        return after.status is not before.status
    reason = after.previous[-1].reason if len(after.previous) > len(before.previous) else "timeout"
    if reason == "timeout":
        return False
    # a person may pause or cancel a run that is not claimed yet, and move one that is not started
    return not (reason == "released" and (before.status is ASSIGNED or (moved and before.status is CLAIMED)))


def _reachable(status: RunStatus) -> frozenset[RunStatus]:
    """Return the statuses that one write may lead to: it may combine several steps, but none leaves an end."""
    return _CLOSURE[status]


def _closure() -> dict[RunStatus, frozenset[RunStatus]]:
    reachable: dict[RunStatus, frozenset[RunStatus]] = {}
    for status in RunStatus:
        seen, new = {status}, {status}
        while new:
            new = {moves[old] for moves in TRANSITIONS.values() for old in new if old in moves} - seen
            seen |= new
        reachable[status] = frozenset(seen)
    return reachable


_CLOSURE = _closure()
assert all(_CLOSURE[status] == {status} for status in TERMINAL)


class CheckedStore(MemoryStore):
    """A store in memory that reports every write to a checker, and wakes watches in a fixed order."""

    def __init__(self, clock: Callable[[], float], checker: Checker) -> None:
        super().__init__(clock)
        self._checker = checker
        self._watches = OrderedWatches()
        self.writer = ""
        self.on_grant: Callable[[Run], None] = lambda run: None
        """Called after each grant of a run that uses limits."""

    def owned(self) -> list[Run]:
        """The runs that devices own now."""
        return [run for run in self._runs.values() if run.session is not None]

    def value(self, key: str) -> Any:
        """The value of a register now."""
        return json.loads(self._registers[key][0])

    async def commit(self, writes: Sequence[Write]) -> None:
        before = {write.run.id: self._runs.get(write.run.id) for write in writes if isinstance(write, PutRun)}
        await super().commit(writes)
        for write in writes:
            if isinstance(write, PutRun):
                self._checker.check_write(before[write.run.id], write.run, self.writer)
            elif isinstance(write, PutSession):
                if write.expected is None:
                    self._checker.heard[write.session.id] = self._checker.now()
                    self._checker.timeouts[write.session.id] = write.session.timeout
                elif write.session.state == ENDED:
                    self._checker.ended(write.session.id)
        for write in writes:
            if isinstance(write, PutRun) and write.run.uses is not None:
                earlier = before[write.run.id]
                if write.run.session is not None and (earlier is None or earlier.epoch != write.run.epoch):
                    self.on_grant(write.run)
        if any(isinstance(write, PutRun) and write.run.series for write in writes):
            self._checker.check_series(list(self._runs.values()))

    async def heartbeat(
        self, session: str, profile: Mapping[str, Any], reports: Sequence[ProgressReport]
    ) -> HeartbeatReply:
        answer = await super().heartbeat(session, profile, reports)
        if answer.alive:
            self._checker.heard[session] = self._checker.now()
        return answer


class OrderedWatches(Watches):
    """Watches that wake in the order of their creation: the order of a set differs between processes, and a seed must
    not."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[LocalWatch, int] = {}

    def add(self, topics: frozenset[str]) -> LocalWatch:
        watch = super().add(topics)
        self._numbers[watch] = len(self._numbers)
        return watch

    def wake(self, topics: Iterable[str]) -> None:
        woken = {watch for topic in topics for watch in self._by_topic.get(topic, ())}
        for watch in sorted(woken, key=self._numbers.__getitem__):
            watch.wake()
