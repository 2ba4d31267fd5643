"""What was left to a peer that is gone becomes ours to judge.

As long as a peer is heard of, it judges what is its own, and we keep copies. When it was not heard of for
``peer_timeout`` what waits among them is offered here, and what somebody owns is taken for lost. If the peer is merely
cut off and comes back, core/run/merge.py decides, and whoever loses stops. What is left to a peer that was removed is
held, until somebody says that it is to be adopted (removal.py).

The silence is measured by the store's clock, and a monitor has watched a part of it itself, since that clock may have
jumped: ``WATCHED`` seconds are enough, or a machine that is never on for long would never adopt anything. Where the
store's clock cannot say, since it was ahead when the peer was last heard of, a monitor watches all of it.

Others may have told us what that peer's devices did, and were passed over since it was for the peer to say
(trusting.py). From now on they are believed, so they are asked to tell everything again, whether anything is left to
that peer or not; five times in an hour at most because of the same peer.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from asterism.core.errors import RunRefused
from asterism.core.run import transitions
from asterism.core.run.run import ASSIGNED, OWNED, Run
from asterism.core.run.session import ABROAD, ENDED, Session
from asterism.core.series.machine import UnreadableSeries
from asterism.fleet.fleet import Fleet
from asterism.fleet.workflows import UnknownWorkflow
from asterism.peers.registry import Peer, PeerRegistry, is_announced_by, is_in_future, peer_key, removed_peer_key
from asterism.store.protocol import FEED, PutRegister, PutRun, PutSession, Query, Write, feed_of
from asterism.store.store_errors import Conflict

log = logging.getLogger("asterism.peers")

MAX_RUNS_PER_PASS = 500
PEER_CHECK_INTERVAL = 5.0
"""How often it is asked whether the store has peers by now, in seconds."""

MAX_REPLAYS = 5
REPLAY_WINDOW = 3600.0
"""How often, in so many seconds, the others are asked to tell everything again because of the same peer."""

MIN_OBSERVED_SILENCE = 300.0
"""How much of a peer's silence a monitor watches by its own clock, at most, in seconds."""


