"""Retention: removes runs and plans that ended long ago, and the peer records that only they used.

The records of runs that were lost or handed over to peers belong to their runs.

The runs of a plan are not removed before the plan has ended: it may not have looked at them yet. A plan is not removed
before the last of its runs: another plan of its name would use the same keys.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from typing import Any

from asterism.core.run.run_label import PLAN_PREFIX
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import (
    BLOB_USES,
    FILE_USES,
    PLANS,
    ExpectRegister,
    Notice,
    PutRegister,
    Query,
    Register,
    Store,
    Write,
)

PREFIX = PLAN_PREFIX
"""Prefix of the keys of runs, and of what they name as their workflow, that belong to a plan."""

LOST = "lost/"
"""Prefix of registers that record which run a device of this store lost to a peer: its ``device``, ``epoch`` and
``progress``."""

HANDED = "handed/"
"""Prefix of registers that record which run this store handed over to a peer: if it fails there, a notice is left here,
too."""

UNCHANGED = "unchanged/"
"""Prefix of registers with the results of tasks that are skipped if their files have not changed."""

BLOB_AGE = 3600.0
"""How long a blob to which no run refers is kept, in seconds: its run may not be written yet."""

PAGE = 200
"""How many records one commit removes, or one query reads."""


STEP_SECONDS = 0.02
"""How long a commit that removes runs should take, as long as others wait for it who want to write …"""

LARGEST_STEP = 500
"""… and how many runs it removes at most."""


async def prune(store: Store, ended_before: float, limit: int, *, runs_alone: bool = False) -> int:
    """Remove runs that ended before then, up to ``limit``, and, when there are none left, whole plans, and blobs
    without a run. With ``runs_alone`` plans and other records stay, which saves the search for them. Returns
    how many runs were removed."""
    removed = await _remove_runs(store, ended_before, limit)
    if removed < limit and not runs_alone:
        heads = await store.registers(PLANS)
        for head in heads:
            ended_at = _ended_at(head)
            if ended_at is not None and ended_at < ended_before and not await _has_runs(store, _name(head)):
                await _remove_plan(store, head)
        await _remove_peer_records(store)
        await _remove_result_records(store, ended_before)
    return removed


async def _remove_runs(store: Store, ended_before: float, limit: int) -> int:
    """Remove runs in small commits, each sized by the time that the last one took, with as long a pause after it."""
    removed, size = 0, PAGE
    while removed < limit:
        began = store.clock()
        asked = min(size, limit - removed)
        number = await store.prune(ended_before, asked, blobs_before=began - BLOB_AGE)
        removed += number
        if not number:
            break
        seconds = max(store.clock() - began, 0.0)
        size = max(1, min(LARGEST_STEP, 2 * size, int(asked * STEP_SECONDS / (seconds or STEP_SECONDS))))
        await asyncio.sleep(min(seconds, 1.0))
    return removed


async def remove_plan(store: Store, name: str, notice: Notice) -> int | None:
    """Remove a plan that has ended, with its runs, and leave a notice. Returns how many runs it had; None if it has not
    ended, or a run of it has not: then the plan stays."""
    head = await store.register(f"{PLANS}{name}")
    if head is None or _ended_at(head) is None:
        return None
    removed = 0
    while pruned := await store.prune(math.inf, PAGE, only=f"{PREFIX}{name}/"):
        removed += pruned
    if await _has_runs(store, name):
        return None
    await _remove_plan(store, head, notice)
    return removed


async def _has_runs(store: Store, name: str) -> bool:
    """Whether a plan has a run, such as one that did not stop when it was cancelled. Runs without a key belong to a
    plan in a peer's store."""
    after = None
    while runs := await store.find(Query(workflow=f"{PREFIX}{name}", after=after, limit=PAGE)):
        if any(run.key is not None for run in runs):
            return True
        after = runs[-1].id
    return False


async def _remove_peer_records(store: Store) -> None:
    """Remove the records of runs that were removed."""
    records = [*await store.registers(LOST), *await store.registers(HANDED)]
    lost = [record for record in records if await store.run(record.key.partition("/")[2]) is None]
    for first in range(0, len(lost), PAGE):
        await _remove(store, lost[first : first + PAGE])


async def _remove_result_records(store: Store, used_before: float) -> None:
    """Remove the records of unchanged tasks that no plan has used since then. Their tasks are executed again. One that
    was used a moment ago stays: a task may be about to end with the files that it names."""
    used_before = min(used_before, store.clock() - BLOB_AGE)
    old = [record for record in await store.registers(UNCHANGED) if record.value.get("at", 0.0) < used_before]
    for first in range(0, len(old), PAGE):
        await _remove(store, old[first : first + PAGE])


async def _remove_plan(store: Store, head: Register, *notices: Notice) -> None:
    """Remove the head last: if this is interrupted, the next call continues."""
    name = _name(head)
    parts = [
        f"{kind}/{name}/" for kind in ("journal", "snapshot", "archive", "mailbox", "rejected", "approval", "exchange")
    ]
    parts += [f"log/{name}/", f"log-part/{name}/"]
    parts += [f"{BLOB_USES}plan/{name}/", f"{FILE_USES}plan/{name}/"]
    registers = [register for prefix in parts for register in await store.registers(prefix)]
    budget = await store.register(f"budget/{name}")
    registers += [] if budget is None else [budget]
    for first in range(0, len(registers), PAGE):
        # if the plan was reopened meanwhile, nothing more of it is removed
        if not await _remove(store, registers[first : first + PAGE], ExpectRegister(head.key, head.revision)):
            return
    await _remove(store, [head], *notices)


async def _remove(store: Store, registers: list[Register], *fences: Write) -> bool:
    """Remove registers, unless another process removes or changes one of them just now. Returns whether it did."""
    removals = [PutRegister(register.key, None, register.revision) for register in registers]
    return await try_commit(store, [*fences, *removals])


def _name(head: Register) -> str:
    return head.key.removeprefix(PLANS)


def _ended_at(head: Register) -> float | None:
    """When a plan ended; None if it has not, or if its head cannot be read."""
    value: Any = head.value
    ended_at = value.get("ended_at") if isinstance(value, Mapping) else None
    return ended_at if isinstance(ended_at, int | float) else None
