"""Removing a peer. What is its work, or in its hands, is not done here unless somebody says so.

*Held* is what has not ended and

- was left to the peer (adopting.py): its own runs of which there are copies here, and our runs that a device of the
  peer has claimed. Nobody here takes a copy, so nothing is done to it; an assignment to a device of ours that was not
  answered yet is taken back;
- or was first heard of from the peer, is ours to judge by now, and waits: it is paused. What a device is working on
  goes on.

Runs of ours that were only offered to a device of the peer are ours still, and are given to others.

``adopt`` lets all that go: the monitor takes over what was left to the peer, and what was paused is resumed. A peer
that becomes one again judges its own runs as before.
"""

from __future__ import annotations

from typing import NamedTuple

from asterism.core import assigning
from asterism.core.run import ASSIGNED, CLAIMED, PROCESSING, Run
from asterism.runtime.peers.knowing import Peer, Peers, UnknownPeer, of_a_peer, removed_key
from asterism.store.errors import Conflict
from asterism.store.protocol import FEED, PutCopy, PutRegister, PutRun, Store, Write, feed_of

AT_ONCE = 500


class Removed(NamedTuple):
    """``held`` are the runs that wait for somebody to decide; none of them, if they were adopted."""

    name: str
    held: list[Run]
    adopted: list[Run]


async def remove(store: Store, name: str, *, adopt: bool = False) -> Removed:
    """Talk to a peer no more, and hold what is its work or in its hands, or ``adopt`` it. A peer that was removed
    before can be named again to adopt what was held. Raises UnknownPeer."""
    peers = Peers(store)
    while True:
        try:
            known: Peer | None = await peers.get(name)
        except UnknownPeer:
            if not adopt:
                raise
            known = None
        before = known.store if known is not None else await _removed_before(store, name)
        concerned = await _concerned(store, before)
        writes = await peers.removing(name) if known is not None else []
        writes += await _marked(store, before, name, adopt)
        writes += [_adopted(run, name, store) for run in concerned.paused_by(name)] if adopt else []
        writes += concerned.held_back(store, name) if not adopt else []
        try:
            await store.commit(writes)
        except Conflict:
            continue
        return Removed(name, [], concerned.all) if adopt else Removed(name, concerned.all, [])


async def held_runs(store: Store, run_ids: list[str]) -> dict[str, str]:
    """Those among runs that were left to a peer which was removed, and the name it had."""
    if await store.register(FEED) is None:
        return {}
    left = await feed_of(store).left_to(run_ids)
    names = {
        found.key.removeprefix(removed_key("")): found.value["peer"]
        for found in await store.registers(removed_key(""))
        if found.value and not found.value["adopt"]
    }
    return {run_id: names[whom] for run_id, whom in left.items() if whom in names}


class _Concerned(NamedTuple):
    """``left`` are copies that were left to the peer, ``own`` its runs that are ours to judge and that nobody works on;
    ``ours`` the sessions of this store. ``store`` is the id of the peer's."""

    store: str
    left: list[Run]
    own: list[Run]
    ours: frozenset[str]

    @property
    def all(self) -> list[Run]:
        return sorted([*self.left, *self.own], key=lambda run: run.id)

    def held_back(self, store: Store, name: str) -> list[Write]:
        now = store.clock()
        why = f"peer {name} was removed"
        assigned = [run for run in self.left if run.status is ASSIGNED and run.session in self.ours]
        writes: list[Write] = [
            PutCopy(assigning.take_back(run, now, why), run.revision, self.store, same=False) for run in assigned
        ]
        for run in self.own:
            paused = assigning.pause(run, now, _pauser(name))
            writes += [PutRun(paused, run.revision)] if paused is not run else []
        return writes

    def paused_by(self, name: str) -> list[Run]:
        return [run for run in self.own if run.paused == f"by {_pauser(name)}"]


def _pauser(name: str) -> str:
    return f"the removal of peer {name}"


def _adopted(run: Run, name: str, store: Store) -> Write:
    return PutRun(assigning.resume(run, store.clock(), f"the adoption of what peer {name} left"), run.revision)


async def _concerned(store: Store, peer: str | None) -> _Concerned:
    if peer is None or await store.register(FEED) is None:
        return _Concerned("", [], [], frozenset())
    feed = feed_of(store)
    left: list[Run] = []
    while some := await feed.copies(peer, AT_ONCE, left[-1].id if left else ""):
        left += some
    came = await feed.came_from(peer)
    copies = await feed.left_to([run.id for run in came])
    own = [run for run in came if run.id not in copies and run.status not in (CLAIMED, PROCESSING)]
    ours = frozenset(one.id for one in await store.sessions(ended=True) if not of_a_peer(one))
    return _Concerned(peer, left, own, ours)


async def _removed_before(store: Store, name: str) -> str:
    for found in await store.registers(removed_key("")):
        if found.value and found.value["peer"] == name:
            return found.key.removeprefix(removed_key(""))
    raise UnknownPeer(f"there is no peer {name!r}, and none of that name was removed")


async def _marked(store: Store, peer: str | None, name: str, adopt: bool) -> list[Write]:
    if peer is None:
        return []
    found = await store.register(removed_key(peer))
    return [PutRegister(removed_key(peer), {"peer": name, "adopt": adopt}, found and found.revision)]
