"""Removing a peer. What is its work, or in its hands, is not done here unless somebody says so.

*Held* is what has not ended and

- was left to the peer (adopting.py): its own runs of which there are copies here, and our runs that a device of the
  peer has claimed. Nobody here takes a copy, so nothing is done to it; an assignment to a device of ours that was not
  answered yet is taken back;
- or was first heard of from the peer, is ours to judge by now, and has not started: it is paused. What a device of
  ours has claimed and not started is withdrawn from it, so that its start is fenced. What has started goes on, and is
  listed as running.

Runs of ours that were only offered to a device of the peer are ours still, and are given to others.

``adopt`` lets all that go: the monitor takes over what was left to the peer, and what was paused is resumed. A peer
that becomes one again judges its own runs as before.
"""

from __future__ import annotations

import contextlib
from typing import NamedTuple

from asterism.core.errors import RunRefused
from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, CLAIMED, PROCESSING, Run
from asterism.fleet.fleet import Fleet
from asterism.peers.registry import Peer, PeerRegistry, UnknownPeer, removed_peer_key
from asterism.store.protocol import FEED, PutCopy, PutRegister, PutRun, Store, Write, feed_of
from asterism.store.store_errors import Conflict

COPIES_PER_READ = 500


class RemovalResult(NamedTuple):
    """``held`` are the runs that wait for somebody to decide; none of them, if they were adopted. ``running`` are those
    of the peer that a device here has started: they go on."""

    name: str
    held: list[Run]
    adopted: list[Run]
    running: list[Run]


async def remove_peer(fleet: Fleet, name: str, *, adopt: bool = False) -> RemovalResult:
    """Talk to a peer no more, and hold what is its work or in its hands, or ``adopt`` it. A peer that was removed
    before can be named again to adopt what was held. Raises UnknownPeer."""
    store, peers = fleet.store, PeerRegistry(fleet.store)
    while True:
        try:
            known: Peer | None = await peers.get(name)
        except UnknownPeer:
            if not adopt:
                raise
            known = None
        before = known.store if known is not None else await _removed_store(store, name)
        concerned = await _affected_runs(store, before)
        if concerned.claimed and not adopt:
            await _withdraw(fleet, concerned.claimed, name)
            continue
        writes = await peers.removal_writes(name) if known is not None else []
        writes += await _removal_mark(store, before, name, adopt)
        writes += [_resume_write(run, name, store) for run in concerned.paused_by(name)] if adopt else []
        writes += concerned.held_back(store, name) if not adopt else []
        try:
            await store.commit(writes)
        except Conflict:
            continue
        held, adopted = ([], concerned.all) if adopt else (concerned.all, [])
        return RemovalResult(name, held, adopted, concerned.running)


async def held_runs(store: Store, run_ids: list[str]) -> dict[str, str]:
    """Those among runs that were left to a peer which was removed, and the name it had."""
    if await store.register(FEED) is None:
        return {}
    left = await feed_of(store).left_to(run_ids)
    names = {
        found.key.removeprefix(removed_peer_key("")): found.value["peer"]
        for found in await store.registers(removed_peer_key(""))
        if found.value and not found.value["adopt"]
    }
    return {run_id: names[whom] for run_id, whom in left.items() if whom in names}


async def _withdraw(fleet: Fleet, claimed: list[Run], name: str) -> None:
    """Each by itself, before the removal: one that was to be cancelled ends, and that has consequences for others."""
    for run in claimed:
        with contextlib.suppress(RunRefused):  # it has started or left its device meanwhile
            await fleet.ledger.request(
                run.id, lambda one, _: transitions.withdraw(one, fleet.store.clock(), _pause_reason(name))
            )


class _AffectedRuns(NamedTuple):
    """``left`` are copies that were left to the peer, ``own`` its runs that are ours to judge; neither has been started
    by a device of ours, those that were are ``running``. ``ours`` are the sessions of this store, ``store`` is the id
    of the peer's."""

    store: str
    left: list[Run]
    own: list[Run]
    running: list[Run]
    ours: frozenset[str]

    @property
    def all(self) -> list[Run]:
        return sorted([*self.left, *self.own], key=lambda run: run.id)

    @property
    def claimed(self) -> list[Run]:
        """What a device of ours would start next."""
        return [run for run in self.all if run.status is CLAIMED and run.session in self.ours]

    def held_back(self, store: Store, name: str) -> list[Write]:
        now = store.clock()
        why = f"peer {name} was removed"
        assigned = [run for run in self.left if run.status is ASSIGNED and run.session in self.ours]
        writes: list[Write] = [
            PutCopy(transitions.take_back(run, now, why), run.revision, self.store, same=False) for run in assigned
        ]
        for run in self.own:
            paused = transitions.pause(run, now, _pause_reason(name))
            writes += [PutRun(paused, run.revision)] if paused is not run else []
        return writes

    def paused_by(self, name: str) -> list[Run]:
        return [run for run in self.all if run.paused == f"by {_pause_reason(name)}"]


def _pause_reason(name: str) -> str:
    return f"the removal of peer {name}"


def _resume_write(run: Run, name: str, store: Store) -> Write:
    return PutRun(transitions.resume(run, store.clock(), f"the adoption of what peer {name} left"), run.revision)


async def _affected_runs(store: Store, peer: str | None) -> _AffectedRuns:
    if peer is None or await store.register(FEED) is None:
        return _AffectedRuns("", [], [], [], frozenset())
    feed = feed_of(store)
    left: list[Run] = []
    while some := await feed.copies(peer, COPIES_PER_READ, left[-1].id if left else ""):
        left += some
    came = await feed.came_from(peer)
    copies = await feed.left_to([run.id for run in came])
    ours = frozenset(one.id for one in await store.sessions(ended=True) if one.peer is None)
    elsewhere = [run.id for run in came if run.status in (CLAIMED, PROCESSING) and run.session not in ours]
    own = [run for run in came if run.id not in copies and run.id not in elsewhere]
    running = [run for run in [*left, *own] if run.status is PROCESSING and run.session in ours]
    started = {run.id for run in running}
    left, own = ([run for run in runs if run.id not in started] for runs in (left, own))
    return _AffectedRuns(peer, left, own, running, ours)


async def _removed_store(store: Store, name: str) -> str:
    for found in await store.registers(removed_peer_key("")):
        if found.value and found.value["peer"] == name:
            return found.key.removeprefix(removed_peer_key(""))
    raise UnknownPeer(f"there is no peer {name!r}, and none of that name was removed")


async def _removal_mark(store: Store, peer: str | None, name: str, adopt: bool) -> list[Write]:
    if peer is None:
        return []
    found = await store.register(removed_peer_key(peer))
    return [PutRegister(removed_peer_key(peer), {"peer": name, "adopt": adopt}, found and found.revision)]
