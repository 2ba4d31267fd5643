"""Takeover: what happens to the unfinished runs of a peer that is silent for too long or was removed.

**Silence.** While a peer is heard from, it decides about its own runs, and we keep copies. After ``peer_timeout``
seconds of silence a monitor pass offers the waiting ones here, and the owned ones count as lost. If the peer was only
disconnected and comes back, core/run/merge.py decides, and the device that loses stops.

Silence is measured by the store's clock. Since that clock may have jumped, a monitor also has to observe a part of the
silence itself: ``MIN_OBSERVED_SILENCE`` seconds, or a machine that is never on for long would never adopt anything. If
the store's clock cannot tell, because it was ahead at the last contact, a monitor observes all of it.

Records of other peers about the silent peer's devices were ignored so far, since only that peer was believed about them
(record_decisions.py). From now on they are accepted. So all others are asked to send everything again, whether any run
is left to the silent peer or not, at most five times in an hour for the same peer.

**Removal.** A person who removes a peer decides whether its unfinished runs are held or adopted. *Held* are runs that
have not ended and

- were left to the peer: its own runs, with copies here, and our runs that a device of the peer has
  claimed. Devices here do not take copies, so nothing happens to them; an assignment to a device of ours that was not
  answered yet is taken back;
- or were first received from the peer, are ours to decide by now, and have not started: they are paused. A run that a
  device of ours has claimed and not started is withdrawn, so that its start is fenced. A run that has started
  continues, and is listed as running.

Runs of ours that were only offered to a device of the peer stay ours, and are assigned to others.

With ``adopt`` the monitor pass takes over the runs that were left to the peer, and the paused ones are resumed. A peer
that is invited again decides about its own runs as before.

``monitor_pass`` and ``explain`` are what peers plug into a fleet: a pass of the monitor, and explanations of waiting
runs.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from typing import NamedTuple

from asterism.core.errors import RunRefused
from asterism.core.history import Reason
from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, CLAIMED, OWNED, PROCESSING, Run
from asterism.core.run.session import ABROAD, ENDED, Session
from asterism.fleet.extensions import MonitorPass
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import failure_notice
from asterism.peers.registry import (
    Peer,
    PeerRegistry,
    UnknownPeer,
    is_announced_by,
    is_in_future,
    peer_key,
    removed_peer_key,
)
from asterism.store.optimistic_update import retried, try_commit
from asterism.store.protocol import FEED, PutCopy, PutRun, PutSession, Query, Store, Write, feed_of, read_slot
from asterism.store.store_errors import Conflict

log = logging.getLogger("asterism.peers")

MAX_RUNS_PER_PASS = 500
PEER_CHECK_INTERVAL = 5.0
"""The seconds between two looks whether the store has peers by now."""

MAX_REPLAYS = 5
REPLAY_WINDOW = 3600.0
"""How often, within so many seconds, the other peers are asked for everything when the same peer falls silent."""

MIN_OBSERVED_SILENCE = 300.0
"""How many seconds of a peer's silence a monitor observes by its own clock before it adopts."""
COPIES_PER_READ = 500


