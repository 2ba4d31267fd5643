"""Large plans that this process has read, kept up to date with the new records of their journals.

To read one again costs what is new, not the whole journal. A reader must not change a plan, nor read it in another
thread: the next reader brings the same object up to date. A small plan is loaded each time, which is quick.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from asterism.core.plan.journal import replay
from asterism.durable.journal_store import (
    StoredConstellation,
    checked_record,
    fetch_results,
    load,
    read_head,
    record_key,
    record_number,
    steps_of,
)
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Store

LARGE = 1_000
"""From how many tasks on a plan is kept."""

MOST_TASKS = 50_000
"""How many tasks the kept plans have together, at most; the last one is kept in any case."""


@dataclass
class _ReadPlan:
    """``mark`` is that of its last record."""

    stored: StoredConstellation
    mark: Any
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)


async def read(fleet: Fleet, name: str) -> StoredConstellation:
    """A plan as it is now. Raises what ``load`` raises."""
    store = fleet.store
    kept: _ReadPlan | None = fleet.read_plans.get(name)
    if kept is not None:
        async with kept.reading:
            fleet.read_plans.pop(name, None)  # it is kept again if nothing fails
            if await _bring_up_to_date(store, kept):
                fleet.read_plans[name] = kept
                return kept.stored
    stored = await load(store, name)
    last = await store.register(record_key(name, stored.number)) if len(stored.plan) >= LARGE else None
    if last is not None:
        fleet.read_plans[name] = _ReadPlan(stored, last.value.get("mark"))
        while (
            len(fleet.read_plans) > 1 and sum(len(kept.stored.plan) for kept in fleet.read_plans.values()) > MOST_TASKS
        ):
            del fleet.read_plans[next(iter(fleet.read_plans))]
    return stored


async def _bring_up_to_date(store: Store, kept: _ReadPlan) -> bool:
    """Replay what was written since. False if that is not known: the plan was compacted, replaced or restored."""
    stored = kept.stored
    name, (head, revision) = stored.head.name, await read_head(store, stored.head.name)
    last = await store.register(record_key(name, stored.number))
    if head.began != stored.head.began or last is None or last.value.get("mark") != kept.mark:
        return False
    stored.plan.ended_runs, stored.plan.urged = None, {}  # only an owner needs them
    while await store.register(following := record_key(name, stored.number + 1)) is not None:
        records = {record_number(register): register.value for register in await store.registers(following[:-1])}
        while (record := records.get(stored.number + 1)) is not None:
            steps = steps_of(checked_record(name, stored.number + 1, record))
            await fetch_results(store, steps)
            replay(stored.plan, stored.lock, steps)
            stored.number, stored.steps, kept.mark = stored.number + 1, stored.steps + len(steps), record.get("mark")
        await asyncio.sleep(0)
    stored.head, stored.revision = head, revision
    return True
