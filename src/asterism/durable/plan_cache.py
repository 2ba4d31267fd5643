"""Loaded plans that this process keeps for the next reader and for the next edit, and brings up to date.

To read a plan again costs what is new in its journal, not the whole journal. Only large plans are kept for readers. A
reader must not change a plan, nor read it in another thread: the next reader brings the same object up to date. An edit
has a plan of its own, since it changes it (``take``); it is kept again when the edit is committed, or was rejected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from asterism.core.plan.journal import Step, replay
from asterism.core.record import Struct, field
from asterism.durable.journal_store import (
    Head,
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
"""From how many tasks on a plan is kept for readers."""

MOST_TASKS = 50_000
"""How many tasks these plans have together, at most; the last one is kept in any case."""

MOST_EDITED = 16
"""How many plans are kept for edits, …"""

MOST_EDITED_TASKS = 20_000
"""… and how many tasks they have together. A plan with results that are stored as blobs is not kept."""


class KeptPlan(Struct):
    """``mark`` is that of its last record; None if this process has just loaded it for an edit."""

    stored: StoredConstellation
    mark: str | None = None
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    def written(self, head: Head, steps: Sequence[Step], mark: str) -> None:
        """An edit is committed: a record with these steps, and this head."""
        self.stored.head, self.stored.revision = head, self.stored.revision + 1
        self._advance(steps, mark)

    def _advance(self, steps: Sequence[Step], mark: str | None) -> None:
        stored, self.mark = self.stored, mark
        stored.number, stored.steps = stored.number + 1, stored.steps + len(steps)

    async def bring_up_to_date(self, store: Store) -> bool:
        """Replay what was written since. False if that is not known: the plan was compacted, replaced or restored."""
        stored = self.stored
        name, (head, revision) = stored.head.name, await read_head(store, stored.head.name)
        last = await store.register(record_key(name, stored.number))
        if head.began != stored.head.began or last is None or last.value.get("mark") != self.mark:
            return False
        stored.plan.ended_runs, stored.plan.urged = None, {}  # only an owner needs them
        while await store.register(following := record_key(name, stored.number + 1)) is not None:
            records = {record_number(register): register.value for register in await store.registers(following[:-1])}
            while (record := records.get(stored.number + 1)) is not None:
                steps = steps_of(checked_record(name, stored.number + 1, record))
                await fetch_results(store, steps)
                replay(stored.plan, stored.lock, steps)
                self._advance(steps, record.get("mark"))
            await asyncio.sleep(0)
        stored.head, stored.revision = head, revision
        return True


async def read(fleet: Fleet, name: str) -> StoredConstellation:
    """A plan as it is now. Raises what ``load`` raises."""
    store = fleet.store
    kept: KeptPlan | None = fleet.read_plans.get(name)
    if kept is not None:
        async with kept.reading:
            fleet.read_plans.pop(name, None)  # it is kept again if nothing fails
            if await kept.bring_up_to_date(store):
                fleet.read_plans[name] = kept
                return kept.stored
    stored = await load(store, name)
    last = await store.register(record_key(name, stored.number)) if len(stored.plan) >= LARGE else None
    if last is not None:
        fleet.read_plans[name] = KeptPlan(stored, last.value.get("mark"))
        while len(fleet.read_plans) > 1 and _tasks(fleet.read_plans) > MOST_TASKS:
            del fleet.read_plans[next(iter(fleet.read_plans))]
    return stored


async def take(fleet: Fleet, name: str) -> KeptPlan:
    """A plan as it is in the store now, for an edit. Raises UnknownConstellation and UnreadableJournal."""
    kept: KeptPlan | None = fleet.kept_plans.pop(name, None)
    if kept is not None and await kept.bring_up_to_date(fleet.store):
        return kept
    return KeptPlan(await load(fleet.store, name))


def keep(fleet: Fleet, taken: KeptPlan) -> None:
    """Keep a plan for the next edit, and forget those that were edited longest ago."""
    plan, kept = taken.stored.plan, fleet.kept_plans
    if taken.mark is None or plan.stored:
        return
    kept[plan.id] = taken
    while len(kept) > MOST_EDITED or _tasks(kept) > MOST_EDITED_TASKS:
        del kept[next(iter(kept))]


def _tasks(kept: dict[str, KeptPlan]) -> int:
    return sum(len(plan.stored.plan) for plan in kept.values())
