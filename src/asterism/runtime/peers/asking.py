"""What is left to a peer that does not know it any more.

A copy that is left to a peer stays open until the peer says how the run ended. If the peer has forgotten the run by
then, because it ended long ago or because the peer's store was put back from a copy, nobody would ever say. So at the
end of a meeting, when everything was told, each side asks now and then whether the other still knows what is left to
it. A copy of what it does not know is closed as failed, and its user is told why.

What was closed like that is told to others, since they may have such a copy, too. It is nothing new to anybody who has
none: least of all to the peer that has forgotten the run. Another peer may know how the run ended. It tells it then,
since the record is news to it; and it is believed, although that was for the first one to say (trusting.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from asterism.core import assigning
from asterism.core.run import Run
from asterism.runtime.fleet.fleet import Fleet
from asterism.runtime.peers.knowing import Peer
from asterism.runtime.peers.messages import MOST_ASKED
from asterism.store.errors import Conflict
from asterism.store.protocol import PutCopy, feed_of

log = logging.getLogger("asterism.peers")

EVERY = 600.0
"""How much time is between two times that a peer is asked, by our own clock, in seconds."""


class Asking:
    """For the store of ``fleet``. ``every`` is how much time is between two times that a peer is asked, in seconds."""

    def __init__(self, fleet: Fleet, every: float = EVERY) -> None:
        self._fleet, self._store, self._every = fleet, fleet.store, every
        self._feed = feed_of(fleet.store)
        self._at: dict[str, float] = {}  # when each peer was asked last
        self._after: dict[str, str] = {}  # up to which run, if there were more than can be asked at once

    def is_due(self, peer: Peer) -> bool:
        """Whether it is time to ask a peer, which is noted."""
        now = self._fleet.clock.time()
        due = peer.name not in self._at or now - self._at[peer.name] >= self._every
        if due:
            self._at[peer.name] = now
        return due

    async def next(self, peer: Peer) -> list[str]:
        """The next runs to ask about; none, when all were asked about, and then it begins anew."""
        after = self._after.pop(peer.name, "")
        found = [run.id for run in await self._feed.copies(peer.store or "", MOST_ASKED, after)]
        if found:
            self._after[peer.name] = found[-1]
        return found

    async def unknown(self, asked: Sequence[str]) -> list[str]:
        """Those that are not known here."""
        return [run_id for run_id in asked if await self._store.run(run_id) is None]

    async def close(self, peer: Peer, run_ids: Sequence[str]) -> list[str]:
        """The peer does not know these. Returns what was closed, in words."""
        left = await self._feed.left_to(run_ids)
        closed = []
        for run_id in run_ids:
            run = await self._store.run(run_id)
            if run is not None and not run.ended and left.get(run_id) == peer.store:
                closed += await self._closed(peer, run)
        return closed

    async def _closed(self, peer: Peer, run: Run) -> list[str]:
        why = f"how it ended is not known: peer {peer.name}, to whom it was left, does not know it any more"
        after = assigning.forgotten(run, self._store.clock(), why)
        writes = [
            PutCopy(after, run.revision, peer.store or "", same=True),
            *await self._fleet.ledger.consequences(after),
        ]
        try:
            await self._store.commit(writes)
        except Conflict as conflict:
            log.debug("not closed after all: %s", conflict)
            return []
        return [f"run {run.id}: {why}"]


def is_forgotten(run: Run) -> bool:
    """Whether a record says only that nobody knows how the run ended."""
    return bool(run.story) and run.story[-1].what == assigning.FORGOTTEN
