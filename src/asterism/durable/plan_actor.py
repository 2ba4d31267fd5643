"""A plan is an actor: one process at a time has it open, and only that process changes it.

::

    async with open_plan(fleet, "nightly") as plan:
        answer = await plan.do(EditPlan(batch))

A command (``commands.py``) is performed by the process that has the plan open:

- This process runs it: at once, in the next commit of its journal.
- Another process runs it: the command is a message in the mailbox of the plan, the register ``mailbox/NAME/ID``. The
  owner writes its answer into that register in one commit with the steps. The commit expects the message.
- No process runs it: this one owns it for a moment. One commit has a new epoch, the answers to all messages, in their
  order, and what this command does.

So a command is applied once, whatever dies when: before the commit nothing has happened, after it the answer is there.
Who stops waiting removes its message, which is then never applied: the commit of the owner fails, and the owner reloads
the plan. The message of a process that has died is applied. A command that ``lasts`` stays until it is done.

If other processes are faster several times, the command becomes a message: the next of them applies it. So many
processes that change a plan that nobody runs all get their turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from asterism.base import expressions
from asterism.base.clock import new_id
from asterism.base.durations import format_age, format_duration
from asterism.base.expressions import Conditions
from asterism.core.backoff import retry_delay
from asterism.core.errors import AsterismError, PlanError, RunRefused
from asterism.core.plan.edit_trial import removed_tasks, trial
from asterism.core.plan.edits import EditBatch, WaitingEdit
from asterism.core.plan.explain import Why
from asterism.core.plan.journal import Step
from asterism.core.plan.node import AttemptTimes
from asterism.core.run import transitions
from asterism.core.run.session import Session
from asterism.durable.approval_store import ApprovalRecords
from asterism.durable.commands import (
    LEASE,
    Answer,
    AnswerCycle,
    ApproveEdit,
    CancelPlan,
    ClaimCycle,
    Command,
    CycleList,
    CycleView,
    Done,
    EditAnswer,
    EditPlan,
    ExplainTask,
    Failure,
    ListCycles,
    OpenPlan,
    PauseAnswer,
    PausePlan,
    RefuseEdit,
    ReleaseCycle,
    Reopened,
    ResumePlan,
    RetryPlan,
    check_not_cancelled,
    read_command,
)
from asterism.durable.journal_store import (
    Head,
    OwnershipLost,
    StoredConstellation,
    keep,
    load,
    read_head,
    refresh,
    stage_write,
)
from asterism.durable.plan_summaries import ENDED, live_owner
from asterism.durable.rejected_edits import RejectionRecorder
from asterism.durable.runner_registers import is_to_be_run, submission
from asterism.execution.plugin_actions import check_plugin
from asterism.fleet.audit_log import PendingEntry
from asterism.fleet.fleet import Fleet
from asterism.fleet.joinable_devices import known_devices
from asterism.fleet.retention import PREFIX
from asterism.orchestrator.waiting_edits import WaitingEdits
from asterism.store.optimistic_update import CONFLICT_PAUSE, retry_on_conflict, try_commit
from asterism.store.protocol import MAILBOX, Notice, PutRegister, Query, Register, Watch, Write, for_plan
from asterism.store.store_errors import Conflict, StoreUnavailable

if TYPE_CHECKING:
    from asterism.durable.ownership import Ownership

log = logging.getLogger("asterism.durable")

ANSWER_TIMEOUT = 10.0
"""Seconds to wait for the answer of a process that sends heartbeats."""

SILENT_FACTOR = 6
"""How many times longer to wait for a process that has not sent a heartbeat since it was asked: it may be dead."""

WHY_TIMEOUT = 2.0
"""Seconds to wait for an explanation, and for the owner to obey. Without an explanation, the store explains."""

LOOK_INTERVAL = 0.5
"""Seconds between two looks for an answer without being woken."""

WITHDRAWAL_TIMEOUT = 5.0
"""Seconds to try to withdraw a message while the store is unavailable."""

CONFLICTS_ALONE = 3
"""After so many conflicts a command becomes a message, so that those who are faster apply it, too."""

MOST_KEPT_TASKS = 20_000
"""How many tasks the plans have together that are kept for the next command. A plan with results in blobs is not."""

FEW_EDITS = 100
"""More edits of one request are read, and tried in a dry run, in a thread."""


class NotAnswered(PlanError):
    """The process that runs a plan did not answer in time. A message was withdrawn, and nothing has changed, unless the
    command lasts. ``device`` is the process."""

    def __init__(self, message: str, device: str = "") -> None:
        self.device = device
        super().__init__(message)


class AnswerLost(PlanError):
    """A message and its answer are gone from the store, so the outcome is unknown: its process waited too long."""


# -- the mailbox -------------------------------------------------------------------------------------------------------


def mailbox_prefix(name: str) -> str:
    """The prefix of the keys of the messages to a plan."""
    return f"{MAILBOX}{name}/"


def is_answered(message: Register) -> bool:
    return "answer" in message.value


def answer_messages(plan: OpenPlan, messages: Iterable[Register]) -> dict[str, Mapping[str, Any]]:
    """Perform the commands in the messages that have no answer, in the order in which they were sent. Returns the
    answers by key; they are written in the next commit, with what the commands change."""
    answers: dict[str, Mapping[str, Any]] = {}
    for message in messages:
        if not plan.active:
            break  # the process that sent it finds that the plan has ended
        if not is_answered(message):
            # no await in between: the steps and the answer are one commit
            answers[message.key] = _perform(plan, message.value)
            value = {**message.value, "answer": answers[message.key]}
            plan.journal.stage(PutRegister(message.key, value, message.revision))
    return answers


def _perform(plan: OpenPlan, message: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        return {"done": read_command(message["do"]).perform(plan).to_json()}
    except OwnershipLost:
        raise
    except Exception as error:  # a message never ends the plan
        if not isinstance(error, AsterismError):
            log.exception("a command to plan %s could not be done", plan.name)
        return {"failure": Failure.of(error, plan.device).to_json()}


def _read(command: Command[Answer], answer: Mapping[str, Any]) -> Answer:
    """The answer to a command. Raises its failure."""
    if "failure" in answer:
        raise Failure.from_json(answer["failure"]).error()
    return command.answer.from_json(answer["done"])  # type: ignore[no-any-return]


class _Message:
    """A command of this process as a message."""

    def __init__(self, fleet: Fleet, name: str, command: Command[Any], id: str | None) -> None:
        self._fleet, self._store, self._name, self._command = fleet, fleet.store, name, command
        self.asked, self.asked_at = fleet.clock.time(), fleet.store.clock()
        self.key = f"{mailbox_prefix(name)}{id or new_id(self.asked_at, fleet.chance)}"
        self.kept = id is not None  # for a repetition
        self.sent = False

    @property
    def value(self) -> dict[str, Any]:
        return {"do": self._command.to_json(), "at": self.asked_at}

    async def send(self) -> None:
        """Write the message, and make sure that it is there."""

        async def attempt() -> None:
            if await self._store.register(self.key) is None:
                await self._store.commit([PutRegister(self.key, self.value, None)])

        self.sent = True  # perhaps, if this is broken off
        await retry_on_conflict(attempt, patience=WITHDRAWAL_TIMEOUT, clock=self._fleet.clock)

    async def answer(self) -> Mapping[str, Any] | None:
        """The answer, which is then removed; None if there is none yet. Raises AnswerLost."""
        message = await self._store.register(self.key)
        if message is None:
            raise AnswerLost(
                f"the message to plan {self._name!r} is no longer in the store, and its answer is lost. "
                f"Look whether it was applied: asterism plan story {self._name}"
            )
        if not is_answered(message):
            return None
        if not self.kept:
            with contextlib.suppress(StoreUnavailable):  # otherwise an owner removes it later
                await try_commit(self._store, [PutRegister(self.key, None, message.revision)])
        return message.value["answer"]  # type: ignore[no-any-return]

    async def withdraw(self) -> Mapping[str, Any] | None:
        """Remove the message, so that it is never applied. Returns the answer, if it came before that."""

        async def attempt() -> Mapping[str, Any] | None:
            message = await self._store.register(self.key)
            if message is not None:
                await self._store.commit([PutRegister(self.key, None, message.revision)])
            return None if message is None else message.value.get("answer")

        if not self.sent or self._command.lasts:
            return None
        return await retry_on_conflict(attempt, patience=WITHDRAWAL_TIMEOUT, clock=self._fleet.clock)

    def check_patience(self, head: Head, owner: Session, timeout: float, silent_timeout: float) -> None:
        """Raise NotAnswered if the owner had enough time. One that has sent no heartbeat since gets more: it may be
        dead."""
        waited = self._fleet.clock.time() - self.asked
        if waited < timeout or (owner.beat_at < self.asked_at and waited < silent_timeout):
            return
        outcome = "The request was withdrawn, and nothing has changed. Try again, or stop"
        if self._command.lasts:
            outcome = "It is asked still, as the next one that runs the plan is. Stop"
        raise NotAnswered(
            f"{owner.device!r} runs plan {head.name!r}, but did not answer within {format_duration(waited)} "
            f"(last heartbeat {format_age(self._store.clock() - owner.beat_at)} ago). {outcome} "
            f"that process and resume the plan with: asterism resume {head.name}",
            owner.device,
        )


# -- a plan that is open for a moment ----------------------------------------------------------------------------------


class _Moment:
    """The journal of a plan that this process owns for a moment."""

    sealed = False

    def __init__(self, fleet: Fleet, stored: StoredConstellation) -> None:
        self._fleet, self._stored, self.head = fleet, stored, stored.head
        self.steps: list[Step] = []
        self.writes: list[Write] = []
        stored.plan.record = self.steps.append

    def stage(self, write: PutRegister | Notice) -> bool:
        return stage_write(self.writes, write)

    def stage_head(self, **changes: object) -> None:
        self.head = self.head.changed(**changes)

    async def commit(self) -> None:
        """Raises Conflict if another process was faster."""
        store, stored = self._fleet.store, self._stored
        if self.steps or self.writes or self.head is not stored.head:
            self.stage_head(epoch=stored.head.epoch + 1)
            mark = new_id(store.clock(), self._fleet.chance)
            writes = [*self.writes, stored.summary(self.head, records=1)]
            await store.commit(stored.next_record(self.head, self.steps, mark, writes))
            stored.written(self.head, self.steps, mark)


async def _opened(
    fleet: Fleet, stored: StoredConstellation, *, devices: bool, device: str | None = None
) -> tuple[OpenPlan, _Moment]:
    """A loaded plan on which commands can be performed; without ``devices`` no edit of them names a device."""
    store, moment = fleet.store, _Moment(fleet, stored)
    known = await known_devices(store) if devices else None
    waiting = WaitingEdits(stored.plan, store.clock, devices=lambda: known)
    (await ApprovalRecords.read(store, moment)).attach(waiting)
    stored.plan.check_plugin = check_plugin
    submitting = await submission(fleet, stored.head.name) if stored.plan.state in ENDED else None
    return OpenPlan(stored, moment, waiting, store.clock, device=device, submission=submitting), moment


async def _cancel_stopped(fleet: Fleet, plan: OpenPlan, moment: _Moment) -> None:
    """Cancel the runs of executions that were stopped, in the same commit: no owner is there to do it. The plan learns
    which of them no device had begun."""
    now = fleet.store.clock()
    for task, epoch in plan.stopped:
        for run in await fleet.store.find(Query(key=f"{PREFIX}{plan.name}/{task}/{epoch}")):
            with contextlib.suppress(RunRefused):  # it has ended
                after = transitions.cancel(run, now, fleet.by)
                if after is not run:
                    moment.writes.append(await fleet.ledger.put_in_place(after, run))
                if after.ended and not transitions.was_executed(after):
                    times = AttemptTimes(after.created_at, ended=after.ended_at, executed=False)
                    plan.plan.record_run(task, epoch, now, times, f"run {run.id}, {times}")


# -- doing a command ---------------------------------------------------------------------------------------------------


class _NotActive(Exception):
    """The plan has ended, or is being left. Nothing was changed: ask as another process would."""


class PlanActor:
    """See ``open_plan``."""

    def __init__(self, fleet: Fleet, name: str, conditions: Conditions) -> None:
        self._fleet, self._store, self._name, self._conditions = fleet, fleet.store, name, conditions
        self._watch: Watch | None = None

    async def __aenter__(self) -> PlanActor:
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._watch is not None:
            self._watch.close()

    async def do(
        self,
        command: Command[Answer],
        *,
        id: str | None = None,
        timeout: float = ANSWER_TIMEOUT,
        silent_timeout: float | None = None,
        entry: PendingEntry | None = None,
    ) -> Answer:
        """Do a command, and return its answer; durable on return. A command of the same ``id`` is done once: a
        repetition gets the first answer, as long as that is kept. ``timeout`` is how long to wait for the process that
        runs the plan, ``silent_timeout`` for one that sends no heartbeats. ``entry`` is written in the commit of the
        command, if this process does it.

        Raises UnknownConstellation, the errors of the command, NotAnswered, and AnswerLost."""
        ownership: Ownership | None = self._fleet.running_plans.get(self._name)
        if ownership is not None and id is None:
            with contextlib.suppress(_NotActive):
                return await self._do_here(ownership, command, timeout, entry)
        message = _Message(self._fleet, self._name, command, id)
        try:
            return await self._do(command, message, timeout, silent_timeout or SILENT_FACTOR * timeout, entry)
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError, StoreUnavailable):
                async with asyncio.timeout(WITHDRAWAL_TIMEOUT):
                    await message.withdraw()
            raise
        except Exception:
            answer = await message.withdraw()
            if answer is not None:  # a process answered before that
                return _read(command, answer)
            raise

    async def _do_here(
        self, ownership: Ownership, command: Command[Answer], timeout: float, entry: PendingEntry | None
    ) -> Answer:
        """This process runs the plan. Raises _NotActive, and AnswerLost if the store does not take the change in
        time."""

        def active() -> OpenPlan:
            if ownership.running is None or not ownership.running.active:
                raise _NotActive
            return ownership.running

        plan = active()
        if not command.changes:
            return command.perform(plan)
        if command.names_devices:
            await plan.running.roster.learn_devices()

        def perform() -> Answer:
            plan = active()
            answer = command.perform(plan)
            if entry is not None:
                plan.journal.stage(entry.write())
            return answer

        look = f"Look whether it was applied: asterism plan story {self._name}"
        try:
            async with asyncio.timeout(timeout):
                answer = await ownership.change(perform)
        except TimeoutError:
            late = f"the change of plan {self._name!r} was not written within {format_duration(timeout)}. {look}"
            raise AnswerLost(late) from None
        except OwnershipLost as error:
            raise AnswerLost(f"the change of plan {self._name!r} was not written: {error}. {look}") from None
        if entry is not None:
            entry.written = True
        return answer

    async def _do(
        self,
        command: Command[Answer],
        message: _Message,
        timeout: float,
        silent_timeout: float,
        entry: PendingEntry | None,
    ) -> Answer:
        conflicts, message.sent = 0, message.kept and await self._store.register(message.key) is not None
        while True:
            wait = LOOK_INTERVAL
            try:
                answer = await message.answer() if message.sent else None
                if answer is not None:
                    return _read(command, answer)
                head, _ = await read_head(self._store, self._name)
                owner = None if head.ended else await live_owner(self._store, head)
                if owner is None:
                    async with self._fleet.plan_locks.setdefault(self._name, asyncio.Lock()):
                        return await self._do_for_a_moment(command, message, entry)
                if not message.sent:
                    await message.send()
                    continue
                message.check_patience(head, owner, timeout, silent_timeout)
            except Conflict:
                conflicts += 1
                wait = retry_delay(conflicts, *CONFLICT_PAUSE, self._fleet.chance)
                if conflicts >= CONFLICTS_ALONE and not message.sent:
                    await message.send()
            except StoreUnavailable:
                if not message.sent or self._fleet.clock.time() - message.asked >= silent_timeout:
                    raise
            self._watch = self._watch or self._store.watch(frozenset({for_plan(self._name)}))
            await self._watch.wait(wait)

    async def _do_for_a_moment(self, command: Command[Answer], message: _Message, entry: PendingEntry | None) -> Answer:
        """No process runs the plan: own it, empty its mailbox, do the command, and leave it. Raises Conflict if another
        process was faster."""
        fleet, store, name = self._fleet, self._store, self._name
        stored = await self._take()
        messages = [each for each in await store.registers(mailbox_prefix(name)) if not is_answered(each)]
        plan, moment = await _opened(fleet, stored, devices=command.names_devices or bool(messages))
        rejections, ended = RejectionRecorder(store, name), stored.plan.state in ENDED
        stored.plan.on_rejected = rejections.record
        answer: Any = None
        failure: AsterismError | None = None
        try:
            answers = answer_messages(plan, messages)
            if message.sent and message.key not in answers:
                raise Conflict(f"register {message.key}")  # it was answered just now
            try:
                answer = _read(command, answers[message.key]) if message.sent else command.perform(plan)
            except AsterismError as error:  # what tells of it is written: that an edit waits, for instance
                failure = error
            if failure is None and entry is not None:
                moment.stage(entry.write())
            if message.kept and not message.sent:
                done = {"failure": Failure.of(failure, None).to_json()} if failure else {"done": answer.to_json()}
                moment.stage(PutRegister(message.key, {**message.value, "answer": done}, None))
            await _cancel_stopped(fleet, plan, moment)
        finally:
            await rejections.close()
        await moment.commit()
        if entry is not None:
            entry.written = failure is None
        if not ended and not stored.plan.stored:  # else its lock has to be reopened too, as a replay does
            keep(fleet.kept_plans, stored, MOST_KEPT_TASKS)
        if message.sent:
            await message.answer()
        if failure is not None:
            raise failure
        return answer  # type: ignore[no-any-return]

    async def _take(self) -> StoredConstellation:
        """The plan as it is in the store now, for nobody else."""
        kept: StoredConstellation | None = self._fleet.kept_plans.pop(self._name, None)
        if kept is not None and self._conditions is expressions and await refresh(self._store, kept):
            return kept
        return await load(self._store, self._name, self._conditions)

    async def try_out(self, command: Command[Answer]) -> Answer:
        """What a command would do that is not for a running plan. Nothing changes. Raises what ``do`` raises."""
        stored = await load(self._store, self._name, self._conditions)
        owner = None if stored.plan.state in ENDED else await live_owner(self._store, stored.head)
        device = None if owner is None else owner.device
        plan, _ = await _opened(self._fleet, stored, devices=command.names_devices, device=device)
        return command.perform(plan)

    async def try_edit(self, command: EditPlan) -> EditAnswer:
        """What an edit would do to the plan as it is in the store. Nothing changes. Raises what ``do`` raises, but not
        EditWaits."""
        stored = await load(self._store, self._name)
        check_not_cancelled(stored.head, "edited")
        batch, plan, now = command.batch, stored.plan, self._store.clock()
        opened, _ = await _opened(self._fleet, stored, devices=command.names_devices)
        waits = opened.waiting.wait_reasons(batch, command.editor, command.groups)
        ended = plan.state in ENDED

        def apply() -> EditAnswer:
            removed = removed_tasks(trial(plan, batch, now), batch.edits)
            reopened = ended and bool(batch.edits)
            return EditAnswer(plan.apply(batch, now), reopened=reopened, waits=waits, removed=removed)

        return apply() if len(batch.edits) <= FEW_EDITS else await asyncio.to_thread(apply)  # the plan is a copy


def open_plan(fleet: Fleet, name: str, conditions: Conditions = expressions) -> PlanActor:
    """A stored plan, to do commands: ``async with open_plan(fleet, name) as plan``. ``conditions`` evaluates its
    conditions if no process runs it."""
    return PlanActor(fleet, name, conditions)


# -- commands of this process ------------------------------------------------------------------------------------------


def by_whom(fleet: Fleet, reason: str = "", who: str | None = None) -> str:
    """Who asks for something, and why."""
    by = f"by {who or fleet.by}"
    return f"{by}: {reason}" if reason else by


async def edit_plan(
    fleet: Fleet,
    name: str,
    batch: EditBatch,
    *,
    dry_run: bool = False,
    timeout: float = ANSWER_TIMEOUT,
    editor: str | None = None,
    groups: Iterable[str] = (),
    entry: PendingEntry | None = None,
) -> EditAnswer:
    """Edit a stored plan, whether a process runs it or not. Durable on return. ``editor`` is the name of the editor
    that the edit comes from, which has a scope; None for a person, its author, with these ``groups``. ``entry`` is
    written in the commit of the edit, unless another process applies it.

    With ``dry_run`` the edit is only checked, against the plan as it is in the store. Raises UnknownConstellation,
    EditRejected with every violation, EditWaits if it waits for a person, PlanError if the plan is being cancelled,
    NotAnswered and AnswerLost."""
    command = EditPlan(batch, editor, tuple(groups))
    async with open_plan(fleet, name) as plan:
        if dry_run:
            return await plan.try_edit(command)
        return await _with_rest(fleet, name, await plan.do(command, timeout=timeout, entry=entry))


async def _with_rest(fleet: Fleet, name: str, answer: EditAnswer) -> EditAnswer:
    """Whether a plan that no process runs stays so."""
    if answer.by is not None:
        return answer
    head, _ = await read_head(fleet.store, name)
    rests = not head.ended and await live_owner(fleet.store, head) is None and not await is_to_be_run(fleet.store, name)
    return EditAnswer(answer.applied, reopened=answer.reopened, rests=rests)


async def undo_edit(
    fleet: Fleet,
    name: str,
    reason: str = "",
    *,
    dry_run: bool = False,
    timeout: float = ANSWER_TIMEOUT,
    editor: str | None = None,
) -> EditAnswer:
    """Undo the newest edit of a stored plan that is not undone. Raises what ``edit_plan`` raises."""
    batch = await undo_batch(fleet, name, reason)
    return await edit_plan(fleet, name, batch, dry_run=dry_run, timeout=timeout, editor=editor)


async def undo_batch(fleet: Fleet, name: str, reason: str = "") -> EditBatch:
    """The edits that undo the newest edit of a stored plan that is not undone. Raises UnknownConstellation, and
    EditRejected if there is none."""
    return (await load(fleet.store, name)).plan.undo_stack.batch(fleet.by, reason)


async def approve_edit(
    fleet: Fleet,
    name: str,
    number: int,
    batch: EditBatch | None = None,
    reason: str = "",
    *,
    who: str | None = None,
    groups: Iterable[str] = (),
    timeout: float = ANSWER_TIMEOUT,
) -> EditAnswer:
    """Apply a waiting edit, or ``batch`` in its place, or let a task start; ``reason`` is kept with it. ``groups`` are
    those of the person. Durable on return. Raises ApprovalGone, ApprovalForbidden; EditRejected, with the edit still
    waiting; PlanError if the plan is being cancelled; NotAnswered and AnswerLost."""
    async with open_plan(fleet, name) as plan:
        return await plan.do(ApproveEdit(number, who or fleet.by, batch, reason, tuple(groups)), timeout=timeout)


async def refuse_edit(
    fleet: Fleet,
    name: str,
    number: int,
    reason: str = "",
    *,
    who: str | None = None,
    groups: Iterable[str] = (),
    timeout: float = ANSWER_TIMEOUT,
) -> WaitingEdit:
    """Drop a waiting edit, or let a task not start. Durable on return. Raises what ``approve_edit`` raises."""
    async with open_plan(fleet, name) as plan:
        return await plan.do(RefuseEdit(number, who or fleet.by, reason, tuple(groups)), timeout=timeout)


async def retry_plan(
    fleet: Fleet,
    name: str,
    *,
    from_tasks: Collection[str] = (),
    batch: EditBatch | None = None,
    reason: str = "",
    conditions: Conditions = expressions,
    editor: str | None = None,
    groups: Iterable[str] = (),
    submit: bool = False,
    dry_run: bool = False,
) -> Reopened:
    """Reopen a plan that has ended: see ``RetryPlan``. Durable on return; nothing runs yet. With ``dry_run`` nothing is
    written. Raises UnknownConstellation, AlreadyRunning, EditRejected, UnknownTask, and PlanError if the plan has not
    ended, was cancelled, or has nothing to run again."""
    why = by_whom(fleet, reason)
    command = RetryPlan(why, tuple(from_tasks), batch, editor, tuple(groups), submit)
    async with open_plan(fleet, name, conditions) as plan:
        tried = await plan.try_out(command)  # before a running plan is asked for what it cannot do
        return tried if dry_run else await plan.do(command)


async def pause_plan(fleet: Fleet, name: str, reason: str = "", *, timeout: float = WHY_TIMEOUT) -> PauseAnswer:
    """Pause a stored plan. If the process that runs it does not answer within ``timeout`` seconds, it pauses the plan
    when it can, or its next owner does. Raises UnknownConstellation, and PlanError if the plan has ended or is being
    cancelled."""
    why = by_whom(fleet, reason)
    try:
        async with open_plan(fleet, name) as plan:
            return await plan.do(PausePlan(why), timeout=timeout, silent_timeout=timeout)
    except NotAnswered as silent:
        return PauseAnswer(why, False, silent.device)


async def unpause_plan(fleet: Fleet, name: str) -> bool:
    """Let a plan that is paused go on. Returns whether it was paused."""
    head, _ = await read_head(fleet.store, name)
    try:
        async with open_plan(fleet, name) as plan:
            return not (await plan.do(ResumePlan(), timeout=WHY_TIMEOUT, silent_timeout=WHY_TIMEOUT)).already
    except NotAnswered:
        return head.paused is not None


async def cancel_plan(fleet: Fleet, name: str, reason: str = "") -> Done:
    """Cancel a stored plan: its owner does it, or the next one if no process runs it or the owner does not answer.
    Raises UnknownConstellation, and PlanError if the plan has ended otherwise."""
    head, _ = await read_head(fleet.store, name)
    if head.cancelling:
        return Done(True)
    try:
        async with open_plan(fleet, name) as plan:
            return await plan.do(CancelPlan(by_whom(fleet, reason)), timeout=WHY_TIMEOUT, silent_timeout=WHY_TIMEOUT)
    except NotAnswered:
        return Done(False)


async def list_cycles(fleet: Fleet, name: str, *, timeout: float = WHY_TIMEOUT) -> CycleList:
    """The open edit cycles of a stored plan. Raises UnknownConstellation."""
    stored = await load(fleet.store, name)
    if stored.head.ended or not stored.lock.cycles:
        return CycleList(())
    async with open_plan(fleet, name) as plan:
        with contextlib.suppress(NotAnswered, AnswerLost):
            return await plan.do(ListCycles(), timeout=timeout, silent_timeout=timeout)
        return ListCycles().perform((await _opened(fleet, stored, devices=False))[0])


async def claim_cycle(
    fleet: Fleet,
    name: str,
    cycle: int,
    *,
    who: str | None = None,
    lease: float = LEASE,
    timeout: float = ANSWER_TIMEOUT,
) -> CycleView:
    """Claim an open cycle for ``lease`` seconds, or renew the claim. ``who`` is the editor, by default this process's
    user. Raises CycleGone, CycleClaimed, NotAnswered, and PlanError if no process runs the plan."""
    async with open_plan(fleet, name) as plan:
        return await plan.do(ClaimCycle(cycle, who or fleet.by, lease), timeout=timeout)


async def answer_cycle(
    fleet: Fleet,
    name: str,
    cycle: int,
    batch: EditBatch | None = None,
    *,
    who: str | None = None,
    timeout: float = ANSWER_TIMEOUT,
) -> EditAnswer:
    """Answer a cycle with a batch of edits, or with none: the plan continues as it is. Durable on return. A cycle that
    nobody has claimed is claimed by the answer. Raises EditRejected, with the cycle open for another answer, and what
    ``claim_cycle`` raises."""
    async with open_plan(fleet, name) as plan:
        return await plan.do(AnswerCycle(cycle, who or fleet.by, batch), timeout=timeout)


async def release_cycle(
    fleet: Fleet, name: str, cycle: int, reason: str = "", *, who: str | None = None, timeout: float = ANSWER_TIMEOUT
) -> CycleView:
    """Close a cycle whose editor does not answer, in or outside the process that runs the plan: the plan goes on as it
    is. Raises what ``claim_cycle`` raises, but not CycleClaimed."""
    async with open_plan(fleet, name) as plan:
        return await plan.do(ReleaseCycle(cycle, by_whom(fleet, reason, who)), timeout=timeout)


async def ask_why(fleet: Fleet, name: str, task: str, *, timeout: float = WHY_TIMEOUT) -> Why | None:
    """Why a task is not running, as the process that runs the plan knows it; None if it does not answer in time."""
    async with open_plan(fleet, name) as plan:
        with contextlib.suppress(PlanError):  # it did not answer, or the plan is at rest or removed
            return await plan.do(ExplainTask(task), timeout=timeout, silent_timeout=timeout)
    return None