class Takeover:
    """The takeover pass of one monitor. It remembers since when each peer has been silent, by its own clock."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._store = fleet, fleet.store
        self._peers = PeerRegistry(fleet.store)
        self._silent: dict[str, tuple[float | None, float]] = {}  # the last contact, and since when we know it
        self._replayed: dict[str, float] = {}  # silent peers whose silence was handled, and their last contact
        self._has_feed = False
        self._looked_at: float | None = None

    async def run_pass(self, sessions: Sequence[Session]) -> None:
        """One pass over the sessions of the store. It does nothing in a store without peers."""
        if not await self._has_peers():
            return
        await self._end_future_sessions(sessions)
        feed = feed_of(self._store)
        authorities = await feed.judges()
        peers = await self._peers.all()  # after the authorities: a store that is not among the peers was removed
        timeout = (await self._fleet.settings()).peer_timeout
        gone: dict[str, str] = {}
        for peer in peers:
            reason = self._silence(peer, timeout)
            if reason is not None:
                gone[peer.name] = reason
                await self._request_replays(peer)
        by_store = {peer.store: peer.name for peer in peers}
        for store in sorted(authorities):
            reason = gone.get(by_store[store]) if store in by_store else await self._removal(store)
            if reason is not None:
                for run in await feed.copies(store, MAX_RUNS_PER_PASS):
                    await self._adopt(run, reason)
        for name, reason in gone.items():
            for session in sessions:
                if session.used and is_announced_by(session, name):
                    await self._take_runs_of(session, reason)

    async def _removal(self, store: str) -> str | None:
        """Why the runs that were left to a removed peer are adopted; None if they are held."""
        removed = (await read_slot(self._store, removed_peer_key(store))).value
        return f"peer {removed['peer']} was removed, and its runs are adopted" if removed and removed["adopt"] else None

    async def _has_peers(self) -> bool:
        """Whether the store has ever had a peer. A store without peers is asked once in a while."""
        now = self._fleet.clock.time()
        if not self._has_feed and (self._looked_at is None or now - self._looked_at >= PEER_CHECK_INTERVAL):
            self._has_feed = await self._store.register(FEED) is not None
            self._looked_at = now
        return self._has_feed

    async def _end_future_sessions(self, sessions: Sequence[Session]) -> None:
        """End devices of peers whose last contact lies in the future: the real time is unknown, and they would be given
        work for as long as the clock was ahead. Their peer announces them again. A device with work gets a new time
        instead, since ending it would take the work away."""
        for session in sessions:
            if session.state == ABROAD and is_in_future(session.beat_at, self._store.clock()):
                after = session.changed(state=ABROAD if session.used else ENDED)
                await try_commit(self._store, [PutSession(after, session.revision)])  # else it was just announced

    def _silence(self, peer: Peer, timeout: float) -> str | None:
        """A sentence about a silence that is long enough for a takeover; None if it is not."""
        own, now = self._fleet.clock.time(), self._store.clock()
        heard, since = self._silent.get(peer.name, (None, own))
        if peer.name not in self._silent or heard != peer.heard_at:
            self._silent[peer.name] = (peer.heard_at, own)
            since = own
        observed = own - since
        known = peer.heard_at is not None and not is_in_future(peer.heard_at, now)
        silent = now - (peer.heard_at or 0.0) if known else observed
        if silent <= timeout or observed < min(timeout, MIN_OBSERVED_SILENCE):
            return None
        return f"peer {peer.name} has been silent for {silent:.0f} s"

    async def _request_replays(self, gone: Peer) -> None:
        """Ask all other peers for everything, once for each time a peer falls silent, by one of the monitors. The
        number is limited for a peer that comes and goes: when it is back, it sends its own records. A peer that was
        never heard from was not in the way of the others."""
        if gone.heard_at is None or self._replayed.get(gone.name) == gone.heard_at:
            return
        slot = await read_slot(self._store, peer_key(gone.name, "asked"), {})
        if slot.value.get("heard_at") != gone.heard_at:
            now = self._store.clock()
            recent = [at for at in slot.value.get("asked", ()) if 0 <= now - at < REPLAY_WINDOW]
            if len(recent) >= MAX_REPLAYS:
                return
            request = slot.put({"heard_at": gone.heard_at, "asked": [*recent, now]})
            if not await try_commit(self._store, [request, *await self._peers.replay_writes(gone.name)]):
                return  # the next pass tries again
        self._replayed[gone.name] = gone.heard_at

    async def _take_runs_of(self, session: Session, reason: str) -> None:
        """Adopt the runs of a silent peer's device that are ours to decide."""
        for run in await self._store.find(Query(session=session.id, judged=True, limit=MAX_RUNS_PER_PASS)):
            if run.status is not ASSIGNED:  # an assignment has its own timeout
                await self._adopt(run, reason)

    async def _adopt(self, run: Run, reason: str) -> None:
        try:
            after = await self._adopted(run, reason)
            await self._store.commit([PutRun(after, run.revision), *failure_notice(after)])
        except (Conflict, RunRefused) as error:
            log.warning("not adopted: %s", error, extra={"run": run.id})
        else:
            log.info("adopted: %s", reason, extra={"run": run.id})

    async def _adopted(self, run: Run, reason: str) -> Run:
        now = self._store.clock()
        if run.status not in OWNED:
            return transitions.adopt(run, now, reason)
        return transitions.lose(run, now, reason)


