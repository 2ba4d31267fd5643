"""Edit cycles of a plan: call the editor, judge its answer, close (lock policies: core/plan/assignment_lock.py).

A cycle is opened for tasks that have ended, and reviews them: an editor in this process is called, or an editor outside
the process claims the cycle and answers it. A rejected answer goes back with the reasons, a bounded number of times. A
cycle without an answer is closed when its time is up, so an editor never stops the plan.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from asterism.core.attempt_log import TaskLog
from asterism.core.errors import AsterismError, EditRejected, Violation, error_text, safe_repr
from asterism.core.json_values import NOTHING
from asterism.core.plan.apply import Applied
from asterism.core.plan.assignment_lock import CycleClaimed, EditCycle
from asterism.core.plan.constellation import Constellation, ConstellationView, TaskView
from asterism.core.plan.diff import merge
from asterism.core.plan.editor_cost import EditorCost
from asterism.core.plan.edits import (
    EDITS,
    REFUSED,
    Edit,
    EditBatch,
    EditWaits,
    WaitingEdit,
    edit_from_json,
    edits_from_json,
)
from asterism.core.plan.group_elements import edit_texts
from asterism.core.plan.status import RUNNING
from asterism.core.record import Record
from asterism.orchestrator.events import EditEvent, Event
from asterism.orchestrator.plan_mask import PlanMask

if TYPE_CHECKING:
    from asterism.orchestrator.execution import Execution
    from asterism.orchestrator.plan_trace import PlanTrace

logger = logging.getLogger("asterism.cycles")

Answer = Any
"""None, edits, an EditBatch, JSON forms of these, or a whole new Constellation."""

EditorFunction = Callable[[ConstellationView, Sequence[Event]], Awaitable[Answer] | Answer]


class Editor:
    """Answers edit cycles: it decides how a plan changes after a task has ended. Override ``edit``. The other members
    are hooks, which do nothing. A function of the arguments of ``edit``, and any object with such a method, is an
    editor without hooks."""

    edit_on: str | Callable[[TaskView], bool] | None = None
    """Which ends it reviews, unless the orchestrator has an ``edit_on``: see there. None: all."""

    starts_plans = False
    """Whether it is asked about a plan without tasks, to write the first ones."""

    @property
    def name(self) -> str:
        """Its name in events, in the story and in scopes."""
        return type(self).__name__

    def edit(self, view: ConstellationView, events: Sequence[Event]) -> Awaitable[Answer] | Answer:
        """Answer a cycle; it may be asynchronous.

        ``view`` is the plan, live and read-only. ``events`` are the ends under review, or ``stuck`` if no task can
        move; then the answers of this editor that a person refused, and ``edit_rejected`` with the violations if this
        is another call because an answer was rejected.

        Returns an Answer, or a CostedAnswer. Raises EditorHeld if a person has to decide first. Any other exception
        closes the cycle without an edit, and the plan goes on."""
        raise NotImplementedError

    def attach_plan(self, plan_id: str, context: EditorContext) -> None:
        """A plan begins, or is continued, before its first cycle. ``context`` is what surrounds it. Returns nothing,
        and must not raise: the plan would not begin."""

    def edit_refused(self, plan_id: str) -> None:
        """A person has refused an answer of this editor, or its time was up; it is now in ``context.refused``. Returns
        nothing, and must not raise."""

    def trace_attributes(self) -> Mapping[str, Any]:
        """Attributes for the span of the call that has just returned. Called only if the plan is traced; what it raises
        is ignored."""
        return NOTHING


class _FunctionEditor(Editor):
    """A function, or a method, as an editor without hooks."""

    def __init__(self, function: EditorFunction, name: str) -> None:
        self._function, self._name = function, name

    @property
    def name(self) -> str:
        return self._name

    def edit(self, view: ConstellationView, events: Sequence[Event]) -> Awaitable[Answer] | Answer:
        return self._function(view, events)


class EditorObject(Protocol):
    def edit(self, view: ConstellationView, events: Sequence[Event]) -> Awaitable[Answer] | Answer:
        """See ``Editor.edit``."""


AnyEditor = Editor | EditorFunction | EditorObject
"""What a user may give as an editor."""


def editor_of(editor: AnyEditor | None) -> Editor | None:
    """What a user gives as an editor, as an ``Editor``; None for none."""
    if editor is None or isinstance(editor, Editor):
        return editor
    name = getattr(editor, "__name__", type(editor).__name__)
    return _FunctionEditor(editor.edit if hasattr(editor, "edit") else editor, name)


class CostedAnswer(Record):
    """An answer, and what it has cost. An error of an editor may have an attribute ``cost``, too."""

    answer: Answer
    cost: EditorCost


class EditorHeld(AsterismError):
    """Raised by an editor that cannot go on without a person. ``reason`` says why, and what to do. The cycle stays
    open without a timeout until ``released`` is done, which says what was decided; then ``proceed`` gives the
    answer. If the cycle is closed already, nobody is waited for: its end stands. ``cost`` is what was spent so far."""

    def __init__(
        self,
        reason: str,
        released: Callable[[], Awaitable[Any]],
        proceed: Callable[[], Awaitable[Answer] | Answer],
        cost: EditorCost | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason, self.released, self.proceed, self.cost = reason, released, proceed, cost


class EditorContext(Record):
    """What surrounds a plan that runs here, for ``Editor.attach_plan``: the devices, as ``(id, capabilities, slots)``;
    what the attempts at a task printed in this process; the secrets of the plan; the answers that were refused;
    whether an earlier run began the plan."""

    devices: Callable[[], Sequence[tuple[str, frozenset[str], int | None]]]
    logs: Callable[[str], list[TaskLog]]
    mask: PlanMask
    refused: Sequence[WaitingEdit] = ()
    continued: bool = False


RELEASED = "released"
"""The outcome of a cycle that a person has closed, since its editor did not answer."""


class EditCycles:
    """Those of one execution. Its ``wake`` asks the scheduler for a step; its ``settled`` waits until everything up to
    now is durable, and returns False if the plan now belongs to another process. None: the plan is in memory only. Its
    ``waiting`` applies a batch of a cycle, or lets it wait for a person."""

    def __init__(self, execution: Execution) -> None:
        self._execution, self._plan, self._lock = execution, execution.plan, execution.lock
        self._events, self._waiting, self._editor = execution.events, execution.waiting, execution.options.editor
        self._author = "" if self._editor is None else self._editor.name
        self._now = execution.now
        self._loop = asyncio.get_running_loop()
        self._calls: dict[int, asyncio.Task[None]] = {}  # by the number of the cycle
        self._set_alarm = execution.waits.alarm(self._close_overdue)
        self._abandoned = False
        self.trace: PlanTrace | None = None
        self._answered: EditCycle | None = None  # the cycle whose answer is being applied

    @property
    def calls(self) -> list[asyncio.Task[None]]:
        """The calls of the editor that have not returned."""
        return [call for call in self._calls.values() if not call.done()]

    # -- opening -------------------------------------------------------------------------------------------------------

    def open_stuck(self) -> bool:
        """Open a last cycle because no task can start. Returns whether there is one."""
        cycle = self._lock.open_stuck(self._now())
        if cycle is None:
            return False
        self.opened(cycle, "stuck")
        return True

    def ask_again(self, refused: WaitingEdit) -> None:
        """A person refused an answer, with a reason: open a cycle, so that the editor learns of it."""
        if self._editor is not None:
            self._editor.edit_refused(self._plan.id)
        if self._lock.edit_on is not None and refused.cycle is not None and refused.state == REFUSED and refused.why:
            cycle = self._lock.open_stuck(self._now(), always=True)
            if cycle is not None:
                self.opened(cycle, "cycle_opened")

    def reopen(self) -> None:
        """Call the editor again for the cycles that were open when the plan was stopped. Their timeouts start anew."""
        for cycle in tuple(self._lock.cycles.values()):
            self._lock.reset_deadlines(cycle, self._now())
            self.opened(cycle, "cycle_opened")

    def opened(self, cycle: EditCycle, kind: str) -> None:
        """A cycle was opened: publish that, call the editor, set the timer."""
        self._publish(kind, cycle)
        if self.trace is not None:
            self.trace.cycle_opened(cycle)
        if self._editor is not None:
            cycle.claimed_by = self._author
            call = self._calls[cycle.id] = self._loop.create_task(self._call_editor(self._editor, cycle))
            call.add_done_callback(lambda call: self._calls.pop(cycle.id, None))
        self._set_deadline()

    def events_of(self, cycle: EditCycle) -> list[Event]:
        """The events that an editor receives: the ends under review that still stand, or ``stuck``; and the answers
        that were refused since the cycle before it."""
        refused = [self._refusal(cycle, edit) for edit in self.refusals_of(cycle)]
        if cycle.stuck:
            return [*([] if refused and self._moves else [self._event("stuck", cycle)]), *refused]
        nodes = self._plan.nodes
        ends = [
            self._events.end_event(nodes[task_id])
            for task_id, epoch in cycle.ends
            if task_id in nodes and nodes[task_id].epoch == epoch
        ]
        return [*ends, *refused]

    @property
    def _moves(self) -> bool:
        """Whether a task runs, or may start."""
        return bool(self._plan.counts[RUNNING]) or self._plan.queue.has_ready()

    def refusals_of(self, cycle: EditCycle) -> list[WaitingEdit]:
        """The answers of editors that were refused since the cycle before this one was opened."""
        if not self._waiting.refused:
            return []
        before = max((past.opened_at for past in self._lock.history if past.id < cycle.id), default=float("-inf"))
        return [
            edit
            for edit in self._waiting.refused
            if edit.decided_at is not None and before < edit.decided_at <= cycle.opened_at
        ]

    def _refusal(self, cycle: EditCycle, edit: WaitingEdit) -> EditEvent:
        about = {"author": edit.batch.author, "reason": edit.why, "approval": edit.id}
        return self._event("edit_refused", cycle, edits=tuple(edit_texts(edit.batch.edits)), **about)

    # -- the editor in this process ------------------------------------------------------------------------------------

    async def _call_editor(self, editor: Editor, cycle: EditCycle) -> None:
        """Call the editor until its answer is accepted or the cycle is closed."""
        settled = self._execution.settled
        if settled is not None and not await settled():
            return  # the ends under review are not durable, and never will be
        events = self.events_of(cycle)
        while True:
            try:
                with nullcontext() if self.trace is None else self.trace.editor_call(cycle, editor, self._author):
                    answer = editor.edit(ConstellationView(self._plan), events)
                    if inspect.isawaitable(answer):
                        answer = await self._answer_of(cycle, answer)
                    await self._execution.roster.learn_devices()
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # a cancellation and an exit too: an editor never stops the plan
                if not self._abandoned:
                    self._add_cost(cycle, getattr(error, "cost", None))
                    self._failed(cycle, error)
                return
            if cycle.outcome == RELEASED:  # a person does not wait for it any more
                return
            try:
                self._judge(cycle, answer, self._author)
                return
            except KeyboardInterrupt:
                raise
            except EditWaits:
                return
            except EditRejected as rejected:
                if cycle.id not in self._lock.cycles:
                    return
                events = [*events, self._event("edit_rejected", cycle, violations=rejected.violations, error=rejected)]
            except BaseException as error:  # an unexpected error must not leave the cycle open
                self._failed(cycle, error)
                return

    async def _answer_of(self, cycle: EditCycle, pending: Awaitable[Answer]) -> Answer:
        """The answer of an editor that takes its time, and may have to wait for a person."""
        while True:
            try:
                answer = await pending
                break
            except EditorHeld as held:
                if cycle.id not in self._lock.cycles:
                    raise
                self._add_cost(cycle, held.cost)
                reason = self._execution.mask().text(held.reason)
                self._lock.hold(cycle, reason)
                self._plan.note(self._now(), "editor waits", None, f"cycle {cycle.id}: {reason}")
                self._publish("editor_held", cycle, author=self._author, reason=reason)
                self._set_deadline()
                decided = await held.released()
                self._lock.release(cycle, self._now())
                self._plan.note(self._now(), "editor continues", None, f"cycle {cycle.id}: {decided}")
                self._set_deadline()
                answer = held.proceed()
                if not inspect.isawaitable(answer):
                    break
                pending = answer
        if isinstance(answer, CostedAnswer):
            self._add_cost(cycle, answer.cost)
            return answer.answer
        return answer

    def _add_cost(self, cycle: EditCycle, cost: object) -> None:
        """Record in the story, and with the cycle, what a call of the editor has cost; also one that is late. After the
        end of the plan nothing is recorded."""
        if not isinstance(cost, EditorCost) or not cost or self._plan.ended_at is not None:
            return
        cycle.cost = cost if cycle.cost is None else cycle.cost + cost
        self._plan.note(self._now(), "editor called", None, f"cycle {cycle.id}: {cost}")

    def _judge(self, cycle: EditCycle, answer: Answer, author: str) -> Applied:
        """Apply an answer and close its cycle. Raises EditRejected; the cycle then stays open for another answer,
        unless there were too many. Raises EditWaits, with the cycle closed, if the answer waits for a person.

        A late answer, whose cycle is closed, is checked against the plan like any other edit."""
        try:
            batch, left_out = batch_of(answer, self._plan, cycle, author)
            self._answered = cycle
            applied = self._waiting.submit(batch, cycle.id, author)  # which calls announce, as for every edit
        except EditWaits:
            if cycle.id in self._lock.cycles:  # it holds what it touches, and the rest of the plan goes on
                self._close(cycle, "waiting")
            raise
        except EditRejected as rejected:
            self._publish("edit_rejected", cycle, author=author, violations=rejected.violations, error=rejected)
            self._lock.record_rejection(cycle)
            if cycle.rejections > self._execution.options.max_rejections and cycle.id in self._lock.cycles:
                self._publish("edit_abandoned", cycle, author=author, violations=rejected.violations)
                self._close(cycle, "abandoned")
            raise
        finally:
            self._answered = None
        cycle.edits += len(applied.batch.edits)
        if left_out:
            words = tuple(map(str, left_out))
            self._plan.note(self._now(), "left out of an edit", None, f"overtaken: {'; '.join(words)}")
            self._publish("edit_overtaken", cycle, author=author, edits=words)
        if cycle.id in self._lock.cycles:
            self._close(cycle, "accepted" if applied.batch.edits else "empty")
        return applied

    def announce(self, applied: Applied) -> None:
        """Publish an edit that was applied, by an editor or by a call on the plan itself."""
        edits = tuple(edit_texts(applied.batch.edits))
        about = {"author": applied.batch.author, "reason": applied.batch.reason}
        self._publish("edit_applied", self._answered, edits=edits, **about)

    def publish_waiting(self, kind: str, edit: WaitingEdit) -> None:
        """Publish that an edit waits for a person, or that it was refused."""
        edits = tuple(edit_texts(edit.batch.edits))
        about = {"author": edit.batch.author, "reason": edit.why or "; ".join(edit.reasons)}
        self._publish(kind, self._answered, edits=edits, approval=edit.id, **about)

    def _failed(self, cycle: EditCycle, error: BaseException) -> None:
        if cycle.id in self._lock.cycles:
            error = self._execution.mask().error(error)
            logger.warning("the editor failed in cycle %d of plan %s: %r", cycle.id, self._plan.id, error)
            self._publish("editor_failed", cycle, error=error)
            self._close(cycle, "editor_failed")

    # -- editors outside the process -----------------------------------------------------------------------------------

    def claim(self, cycle_id: int, who: str, lease: float) -> EditCycle:
        cycle = self._lock.claim(cycle_id, who, self._now(), lease)
        self._set_deadline()
        return cycle

    def answer(self, cycle_id: int, who: str, answer: Answer) -> Applied:
        """Apply an answer from outside. An open cycle has to be claimed first; a late answer is checked like any other
        edit."""
        if cycle_id not in self._lock.cycles:
            for closed in self._lock.history:
                if closed.id == cycle_id:
                    return self._judge(closed, answer, who)
        cycle = self._lock.get(cycle_id)
        if cycle.claimed_by is None:
            raise CycleClaimed(f"cycle {cycle_id} is not claimed; claim it first")
        if cycle.claimed_by != who:
            raise CycleClaimed(f"cycle {cycle_id} is claimed by {cycle.claimed_by!r}, not by {who!r}")
        return self._judge(cycle, answer, who)

    def release(self, cycle_id: int, why: str) -> EditCycle:
        """Close a cycle whose editor does not answer: the plan goes on as it is. A call of the editor is cancelled, and
        an answer of it is dropped. ``why`` says who asked for it. Raises CycleGone."""
        cycle = self._lock.get(cycle_id)
        self._plan.note(self._now(), "cycle released", None, f"cycle {cycle_id}, {why}")
        self._close(cycle, RELEASED)
        if cycle_id in self._calls:
            self._calls[cycle_id].cancel()
        return cycle

    # -- closing -------------------------------------------------------------------------------------------------------

    def _close(self, cycle: EditCycle, outcome: str) -> None:
        confirmed = self._lock.close(cycle, self._now(), outcome)
        if confirmed:
            self._events.confirmed(confirmed)
        self._publish("cycle_closed", cycle)
        if self.trace is not None:
            self.trace.cycle_closed(cycle)
        self._set_deadline()
        self._execution.wake()

    def _set_deadline(self) -> None:
        """Set the timer for the cycle that has to be closed first."""
        self._set_alarm(self._lock.next_deadline())

    def _close_overdue(self) -> None:
        for cycle, why in self._lock.overdue(self._now()):
            logger.warning("cycle %d of plan %s is closed without an answer: %s", cycle.id, self._plan.id, why)
            self._publish("edit_timeout", cycle)
            self._close(cycle, why)
        self._set_deadline()

    def cancel(self) -> None:
        """The plan ends: close all cycles and cancel the calls of the editor."""
        for cycle in tuple(self._lock.cycles.values()):
            self._close(cycle, "cancelled")
        self._lock.waiting.clear()
        self._set_deadline()
        for call in self.calls:
            call.cancel()

    def abandon(self) -> None:
        """Another process continues the plan: cancel the calls of the editor, and close no cycle."""
        self._abandoned = True
        for call in self.calls:
            call.cancel()

    # -- events --------------------------------------------------------------------------------------------------------

    def _event(self, kind: str, cycle: EditCycle | None, **fields: Any) -> EditEvent:
        return EditEvent(
            kind=kind,
            at=self._now(),
            constellation=self._plan.id,
            version=self._plan.version,
            cycle=None if cycle is None else cycle.id,
            tasks=() if cycle is None else cycle.tasks,
            **fields,
        )

    def _publish(self, kind: str, cycle: EditCycle | None, **fields: Any) -> None:
        bus = self._events.bus
        if bus.subscriptions and bus.wants(EditEvent):
            self._events.publish(self._event(kind, cycle, **fields))


def batch_of(answer: Answer, plan: Constellation, cycle: EditCycle, author: str) -> tuple[EditBatch, Sequence[Edit]]:
    """The batch that an answer stands for, and the edits left out of it. Only a whole plan leaves edits out: those of
    tasks that have started since. Raises EditRejected if the answer is malformed."""
    try:
        if isinstance(answer, Constellation):
            return merge(plan, answer.origin or plan, answer, author=author, triggers=cycle.tasks)
        if isinstance(answer, Mapping):
            answer = EditBatch.from_json(answer)
        if isinstance(answer, EditBatch):
            base = cycle.version if answer.base_version is None else answer.base_version
            triggers = tuple(answer.triggers) or cycle.tasks
            edits = tuple(map(_edit, answer.edits))
            return EditBatch(edits, answer.author or author, answer.reason, base, triggers), ()
        if answer is None or isinstance(answer, tuple(EDITS.values())):
            answer = () if answer is None else (answer,)
        if isinstance(answer, Iterable) and not isinstance(answer, str | bytes):
            items = tuple(answer)
            as_json = all(isinstance(item, Mapping) for item in items)
            edits = edits_from_json(items) if as_json else tuple(map(_edit, items))
            return EditBatch(edits, author, base_version=cycle.version, triggers=cycle.tasks), ()
    except Exception as error:
        raise EditRejected([Violation(None, "malformed", f"the answer cannot be read: {error_text(error)}")]) from None
    kind = type(answer).__name__
    words = f"an editor must answer with None, edits or a batch of edits, not with {safe_repr(answer)} ({kind})"
    raise EditRejected([Violation(None, "malformed", words)])


def _edit(item: Any) -> Edit:
    return edit_from_json(item) if isinstance(item, Mapping) else item
