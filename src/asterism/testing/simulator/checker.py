"""The checker of a simulation: receives every write and every execution, and reports broken promises."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from asterism.core.run.merge import own_story
from asterism.core.run.run import ASSIGNED, COMPLETED, FAILED, OWNED, PROCESSING, TERMINAL, TRANSITIONS, Run, RunStatus
from asterism.core.run.session import ENDED
from asterism.store.memory import MemoryStore
from asterism.store.protocol import HeartbeatReply, Notice, ProgressReport, PutRun, PutSession, Write
from asterism.store.watches import LocalWatch, Watches

if TYPE_CHECKING:
    from asterism.testing.simulator.machines import Machine

AWAKE = 2.0
"""How long a machine may take after it thaws to find out what it missed, in seconds."""

OFF = 600.0
"""How old the time of an entry may be when it is written, in seconds: machines freeze in between."""

NOT_OUR_FAULT = "it did not work out"
"""The error of an execution that fails."""

LIVING = 0.9
"""The part of a timeout before which no run may be taken away: clocks run at different rates."""


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
    are records that were returned to a caller. ``heard`` maps each session to its last heartbeat, by the true time."""

    now: Callable[[], float]
    owners: dict[tuple[str, int], str] = field(default_factory=dict)
    acknowledged: list[Run] = field(default_factory=list)
    heard: dict[str, float] = field(default_factory=dict)
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

    def saw_write(self, before: Run | None, after: Run, speaker: str) -> None:
        """Check a write. ``speaker`` is the session that wrote it."""
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
            if not _goes_on(before, after):
                self.broken(f"the story of run {after.id} was rewritten")
            if speaker != before.session:
                self._check_that_it_was_not_taken_from_the_living(before, after)
            if before.status in OWNED and _only_the_owner_says(before, after) and before.session != speaker:
                self.broken(
                    f"run {after.id} went from {before.status} to {after.status} in epoch {after.epoch} by the word of "
                    f"{speaker}, and it was {before.session}'s"
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
        told = [entry.at for entry in own_story(after)]
        marks = [
            one for one in (after.assigned_at, after.claimed_at, after.started_at, after.ended_at) if one is not None
        ]
        if told != sorted(told) or marks != sorted(marks):
            self.broken(f"the times of run {after.id} go backwards: {told}, {marks}")
        if self.right_time is not None:
            new, now = told[len(before.story) if before is not None else 0 :], self.right_time()
            if any(abs(now - at) > OFF for at in new):
                self.broken(f"run {after.id} was told of with a wrong time: {new}, and it is {now}")

    def _check_that_it_was_not_taken_from_the_living(self, before: Run, after: Run) -> None:
        taken = len(after.previous) > len(before.previous) and after.previous[-1].reason == "timeout"
        if before.status is not PROCESSING or not taken or before.session not in self.heard:
            return
        silent = self.now() - self.heard[before.session]
        if silent < LIVING * before.timeout:
            self.broken(
                f"run {after.id} was taken from {before.device}, which had been heard of {silent:.1f} s before and may "
                f"be silent for {before.timeout:g} s"
            )

    def ended(self, session: str) -> None:
        """A session has ended, and does nothing any more."""
        self.heard.pop(session, None)

    def check_series(self, runs: Sequence[Run]) -> None:
        active: dict[str, str] = {}
        for run in runs:
            if run.series is not None and not run.ended and not run.held:
                other = active.setdefault(run.series, run.id)
                if other != run.id:
                    self.broken(f"series {run.series} has two active runs: {other} and {run.id}")

    # -- the machines ------------------------------------------------------------------------------------------------

    def begins(self, run: str, epoch: int, machine: Machine) -> Execution:
        self.note(f"{run[-6:]} epoch {epoch} begins on {machine.name}")
        now = self.now()
        for other in self.executions:
            if other.run != run:
                continue
            if other.epoch == epoch:
                self.broken(f"run {run} was begun twice in epoch {epoch}: on {other.machine.name} and {machine.name}")
            going_on = other.ended is None and not other.machine.dead
            # a machine that was frozen finds out a moment after it thaws: nothing else could stop it
            if going_on and not other.machine.was_frozen_between(max(other.began, now - AWAKE), now):
                self.broken(
                    f"run {run} began on {machine.name} (epoch {epoch}) while {other.machine.name} was still at it "
                    f"(epoch {other.epoch})"
                )
        execution = Execution(run, epoch, machine, now)
        self.executions.append(execution)
        return execution

    def ends(self, execution: Execution, how: str) -> None:
        execution.ended = self.now()
        self.note(f"{execution.run[-6:]} epoch {execution.epoch} {how} on {execution.machine.name}")

    # -- at the end --------------------------------------------------------------------------------------------------

    def check_the_end(self, runs: Sequence[Run], notices: Iterable[Notice] = ()) -> None:
        """Check all runs, long after the last fault."""
        found = {run.id: run for run in runs}
        for run in self.acknowledged:
            if run.id not in found:
                self.broken(f"run {run.id} was acknowledged and is lost")
            elif not _goes_on(run, found[run.id]):
                self.broken(f"run {run.id} was acknowledged as {run.status}, and its story has lost that")
        for notice in notices:
            self._check_that_it_came_too_late(notice, found)
        for run in runs:
            if run.status is FAILED and not run.cancelled and NOT_OUR_FAULT not in (run.error or ""):
                self.broken(f"run {run.id} was given up: {run.error}")
            if not run.ended:
                self.broken(f"run {run.id} is still {run.status}, long after the last fault: {run.story[-1]}")
        for execution in self.executions:
            if execution.ended is None and not execution.machine.dead:
                self.broken(f"run {execution.run} (epoch {execution.epoch}) is still going on")

    def _check_that_it_came_too_late(self, notice: Notice, found: Mapping[str, Run]) -> None:
        late = re.search(r"epoch (\d+) cannot complete", notice.message) if notice.kind == "late" else None
        run = found.get(notice.run or "")
        if late is None or run is None or run.status is not COMPLETED:
            return
        if (run.device, run.epoch) == (notice.device, int(late[1])):
            self.broken(f"the result of run {run.id} was called late, and it is the one that counts")


def _goes_on(before: Run, after: Run) -> bool:
    """Whether a story lost no entry. Besides its own entries a record may have those of other stores."""
    line = own_story(before)
    return own_story(after)[: len(line)] == line and (
        len(line) == len(before.story) or set(before.story) <= set(after.story)
    )


def _only_the_owner_says(before: Run, after: Run) -> bool:
    if after.status in OWNED or after.status is COMPLETED:
        return after.status is not before.status
    reason = after.previous[-1].reason if len(after.previous) > len(before.previous) else "timeout"
    # a person may pause or cancel a run that is not claimed yet
    return reason != "timeout" and not (before.status is ASSIGNED and reason == "released")


def _reachable(status: RunStatus) -> frozenset[RunStatus]:
    """Return the statuses that one write may lead to: it may combine several steps, but none leaves an end."""
    return _CLOSURE[status]


def _closure() -> dict[RunStatus, frozenset[RunStatus]]:
    found: dict[RunStatus, frozenset[RunStatus]] = {}
    for status in RunStatus:
        seen, new = {status}, {status}
        while new:
            new = {moves[old] for moves in TRANSITIONS.values() for old in new if old in moves} - seen
            seen |= new
        found[status] = frozenset(seen)
    return found


_CLOSURE = _closure()
assert all(_CLOSURE[status] == {status} for status in TERMINAL)


class CheckedStore(MemoryStore):
    """A store in memory that shows every write to a checker, and wakes watches in a fixed order."""

    def __init__(self, clock: Callable[[], float], checker: Checker) -> None:
        super().__init__(clock)
        self._checker = checker
        self._watches = OrderedWatches()
        self.speaker = ""

    async def commit(self, writes: Sequence[Write]) -> None:
        before = {write.run.id: self._runs.get(write.run.id) for write in writes if isinstance(write, PutRun)}
        await super().commit(writes)
        for write in writes:
            if isinstance(write, PutRun):
                self._checker.saw_write(before[write.run.id], write.run, self.speaker)
            elif isinstance(write, PutSession):
                if write.expected is None:
                    self._checker.heard[write.session.id] = self._checker.now()
                elif write.session.state == ENDED:
                    self._checker.ended(write.session.id)
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
        found = {watch for topic in topics for watch in self._by_topic.get(topic, ())}
        for watch in sorted(found, key=self._numbers.__getitem__):
            watch.wake()
