"""Forgotten runs: closes copies of runs that their authority (the store that decides about them) no longer knows.

A copy that is left to a peer stays open until the peer says how the run ended. If the peer has forgotten the run by
then, because it ended long ago or because the peer's store was rolled back, that would never happen. So at the end of a
sync each side asks now and then whether the other still knows the runs that are left to it. A copy of an unknown run is
closed as failed, with a notice.

A peer whose store was rolled back may not know a run only because it has not synced with the run's owner since. So it
does not call a run unknown before it has synced with all of its peers; and it has to say so twice, some time apart,
without a rollback in between.

A closed copy is sent on, since other stores may have such a copy. Stores without one ignore it, above all the peer that
has forgotten the run. A store that knows how the run ended sends that record in return, and it is accepted although the
first peer was the one to say (record_decisions.py).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from asterism.core.run import transitions
from asterism.core.run.run import Run
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import failure_notice
from asterism.peers.messages import MAX_RUNS_ASKED
from asterism.peers.registry import ROLLBACK_KEY, Peer, PeerRegistry, unknown_runs_key
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import PutCopy, feed_of, read_slot

log = logging.getLogger("asterism.peers")

CHECK_INTERVAL = 600.0
"""The seconds between two checks of a peer, by our own clock."""

MAX_UNKNOWN_RUNS = 1000
"""How many runs that a peer called unknown once are remembered."""


class ForgottenRunCheck:
    """Checks for the store of ``fleet``. ``interval`` is the seconds between two checks of a peer."""

    def __init__(self, fleet: Fleet, interval: float = CHECK_INTERVAL) -> None:
        self._fleet, self._store, self._interval = fleet, fleet.store, interval
        self._feed, self._peers = feed_of(fleet.store), PeerRegistry(fleet.store)
        self._checked_at: dict[str, float] = {}  # by peer
        self._after: dict[str, str] = {}  # the last run asked about, if there are more than one message holds
        self._asked: dict[str, list[str]] = {}  # the runs about which a peer has not answered yet

    def is_due(self, peer: Peer) -> bool:
        """Whether it is time to check a peer. If so, the next check is an interval later."""
        now = self._fleet.clock.time()
        due = peer.name not in self._checked_at or now - self._checked_at[peer.name] >= self._interval
        if due:
            self._checked_at[peer.name] = now
        return due

    async def next_runs(self, peer: Peer) -> list[str]:
        """The next runs to ask a peer about; empty after the last, and then it starts again."""
        after = self._after.pop(peer.name, "")
        run_ids = [run.id for run in await self._feed.copies(peer.store or "", MAX_RUNS_ASKED, after)]
        if run_ids:
            self._after[peer.name] = run_ids[-1]
        self._asked[peer.name] = run_ids
        return run_ids

    async def unknown_here(self, asked: Sequence[str]) -> list[str]:
        """The runs among these that this store does not know; empty while a peer with which we have not synced since
        our last rollback may know them."""
        unknown = [run_id for run_id in asked if await self._store.run(run_id) is None]
        register = await self._store.register(ROLLBACK_KEY) if unknown else None
        if register is not None and any(
            (peer.heard_at or 0.0) < register.value["at"] for peer in await self._peers.all()
        ):
            return []
        return unknown

    async def reset(self, peer: Peer) -> None:
        """Discard what a peer called unknown, after a rollback of its store or ours."""
        await self._remember(peer, {})

    async def close_unknown(self, peer: Peer, unknown: Collection[str]) -> list[str]:
        """Handle a peer's answer: among the runs it was asked about, it does not know these. Returns a sentence for
        each copy that was closed."""
        asked, now = self._asked.pop(peer.name, []), self._store.clock()
        before = (await read_slot(self._store, unknown_runs_key(peer.name), {})).value
        left_to = await self._feed.left_to(asked)
        after = {run_id: at for run_id, at in before.items() if run_id not in asked}
        closed = []
        for run_id in asked:
            run = await self._store.run(run_id)
            if run_id not in unknown or run is None or run.ended or left_to.get(run_id) != peer.store:
                continue
            first = min(before.get(run_id, now), now)
            if now - first < self._interval:
                after[run_id] = first
            else:
                closed += await self._close(peer, run)
        await self._remember(peer, after)
        return closed

    async def _remember(self, peer: Peer, after: dict[str, float]) -> None:
        """If another process writes at the same moment, the peer has to say so once more."""
        slot = await read_slot(self._store, unknown_runs_key(peer.name), {})
        if slot.value == after:
            return
        if len(after) > MAX_UNKNOWN_RUNS:  # drop runs that have ended in another way
            runs = [await self._store.run(run_id) for run_id in after]
            after = {run.id: after[run.id] for run in runs if run is not None and not run.ended}
        limited = dict(list(after.items())[:MAX_UNKNOWN_RUNS])
        if not await try_commit(self._store, [slot.put(limited)]):
            log.debug("the unknown runs of peer %s were not stored: another process wrote them", peer.name)

    async def _close(self, peer: Peer, run: Run) -> list[str]:
        reason = f"its end is unknown: it was left to peer {peer.name}, which no longer knows it"
        after = transitions.mark_forgotten(run, self._store.clock(), reason)
        put = PutCopy(after, run.revision, peer.store or "", same=True)
        if not await try_commit(self._store, [put, *failure_notice(after)]):
            log.debug("the copy was not closed: another process changed it", extra={"run": run.id})
            return []
        return [f"run {run.id}: {reason}"]
