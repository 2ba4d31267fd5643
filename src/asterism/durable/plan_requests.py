"""Requests to the process that runs a plan, through the store: edit the plan, explain a task, pause.

A request is a register of its own, ``request/NAME/ID``. The owner of the plan (``RequestHandler``) applies an edit and
writes the answer into that register, in one commit with the step of the journal. So an edit is applied exactly once,
whatever crashes:

- If the owner dies before the commit, nothing has happened, and the next owner finds the request without an answer.
- If it dies after the commit, the answer is there.
- A process that stops waiting removes its request. The commit of the owner expects the request, so either the answer is
  found instead, or nothing of that commit happens, and the owner reloads the plan (``ReloadRequired``).
- If no process runs the plan, the asking process edits it (``admin.py``), and removes its request in the same commit.

A request whose process died is applied by the owner. A pause is a register that lasts (``admin.py``); the owner writes
its name into it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from asterism.base.clock import Clock, new_id
from asterism.base.durations import format_age, format_duration
from asterism.core.errors import AlreadyRunning, EditRejected, PlanError, Violation
from asterism.core.json_values import NOTHING
from asterism.core.plan.apply import Applied
from asterism.core.plan.edits import EditBatch, EditWaits, WaitingEdit
from asterism.core.plan.explain import Holder, Why
from asterism.core.run.session import Session
from asterism.durable import admin
from asterism.durable.journal_store import Head, OwnershipLost, load, read_head
from asterism.durable.plan_submissions import is_to_be_run
from asterism.fleet.fleet import Fleet
from asterism.store.optimistic_update import retry_on_conflict, try_commit
from asterism.store.protocol import PutRegister, Register, Store, for_plan
from asterism.store.store_errors import StoreUnavailable

log = logging.getLogger("asterism.durable")

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


@dataclass(frozen=True, slots=True)
class EditAnswer:
    """``by`` is the process that runs the plan and applied the edit; None if no process runs it, and this one did.
    ``reopened``: the plan had ended, and the edit has opened it again and submitted it to plan runners. ``rests``: no
    process runs the plan, and none will until a person resumes it or starts a server. ``waits`` are the reasons why an
    edit that was only checked would wait for a person."""

    applied: Applied
    by: str | None = None
    reopened: bool = False
    waits: tuple[str, ...] = ()
    rests: bool = False


@dataclass(frozen=True, slots=True)
class PauseAnswer:
    """``reason`` says who paused the plan and why. ``owner`` is the process that runs it, ``by`` the one that obeys."""

    reason: str
    already: bool
    owner: str | None = None
    by: str | None = None


# -- asking ------------------------------------------------------------------------------------------------------------


async def edit_plan(
    fleet: Fleet,
    name: str,
    batch: EditBatch,
    *,
    dry_run: bool = False,
    timeout: float = ANSWER_TIMEOUT,
    editor: str | None = None,
) -> EditAnswer:
    """Edit a stored plan, whether a process runs it or not. Durable on return. ``editor`` is the name of the editor
    that the edit comes from, which has a scope; None for a person.

    With ``dry_run`` the edit is only checked, against the plan as it is in the store. Raises EditRejected with every
    violation, EditWaits if it waits for a person, PlanError if the plan is being cancelled, NotAnswered and
    AnswerLost."""
    if dry_run:
        applied, waits = await admin.try_edit(fleet, name, batch, editor)
        return EditAnswer(applied, waits=waits)
    while True:
        head, _ = await read_head(fleet.store, name)
        if head.ended or await admin.live_owner(fleet.store, head) is None:
            with contextlib.suppress(AlreadyRunning):  # a process has just taken it over
                applied = await admin.edit(fleet, name, batch, editor=editor)
                return await _answer_at_rest(fleet, head, applied)
            continue
        await admin.check_not_cancelled(fleet.store, head, "edited")
        return await _ask_for_edit(fleet, name, batch, timeout, editor)


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
    stored = await load(fleet.store, name)
    batch = stored.plan.undo_stack.batch(fleet.by, reason)
    return await edit_plan(fleet, name, batch, dry_run=dry_run, timeout=timeout, editor=editor)


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
            found = await store.register(admin.pause_key(name))
            if found is None or found.value.get("applied_by") == device:
                return None if found is None else device
            if fleet.clock.time() >= until:
                return None
            await watch.wait(LOOK_INTERVAL)
    finally:
        watch.close()


async def ask_why(fleet: Fleet, name: str, task: str, *, timeout: float = WHY_TIMEOUT) -> Why | None:
    """Why a task is not running, as the process that runs the plan knows it; None if it does not answer in time."""
    request = PlanRequest(fleet, name, {"kind": "why", "task": task})
    await request.send()
    try:
        answer = await request.wait(timeout, timeout)
    except PlanError:  # it did not answer, or the plan is being cancelled or removed
        return None
    finally:
        await request.withdraw()
    if answer is None or "holders" not in answer:
        return None
    return Why(task, answer["status"], tuple(Holder(**one) for one in answer["holders"]))


async def _ask_for_edit(
    fleet: Fleet, name: str, batch: EditBatch, timeout: float, editor: str | None = None
) -> EditAnswer:
    value = {"kind": "edit", "batch": batch.to_json()}
    request = PlanRequest(fleet, name, value if editor is None else {**value, "editor": editor})

    async def at_rest() -> EditAnswer | None:
        """Edit the plan here, since no process runs it; None if one does by now, or has answered."""

        async def attempt() -> EditAnswer | None:
            found = await request.read()
            if "answer" in found.value:
                return None
            withdrawn = PutRegister(request.key, None, found.revision)
            head, _ = await read_head(fleet.store, name)
            applied = await admin.edit_once(fleet, name, batch, also=[withdrawn], editor=editor)
            return await _answer_at_rest(fleet, head, applied)

        with contextlib.suppress(AlreadyRunning):
            return await retry_on_conflict(attempt)
        return None

    await request.send()
    try:
        while True:
            answer = await request.wait(timeout, SILENT_FACTOR * timeout)
            if answer is not None:
                return edit_answer(batch, answer)
            done = await at_rest()
            if done is not None:
                return done
    except asyncio.CancelledError:
        with contextlib.suppress(TimeoutError, StoreUnavailable):
            async with asyncio.timeout(WITHDRAWAL_TIMEOUT):
                await request.withdraw()
        raise
    except Exception:
        answer = await request.withdraw()
        if answer is not None:  # a process answered before that
            return edit_answer(batch, answer)
        raise


def edit_answer(batch: EditBatch, answer: Mapping[str, Any]) -> EditAnswer:
    """Raises EditRejected, EditWaits, or PlanError."""
    if "waiting" in answer:
        raise EditWaits(WaitingEdit.from_json(answer["waiting"]))
    if "violations" in answer:
        raise EditRejected([Violation(one["edit"], one["rule"], one["message"]) for one in answer["violations"]])
    if "error" in answer:
        raise PlanError(str(answer["error"]))
    inverse = None if answer["inverse"] is None else EditBatch.from_json(answer["inverse"])
    stopped = tuple((task, epoch) for task, epoch in answer["stopped"])
    return EditAnswer(Applied(answer["version"], batch, inverse, stopped), str(answer["by"]))


class PlanRequest:
    """A request of this process. ``value`` says what is asked for."""

    def __init__(self, fleet: Fleet, name: str, value: Mapping[str, Any]) -> None:
        self._fleet, self._store, self._name = fleet, fleet.store, name
        now = fleet.store.clock()
        self.key = f"{requests_prefix(name)}{new_id(now, fleet.chance)}"
        self._value = {**value, "from": fleet.by, "at": now}

    async def send(self) -> None:
        """Write the request, and make sure that it is there."""

        async def attempt() -> None:
            if await self._store.register(self.key) is None:
                await self._store.commit([PutRegister(self.key, self._value, None)])

        await retry_on_conflict(attempt, patience=WITHDRAWAL_TIMEOUT, clock=self._fleet.clock)

    async def read(self) -> Register:
        """The request, and its answer if there is one. Raises AnswerLost."""
        found = await self._store.register(self.key)
        if found is None:
            raise AnswerLost(
                f"the request to plan {self._name!r} is no longer in the store, and its answer is lost. "
                f"Look whether it was applied: asterism plan story {self._name}"
            )
        return found

    async def wait(self, timeout: float, silent_timeout: float) -> Mapping[str, Any] | None:
        """The answer; None if no process runs the plan. Waits longer for a process that has sent no heartbeat since:
        it may be dead. Raises NotAnswered, and PlanError if the plan is being cancelled."""
        clock = self._fleet.clock
        asked, asked_at = clock.time(), self._store.clock()
        watch = self._store.watch(frozenset({for_plan(self._name)}))
        try:
            while True:
                with contextlib.suppress(StoreUnavailable):
                    found = await self.read()
                    if "answer" in found.value:
                        await self._collect(found)
                        return found.value["answer"]  # type: ignore[no-any-return]
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
            found = await self._store.register(self.key)
            if found is not None:
                await self._store.commit([PutRegister(self.key, None, found.revision)])
            return None if found is None else found.value.get("answer")

        return await retry_on_conflict(attempt, patience=WITHDRAWAL_TIMEOUT, clock=self._fleet.clock)

    async def _collect(self, found: Register) -> None:
        with contextlib.suppress(StoreUnavailable):  # otherwise an owner removes it later
            await try_commit(self._store, [PutRegister(self.key, None, found.revision)])


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
    """Answers the requests to a plan, in the process that runs it.

    ``device`` is the name of this process, ``commit`` commits writes together with the steps of the plan, ``active``
    says whether the plan has not ended yet, ``apply`` applies a batch, ``why`` explains a task. ``more`` answers
    requests of other kinds (``cycle_requests.py``). ``learn_devices`` reads the devices that an edit may name."""

    def __init__(
        self,
        store: Store,
        clock: Clock,
        name: str,
        device: str,
        commit: Callable[..., Any],
        active: Callable[[], bool],
        apply: Callable[[EditBatch, int | None, str | None], Applied],
        why: Callable[[str], Why],
        more: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = NOTHING,
        learn_devices: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._more, self._learn_devices = more, learn_devices
        self._store, self._clock, self._name, self._device = store, clock, name, device
        self._seen: dict[str, float] = {}  # since when each answer waits for its process
        self._commit, self._active, self._apply, self._why = commit, active, apply, why

    async def answer_all(self) -> int:
        """Answer the requests in the order in which they were made, and return how many. Those to a plan that has ended
        are left to the processes that made them: an edit may reopen it. Raises OwnershipLost and StoreUnavailable."""
        answered = 0
        registers = await self._store.registers(requests_prefix(self._name))
        self._seen = {one.key: self._seen.get(one.key, self._clock.time()) for one in registers if _is_answered(one)}
        if self._learn_devices is not None and not all(_is_answered(one) for one in registers):
            await self._learn_devices()
        for register in registers:
            if not self._active():
                break
            if not _is_answered(register):
                # no await in between: the step and the answer are one commit
                answer = {"by": self._device, **self._answer(register.value)}
                await self._commit(PutRegister(register.key, {**register.value, "answer": answer}, register.revision))
                answered += 1
            elif self._clock.time() - self._seen[register.key] > ANSWER_KEPT:
                await try_commit(self._store, [PutRegister(register.key, None, register.revision)])
        return answered

    def _answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if request["kind"] == "edit":
                return applied_json(self._apply(EditBatch.from_json(request["batch"]), None, request.get("editor")))
            if request["kind"] == "why":
                why = self._why(request["task"])
                return {"status": str(why.status), "holders": [asdict(one) for one in why.holders]}
            if request["kind"] in self._more:
                return self._more[request["kind"]](request)
            return {"error": f"{self._device!r} does not know the request {request['kind']!r}: its version differs"}
        except EditWaits as waits:
            return {"waiting": waits.approval.to_json()}
        except EditRejected as rejected:
            return {"violations": [_violation_json(one) for one in rejected.violations]}
        except OwnershipLost:
            raise
        except Exception as error:  # a request never ends the plan
            if not isinstance(error, PlanError):
                log.exception("a request to plan %s could not be answered", self._name)
            return {"error": f"{self._device!r} could not do it: {error}"}


def _is_answered(request: Register) -> bool:
    return "answer" in request.value


def _violation_json(violation: Violation) -> dict[str, Any]:
    return {"edit": violation.edit, "rule": violation.rule, "message": violation.message}


def applied_json(applied: Applied) -> dict[str, Any]:
    return {
        "version": applied.version,
        "inverse": None if applied.inverse is None else applied.inverse.to_json(),
        "stopped": [list(one) for one in applied.stopped],
    }
