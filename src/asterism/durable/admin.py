"""Constellations at rest: looked at, edited, paused and cancelled by whoever has the store.

An edit is one more record of the journal, so it is compared and swapped like everything else: if somebody was first,
the plan is read again and the edit judged anew, and one that was based on an older version may be stale by then. While
an orchestrator runs the constellation, its edits are for that orchestrator: it owns the plan.

A wish to pause or to cancel is a register beside the head, for whoever runs the constellation or will. The one to pause
can be taken back. The one to cancel cannot: it lasts as long as the constellation is kept.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from asterism.base.ids import new_id
from asterism.core.errors import AlreadyRunning, EditRejected, PlanError, RunRefused, Violation
from asterism.core.plan.apply import Applied
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.journal import Step
from asterism.core.plan.status import ConstellationState
from asterism.core.run.session import OPEN, Session
from asterism.durable.journal_store import (
    ENDED,
    Head,
    head_key,
    load,
    read_head,
    record_key,
    step_record,
)
from asterism.fleet.fleet import Fleet
from asterism.fleet.retention import PREFIX
from asterism.store.protocol import ExpectRegister, PutRegister, Query, Store
from asterism.store.store_errors import Conflict


async def live_owner(store: Store, found: Head) -> Session | None:
    """The living session that runs a constellation; None if nobody does."""
    if found.owner is None:
        return None
    now = store.clock()
    for session in await store.sessions():
        if session.id == found.owner and session.state == OPEN and session.beat_at + session.timeout >= now:
            return session
    return None


async def initial_plan(store: Store, name: str) -> Constellation | None:
    """The plan that a constellation was started with; None once its journal has been shortened. Raises
    UnknownConstellation."""
    found, _ = await read_head(store, name)
    first = await store.register(record_key(name, found.first)) if found.first == found.began else None
    if first is None:
        return None
    others = range(found.first + 1, found.first + first.value["of"])
    parts = [first, *[await store.register(record_key(name, number)) for number in others]]
    texts = [part.value["text"] for part in parts if part is not None]
    return Constellation.from_json(json.loads("".join(texts))["plan"]) if len(texts) == len(parts) else None


async def edit(fleet: Fleet, name: str, batch: EditBatch, *, dry_run: bool = False) -> Applied:
    """Edit a constellation that nobody runs. It is durable when this returns. Raises EditRejected with every
    violation, AlreadyRunning, and PlanError if it is being cancelled. With ``dry_run`` it is only judged."""
    while True:
        kept = await load(fleet.store, name)
        if kept.plan.state in ENDED:
            raise EditRejected([Violation(None, "ended", f"constellation {name!r} is {kept.plan.state}")])
        await _not_being_cancelled(fleet.store, kept.head, "edited")
        owner = await live_owner(fleet.store, kept.head)
        if owner is not None:
            raise AlreadyRunning(
                f"constellation {name!r} is run by {owner.device!r}, and meanwhile only its editor may change it: "
                f"leave it there (Ctrl-C), edit it, and `asterism resume {name}` goes on"
            )
        steps: list[Step] = []
        kept.plan.record = steps.append
        applied = kept.plan.apply(batch, fleet.store.clock())
        if dry_run:
            return applied
        mark = new_id(fleet.store.clock(), fleet.chance)
        record = step_record(name, kept.number + 1, kept.head.epoch, steps, mark)
        try:
            await fleet.store.commit([PutRegister(head_key(name), kept.head.to_json(), kept.revision), record])
        except Conflict:
            continue
        for task, epoch in applied.stopped:
            await _call_off(fleet, f"{PREFIX}{name}/{task}/{epoch}")
        return applied


async def _call_off(fleet: Fleet, key: str) -> None:
    """Stop an execution that an edit has ended: nobody else is there to do it."""
    for run in await fleet.store.find(Query(key=key)):
        with contextlib.suppress(RunRefused):  # it has ended
            await fleet.cancel(run.id)


# -- pausing -----------------------------------------------------------------------------------------------------------


def pause_key(name: str) -> str:
    return f"paused/{name}"


async def pause_reason(store: Store, name: str) -> str | None:
    """By whom and why, in words; None if it is not."""
    return await _wished(store, pause_key(name))


async def pause(fleet: Fleet, name: str, reason: str = "") -> None:
    """Start nothing more, whether somebody runs it or will; what runs goes on. Raises UnknownConstellation."""
    found, _ = await read_head(fleet.store, name)
    if found.ended:
        raise PlanError(f"constellation {name!r} is {found.state}: it cannot be paused")
    await _not_being_cancelled(fleet.store, found, "paused")
    value = _wish(fleet, reason)
    before = await fleet.store.register(pause_key(name))
    if before is None:
        try:
            await fleet.store.commit([PutRegister(pause_key(name), value, None)])
        except Conflict:
            return  # by somebody else, at the same moment


async def unpause(fleet: Fleet, name: str) -> bool:
    """Let it go on. Whether it was paused."""
    before = await fleet.store.register(pause_key(name))
    if before is None:
        return False
    try:
        await fleet.store.commit([PutRegister(pause_key(name), None, before.revision)])
    except Conflict:
        return False
    return True


def _wish(fleet: Fleet, reason: str) -> dict[str, Any]:
    return {"why": f"by {fleet.by}: {reason}" if reason else f"by {fleet.by}"}


async def _wished(store: Store, key: str) -> str | None:
    found = await store.register(key)
    return None if found is None else str(found.value["why"])


# -- cancelling --------------------------------------------------------------------------------------------------------


def cancel_key(name: str) -> str:
    return f"cancel/{name}"


async def cancel_reason(store: Store, name: str) -> str | None:
    """By whom and why it is to be cancelled, or was, in words; None if nobody with the store has asked for that."""
    return await _wished(store, cancel_key(name))


async def cancel(fleet: Fleet, name: str, reason: str = "") -> None:
    """Ask whoever runs it, or will, to cancel it; nobody can take that back. What has been cancelled stays so. Raises
    UnknownConstellation, and PlanError if it has ended otherwise."""
    while True:
        found, revision = await read_head(fleet.store, name)
        if found.ended and found.state != ConstellationState.CANCELLED:
            raise PlanError(f"constellation {name!r} is {found.state}: it cannot be cancelled")
        if found.ended or await cancel_reason(fleet.store, name) is not None:
            return
        # only beside the head that was seen: another constellation of this name is not meant
        beside = ExpectRegister(head_key(name), revision)
        with contextlib.suppress(Conflict):  # somebody has taken it up, or ended it, or was quicker
            await fleet.store.commit([beside, PutRegister(cancel_key(name), _wish(fleet, reason), None)])


async def _not_being_cancelled(store: Store, found: Head, what: str) -> None:
    words = await cancel_reason(store, found.name)
    if words is not None or found.cancelling:
        by = f" {words}" if words is not None else ""
        raise PlanError(f"constellation {found.name!r} is being cancelled{by}: it cannot be {what}")
