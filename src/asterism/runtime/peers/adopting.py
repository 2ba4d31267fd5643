"""What was left to a peer that is gone becomes ours to judge.

As long as a peer is heard of, it judges what is its own, and we keep copies. When it was not heard of for
``peer_timeout``, by the clock of the store and by our own (either may have jumped), what waits among them is offered
here, and what somebody owns is taken for lost. If the peer is merely cut off and comes back, core/resolve.py decides,
and whoever loses stops. What is left to a peer that was removed is adopted at once.

Others may have told us what that peer's devices did, and were passed over since it was for the peer to say
(trusting.py). From now on they are believed, so they are asked to tell everything again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence

from asterism.core import assigning
from asterism.core.errors import RunRefused
from asterism.core.run import ASSIGNED, OWNED, Run
from asterism.core.series import UnreadableSeries
from asterism.core.session import ABROAD, Session
from asterism.core.story import Entry
from asterism.runtime.fleet.fleet import Fleet
from asterism.runtime.fleet.workflows import UnknownWorkflow
from asterism.runtime.peers.knowing import PREFIX, Peer, Peers, is_of
from asterism.store.errors import Conflict
from asterism.store.protocol import FEED, PutRegister, PutRun, Query, Write, feed_of

log = logging.getLogger("asterism.peers")

AT_ONCE = 500
ASK_EVERY = 60.0
"""How often it is asked whether the store has peers by now, in seconds."""


class Adopting:
    """Part of a monitor: it remembers since when each peer has been silent, by its own clock."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._store = fleet, fleet.store
        self._peers = Peers(fleet.store)
        self._silent: dict[str, tuple[float | None, float]] = {}  # when it was heard of, and since when we know that
        self._gone: set[str] = set()
        self._fed = False
        self._asked_at: float | None = None

    async def adopt(self, sessions: Sequence[Session]) -> None:
        """One pass. ``sessions`` are those of the store. A store that has no peers is asked nothing."""
        if not await self._has_peers():
            return
        feed = feed_of(self._store)
        judges = await feed.judges()
        abroad = [session for session in sessions if session.used and session.state == ABROAD]
        if not judges and not abroad:
            return
        peers = await self._peers.all()
        by_store = {peer.store: peer for peer in peers}
        for whom in sorted(judges):
            peer = by_store.get(whom)
            why = await self._why_gone(peer)
            if why is None:
                continue
            await self._ask_again(peers, peer)
            for run in await feed.copies(whom, AT_ONCE):
                await self._take_on(run, why)
        for peer in peers:
            for session in abroad:
                if is_of(session, peer.name) and (why := await self._why_gone(peer)) is not None:
                    for run in await self._store.find(Query(session=session.id, judged=True, limit=AT_ONCE)):
                        if run.status is not ASSIGNED:  # that has its own time to be answered in
                            await self._take_on(run, why)

    async def _has_peers(self) -> bool:
        """Whether there has ever been one. A store without peers is asked once in a while."""
        own = self._fleet.clock.time()
        if not self._fed and (self._asked_at is None or own - self._asked_at >= ASK_EVERY):
            self._fed = await self._store.register(FEED) is not None
            self._asked_at = own
        return self._fed

    async def _why_gone(self, peer: Peer | None) -> str | None:
        if peer is None:
            return "its peer was removed"
        own = self._fleet.clock.time()
        heard, since = self._silent.get(peer.name, (None, own))
        if peer.name not in self._silent or heard != peer.heard_at:
            self._silent[peer.name] = (peer.heard_at, own)
            since = own
            self._gone.discard(peer.name)
        timeout = (await self._fleet.settings()).peer_timeout
        silent = self._store.clock() - (peer.heard_at or 0.0)
        if silent < timeout or own - since < timeout:
            return None
        return f"peer {peer.name} was not heard of for {silent:.0f} s"

    async def _ask_again(self, peers: list[Peer], gone: Peer | None) -> None:
        """From the beginning, those that we can still talk to; once."""
        name = gone.name if gone is not None else ""
        if name in self._gone:
            return
        for peer in peers:
            if peer is not gone:
                found = await self._store.register(f"{PREFIX}{peer.name}/cursor")
                if found is not None and found.value:
                    with contextlib.suppress(Conflict):
                        anew = {**found.value, "number": 0}
                        await self._store.commit([PutRegister(found.key, anew, found.revision)])
        self._gone.add(name)

    async def _take_on(self, run: Run, why: str) -> None:
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
            after = assigning.lose(run, flow, now, why)
        else:
            after = run.changed(
                revision=run.revision + 1,
                not_before=now,
                waiting_since=now,
                story=(*run.story, Entry(now, "adopted", None, why)),
            )
        admitted, writes = await self._fleet.ledger.readmitted(after, now)
        return admitted, writes
