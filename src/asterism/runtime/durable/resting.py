"""Constellations at rest: looked at, edited and paused by whoever has the store.

An edit is one more record of the journal, so it is compared and swapped like everything else: if somebody was first,
the plan is read again and the edit judged anew, and one that was based on an older version may be stale by then. While
an orchestrator runs the constellation, its edits are for that orchestrator: it owns the plan.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from asterism.core.apply import Applied
from asterism.core.constellation import Constellation
from asterism.core.edits import EditBatch
from asterism.core.errors import AlreadyRunning, EditRejected, PlanError, RunRefused, Violation
from asterism.core.journal import Step
from asterism.core.session import OPEN, Session
from asterism.runtime import conditions
from asterism.runtime.durable.keeping import ENDED, Head, Kept, head, head_key, load, record_key, step_record
from asterism.runtime.fleet.fleet import Fleet
from asterism.runtime.fleet.ids import new_id
from asterism.runtime.fleet.retention import PREFIX
from asterism.store.errors import Conflict
from asterism.store.protocol import PutRegister, Query, Store


async def owner_of(store: Store, found: Head) -> Session | None:
    """The living session that runs a constellation; None if nobody does."""
    if found.owner is None:
        return None
    now = store.clock()
    for session in await store.sessions():
        if session.id == found.owner and session.state == OPEN and session.beat_at + session.timeout >= now:
            return session
    return None


async def look(fleet: Fleet, name: str) -> Kept:
    """The constellation as it is now. Raises UnknownConstellation and UnreadableJournal."""
    return await load(fleet.store, name, conditions)


async def as_begun(store: Store, name: str) -> Constellation | None:
    """The plan that a constellation was started with; None once its journal has been shortened. Raises
    UnknownConstellation."""
    found, _ = await head(store, name)
    first = await store.register(record_key(name, found.first)) if found.first == found.began else None
    if first is None:
        return None
    others = range(found.first + 1, found.first + first.value["of"])
    parts = [first, *[await store.register(record_key(name, number)) for number in others]]
    texts = [part.value["text"] for part in parts if part is not None]
    return Constellation.from_json(json.loads("".join(texts))["plan"]) if len(texts) == len(parts) else None


async def edit(fleet: Fleet, name: str, batch: EditBatch, *, dry_run: bool = False) -> Applied:
    """Edit a constellation that nobody runs. It is durable when this returns. Raises EditRejected with every
    violation, and AlreadyRunning. With ``dry_run`` it is only judged."""
    while True:
        kept = await look(fleet, name)
        if kept.plan.state in ENDED:
            raise EditRejected([Violation(None, "ended", f"constellation {name!r} is {kept.plan.state}")])
        owner = await owner_of(fleet.store, kept.head)
        if owner is not None:
            raise AlreadyRunning(
                f"constellation {name!r} is run by {owner.device!r}; stop that first, or edit it there"
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


async def paused(store: Store, name: str) -> str | None:
    """By whom and why, in words; None if it is not."""
    found = await store.register(pause_key(name))
    return None if found is None else str(found.value["why"])


async def pause(fleet: Fleet, name: str, reason: str = "") -> None:
    """Start nothing more, whether somebody runs it or will; what runs goes on. Raises UnknownConstellation."""
    found, _ = await head(fleet.store, name)
    if found.ended:
        raise PlanError(f"constellation {name!r} is {found.state}: it cannot be paused")
    value: dict[str, Any] = {"why": f"by {fleet.by}: {reason}" if reason else f"by {fleet.by}"}
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
