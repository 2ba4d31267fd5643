"""Who sees everything: the store as it changes, and every execution on every machine. It knows the promises."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from asterism.core.run import COMPLETED, OWNED, TERMINAL, TRANSITIONS, Run, RunStatus
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRun, Write
from asterism.testing.sim.machine import Machine


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Execution:
    """One, from its first step to its last; ``ended`` is None while it goes on."""

    run: str
    epoch: int
    machine: Machine
    began: float
    ended: float | None = None


@dataclass
class Witness:
    """``now`` is the true time of the world."""

    now: Callable[[], float]
    owners: dict[tuple[str, int], str] = field(default_factory=dict)
    acknowledged: dict[str, Run] = field(default_factory=dict)
    executions: list[Execution] = field(default_factory=list)
    completions: dict[str, int] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)

    def broken(self, text: str) -> None:
        """Noted rather than raised: whoever caused it would take it for an answer of the store."""
        self.note(f"VIOLATION: {text}")
        self.violations.append(text)

    def note(self, text: str) -> None:
        self.log.append(f"{self.now():9.3f}  {text}")

    # -- the store ---------------------------------------------------------------------------------------------------

    def saw_write(self, before: Run | None, after: Run) -> None:
        self.note(
            f"{after.id[-6:]} {before.status if before else '-'} -> {after.status} epoch {after.epoch} "
            f"{after.device or ''} {after.story[-1].why}"
        )
        if before is not None:
            if before.ended:
                self.broken(f"run {after.id} had ended as {before.status} and was written again")
            if after.revision <= before.revision:
                self.broken(f"run {after.id} went from revision {before.revision} to {after.revision}")
            if not before.epoch <= after.epoch <= before.epoch + 1:
                self.broken(f"run {after.id} jumped from epoch {before.epoch} to {after.epoch}")
            if after.status not in _reachable(before.status):
                self.broken(f"run {after.id} went from {before.status} to {after.status}")
            if after.story[: len(before.story)] != before.story:
                self.broken(f"the story of run {after.id} was rewritten")
        if after.status in OWNED:
            owner = self.owners.setdefault((after.id, after.epoch), after.session or "")
            if owner != after.session:
                self.broken(f"run {after.id} has two owners in epoch {after.epoch}: {owner} and {after.session}")
        if after.status is COMPLETED:
            self.completions[after.id] = self.completions.get(after.id, 0) + 1
            if self.completions[after.id] > 1:
                self.broken(f"run {after.id} was completed twice")

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
            # a machine that was frozen finds out a moment after it wakes: nothing else could stop it
            if going_on and not other.machine.was_frozen_between(other.began, now):
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

    def check_the_end(self, runs: Sequence[Run]) -> None:
        """The faults have stopped long ago."""
        found = {run.id: run for run in runs}
        for run_id, run in self.acknowledged.items():
            if run_id not in found:
                self.broken(f"run {run_id} was acknowledged and is lost")
            elif found[run_id].story[: len(run.story)] != run.story:
                self.broken(f"run {run_id} was acknowledged as {run.status}, and its story has lost that")
        for run in runs:
            if not run.ended:
                self.broken(f"run {run.id} is still {run.status}, long after the last fault: {run.story[-1]}")
        for execution in self.executions:
            if execution.ended is None and not execution.machine.dead:
                self.broken(f"run {execution.run} (epoch {execution.epoch}) is still going on")


def _reachable(status: RunStatus) -> frozenset[RunStatus]:
    """What one write may lead to: several steps may be written together, but none leads out of an end."""
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


class WitnessedStore(MemoryStore):
    """A store in memory that shows every write to a witness."""

    def __init__(self, clock: Callable[[], float], witness: Witness) -> None:
        super().__init__(clock)
        self._witness = witness

    async def commit(self, writes: Sequence[Write]) -> None:
        before = {write.run.id: self._runs.get(write.run.id) for write in writes if isinstance(write, PutRun)}
        await super().commit(writes)
        for write in writes:
            if isinstance(write, PutRun):
                self._witness.saw_write(before[write.run.id], write.run)
        if any(isinstance(write, PutRun) and write.run.series for write in writes):
            self._witness.check_series(list(self._runs.values()))
