"""What durable plans plug into fleets: how the plan of a tick is stored, whether it has ended, how it is cancelled.

A schedule keeps a plan as a document: the plan as JSON, and its lock policy. A tick stores a copy of it under a name of
its own, in the commit that moves the schedule on. A process that runs plans takes it up (plan_runner.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from asterism.core.errors import PlanError
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.journal import UnreadableJournal
from asterism.durable import admin
from asterism.durable.journal_store import (
    UnknownConstellation,
    check_storable,
    insertion,
    read_head,
    unstarted,
)
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import PutRegister, Store


def plan_document(plan: Constellation, policy: str, by: str) -> dict[str, Any]:
    """A plan as a schedule keeps it. ``by`` is its author. Raises NotJson if another process could not execute a task
    of it."""
    check_storable(plan)
    return {"plan": {**plan.to_json(), "source": plan.source or plan.id, "author": by}, "policy": policy}


def plan_writes(store: Store, name: str, document: Mapping[str, Any]) -> Sequence[PutRegister]:
    """The writes that store the plan of a document under a name; the first is the head of the plan."""
    plan = Constellation.from_json(document["plan"])
    plan.id = name
    recorded, lock, terms = unstarted(plan, {"policy": document["policy"], **document.get("terms", {})})
    return insertion(store, recorded, lock, terms, document.get("params", {}), file=document.get("file", ""))[1]


async def plan_ended(store: Store, name: str) -> bool:
    """Whether a stored plan has ended, or was removed."""
    try:
        head, _ = await read_head(store, name)
    except UnknownConstellation:
        return True
    return head.ended


async def plan_cancelling(store: Store, name: str) -> bool:
    """Whether a stored plan is being cancelled, or is to be: a request for that is stored."""
    try:
        head, _ = await read_head(store, name)
    except (UnknownConstellation, UnreadableJournal):
        return False
    return not head.ended and (head.cancelling or await admin.cancel_reason(store, name) is not None)


async def cancel_plan(fleet: Fleet, name: str, reason: str) -> None:
    """Ask the owner of a plan to cancel it. Does nothing if it has ended."""
    with contextlib.suppress(PlanError):  # it has ended
        await admin.cancel(fleet, name, reason)
