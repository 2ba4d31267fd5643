"""The edit cycles of one execution: asking the editor, judging its answer, and never waiting for it longer than
agreed."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from asterism.core.errors import EditRejected
from asterism.core.plan.apply import Applied
from asterism.core.plan.constellation import ConstellationView
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.lock import CycleClaimed, EditCycle
from asterism.orchestrator.editor_calls import Answer, ask, batch_of, name_of
from asterism.orchestrator.events import EditEvent, Event

if TYPE_CHECKING:
    from asterism.orchestrator.execution import Execution

logger = logging.getLogger("asterism.cycles")


class Cycles:
    def __init__(self, execution: Execution) -> None:
        self.execution, self.plan, self.lock = execution, execution.plan, execution.lock
        self.editor = execution.orchestrator.editor
        self.jobs: set[asyncio.Task[None]] = set()
        self._alarm: asyncio.TimerHandle | None = None
        self._left = False
        self._answered: EditCycle | None = None  # the cycle whose answer is being applied

    # -- opening -------------------------------------------------------------------------------------------------------

    def open_due(self) -> None:
        """Open a cycle for the ends that wait, if an editor is free to think about them."""
        cycle = self.lock.open(self.execution.now())
        if cycle is not None:
            self._opened(cycle, "cycle_opened")

    def open_stuck(self) -> bool:
        cycle = self.lock.open_stuck(self.execution.now())
        if cycle is None:
            return False
        self._opened(cycle, "stuck")
        return True

    def reopen(self) -> None:
        """Ask about the cycles that were open when the plan was left. Their time begins anew."""
        for cycle in tuple(self.lock.cycles.values()):
            self.lock.reset_deadlines(cycle, self.execution.now())
            self._opened(cycle, "cycle_opened")

    def _opened(self, cycle: EditCycle, kind: str) -> None:
        self._publish(kind, cycle)
        if self.editor is not None:
            cycle.claimed_by = name_of(self.editor)
            job = self.execution.loop.create_task(self._converse(cycle))
            self.jobs.add(job)
            job.add_done_callback(self.jobs.discard)
        self._set_alarm()

    def events_of(self, cycle: EditCycle) -> list[Event]:
        """What the editor is told: the ends it has to review (those that still stand), or that nothing moves."""
        nodes = self.plan.nodes
        told: list[Event] = [
            self.execution.tell.end_event(nodes[task_id])
            for task_id, epoch in cycle.ends
            if task_id in nodes and nodes[task_id].epoch == epoch
        ]
        return [self._event("stuck", cycle)] if cycle.stuck else told

    # -- the editor in this process ------------------------------------------------------------------------------------

    async def _converse(self, cycle: EditCycle) -> None:
        """Ask, judge, and hand a rejected answer back with the reasons, a bounded number of times."""
        assert self.editor is not None
        if not await self.execution.settled():
            return  # what it was to review has not happened
        events = self.events_of(cycle)
        while True:
            try:
                answer = await ask(self.editor, ConstellationView(self.plan), events)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # also a cancellation and an exit: no editor stops the plan
                if self._left:
                    return
                self._failed(cycle, error)
                return
            try:
                self.judge(cycle, answer, name_of(self.editor))
                return
            except KeyboardInterrupt:
                raise
            except EditRejected as rejected:
                if cycle.id not in self.lock.cycles:
                    return
                events = [*events, self._event("edit_rejected", cycle, violations=rejected.violations, error=rejected)]
            except BaseException as error:  # what nobody foresaw must not keep the cycle open
                self._failed(cycle, error)
                return

    def judge(self, cycle: EditCycle, answer: Answer, author: str) -> Applied:
        """Apply an answer and close its cycle; EditRejected leaves the cycle open for another try, unless there were
        too many.

        An answer whose cycle is closed already (it timed out) is checked against the plan like any other."""
        try:
            batch, overtaken = batch_of(answer, self.plan, cycle, author)
            applied = self.apply(batch, cycle)
        except EditRejected as rejected:
            self._publish("edit_rejected", cycle, author=author, violations=rejected.violations, error=rejected)
            self.lock.record_rejection(cycle)
            if cycle.rejections > self.execution.orchestrator.max_rejections and cycle.id in self.lock.cycles:
                self._publish("edit_abandoned", cycle, author=author, violations=rejected.violations)
                self._close(cycle, "abandoned")
            raise
        cycle.edits += len(applied.batch.edits)
        if overtaken:
            words = tuple(map(str, overtaken))
            self.plan.note(self.execution.now(), "left out of an edit", None, f"overtaken: {'; '.join(words)}")
            self._publish("edit_overtaken", cycle, author=author, edits=words)
        if cycle.id in self.lock.cycles:
            self._close(cycle, "accepted" if applied.batch.edits else "empty")
        return applied

    def apply(self, batch: EditBatch, cycle: EditCycle | None = None) -> Applied:
        """Apply a batch to the live plan; the plan tells us of it as of any other edit (``announce``)."""
        self._answered = cycle
        try:
            return self.plan.apply(batch, self.execution.now())
        finally:
            self._answered = None

    def announce(self, applied: Applied) -> None:
        """Tell whoever listens of an edit that was applied, from whatever side it came."""
        if applied.batch.edits:
            edits = tuple(map(str, applied.batch.edits))
            about = {"author": applied.batch.author, "reason": applied.batch.reason}
            self._publish("edit_applied", self._answered, edits=edits, **about)

    def _failed(self, cycle: EditCycle, error: BaseException) -> None:
        if cycle.id in self.lock.cycles:
            error = self.execution.mask().error(error)
            logger.warning("the editor failed in cycle %d of %s: %r", cycle.id, self.plan.id, error)
            self._publish("editor_failed", cycle, error=error)
            self._close(cycle, "editor_failed")

    # -- editors outside the process -----------------------------------------------------------------------------------

    def claim(self, cycle_id: int, who: str, lease: float) -> EditCycle:
        cycle = self.lock.claim(cycle_id, who, self.execution.now(), lease)
        self._set_alarm()
        return cycle

    def answer(self, cycle_id: int, who: str, answer: Answer) -> Applied:
        """An answer from outside. A claim is needed while the cycle is open; a late answer is checked like any other
        edit."""
        if cycle_id not in self.lock.cycles:
            known = [cycle for cycle in self.lock.history if cycle.id == cycle_id]
            if not known:
                self.lock.get(cycle_id)
            return self.judge(known[0], answer, who)
        cycle = self.lock.get(cycle_id)
        if cycle.claimed_by != who:
            holder = "by nobody" if cycle.claimed_by is None else f"by {cycle.claimed_by!r}"
            raise CycleClaimed(f"cycle {cycle_id} is not claimed by {who!r} but {holder}; claim it first")
        return self.judge(cycle, answer, who)

    # -- closing -------------------------------------------------------------------------------------------------------

    def _close(self, cycle: EditCycle, outcome: str) -> None:
        confirmed = self.lock.close(cycle, self.execution.now(), outcome)
        self.execution.tell.confirmed(confirmed)
        self._publish("cycle_closed", cycle)
        self._set_alarm()
        self.execution.orchestrator.wake(self.execution)

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        deadline = self.lock.next_deadline()
        if deadline < float("inf"):
            self._alarm = self.execution.loop.call_later(max(0.0, deadline - self.execution.now()), self._ring)

    def _ring(self) -> None:
        self._alarm = None
        for cycle, why in self.lock.overdue(self.execution.now()):
            logger.warning("cycle %d of %s closes without an answer: %s", cycle.id, self.plan.id, why)
            self._publish("edit_timeout", cycle)
            self._close(cycle, why)
        self._set_alarm()

    def cancel(self) -> None:
        """The constellation ends: close what is open and stop the editors that are still thinking."""
        for cycle in tuple(self.lock.cycles.values()):
            self._close(cycle, "cancelled")
        self.lock.waiting.clear()
        self._set_alarm()
        for job in tuple(self.jobs):
            job.cancel()

    def abandon(self) -> None:
        """The plan is left to others: stop the editors, and close nothing."""
        self._left = True
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        for job in tuple(self.jobs):
            job.cancel()

    # -- events --------------------------------------------------------------------------------------------------------

    def _event(self, kind: str, cycle: EditCycle | None, **fields: Any) -> EditEvent:
        return EditEvent(
            kind=kind,
            at=self.execution.now(),
            constellation=self.plan.id,
            version=self.plan.version,
            cycle=None if cycle is None else cycle.id,
            tasks=() if cycle is None else cycle.tasks,
            **fields,
        )

    def _publish(self, kind: str, cycle: EditCycle | None, **fields: Any) -> None:
        events = self.execution.orchestrator.events
        if events.wants(EditEvent):
            self.execution.tell.publish(self._event(kind, cycle, **fields))
