"""Retry of a stored plan: reopens a plan that has ended, as one more record of its journal.

One commit writes the record, with the step ``reopen`` and the edits that come with it, and the head, which says that
the plan has not ended. It expects the head that was read, so of two retries only one succeeds, and a plan that
retention is about to remove is not reopened. If the process dies after the commit, the plan is at rest and is resumed
like any other.

Completed tasks keep their results. A task that runs again gets a new epoch, and so a new run: the runs of earlier
executions were consumed, and their keys are never used again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from asterism.base import expressions
from asterism.base.clock import Looks, new_id
from asterism.base.expressions import Conditions
from asterism.core.errors import AlreadyRunning, PlanError
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.journal import Step
from asterism.core.plan.status import ConstellationState
from asterism.durable.admin import check_not_cancelled, live_owner, pause_key, submission
from asterism.durable.approval_store import waiting_edits_at_rest
from asterism.durable.journal_store import StoredConstellation, head_key, load, record_key, step_record
from asterism.durable.plan_summaries import ENDED
from asterism.fleet.fleet import Fleet
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import ExpectRegister, PutRegister, Write

END_TIMEOUT = 5.0
"""Seconds that a retry waits for the owner of a plan that has just ended to leave it."""

END_INTERVAL = 0.1


@dataclass(frozen=True, slots=True)
class Reopened:
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
    submit: bool = False,
) -> Reopened:
    """Reopen a plan that has ended, to run again what failed and what was cancelled because of it; or ``from_tasks``
    and what lies below them. ``batch`` is applied in the same commit; it is checked like every edit of ``editor``, None
    for a person, and rejected if it would wait for approval. Durable on return; nothing runs yet. With ``submit``
    the same commit submits the plan to plan runners.

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
            fleet.store.clock(), from_tasks, signed, why, lambda edit_batch: waiting.check_retry(edit_batch, editor)
        )
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