class Takeover:
    """Part of a monitor: it remembers since when each peer has been silent, by its own clock."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._store = fleet, fleet.store
        self._peers = PeerRegistry(fleet.store)
        self._silent: dict[str, tuple[float | None, float]] = {}  # when it was heard of, and since when we know that
        self._asked: dict[str, float] = {}  # when those were heard of whose loss made us ask the others again
        self._fed = False
        self._looked_at: float | None = None

    async def run_pass(self, sessions: Sequence[Session]) -> None:
        """One pass. ``sessions`` are those of the store. A store that has no peers is asked nothing."""
        if not await self._has_peers():
            return
        await self._end_future_sessions(sessions)
        feed = feed_of(self._store)
        judges = await feed.judges()
        peers = await self._peers.all()  # after the judges: who is no peer now was removed, and is not new
        timeout = (await self._fleet.settings()).peer_timeout
        gone: dict[str, str] = {}
        for peer in peers:
            why = self._silence(peer, timeout)
            if why is not None:
                gone[peer.name] = why
                await self._request_replays(peer)
        by_store = {peer.store: peer.name for peer in peers}
        for whom in sorted(judges):
            why = gone.get(by_store[whom]) if whom in by_store else await self._removal(whom)
            if why is not None:
                for run in await feed.copies(whom, MAX_RUNS_PER_PASS):
                    await self._adopt(run, why)
        for name, why in gone.items():
            for session in sessions:
                if session.used and is_announced_by(session, name):
                    await self._take_runs_of(session, why)

    async def _removal(self, store: str) -> str | None:
        """Why what is left to a peer that was removed is adopted; None if it is held."""
        found = await self._store.register(removed_peer_key(store))
        if found is None or not found.value or not found.value["adopt"]:
            return None
        return f"peer {found.value['peer']} was removed, and what it left is adopted"

    async def _has_peers(self) -> bool:
        """Whether there has ever been one. A store without peers is asked once in a while."""
        own = self._fleet.clock.time()
        if not self._fed and (self._looked_at is None or own - self._looked_at >= PEER_CHECK_INTERVAL):
            self._fed = await self._store.register(FEED) is not None
            self._looked_at = own
        return self._fed

    async def _end_future_sessions(self, sessions: Sequence[Session]) -> None:
        """Devices that seem to have been heard of in the future: nobody knows when that was, and they would be given
        work for as long as the clock was ahead. Their peer announces them again. What has work is dated anew, since to
        end it would be to take that away."""
        for session in sessions:
            if session.state == ABROAD and is_in_future(session.beat_at, self._store.clock()):
                after = session.changed(state=ABROAD if session.used else ENDED)
                with contextlib.suppress(Conflict):  # it was just announced again
                    await self._store.commit([PutSession(after, session.revision)])

    def _silence(self, peer: Peer, timeout: float) -> str | None:
        own, now = self._fleet.clock.time(), self._store.clock()
        heard, since = self._silent.get(peer.name, (None, own))
        if peer.name not in self._silent or heard != peer.heard_at:
            self._silent[peer.name] = (peer.heard_at, own)
            since = own
        watched = own - since
        known = peer.heard_at is not None and not is_in_future(peer.heard_at, now)
        silent = now - (peer.heard_at or 0.0) if known else watched
        if silent <= timeout or watched < min(timeout, MIN_OBSERVED_SILENCE):
            return None
        return f"peer {peer.name} was not heard of for {silent:.0f} s"

    async def _request_replays(self, gone: Peer) -> None:
        """Those that we can still transport to, from the beginning. Once for each time that a peer falls silent, whichever
        monitor notices it, but only so often for one that comes and goes: if it is back by then, it tells what it did
        itself. One that was never heard of kept nobody from being believed."""
        if gone.heard_at is None or self._asked.get(gone.name) == gone.heard_at:
            return
        key = peer_key(gone.name, "asked")
        found = await self._store.register(key)
        if found is None or found.value.get("heard_at") != gone.heard_at:
            now = self._store.clock()
            before = found.value.get("asked", []) if found is not None else []
            lately = [at for at in before if 0 <= now - at < REPLAY_WINDOW]
            if len(lately) >= MAX_REPLAYS:
                return
            value = {"heard_at": gone.heard_at, "asked": [*lately, now]}
            asked = PutRegister(key, value, found and found.revision)
            try:
                await self._store.commit([asked, *await self._peers.replay_writes(gone.name)])
            except Conflict as conflict:
                log.debug("the others are asked in the next pass: %s", conflict)
                return
        self._asked[gone.name] = gone.heard_at

    async def _take_runs_of(self, session: Session, why: str) -> None:
        """What it has and is ours to judge."""
        for run in await self._store.find(Query(session=session.id, judged=True, limit=MAX_RUNS_PER_PASS)):
            if run.status is not ASSIGNED:  # that has its own time to be answered in
                await self._adopt(run, why)

    async def _adopt(self, run: Run, why: str) -> None:
        try:
            after, writes = await self._adopted(run, why)
            consequences = await self._fleet.ledger.consequences(after)
            await self._store.commit([PutRun(after, run.revision), *writes, *consequences])
        except (Conflict, RunRefused, UnknownWorkflow, UnreadableSeries) as error:
            log.warning("not adopted: %s", error, extra={"run": run.id})
        else:
            log.info("adopted: %s", why, extra={"run": run.id})

    async def _adopted(self, run: Run, why: str) -> tuple[Run, list[Write]]:
        now = self._store.clock()
        if run.status in OWNED:
            flow = await self._fleet.workflows.get(run.workflow, run.version)
            after = transitions.lose(run, flow, now, why)
        else:
            after = transitions.adopt(run, now, why)
        return await self._fleet.ledger.readmit(after, now)
