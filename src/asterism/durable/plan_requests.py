"""Requests to the process that runs a plan, through the store: edit the plan, explain a task, pause.

A request is a register of its own, ``request/NAME/ID``. The owner of the plan (``RequestHandler``) applies an edit and
writes the answer into that register, in one commit with the step of the journal. So an edit is applied exactly once,
whatever crashes:

- If the owner dies before the commit, nothing has happened, and the next owner finds the request without an answer.
- If it dies after the commit, the answer is there.
- A process that stops waiting removes its request. The commit of the owner expects the request, so either the answer is
  found instead, or nothing of that commit happens, and the owner reloads the plan (``ReloadRequired``).
- If no process runs the plan, the asking process edits it (``admin.py``), and removes its request in the same commit.

A process that runs the plan itself asks itself (``Fleet.running_plans``), without a register: the change is durable
when it is answered. If the store does not take it in time, its outcome is unknown (``AnswerLost``).

A request whose process died is applied by the owner. A pause is a register that lasts (``admin.py``); the owner writes
its name into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from asterism.base.clock import new_id
from asterism.base.durations import format_age, format_duration
from asterism.core.errors import AlreadyRunning, AsterismError, EditRejected, PlanError, Violation
from asterism.core.history import Reason
from asterism.core.plan.apply import Applied
from asterism.core.plan.assignment_lock import CycleClaimed, CycleGone
from asterism.core.plan.edit_rules import names_devices
from asterism.core.plan.edits import ApprovalForbidden, ApprovalGone, EditBatch, EditWaits, WaitingEdit
from asterism.core.plan.explain import Why
from asterism.core.record import Record, encode, field, replace
from asterism.core.run.session import Session
from asterism.durable import admin
from asterism.durable.journal_store import Head, OwnershipLost, load, read_head
from asterism.durable.journal_writer import JournalWriter
from asterism.durable.runner_registers import is_to_be_run
from asterism.fleet.audit_log import PendingEntry
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.execution import Execution
from asterism.orchestrator.orchestrator import PlanCommands
from asterism.orchestrator.plan_mask import PlanMask
from asterism.store.optimistic_update import retry_on_conflict, try_commit
from asterism.store.protocol import PutRegister, Register, Write, for_plan
from asterism.store.store_errors import StoreUnavailable

if TYPE_CHECKING:
    from asterism.durable.ownership import Ownership

log = logging.getLogger("asterism.durable")

Answer = TypeVar("Answer")

ANSWER_TIMEOUT = 10.0
"""Seconds to wait for the answer of a process that sends heartbeats."""

SILENT_FACTOR = 6
"""How many times longer to wait for a process that has not sent a heartbeat since it was asked: it may be dead."""

WHY_TIMEOUT = 2.0
"""Seconds to wait for an explanation. Without it, the store explains."""

LOOK_INTERVAL = 0.5
"""Seconds between two looks for an answer without being woken."""

WITHDRAWAL_TIMEOUT = 5.0
"""Seconds to try to withdraw a request while the store is unavailable."""

ANSWER_KEPT = 600.0
"""After how many seconds an owner removes an answer that its process did not collect: seconds of the owner's own clock
since it first saw the answer. The clock of the store may jump, and the process would take a fresh answer for lost."""


class NotAnswered(PlanError):
    """The process that runs a plan did not answer in time. The request was withdrawn, and nothing has changed."""


class AnswerLost(PlanError):
    """A request and its answer are gone from the store, so its outcome is unknown: its process waited too long."""


class EditAnswer(Record):
    """``by`` is the process that runs the plan and applied the edit; None if no process runs it, and this one did.
    ``reopened``: the plan had ended, and the edit has opened it again and submitted it to plan runners. ``rests``: no
    process runs the plan, and none will until a person resumes it or starts a server. ``waits`` are the reasons why an
    edit that was only checked would wait for a person, and ``removed`` the tasks that it would remove with others, by
    the index of the edit."""

    applied: Applied
    by: str | None = None
    reopened: bool = False
    waits: tuple[str, ...] = ()
    rests: bool = False
    removed: Mapping[int, Sequence[str]] = field(default_factory=dict)


class PauseAnswer(Record):
    """``reason`` says who paused the plan and why. ``owner`` is the process that runs it, ``by`` the one that obeys."""

    reason: str
    already: bool
    owner: str | None = None
    by: str | None = None


# -- edit, undo, pause, why -------------------------------------------------------------------------------------------


async def edit_plan(
    fleet: Fleet,
    name: str,
    batch: EditBatch,
    *,
    dry_run: bool = False,
    timeout: float = ANSWER_TIMEOUT,
    editor: str | None = None,
    groups: Iterable[str] = (),
    alone: Callable[[], AbstractAsyncContextManager[object]] = contextlib.nullcontext,
    entry: PendingEntry | None = None,
) -> EditAnswer:
    """Edit a stored plan, whether a process runs it or not. Durable on return. ``editor`` is the name of the editor
    that the edit comes from, which has a scope; None for a person, its author, with these ``groups``. A plan that no
    process runs is edited within the context ``alone``. ``entry`` is written in the commit of the edit, unless another
    process applies it.

    With ``dry_run`` the edit is only checked, against the plan as it is in the store. Raises UnknownConstellation,
    EditRejected with every violation, EditWaits if it waits for a person, PlanError if the plan is being cancelled,
    NotAnswered and AnswerLost."""
    if dry_run:
        return EditAnswer(**(await admin.try_edit(fleet, name, batch, editor, groups))._asdict())
    of_whom = {"groups": sorted(groups)} if editor is None else {"editor": editor}
    request: dict[str, Any] = {"batch": batch, **of_whom}
    before: Head

    async def at_rest(also: list[Write]) -> Applied:
        nonlocal before
        before, _ = await read_head(fleet.store, name)
        return await admin.edit_once(fleet, name, batch, also=also, editor=editor, groups=groups, entry=entry)

    while name not in fleet.running_plans:
        before, _ = await read_head(fleet.store, name)
        if not before.ended and await admin.live_owner(fleet.store, before) is not None:
            await admin.check_not_cancelled(fleet.store, before, "edited")
            break
        with contextlib.suppress(AlreadyRunning):  # a process has just taken it over
            async with alone():
                applied = await admin.edit(fleet, name, batch, editor=editor, groups=groups, entry=entry)
            return await _answer_at_rest(fleet, before, applied)
    applied, by = await ask(fleet, name, EDIT, request, timeout=timeout, at_rest=at_rest, entry=entry)
    return EditAnswer(applied, by) if by is not None else await _answer_at_rest(fleet, before, applied)


async def _answer_at_rest(fleet: Fleet, head: Head, applied: Applied) -> EditAnswer:
    """The answer to an edit of a plan that no process ran. ``head`` is that of the plan before the edit."""
    after, _ = await read_head(fleet.store, head.name)
    rests = (
        not after.ended
        and await admin.live_owner(fleet.store, after) is None
        and not await is_to_be_run(fleet.store, head.name)
    )
    return EditAnswer(applied, reopened=head.ended and bool(applied.batch.edits), rests=rests)


async def undo_edit(
    fleet: Fleet,
    name: str,
    reason: str = "",
    *,
    dry_run: bool = False,
    timeout: float = ANSWER_TIMEOUT,
    editor: str | None = None,
) -> EditAnswer:
    """Undo the newest edit of a stored plan that is not undone, whether a process runs it or not. Raises what
    ``edit_plan`` raises."""
    batch = await undo_batch(fleet, name, reason)
    return await edit_plan(fleet, name, batch, dry_run=dry_run, timeout=timeout, editor=editor)


async def undo_batch(fleet: Fleet, name: str, reason: str = "") -> EditBatch:
    """The edits that undo the newest edit of a stored plan that is not undone. Raises UnknownConstellation, and
    EditRejected if there is none."""
    return (await load(fleet.store, name)).plan.undo_stack.batch(fleet.by, reason)


async def pause_plan(fleet: Fleet, name: str, reason: str = "", *, timeout: float = WHY_TIMEOUT) -> PauseAnswer:
    """Pause a stored plan, and wait until the process that runs it obeys, at most ``timeout`` seconds. Raises what
    ``admin.pause`` raises."""
    before = await admin.pause_reason(fleet.store, name)
    await admin.pause(fleet, name, reason)
    head, _ = await read_head(fleet.store, name)
    owner = await admin.live_owner(fleet.store, head)
    now = await admin.pause_reason(fleet.store, name)
    by = None if owner is None else await _paused_by(fleet, name, owner.device, timeout)
    return PauseAnswer(now or "", before is not None, None if owner is None else owner.device, by)


async def _paused_by(fleet: Fleet, name: str, device: str, timeout: float) -> str | None:
    store, until = fleet.store, fleet.clock.time() + timeout
    watch = store.watch(frozenset({for_plan(name)}))
    try:
        while True:
            pause = await store.register(admin.pause_key(name))
            if pause is None or pause.value.get("applied_by") == device:
                return None if pause is None else device
            if fleet.clock.time() >= until:
                return None
            await watch.wait(LOOK_INTERVAL)
    finally:
        watch.close()


async def ask_why(fleet: Fleet, name: str, task: str, *, timeout: float = WHY_TIMEOUT) -> Why | None:
    """Why a task is not running, as the process that runs the plan knows it; None if it does not answer in time."""
    with contextlib.suppress(PlanError):  # it did not answer, or the plan is being cancelled or removed
        return (await ask(fleet, name, WHY, {"task": task}, timeout=timeout, silent_timeout=timeout))[0]
    return None


# -- kinds of requests -------------------------------------------------------------------------------------------------


class RunningPlan(Record):
    """One loaded state of a plan, as the process that runs it has it. ``device`` is the name of the process,
    ``commands`` are those of its orchestrator."""

    device: str
    execution: Execution
    journal: JournalWriter
    commands: PlanCommands
    mask: PlanMask

    @property
    def active(self) -> bool:
        """Whether the plan has not ended yet, and is not being cancelled."""
        return not self.execution.done.done() and not self.execution.cancelling


class RequestKind(Record, Generic[Answer]):
    """A kind of request. ``perform`` does it in the process that runs the plan; ``write`` and ``read`` are the answer
    as JSON and back, with the request. ``changes``: it changes the plan."""

    name: str
    perform: Callable[[RunningPlan, Mapping[str, Any]], Answer]
    write: Callable[[Answer], dict[str, Any]]
    read: Callable[[Mapping[str, Any], Mapping[str, Any]], Answer]
    changes: bool = True


def batch_of(request: Mapping[str, Any]) -> EditBatch | None:
    """The batch of a request: an object if this process asks, JSON if it comes from the store."""
    batch = request.get("batch")
    return batch if batch is None or isinstance(batch, EditBatch) else EditBatch.from_json(batch)


def applied_json(applied: Applied) -> dict[str, Any]:
    return {
        "version": applied.version,
        "inverse": None if applied.inverse is None else applied.inverse.to_json(),
        "stopped": [list(execution) for execution in applied.stopped],
    }


def read_applied(request: Mapping[str, Any], answer: Mapping[str, Any]) -> Applied:
    batch = batch_of(answer) or batch_of(request) or EditBatch(())
    inverse = None if answer["inverse"] is None else EditBatch.from_json(answer["inverse"])
    return Applied(answer["version"], batch, inverse, tuple((task, epoch) for task, epoch in answer["stopped"]))


def _edit(owner: RunningPlan, request: Mapping[str, Any]) -> Applied:
    batch = batch_of(request) or EditBatch(())
    return owner.execution.waiting.submit(batch, None, request.get("editor"), request.get("groups", ()))


def _why(owner: RunningPlan, request: Mapping[str, Any]) -> Why:
    why = owner.commands.why(request["task"], owner.execution.plan.id)
    return replace(why, holders=tuple(replace(holder, text=owner.mask.shown(holder.text)) for holder in why.holders))


EDIT = RequestKind("edit", _edit, applied_json, read_applied)

WHY = RequestKind(
    "why",
    _why,
    lambda why: {"status": str(why.status), "holders": [encode(holder) for holder in why.holders]},
    lambda request, answer: Why(
        request["task"], answer["status"], tuple(Reason(**holder) for holder in answer["holders"])
    ),
    changes=False,
)

_PROBLEMS: dict[str, type[AsterismError]] = {"claimed": CycleClaimed, "gone": CycleGone, "forbidden": ApprovalForbidden}


def _error_json(device: str, error: Exception) -> dict[str, Any]:
    """The answer to a request that could not be done."""
    if isinstance(error, EditWaits):
        return {"waiting": error.approval.to_json()}
    if isinstance(error, EditRejected):
        return {"violations": [encode(violation) for violation in error.violations]}
    if isinstance(error, ApprovalGone):
        return {"gone": str(error)}
    for problem, kind in _PROBLEMS.items():
        if isinstance(error, kind):
            return {"problem": problem, "message": str(error)}
    return {"error": f"{device!r} could not do it: {error}"}


def _raise_error(answer: Mapping[str, Any]) -> None:
    """Raise the error of an answer, if it has one."""
    if "waiting" in answer:
        raise EditWaits(WaitingEdit.from_json(answer["waiting"]))
    if "violations" in answer:
        raise EditRejected([Violation(**violation) for violation in answer["violations"]])
    if "gone" in answer:
        raise ApprovalGone(str(answer["gone"]))
    if "problem" in answer:
        raise _PROBLEMS[answer["problem"]](str(answer["message"]))
    if "error" in answer:
        raise PlanError(str(answer["error"]))


# -- asking ------------------------------------------------------------------------------------------------------------

AtRest = Callable[[list[Write]], Awaitable[Answer]]
"""Does what a request asks for to a plan that no process runs, in one commit with these writes."""


async def ask(
    fleet: Fleet,
    name: str,
    kind: RequestKind[Answer],
    request: Mapping[str, Any],
    *,
    timeout: float = ANSWER_TIMEOUT,
    silent_timeout: float | None = None,
    at_rest: AtRest[Answer] | None = None,
    entry: PendingEntry | None = None,
) -> tuple[Answer, str | None]:
    """The answer of the process that runs a plan, and its name. If no process does, ``at_rest`` answers, with None for
    the name. If no answer comes, the request is withdrawn, and nothing has happened. If this process runs the plan,
    ``entry`` is written in the commit of the change.

    Raises the error of the answer, NotAnswered, AnswerLost, and PlanError if the plan is being cancelled, or if no
    process runs it and ``at_rest`` is left out."""
    here: Ownership | None = fleet.running_plans.get(name)
    if here is not None:
        with contextlib.suppress(_NotActive):
            return await _ask_here(fleet, here, kind, request, timeout, entry)
    return await _StoredRequest(fleet, name, kind, request).ask(timeout, silent_timeout, at_rest)


class _NotActive(Exception):
    """The plan has ended, or is being cancelled or left. Nothing was changed: ask as another process would."""


async def _ask_here(
    fleet: Fleet,
    ownership: Ownership,
    kind: RequestKind[Answer],
    request: Mapping[str, Any],
    timeout: float,
    entry: PendingEntry | None,
) -> tuple[Answer, str]:
    """The answer of this process, which runs the plan: the register of a request would only be a detour. Raises
    _NotActive."""

    def active() -> RunningPlan:
        if ownership.running is None or not ownership.running.active:
            raise _NotActive
        return ownership.running

    owner, name = active(), ownership.head.name
    if not kind.changes:
        return kind.perform(owner, request), owner.device
    await admin.check_not_cancelled(fleet.store, ownership.head, "edited")
    batch = batch_of(request)
    if batch is None or names_devices(batch):
        await owner.execution.roster.learn_devices()

    def perform() -> Answer:
        running = active()
        answer = kind.perform(running, request)
        if entry is not None:
            running.journal.stage(entry.write())
        return answer

    lost = f"Look whether it was applied: asterism plan story {name}"
    try:
        async with asyncio.timeout(timeout):
            answer = await ownership.change(perform)
        if entry is not None:
            entry.written = True
        return answer, owner.device
    except TimeoutError:
        raise AnswerLost(
            f"the change of plan {name!r} was not written within {format_duration(timeout)}. {lost}"
        ) from None
    except OwnershipLost as error:
        raise AnswerLost(f"the change of plan {name!r} was not written: {error}. {lost}") from None


class _StoredRequest(Generic[Answer]):
    """A request of this process in the store."""

    def __init__(self, fleet: Fleet, name: str, kind: RequestKind[Answer], request: Mapping[str, Any]) -> None:
        self._fleet, self._store, self._name, self._kind, self._request = fleet, fleet.store, name, kind, request
        now = fleet.store.clock()
        self.key = f"{requests_prefix(name)}{new_id(now, fleet.chance)}"
        batch = request.get("batch")
        written = request if batch is None else {**request, "batch": batch.to_json()}
        self._value = {"kind": kind.name, **written, "from": fleet.by, "at": now}

    async def ask(
        self, timeout: float, silent_timeout: float | None, at_rest: AtRest[Answer] | None
    ) -> tuple[Answer, str | None]:
        """See ``ask``."""
        await self.send()
        try:
            while True:
                answer = await self.wait(timeout, silent_timeout or SILENT_FACTOR * timeout)
                if answer is not None:
                    return self._read(answer)
                if at_rest is None:
                    raise await self._nobody()
                with contextlib.suppress(AlreadyRunning):  # a process has just taken it over
                    done = await retry_on_conflict(functools.partial(self._do_at_rest, at_rest))
                    if done is not None:
                        return done, None
        except asyncio.CancelledError:
            with contextlib.suppress(TimeoutError, StoreUnavailable):
                async with asyncio.timeout(WITHDRAWAL_TIMEOUT):
                    await self.withdraw()
            raise
        except Exception:
            answer = await self.withdraw()
            if answer is not None:  # a process answered before that
                return self._read(answer)
            raise

    def _read(self, answer: Mapping[str, Any]) -> tuple[Answer, str]:
        _raise_error(answer)
        return self._kind.read(self._request, answer), str(answer["by"])

    async def send(self) -> None:
        """Write the request, and make sure that it is there."""

        async def attempt() -> None:
            if await self._store.register(self.key) is None:
                await self._store.commit([PutRegister(self.key, self._value, None)])

        await retry_on_conflict(attempt, patience=WITHDRAWAL_TIMEOUT, clock=self._fleet.clock)

    async def _do_at_rest(self, at_rest: AtRest[Answer]) -> Answer | None:
        """Do it here, since no process runs the plan; None if one has answered."""
        register = await self.read()
        if "answer" in register.value:
            return None
        return await at_rest([PutRegister(self.key, None, register.revision)])

    async def _nobody(self) -> PlanError:
        head, _ = await read_head(self._store, self._name)
        if head.ended:
            return PlanError(f"plan {self._name!r} has ended ({head.state})")
        return PlanError(
            f"no process runs plan {self._name!r}, so its edit cycles wait. Resume it: asterism resume {self._name}"
        )

    async def read(self) -> Register:
        """The request, and its answer if there is one. Raises AnswerLost."""
        request = await self._store.register(self.key)
        if request is None:
            raise AnswerLost(
                f"the request to plan {self._name!r} is no longer in the store, and its answer is lost. "
                f"Look whether it was applied: asterism plan story {self._name}"
            )
        return request

    async def wait(self, timeout: float, silent_timeout: float) -> Mapping[str, Any] | None:
        """The answer; None if no process runs the plan. Waits longer for a process that has sent no heartbeat since:
        it may be dead. Raises NotAnswered, and PlanError if the plan is being cancelled."""
        clock = self._fleet.clock
        asked, asked_at = clock.time(), self._store.clock()
        watch = self._store.watch(frozenset({for_plan(self._name)}))
        try:
            while True:
                with contextlib.suppress(StoreUnavailable):
                    request = await self.read()
                    if "answer" in request.value:
                        await self._collect(request)
                        return request.value["answer"]  # type: ignore[no-any-return]
                    head, _ = await read_head(self._store, self._name)
                    owner = None if head.ended else await admin.live_owner(self._store, head)
                    if owner is None:
                        return None
                    await admin.check_not_cancelled(self._store, head, "edited")
                    waited = clock.time() - asked
                    if waited >= timeout and (owner.beat_at >= asked_at or waited >= silent_timeout):
                        raise NotAnswered(_no_answer(head, owner, self._store.clock(), waited))
                if clock.time() - asked >= silent_timeout:
                    raise StoreUnavailable(f"{self._store.url} cannot be reached")
                await watch.wait(LOOK_INTERVAL)
        finally:
            watch.close()

    async def withdraw(self) -> Mapping[str, Any] | None:
        """Remove the request, so that it is never applied. Returns the answer, if it came before that."""

        async def attempt() -> Mapping[str, Any] | None:
            request = await self._store.register(self.key)
            if request is not None:
                await self._store.commit([PutRegister(self.key, None, request.revision)])
            return None if request is None else request.value.get("answer")

        return await retry_on_conflict(attempt, patience=WITHDRAWAL_TIMEOUT, clock=self._fleet.clock)

    async def _collect(self, request: Register) -> None:
        with contextlib.suppress(StoreUnavailable):  # otherwise an owner removes it later
            await try_commit(self._store, [PutRegister(self.key, None, request.revision)])


def _no_answer(head: Head, owner: Session, now: float, waited: float) -> str:
    return (
        f"{owner.device!r} runs plan {head.name!r}, but did not answer within {format_duration(waited)} "
        f"(last heartbeat {format_age(now - owner.beat_at)} ago). The request was withdrawn, and nothing has changed. "
        f"Try again, or stop that process and resume the plan with: asterism resume {head.name}"
    )


# -- answering ---------------------------------------------------------------------------------------------------------


def requests_prefix(name: str) -> str:
    """The prefix of the keys of the requests to a plan."""
    return f"request/{name}/"


class RequestHandler:
    """Answers the requests to a plan in the store, in the process that runs it. ``kinds`` are those that it knows."""

    def __init__(self, fleet: Fleet, owner: RunningPlan, kinds: Mapping[str, RequestKind[Any]]) -> None:
        self._store, self._clock, self._owner, self._kinds = fleet.store, fleet.clock, owner, kinds
        self._name = owner.execution.plan.id
        self._seen: dict[str, float] = {}  # since when each answer waits for its process

    async def answer_all(self) -> int:
        """Answer the requests in the order in which they were made, in one commit, and return how many. Those to a plan
        that has ended are left to the processes that made them: an edit may reopen it. Raises OwnershipLost and
        StoreUnavailable."""
        answered, owner = 0, self._owner
        registers = await self._store.registers(requests_prefix(self._name))
        self._seen = {
            register.key: self._seen.get(register.key, self._clock.time())
            for register in registers
            if _is_answered(register)
        }
        if not all(map(_is_answered, registers)):
            await owner.execution.roster.learn_devices()
        for register in registers:
            if not owner.active:
                break
            if not _is_answered(register):
                # no await in between: the step and the answer are one commit
                answer = {"by": owner.device, **self._answer(register.value)}
                owner.journal.stage(PutRegister(register.key, {**register.value, "answer": answer}, register.revision))
                answered += 1
            elif self._clock.time() - self._seen[register.key] > ANSWER_KEPT:
                await try_commit(self._store, [PutRegister(register.key, None, register.revision)])
        if answered:
            await owner.journal.commit()
        return answered

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        device = self._owner.device
        try:
            kind = self._kinds.get(request["kind"])
            if kind is None:
                return {"error": f"{device!r} does not know the request {request['kind']!r}: its version differs"}
            return kind.write(kind.perform(self._owner, request))
        except OwnershipLost:
            raise
        except Exception as error:  # a request never ends the plan
            if not isinstance(error, AsterismError):
                log.exception("a request to plan %s could not be answered", self._name)
            return _error_json(device, error)


def _is_answered(request: Register) -> bool:
    return "answer" in request.value


# -- decisions about waiting edits -------------------------------------------------------------------------------------


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
    by, groups = who or fleet.by, [*groups]
    request: dict[str, Any] = {"approval": number, "who": by, "reason": reason, "groups": groups}
    if batch is not None:
        request["batch"] = batch

    async def at_rest(also: list[Write]) -> Applied:
        return await admin.change_once(
            fleet,
            name,
            lambda waiting, plan: admin.of_rules(waiting, name).approve(number, by, batch, reason, groups),
            also,
        )

    head, _ = await read_head(fleet.store, name)
    await admin.check_not_cancelled(fleet.store, head, "edited")
    return EditAnswer(*await ask(fleet, name, APPROVE, request, timeout=timeout, at_rest=at_rest))


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
    by, groups = who or fleet.by, [*groups]
    request = {"approval": number, "who": by, "reason": reason, "groups": groups}

    async def at_rest(also: list[Write]) -> WaitingEdit:
        return await admin.change_once(
            fleet, name, lambda waiting, plan: admin.of_rules(waiting, name).refuse(number, by, reason, groups), also
        )

    head, _ = await read_head(fleet.store, name)
    await admin.check_not_cancelled(fleet.store, head, "edited")
    return (await ask(fleet, name, REFUSE, request, timeout=timeout, at_rest=at_rest))[0]


def _approve(owner: RunningPlan, request: Mapping[str, Any]) -> Applied:
    return owner.execution.waiting.approve(
        request["approval"], request["who"], batch_of(request), request["reason"], request.get("groups", ())
    )


def _refuse(owner: RunningPlan, request: Mapping[str, Any]) -> WaitingEdit:
    return owner.execution.waiting.refuse(
        request["approval"], request["who"], request["reason"], request.get("groups", ())
    )


APPROVE = RequestKind(
    "approve",
    _approve,
    lambda applied: {**applied_json(applied), "batch": applied.batch.to_json()},
    read_applied,
)
REFUSE = RequestKind(
    "refuse",
    _refuse,
    lambda edit: {"refused": edit.to_json()},
    lambda request, answer: WaitingEdit.from_json(answer["refused"]),
)
