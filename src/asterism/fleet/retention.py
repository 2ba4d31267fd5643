"""What is forgotten when it is old: ended runs, and constellations that have ended; and with the runs what belongs to
them alone: workflows that peers sent, what devices here lost to peers, and what was handed over to them.

A run that a constellation has not looked at yet is never forgotten: as long as the constellation has not ended, none of
its runs is. And a constellation is not forgotten before the last of its runs, whose keys another one of its name would
need.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.fleet.workflows import AGE, OF_PEERS, VERSIONS
from asterism.store.protocol import PutRegister, Query, Register, Store, Write, feed_of, has_feed
from asterism.store.store_errors import Conflict

PREFIX = "plan:"
"""Of the keys of runs, and of the names of workflows, that belong to a constellation."""

LOST = "lost/"
"""How the key of a register begins that says what a device of this store lost to a peer: ``device``, ``epoch`` and the
``progress`` it had made."""

HANDED = "handed/"
"""How the key of a register begins that says that a run was this store's to judge before a peer had it: if it fails
there, that is told here, too."""

AT_ONCE = 200


async def prune(store: Store, ended_before: float, limit: int, *, spare: float = 0.0) -> int:
    """Forget up to ``limit`` runs that ended before then; and, when there is none left, whole constellations."""
    heads = await store.registers("plan/")
    keep = [f"{PREFIX}{_name(head)}/" for head in heads if _ended_at(head) is None]
    forgotten = await store.prune(ended_before, limit, spare=spare, keep=keep)
    if not forgotten:
        for head in heads:
            ended_at = _ended_at(head)
            if ended_at is not None and ended_at < ended_before and not await _has_runs(store, _name(head)):
                await _forget(store, head)
        await _forget_workflows_of_peers(store, {_name(head) for head in heads})
        await _forget_what_was_lost(store)
    return forgotten


async def _has_runs(store: Store, name: str) -> bool:
    """Whether there is a run of a constellation, such as one that did not stop when it was called off. Those without a
    key are of one in a peer's store."""
    after = None
    while found := await store.find(Query(workflow=f"{PREFIX}{name}", after=after, limit=AT_ONCE)):
        if any(run.key is not None for run in found):
            return True
        after = found[-1].id
    return False


async def _forget_workflows_of_peers(store: Store, plans: set[str]) -> None:
    """Those that no run needs. One that was kept a moment ago belongs to a run that is on its way; one with the name of
    a constellation of this store may be used by it."""
    old = [one for one in await store.registers(OF_PEERS) if abs(store.clock() - one.value["at"]) > AGE]
    if not old or not has_feed(store):
        return
    needed = await feed_of(store).kinds()
    for mark in old:
        kind = mark.key.removeprefix(OF_PEERS)
        name = kind.rpartition("@")[0]
        if kind not in needed and not (name.startswith(PREFIX) and name.removeprefix(PREFIX) in plans):
            flow = await store.register(f"{VERSIONS}{kind}")
            await _remove(store, [mark] if flow is None else [mark, flow])


async def _forget_what_was_lost(store: Store) -> None:
    """Of runs that are forgotten."""
    found = [*await store.registers(LOST), *await store.registers(HANDED)]
    lost = [one for one in found if await store.run(one.key.partition("/")[2]) is None]
    for first in range(0, len(lost), AT_ONCE):
        await _remove(store, lost[first : first + AT_ONCE])


async def _forget(store: Store, head: Register) -> None:
    """The head last: if this is interrupted, the next one goes on."""
    name = _name(head)
    parts = [f"journal/{name}/", f"snapshot/{name}/", f"workflow-version/{PREFIX}{name}@"]
    found = [one for prefix in parts for one in await store.registers(prefix)]
    wishes = [await store.register(f"{kind}/{name}") for kind in ("paused", "cancel")]
    found += [wish for wish in wishes if wish is not None]
    for first in range(0, len(found), AT_ONCE):
        await _remove(store, found[first : first + AT_ONCE])
    await _remove(store, [head])


async def _remove(store: Store, registers: list[Register]) -> None:
    writes: list[Write] = [PutRegister(one.key, None, one.revision) for one in registers]
    try:
        await store.commit(writes)
    except Conflict:
        return  # somebody else is at it


def _name(head: Register) -> str:
    return head.key.removeprefix("plan/")


def _ended_at(head: Register) -> float | None:
    """None while it has not ended, or if that cannot be told."""
    value: Any = head.value
    found = value.get("ended_at") if isinstance(value, Mapping) else None
    return found if isinstance(found, int | float) else None
