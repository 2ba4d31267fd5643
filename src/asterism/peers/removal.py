"""Removal of a peer: hold its unfinished runs, or adopt them.

*Held* are runs that have not ended and

- were left to the peer: its own runs of which there are copies here, and our runs that a device of the peer has
  claimed. Devices here do not take copies, so nothing happens to them; an assignment to a device of ours that was not
  answered yet is taken back;
- or were first received from the peer, are ours to decide by now, and have not started: they are paused. A run that a
  device of ours has claimed and not started is withdrawn, so that its start is fenced. A run that has started goes on,
  and is listed as running.

Runs of ours that were only offered to a device of the peer stay ours, and are assigned to others.

With ``adopt`` the monitor takes over the runs that were left to the peer (takeover.py), and the paused ones are
resumed. A peer that is invited again decides about its own runs as before.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from asterism.core.errors import RunRefused
from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, CLAIMED, PROCESSING, Run
from asterism.fleet.fleet import Fleet
from asterism.peers.registry import Peer, PeerRegistry, UnknownPeer, removed_peer_key
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import FEED, PutCopy, PutRegister, PutRun, Store, Write, feed_of

COPIES_PER_READ = 500


class RemovalResult(NamedTuple):
    """``held`` are the runs that wait for a decision, empty if they were ``adopted``. ``running`` are runs of the peer
    that a device here has started: they go on."""

    name: str
    held: list[Run]
    adopted: list[Run]
    running: list[Run]


async def remove_peer(fleet: Fleet, name: str, *, adopt: bool = False) -> RemovalResult:
    """Remove a peer, and hold or ``adopt`` its unfinished runs. With ``adopt`` a peer that was removed before can be
    named again. Raises UnknownPeer."""
    store, peers = fleet.store, PeerRegistry(fleet.store)

    async def attempt() -> RemovalResult:
        try:
            known: Peer | None = await peers.get(name)
        except UnknownPeer:
            if not adopt:
                raise
            known = None
        peer_store = known.store if known is not None else await _removed_store(store, name)
        affected = await _affected_runs(store, peer_store)
        while affected.claimed and not adopt:
            await _withdraw(fleet, affected.claimed, name)
            affected = await _affected_runs(store, peer_store)
        writes = await peers.removal_writes(name) if known is not None else []
        writes += await _removal_mark(store, peer_store, name, adopt)
        writes += [_resume_write(run, name, store) for run in affected.paused_by(name)] if adopt else []
        writes += affected.hold_writes(store, name) if not adopt else []
        await store.commit(writes)
        held, adopted = ([], affected.all) if adopt else (affected.all, [])
        return RemovalResult(name, held, adopted, affected.running)

    return await retry_on_conflict(attempt)


async def held_runs(store: Store, run_ids: list[str]) -> dict[str, str]:
    """The runs among these that were left to a removed peer, and its name."""
    if await store.register(FEED) is None:
        return {}
    left_to = await feed_of(store).left_to(run_ids)
    names = {
        found.key.removeprefix(removed_peer_key("")): found.value["peer"]
        for found in await store.registers(removed_peer_key(""))
        if found.value and not found.value["adopt"]
    }
    return {run_id: names[peer_store] for run_id, peer_store in left_to.items() if peer_store in names}


async def _withdraw(fleet: Fleet, claimed: list[Run], name: str) -> None:
    """Withdraw runs one by one, before the removal: a run with a cancel request ends, which has consequences."""
    for run in claimed:
        with contextlib.suppress(RunRefused):  # it has started or left its device meanwhile
            await fleet.ledger.request(
                run.id, lambda one, _: transitions.withdraw(one, fleet.store.clock(), _pause_reason(name))
            )


class _AffectedRuns(NamedTuple):
    """``left`` are copies that were left to the peer, ``own`` its runs that are ours to decide; devices of ours have
    started none of them, those they have are ``running``. ``sessions`` are the ids of our sessions, ``store`` is the id
    of the peer's store."""

    store: str
    left: list[Run]
    own: list[Run]
    running: list[Run]
    sessions: frozenset[str]

    @property
    def all(self) -> list[Run]:
        return sorted([*self.left, *self.own], key=lambda run: run.id)

    @property
    def claimed(self) -> list[Run]:
        """The runs that a device of ours would start next."""
        return [run for run in self.all if run.status is CLAIMED and run.session in self.sessions]

    def hold_writes(self, store: Store, name: str) -> list[Write]:
        now = store.clock()
        reason = f"peer {name} was removed"
        assigned = [run for run in self.left if run.status is ASSIGNED and run.session in self.sessions]
        writes: list[Write] = [
            PutCopy(transitions.take_back(run, now, reason), run.revision, self.store, same=False) for run in assigned
        ]
        for run in self.own:
            paused = transitions.pause(run, now, _pause_reason(name))
            writes += [PutRun(paused, run.revision)] if paused is not run else []
        return writes

    def paused_by(self, name: str) -> list[Run]:
        return [run for run in self.all if run.paused == f"by {_pause_reason(name)}"]


def _pause_reason(name: str) -> str:
    """Stored in records, and compared with them."""
    return f"the removal of peer {name}"


def _resume_write(run: Run, name: str, store: Store) -> Write:
    return PutRun(transitions.resume(run, store.clock(), f"the adoption of what peer {name} left"), run.revision)


async def _affected_runs(store: Store, peer_store: str | None) -> _AffectedRuns:
    if peer_store is None or await store.register(FEED) is None:
        return _AffectedRuns("", [], [], [], frozenset())
    feed = feed_of(store)
    left: list[Run] = []
    while some := await feed.copies(peer_store, COPIES_PER_READ, left[-1].id if left else ""):
        left += some
    received = await feed.came_from(peer_store)
    copies = await feed.left_to([run.id for run in received])
    sessions = frozenset(one.id for one in await store.sessions(ended=True) if one.peer is None)
    elsewhere = [run.id for run in received if run.status in (CLAIMED, PROCESSING) and run.session not in sessions]
    own = [run for run in received if run.id not in copies and run.id not in elsewhere]
    running = [run for run in [*left, *own] if run.status is PROCESSING and run.session in sessions]
    started = {run.id for run in running}
    left, own = ([run for run in runs if run.id not in started] for runs in (left, own))
    return _AffectedRuns(peer_store, left, own, running, sessions)


async def _removed_store(store: Store, name: str) -> str:
    """The id of the store of a peer that was removed. Raises UnknownPeer."""
    for found in await store.registers(removed_peer_key("")):
        if found.value and found.value["peer"] == name:
            return found.key.removeprefix(removed_peer_key(""))
    raise UnknownPeer(f"there is no peer {name!r}, and no peer of that name was removed")


async def _removal_mark(store: Store, peer_store: str | None, name: str, adopt: bool) -> list[Write]:
    if peer_store is None:
        return []
    found = await store.register(removed_peer_key(peer_store))
    return [PutRegister(removed_peer_key(peer_store), {"peer": name, "adopt": adopt}, found and found.revision)]
