"""When a peer is asked to tell everything again, because something of it was not taken that may be taken by now:

- it said of a session of ours what that did not say, and was not believed; the session is over now (trusting.py);
- it had used up what it may store here, and there is room again (quota.py).
"""

from __future__ import annotations

import contextlib

from asterism.core.run.session import OPEN
from asterism.fleet.fleet import Fleet
from asterism.peers import peer_notices, quota
from asterism.peers.messages import Cursor
from asterism.peers.registry import Peer, cursor_key, peer_key
from asterism.store.protocol import PutRegister, Register, Write, feed_of
from asterism.store.store_errors import Conflict

MAX_DOUBTED_SESSIONS = 20
"""How many sessions of ours are remembered about which a peer was not believed."""


class ReplayRequests:
    """For the store of ``fleet``."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._store, self._feed = fleet, fleet.store, feed_of(fleet.store)

    async def cursor(self, peer: Peer) -> tuple[Cursor | None, Register | None]:
        """How far we have come in its feed."""
        found = await self._store.register(cursor_key(peer.name))
        if found is None or not found.value:
            return None, found
        return Cursor(**{name: value for name, value in found.value.items() if name in Cursor._fields}), found

    async def reason_writes(self, peer: Peer, doubted: set[str], used: quota.Quota) -> list[Write]:
        """What remembers that the peer was not believed about these sessions, and that something did not fit."""
        writes: list[Write] = []
        if doubted:
            found = await self._store.register(_doubted_key(peer))
            known = list(found.value.get("sessions", ())) if found is not None else []
            after = [*known, *sorted(doubted.difference(known))][-MAX_DOUBTED_SESSIONS:]
            writes.append(PutRegister(_doubted_key(peer), {"sessions": after}, found and found.revision))
        if used.exceeded is not None:
            found = await self._store.register(quota.quota_key(peer))
            writes.append(PutRegister(quota.quota_key(peer), {"room": used.remaining()}, found and found.revision))
        return writes

    async def request(self, peer: Peer) -> None:
        """Begin anew in its feed, if there is a reason to. If somebody else goes on in it meanwhile, it is for the next
        meeting."""
        await self._if_a_session_is_over(peer)
        await self._if_there_is_room(peer)

    async def _if_a_session_is_over(self, peer: Peer) -> None:
        """It is to tell also what it has from us: now we can do something about it."""
        found = await self._store.register(_doubted_key(peer))
        doubted = list(found.value.get("sessions", ())) if found is not None else []
        if found is None or not doubted:
            return
        there = {one.id for one in await self._store.sessions() if one.state == OPEN}
        still = [one for one in doubted if one in there]
        if len(still) < len(doubted):
            await self._begin_anew(peer, PutRegister(found.key, {"sessions": still}, found.revision), whole=True)

    async def _if_there_is_room(self, peer: Peer) -> None:
        found = await self._store.register(quota.quota_key(peer))
        if found is None or not found.value:
            return
        most = quota.quota_limits(await self._fleet.settings())
        now = quota.Quota(peer, await self._feed.usage(peer.store or ""), most)
        if quota.has_grown(found.value["room"], now, most):
            await self._begin_anew(peer, PutRegister(found.key, {}, found.revision))
            await peer_notices.clear_topic(self._store, peer.name, quota.QUOTA_TOPIC)

    async def _begin_anew(self, peer: Peer, noted: Write, *, whole: bool = False) -> None:
        cursor, known = await self.cursor(peer)
        if cursor is None:
            return
        again = Cursor(cursor.feed, 0, whole=whole or cursor.whole)
        with contextlib.suppress(Conflict):
            await self._store.commit(
                [noted, PutRegister(cursor_key(peer.name), again._asdict(), known and known.revision)]
            )


def _doubted_key(peer: Peer) -> str:
    return peer_key(peer.name, "doubted")