# -- removal -----------------------------------------------------------------------------------------------------------


class RemovalResult(NamedTuple):
    """``held`` are the runs that wait for a decision, empty if they were ``adopted``. ``running`` are runs of the peer
    that a device here has started: they continue."""

    name: str
    held: list[Run]
    adopted: list[Run]
    running: list[Run]


@retried
async def remove_peer(fleet: Fleet, name: str, *, adopt: bool = False) -> RemovalResult:
    """Remove a peer, and hold or ``adopt`` its unfinished runs. With ``adopt`` a peer that was removed before can be
    named again. Raises UnknownPeer."""
    store, peers = fleet.store, PeerRegistry(fleet.store)
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


async def held_runs(store: Store, run_ids: list[str]) -> dict[str, str]:
    """The runs among these that were left to a removed peer, and its name."""
    if await store.register(FEED) is None:
        return {}
    left_to = await feed_of(store).left_to(run_ids)
    names = {
        register.key.removeprefix(removed_peer_key("")): register.value["peer"]
        for register in await store.registers(removed_peer_key(""))
        if register.value and not register.value["adopt"]
    }
    return {run_id: names[peer_store] for run_id, peer_store in left_to.items() if peer_store in names}


async def _withdraw(fleet: Fleet, claimed: list[Run], name: str) -> None:
    """Withdraw runs one by one, before the removal: a run with a cancel request ends, which has consequences."""
    for run in claimed:
        with contextlib.suppress(RunRefused):  # it has started or left its device meanwhile
            await fleet.ledger.request(
                run.id, lambda stored: transitions.withdraw(stored, fleet.store.clock(), _pause_reason(name))
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
    sessions = frozenset(session.id for session in await store.sessions(ended=True) if session.peer is None)
    elsewhere = [run.id for run in received if run.status in (CLAIMED, PROCESSING) and run.session not in sessions]
    own = [run for run in received if run.id not in copies and run.id not in elsewhere]
    running = [run for run in [*left, *own] if run.status is PROCESSING and run.session in sessions]
    started = {run.id for run in running}
    left, own = ([run for run in runs if run.id not in started] for runs in (left, own))
    return _AffectedRuns(peer_store, left, own, running, sessions)


async def _removed_store(store: Store, name: str) -> str:
    """The id of the store of a peer that was removed. Raises UnknownPeer."""
    for register in await store.registers(removed_peer_key("")):
        if register.value and register.value["peer"] == name:
            return register.key.removeprefix(removed_peer_key(""))
    raise UnknownPeer(f"there is no peer {name!r}, and no peer of that name was removed")


async def _removal_mark(store: Store, peer_store: str | None, name: str, adopt: bool) -> list[Write]:
    if peer_store is None:
        return []
    return [(await read_slot(store, removed_peer_key(peer_store))).put({"peer": name, "adopt": adopt})]


# -- what peers plug into a fleet --------------------------------------------------------------------------------------


def monitor_pass(fleet: Fleet) -> MonitorPass:
    """The pass that adopts the runs of silent peers."""
    return Takeover(fleet).run_pass


async def explain(fleet: Fleet, run: Run) -> Reason | None:
    """Which peer decides about a run; None if this store does."""
    if await fleet.store.register(FEED) is None:
        return None
    left_to = (await feed_of(fleet.store).left_to([run.id])).get(run.id)
    if left_to is None:
        return None
    name = next((peer.name for peer in await PeerRegistry(fleet.store).all() if peer.store == left_to), None)
    if name is None:
        removed = (await read_slot(fleet.store, removed_peer_key(left_to))).value
        was = removed["peer"] if removed else "(unknown)"
        if removed and removed["adopt"]:
            return Reason("left", was, f"peer {was} managed it and was removed: this store is about to adopt it")
        return Reason("removed", was, f"it is held: peer {was} managed it and was removed")
    return Reason("left", name, f"peer {name} manages it as long as that peer is heard from")
