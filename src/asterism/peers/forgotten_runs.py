"""What is left to a peer that does not know it any more.

A copy that is left to a peer stays open until the peer says how the run ended. If the peer has forgotten the run by
then, because it ended long ago or because the peer's store was put back from a copy, nobody would ever say. So at the
end of a meeting, when everything was told, each side asks now and then whether the other still knows what is left to
it. A copy of what it does not know is closed as failed, and its user is told why.

A peer whose store was put back may not know a run only because it has not met the run's owner since. So it does not say
that it does not know a run before it has met all of its peers since; and it has to say so twice, with some time in
between, and with no put-back in between.

What was closed like that is told to others, since they may have such a copy, too. It is nothing new to anybody who has
none: least of all to the peer that has forgotten the run. Another peer may know how the run ended. It tells it then,
since the record is news to it; and it is believed, although that was for the first one to say (trusting.py).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.fleet.fleet import Fleet
from asterism.peers.messages import MAX_RUNS_ASKED
from asterism.peers.registry import ROLLBACK_KEY, Peer, PeerRegistry, unknown_runs_key
from asterism.store.protocol import PutCopy, PutRegister, feed_of
from asterism.store.store_errors import Conflict

log = logging.getLogger("asterism.peers")

CHECK_INTERVAL = 600.0
"""How much time is between two times that a peer is asked, by our own clock, in seconds."""

MAX_UNKNOWN_RUNS = 1000
"""Of how many runs is remembered at once that a peer has said once that it does not know them."""


class ForgottenRunCheck:
    """For the store of ``fleet``. ``every`` is how much time is between two times that a peer is asked, in seconds."""

    def __init__(self, fleet: Fleet, every: float = CHECK_INTERVAL) -> None:
        self._fleet, self._store, self._every = fleet, fleet.store, every
        self._feed, self._peers = feed_of(fleet.store), PeerRegistry(fleet.store)
        self._at: dict[str, float] = {}  # when each peer was asked last
        self._after: dict[str, str] = {}  # up to which run, if there were more than can be asked at once
        self._asked: dict[str, list[str]] = {}  # what each peer has not answered yet

    def is_due(self, peer: Peer) -> bool:
        """Whether it is time to ask a peer, which is noted."""
        now = self._fleet.clock.time()
        due = peer.name not in self._at or now - self._at[peer.name] >= self._every
        if due:
            self._at[peer.name] = now
        return due

    async def next_runs(self, peer: Peer) -> list[str]:
        """The next runs to ask about; none, when all were asked about, and then it begins anew."""
        after = self._after.pop(peer.name, "")
        found = [run.id for run in await self._feed.copies(peer.store or "", MAX_RUNS_ASKED, after)]
        if found:
            self._after[peer.name] = found[-1]
        self._asked[peer.name] = found
        return found

    async def unknown_here(self, asked: Sequence[str]) -> list[str]:
        """Those that are not known here; none, as long as a peer may know them that was not met since our store was put
        back."""
        lost = [run_id for run_id in asked if await self._store.run(run_id) is None]
        found = await self._store.register(ROLLBACK_KEY) if lost else None
        if found is not None and any((one.heard_at or 0.0) < found.value["at"] for one in await self._peers.all()):
            return []
        return lost

    async def reset(self, peer: Peer) -> None:
        """Its store was put back, or ours: what it did not know before says nothing."""
        await self._remember(peer, {})

    async def close_unknown(self, peer: Peer, unknown: Collection[str]) -> list[str]:
        """Of what it was asked about, the peer does not know these. Returns what was closed, in words."""
        asked, now = self._asked.pop(peer.name, []), self._store.clock()
        found = await self._store.register(unknown_runs_key(peer.name))
        before = dict(found.value) if found is not None else {}
        left = await self._feed.left_to(asked)
        after = {run_id: at for run_id, at in before.items() if run_id not in asked}
        closed = []
        for run_id in asked:
            run = await self._store.run(run_id)
            if run_id not in unknown or run is None or run.ended or left.get(run_id) != peer.store:
                continue
            first = min(before.get(run_id, now), now)
            if now - first < self._every:
                after[run_id] = first
            else:
                closed += await self._close(peer, run)
        await self._remember(peer, after)
        return closed

    async def _remember(self, peer: Peer, after: dict[str, float]) -> None:
        """If somebody else writes it down at the same moment, it is heard once more."""
        key = unknown_runs_key(peer.name)
        found = await self._store.register(key)
        if (found is None and not after) or (found is not None and found.value == after):
            return
        if len(after) > MAX_UNKNOWN_RUNS:  # what ended in another way is not asked about any more
            runs = [await self._store.run(run_id) for run_id in after]
            after = {run.id: after[run.id] for run in runs if run is not None and not run.ended}
        kept = dict(list(after.items())[:MAX_UNKNOWN_RUNS])
        try:
            await self._store.commit([PutRegister(key, kept, found and found.revision)])
        except Conflict as conflict:
            log.debug("not remembered: %s", conflict)

    async def _close(self, peer: Peer, run: Run) -> list[str]:
        why = f"how it ended is not known: peer {peer.name}, to whom it was left, does not know it any more"
        after = transitions.mark_forgotten(run, self._store.clock(), why)
        put = PutCopy(after, run.revision, peer.store or "", same=True)
        try:
            await self._store.commit([put, *await self._fleet.ledger.consequences(after)])
        except Conflict as conflict:
            log.debug("not closed after all: %s", conflict)
            return []
        return [f"run {run.id}: {why}"]
