"""Replay requests: ask a peer to send everything again when something it sent may be accepted now.

- Its record about a session of ours was not believed, and that session is over now (trust.py).
- Its storage quota was exceeded, and there is room again (quota.py).
"""

from __future__ import annotations

from asterism.core.run.session import OPEN
from asterism.fleet.fleet import Fleet
from asterism.peers import peer_notices, quota
from asterism.peers.messages import Cursor
from asterism.peers.registry import Peer, cursor_key, peer_key
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import PutRegister, Register, Write, feed_of

MAX_DOUBTED_SESSIONS = 20
"""How many sessions of ours are remembered about which a peer was not believed."""


class ReplayRequests:
    """Cursors in the feeds of peers of the store of ``fleet``, and reasons to reset them."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._store, self._feed = fleet, fleet.store, feed_of(fleet.store)

    async def cursor(self, peer: Peer) -> tuple[Cursor | None, Register | None]:
        """Our position in the feed of a peer."""
        found = await self._store.register(cursor_key(peer.name))
        if found is None or not found.value:
            return None, found
        return Cursor(**{name: value for name, value in found.value.items() if name in Cursor._fields}), found

    async def reason_writes(self, peer: Peer, doubted: set[str], used: quota.Quota) -> list[Write]:
        """The writes that remember the sessions about which the peer was not believed, and an exceeded quota."""
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
        """Reset our cursor in the feed of a peer if there is a reason. If another process moves the cursor at the same
        moment, the next sync tries again."""
        await self._after_ended_session(peer)
        await self._after_freed_quota(peer)

    async def _after_ended_session(self, peer: Peer) -> None:
        """The peer also has to send what it received from us: its records about the ended session can be used now."""
        found = await self._store.register(_doubted_key(peer))
        doubted = list(found.value.get("sessions", ())) if found is not None else []
        if found is None or not doubted:
            return
        open_ids = {one.id for one in await self._store.sessions() if one.state == OPEN}
        still_open = [one for one in doubted if one in open_ids]
        if len(still_open) < len(doubted):
            await self._reset(peer, PutRegister(found.key, {"sessions": still_open}, found.revision), whole=True)

    async def _after_freed_quota(self, peer: Peer) -> None:
        found = await self._store.register(quota.quota_key(peer))
        if found is None or not found.value:
            return
        limits = quota.quota_limits(await self._fleet.settings())
        now = quota.Quota(peer, await self._feed.usage(peer.store or ""), limits)
        if quota.has_grown(found.value["room"], now, limits):
            await self._reset(peer, PutRegister(found.key, {}, found.revision))
            await peer_notices.clear_topic(self._store, peer.name, quota.QUOTA_TOPIC)

    async def _reset(self, peer: Peer, reason: Write, *, whole: bool = False) -> None:
        cursor, known = await self.cursor(peer)
        if cursor is None:
            return
        start = Cursor(cursor.feed, 0, whole=whole or cursor.whole)
        await try_commit(
            self._store, [reason, PutRegister(cursor_key(peer.name), start._asdict(), known and known.revision)]
        )


def _doubted_key(peer: Peer) -> str:
    return peer_key(peer.name, "doubted")
