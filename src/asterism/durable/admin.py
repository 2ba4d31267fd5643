"""Administration of stored plans from any process with the store: edit, pause, cancel, retry, find the owner.

An edit of a stopped plan is one more record of its journal, written by compare-and-swap: if another process was faster,
the plan is read again and the edit is checked again, and may be stale by then. While an orchestrator runs the plan,
only that orchestrator edits it; ``plan_requests.py`` asks it to.

A request to pause or to cancel is a register beside the head. The present or next owner of the plan acts on it. A pause
can be withdrawn; a cancellation cannot, and lasts as long as the plan is stored.

A retry reopens a plan that has ended, as one more record of its journal. One commit writes the record, with the step
``reopen`` and the edits that come with it, and the head, which says that the plan has not ended. It expects the head
that was read, so of two retries only one succeeds, and a plan that retention is about to remove is not reopened. If the
process dies after the commit, the plan is at rest and is resumed like any other.

Completed tasks keep their results. A task that runs again gets a new epoch, and so a new run: the runs of earlier
executions were consumed, and their keys are never used again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from asterism.base import expressions
from asterism.base.clock import Looks, new_id
from asterism.base.expressions import Conditions
from asterism.core.errors import AlreadyRunning, EditRejected, PlanError, RunRefused, Violation
from asterism.core.plan.apply import Applied
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import names_devices
from asterism.core.plan.edit_trial import removed_tasks, trial
from asterism.core.plan.edits import ApprovalGone, EditBatch, EditWaits
from asterism.core.plan.journal import RecordedConstellation, Step
from asterism.core.plan.node import AttemptTimes
from asterism.core.plan.status import ConstellationState
from asterism.core.record import Record, replace
from asterism.core.run.run import Run
from asterism.core.run.session import Session
from asterism.core.run.transitions import was_executed
from asterism.durable import plan_cache
from asterism.durable.approval_store import terms_with_approvals, waiting_edits_at_rest
from asterism.durable.journal_store import (
    Head,
    StoredConstellation,
    head_key,
    load,
    read_head,
    record_key,
    step_record,
)
from asterism.durable.plan_summaries import ENDED, live_sessions
from asterism.durable.rejected_edits import record_rejection
from asterism.execution.plugin_actions import check_plugin
from asterism.fleet.audit_log import PendingEntry
from asterism.fleet.fleet import Fleet
from asterism.fleet.retention import PREFIX
from asterism.orchestrator.waiting_edits import WaitingEdits
from asterism.store.optimistic_update import retry_on_conflict, try_commit
from asterism.store.protocol import ExpectRegister, PutRegister, Query, Store, Write

Value = TypeVar("Value")


async def live_owner(store: Store, head: Head) -> Session | None:
    """The live session that runs a plan; None if no process does."""
    return None if head.owner is None else (await live_sessions(store, [head.owner])).get(head.owner)


async def last_owner(store: Store, head: Head) -> Session | None:
    """The session that ran a plan last, though it is gone; None if there was none, or it is forgotten."""
    if head.owner is None:
        return None
    return next((session for session in await store.sessions(ended=True) if session.id == head.owner), None)


async def initial_plan(store: Store, name: str) -> Constellation | None:
    """The plan as it was stored; None once its journal has been compacted. Raises UnknownConstellation."""
    head, _ = await read_head(store, name)
    first = await store.register(record_key(name, head.first)) if head.first == head.began else None
    if first is None:
        return None
    others = range(head.first + 1, head.first + first.value["of"])
    parts = [first, *[await store.register(record_key(name, number)) for number in others]]
    texts = [part.value["text"] for part in parts if part is not None]
    return Constellation.from_json(json.loads("".join(texts))["plan"]) if len(texts) == len(parts) else None


# -- who runs it -------------------------------------------------------------------------------------------------------

SUBMITTED = "submitted/"


async def submission(fleet: Fleet, name: str) -> PutRegister:
    """The write that lets a plan runner run a plan (plan_submissions.py), as part of a commit."""
    register = await fleet.store.register(f"{SUBMITTED}{name}")
    by: dict[str, Any] = {"by": fleet.by, "at": fleet.store.clock()}
    return PutRegister(f"{SUBMITTED}{name}", by, None if register is None else register.revision)


# -- editing -----------------------------------------------------------------------------------------------------------


async def edit(
    fleet: Fleet,
    name: str,
    batch: EditBatch,
    *,
    editor: str | None = None,
    groups: Iterable[str] = (),
    entry: PendingEntry | None = None,
) -> Applied:
    """Edit a plan that no process runs. Durable on return. An edit that adds tasks reopens a plan that has ended, and
    submits it to plan runners in the same commit.

    Raises EditRejected with every violation, AlreadyRunning, and PlanError if the plan is being cancelled.
    ``editor`` is the editor that it comes from; None for a person with these ``groups``. ``entry`` is written in the
    same commit."""
    return await retry_on_conflict(lambda: edit_once(fleet, name, batch, editor=editor, groups=groups, entry=entry))


async def edit_once(
    fleet: Fleet,
    name: str,
    batch: EditBatch,
    also: Sequence[Write] = (),
    editor: str | None = None,
    groups: Iterable[str] = (),
    entry: PendingEntry | None = None,
) -> Applied:
    """As ``edit``, in one commit with other writes. Raises Conflict if another process was faster."""
    writes = list(also)

    def submit(waiting: WaitingEdits, plan: RecordedConstellation) -> Applied:
        applied = waiting.submit(batch, None, editor, groups)
        if entry is not None:  # one that waits for a person has another entry
            writes.append(entry.write())
        return applied

    applied = await change_once(fleet, name, submit, writes, devices=names_devices(batch))
    if entry is not None:
        entry.written = True
    return applied


FEW_EDITS = 100
"""More edits of one request are read, and tried in a dry run, in a thread."""


class TriedEdit(NamedTuple):
    """What an edit would do. ``waits`` is why it would wait for a person: nothing if it would not. ``reopened``: the
    plan has ended, and the edit would open it again. ``removed`` are the tasks that it would remove with others, by the
    index of the edit."""

    applied: Applied
    waits: tuple[str, ...]
    reopened: bool
    removed: Mapping[int, Sequence[str]]


async def try_edit(
    fleet: Fleet, name: str, batch: EditBatch, editor: str | None = None, groups: Iterable[str] = ()
) -> TriedEdit:
    """What an edit would do. Nothing changes. Raises what ``edit`` raises."""
    stored = await load(fleet.store, name)
    await check_not_cancelled(fleet.store, stored.head, "edited")
    await _check_at_rest(fleet, stored, dry_run=True)
    waiting, _ = await waiting_edits_at_rest(fleet.store, stored, lambda: None)
    waits = waiting.wait_reasons(batch, editor, groups)
    stored.plan.check_plugin = check_plugin
    ended = stored.plan.state in ENDED
    now = fleet.store.clock()

    def apply() -> TriedEdit:
        removed = removed_tasks(trial(stored.plan, batch, now), batch.edits)
        return TriedEdit(stored.plan.apply(batch, now), waits, ended and bool(batch.edits), removed)

    return apply() if len(batch.edits) <= FEW_EDITS else await asyncio.to_thread(apply)  # the plan is a copy


async def change_once(
    fleet: Fleet,
    name: str,
    change: Callable[[WaitingEdits, RecordedConstellation], Value],
    also: Sequence[Write] = (),
    *,
    devices: bool = True,
) -> Value:
    """Change a plan that no process runs, in one commit with other writes. ``change`` gets the edits that wait for a
    person, and the plan; without ``devices`` it names no device. Raises what it raises, Conflict if another process was
    faster, and what ``edit`` raises."""
    taken = await plan_cache.take(fleet, name)
    stored = taken.stored
    ended = stored.plan.state in ENDED
    await check_not_cancelled(fleet.store, stored.head, "edited")
    await _check_at_rest(fleet, stored)
    new_terms: list[dict[str, Any]] = []
    waiting, writes = await waiting_edits_at_rest(
        fleet.store, stored, lambda: new_terms.append(terms_with_approvals(stored.head)), devices=devices
    )
    steps: list[Step] = []
    stored.plan.record = steps.append
    rejected: list[tuple[int, EditBatch, EditRejected]] = []
    stored.plan.on_rejected = lambda *about: rejected.append(about)
    waits: EditWaits | None = None
    try:
        changed: Any = change(waiting, stored.plan)
    except EditWaits as edit:  # it was not applied, but that it waits is a step
        waits = edit
    except EditRejected:
        if not steps:
            plan_cache.keep(fleet, taken)
        for about in rejected:
            await record_rejection(fleet.store, name, *about)
        raise
    mark = new_id(fleet.store.clock(), fleet.chance)
    record = step_record(name, stored.number + 1, stored.head.epoch, steps, mark)
    head = stored.head if not new_terms else stored.head.changed(terms=new_terms[0])
    if ended and stored.plan.state not in ENDED:  # the edit has added tasks, which reopens the plan
        head = head.changed(state=str(stored.plan.state), owner=None, ended_at=None)
        writes = [*writes, await submission(fleet, name)]  # or it would run only if a runner has not noticed its end
    written = PutRegister(head_key(name), head.to_json(), stored.revision)
    last = ExpectRegister(record_key(name, stored.number), 1)  # else this may be another plan of the same name
    await fleet.store.commit([written, last, record, *writes, *also, stored.summary(head, records=1)])
    if not ended:  # else its lock has to be reopened too, as a replay does
        taken.written(head, steps, mark)
        plan_cache.keep(fleet, taken)
    if waits is not None:
        raise waits
    if isinstance(changed, Applied):
        await _cancel_stopped(fleet, name, changed)
    return changed  # type: ignore[no-any-return]


async def _check_at_rest(fleet: Fleet, stored: StoredConstellation, *, dry_run: bool = False) -> None:
    """Raise EditRejected or AlreadyRunning if a process runs the plan."""
    name, owner = stored.plan.id, await live_owner(fleet.store, stored.head)
    if owner is not None and stored.plan.state in ENDED:
        problem = f"plan {name!r} has just ended ({stored.plan.state}); edit it again when {owner.device!r} has left it"
        raise EditRejected([Violation(None, "ended", problem)])
    if owner is not None and not dry_run:
        raise AlreadyRunning(f"plan {name!r} is run by {owner.device!r}, and only that process may change it")


async def _cancel_stopped(fleet: Fleet, name: str, applied: Applied) -> None:
    """Cancel the runs that an edit has stopped: no owner is there to do it. The plan learns which of them no device had
    begun; if a process has taken it up meanwhile, they count as begun."""
    never: list[tuple[str, int, Run]] = []
    for task, epoch in applied.stopped:
        for run in await fleet.store.find(Query(key=f"{PREFIX}{name}/{task}/{epoch}")):
            with contextlib.suppress(RunRefused):  # it has ended
                run = await fleet.cancel(run.id)
            if run.ended and not was_executed(run):
                never.append((task, epoch, run))
    if not never:
        return

    def record(waiting: WaitingEdits, plan: RecordedConstellation) -> None:
        for task, epoch, run in never:
            times = AttemptTimes(run.created_at, ended=run.ended_at, executed=False)
            plan.record_run(task, epoch, fleet.store.clock(), times, f"run {run.id}, {times}")

    with contextlib.suppress(AlreadyRunning, EditRejected, PlanError):
        await retry_on_conflict(lambda: change_once(fleet, name, record))


def of_rules(waiting: WaitingEdits, name: str) -> WaitingEdits:
    """The waiting edits of a plan. Raises ApprovalGone if the plan has no rules, and no edit waits or waited."""
    if not waiting.rules and not waiting.waiting and not waiting.decided:
        raise ApprovalGone(f"plan {name!r} has no rules for approvals, and no edit of it waits for a person")
    return waiting


# -- pausing -----------------------------------------------------------------------------------------------------------


def pause_key(name: str) -> str:
    return f"paused/{name}"


async def pause_reason(store: Store, name: str) -> str | None:
    """Who paused a plan, and why; None if no request to pause it is stored."""
    return await _reason(store, pause_key(name))


async def pause(fleet: Fleet, name: str, reason: str = "") -> None:
    """Ask the present or next owner to start no more tasks; running tasks continue. Raises UnknownConstellation, and
    PlanError if the plan has ended or is being cancelled."""
    head, _ = await read_head(fleet.store, name)
    if head.ended:
        raise PlanError(f"plan {name!r} is {head.state}: it cannot be paused")
    await check_not_cancelled(fleet.store, head, "paused")
    if await fleet.store.register(pause_key(name)) is None:
        # a conflict means that another process has just paused it
        await try_commit(fleet.store, [PutRegister(pause_key(name), _request(fleet, reason), None)])


async def unpause(fleet: Fleet, name: str) -> bool:
    """Withdraw the request to pause. Returns whether there was one."""

    async def attempt() -> bool:
        request = await fleet.store.register(pause_key(name))
        if request is not None:  # a conflict means that the owner has just answered it, or another process withdrew it
            await fleet.store.commit([PutRegister(pause_key(name), None, request.revision)])
        return request is not None

    return await retry_on_conflict(attempt)


def _request(fleet: Fleet, reason: str) -> dict[str, Any]:
    return {"why": f"by {fleet.by}: {reason}" if reason else f"by {fleet.by}"}


async def _reason(store: Store, key: str) -> str | None:
    request = await store.register(key)
    return None if request is None else str(request.value["why"])


# -- cancelling --------------------------------------------------------------------------------------------------------


def cancel_key(name: str) -> str:
    return f"cancel/{name}"


async def cancel_reason(store: Store, name: str) -> str | None:
    """Who cancels or cancelled a plan, and why; None if no request to cancel it is stored."""
    return await _reason(store, cancel_key(name))


async def cancel(fleet: Fleet, name: str, reason: str = "") -> None:
    """Ask the present or next owner to cancel the plan. A cancelled plan stays cancelled. Raises UnknownConstellation,
    and PlanError if the plan has ended otherwise."""

    async def attempt() -> None:
        head, revision = await read_head(fleet.store, name)
        if head.ended and head.state != ConstellationState.CANCELLED:
            raise PlanError(f"plan {name!r} is {head.state}: it cannot be cancelled")
        if head.ended or await cancel_reason(fleet.store, name) is not None:
            return
        # only with the head that was read: not for a later plan of the same name
        expected = ExpectRegister(head_key(name), revision)
        await fleet.store.commit([expected, PutRegister(cancel_key(name), _request(fleet, reason), None)])

    await retry_on_conflict(attempt)


async def check_not_cancelled(store: Store, head: Head, what: str) -> None:
    """Raise PlanError if a request to cancel the plan is stored. ``what`` is what it cannot be, such as ``edited``."""
    if head.state == ConstellationState.CANCELLED:
        return  # the caller says that it has ended
    reason = await cancel_reason(store, head.name)
    if reason is not None or head.cancelling:
        by = f" {reason}" if reason is not None else ""
        raise PlanError(f"plan {head.name!r} is being cancelled{by}: it cannot be {what}")


# -- retry -------------------------------------------------------------------------------------------------------------


END_TIMEOUT = 5.0
"""Seconds that a retry waits for the owner of a plan that has just ended to leave it."""

END_INTERVAL = 0.1


class Reopened(Record):
    """A plan that was reopened: the tasks that run again, and the version after the edits that came with it."""

    name: str
    tasks: tuple[str, ...]
    version: int


async def reopen_plan(
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
    """Reopen a plan that has ended, to run again what failed and what was cancelled because of it; or ``from_tasks``
    and what lies below them. ``batch`` is applied in the same commit; it is checked like every edit of ``editor``, None
    for a person with these ``groups``, and rejected if it would wait for approval. Durable on return; nothing runs yet.
    With ``submit`` the same commit submits the plan to plan runners. With ``dry_run`` nothing is written.

    Raises UnknownConstellation, AlreadyRunning, EditRejected, UnknownTask, and PlanError if the plan has not ended, was
    cancelled, or has nothing to run again."""
    why = f"by {fleet.by}: {reason}" if reason else f"by {fleet.by}"

    async def attempt() -> Reopened:
        stored = await _ended_plan(fleet, name, conditions)
        await check_not_cancelled(fleet.store, stored.head, "retried")
        steps: list[Step] = []
        stored.plan.record = steps.append
        waiting, _ = await waiting_edits_at_rest(fleet.store, stored, lambda: None)
        signed = None if batch is None else replace(batch, editor=editor)
        again = stored.plan.run_again(
            fleet.store.clock(),
            from_tasks,
            signed,
            why,
            lambda edit_batch: waiting.check_retry(edit_batch, editor, groups),
        )
        if not dry_run:
            writes = await _writes(fleet, stored, steps)
            await fleet.store.commit([*writes, await submission(fleet, name)] if submit else writes)
        return Reopened(name, tuple(again), stored.plan.version)

    return await retry_on_conflict(attempt)


async def _ended_plan(fleet: Fleet, name: str, conditions: Conditions) -> StoredConstellation:
    """The plan, once it has ended and its owner has left it."""
    async for last in Looks(fleet.clock, interval=END_INTERVAL, timeout=END_TIMEOUT):
        stored = await load(fleet.store, name, conditions)
        owner = await live_owner(fleet.store, stored.head)
        if stored.plan.state not in ENDED:
            if owner is not None:
                raise AlreadyRunning(
                    f"plan {name!r} is run by {owner.device!r}: it can be retried when it has ended. "
                    f"To change it now: asterism plan edit {name}"
                )
            raise PlanError(f"plan {name!r} has not ended; resume it with: asterism resume {name}")
        if owner is None or stored.head.ended:
            break
        if last:
            raise AlreadyRunning(f"plan {name!r} has just ended, and {owner.device!r} has not left it yet; try again")
    return stored


async def _writes(fleet: Fleet, stored: StoredConstellation, steps: list[Step]) -> list[Write]:
    store, name, head = fleet.store, stored.head.name, stored.head
    new = head.changed(state=str(ConstellationState.EXECUTING), owner=None, ended_at=None)
    writes: list[Write] = [
        PutRegister(head_key(name), new.to_json(), stored.revision),
        ExpectRegister(record_key(name, stored.number), 1),
        step_record(name, stored.number + 1, head.epoch, steps, new_id(store.clock(), fleet.chance)),
        stored.summary(new, records=1),
    ]
    pause = await store.register(pause_key(name))
    if pause is not None:  # it was paused when it ended
        writes.append(PutRegister(pause_key(name), None, pause.revision))
    return writes
