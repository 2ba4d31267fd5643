"""Kept plans: the plans that this process has edited and no process runs, as they were after the edit.

To load a plan means to read its whole journal and to replay it. The next edit takes the kept plan instead, if nothing
was written to it since: its head has the same revision, the last record is that of this process, and no other follows.
These are three reads of one register each. The commit of the edit expects the same, so a plan that changes after the
reads makes the edit begin again. A plan is taken by one edit at a time, and kept again only after its commit, or if
the edit was rejected and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asterism.core.plan.journal import Step
from asterism.durable.journal_store import Head, StoredConstellation, load, read_head, record_key
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Store

MOST_PLANS = 16
"""How many plans are kept, …"""

MOST_TASKS = 20_000
"""… and how many tasks they have together. A plan with results that are stored as blobs is not kept."""


@dataclass
class TakenPlan:
    """A plan for one edit. ``mark`` is that of its last record; None if this process has just loaded it."""

    stored: StoredConstellation
    mark: str | None = None

    def written(self, head: Head, steps: Sequence[Step], mark: str) -> None:
        """The edit is committed: a record with these steps, and this head."""
        stored, self.mark = self.stored, mark
        stored.head, stored.revision = head, stored.revision + 1
        stored.number, stored.steps = stored.number + 1, stored.steps + len(steps)


async def take(fleet: Fleet, name: str) -> TakenPlan:
    """A plan as it is in the store now. Raises UnknownConstellation and UnreadableJournal."""
    kept: TakenPlan | None = fleet.kept_plans.pop(name, None)
    if kept is not None and await _is_current(fleet.store, kept):
        return kept
    return TakenPlan(await load(fleet.store, name))


async def _is_current(store: Store, kept: TakenPlan) -> bool:
    stored, name = kept.stored, kept.stored.head.name
    head, revision = await read_head(store, name)
    if revision != stored.revision or head.began != stored.head.began:
        return False
    last = await store.register(record_key(name, stored.number))
    if last is None or last.value.get("mark") != kept.mark:
        return False
    return await store.register(record_key(name, stored.number + 1)) is None


def keep(fleet: Fleet, taken: TakenPlan) -> None:
    """Keep a plan for the next edit, and forget those that were edited longest ago."""
    plan, kept = taken.stored.plan, fleet.kept_plans
    if taken.mark is None or plan.stored:
        return
    plan.urged = {}  # an owner reads them from the journal
    kept[plan.id] = taken
    while len(kept) > MOST_PLANS or sum(len(other.stored.plan) for other in kept.values()) > MOST_TASKS:
        del kept[next(iter(kept))]
