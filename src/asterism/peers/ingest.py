"""Ingest: writes the records of a peer; asks for all of them again when refused ones may be accepted now.

The records of a batch and our cursor in the peer's feed are one commit. If another process writes one of them
meanwhile, the whole batch is decided again (record_decisions.py). A record that touches a series has a commit of its
own, before that one. A batch that is ingested twice changes nothing the second time.

A peer is asked to send everything again when something it sent may be accepted now:

- Its record about a session of ours was not believed, and that session is over now (record_decisions.py).
- Its storage quota was exceeded, and there is room again (storage_limits.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from asterism.core.errors import AsterismError
from asterism.core.run.session import OPEN
from asterism.fleet.fleet import Fleet
from asterism.peers import peer_notices
from asterism.peers.messages import MAX_BLOBS_WANTED, Cursor, IncomingRecord, Message
from asterism.peers.record_decisions import BatchDecisions, Decision
from asterism.peers.registry import Peer, cursor_key, peer_key
from asterism.peers.storage_limits import QUOTA_TOPIC, Quota, has_grown, quota_key, quota_limits
from asterism.store.dump_format import blob_sizes
from asterism.store.optimistic_update import try_commit
from asterism.store.protocol import Notice, Slot, Store, Write, feed_of, read_slot
from asterism.store.store_errors import Conflict

log = logging.getLogger("asterism.peers")

BATCH_TRIES = 5
"""After how many tries of a whole batch its records are written one by one."""

MAX_DOUBTED_SESSIONS = 20
"""How many sessions of ours are remembered about which a peer was not believed."""


@dataclass(slots=True)
class IngestResult:
    """The result of a batch: how many records were news and how many were refused, and the reason for each run that was
    lost here. ``quota_exceeded`` is set if records were refused because of the sender's quota."""

    taken: int = 0
    refused: int = 0
    lost: list[str] = field(default_factory=list)
    quota_exceeded: str | None = None

    def add(self, other: IngestResult) -> None:
        self.taken += other.taken
        self.refused += other.refused
        self.lost += other.lost
        self.quota_exceeded = self.quota_exceeded or other.quota_exceeded

    def count(self, decision: Decision) -> None:
        self.taken += decision.taken
        self.refused += decision.refused
        self.lost += [decision.lost] if decision.lost is not None else []


async def read_cursor(store: Store, peer: Peer) -> tuple[Cursor | None, Slot]:
    """Our position in the feed of a peer, and the place of its register."""
    slot = await read_slot(store, cursor_key(peer.name))
    if not slot.value:
        return None, slot
    return Cursor(**{name: value for name, value in slot.value.items() if name in Cursor._fields}), slot


class Ingest:
    """Ingests records into the store of ``fleet``, whose id is ``own``."""

    def __init__(self, fleet: Fleet, own: str) -> None:
        self._fleet, self._store, self._own = fleet, fleet.store, own
        self.replay = ReplayRequests(fleet)

    async def ingest(self, peer: Peer, message: Message, unavailable: frozenset[str]) -> IngestResult:
        """Ingest the records of a message, except those that refer to one of the ``unavailable`` blobs."""
        cursor, known = await read_cursor(self._store, peer)
        number = cursor.number if cursor is not None and cursor.feed == message.feed else 0
        anew = message.anew and message.after == 0
        if message.after > number:
            return IngestResult()  # a message was lost: our cursor says where to continue
        if not message.items and not anew and (message.upto <= message.after or message.upto <= number):
            return IngestResult()
        if message.put_back:
            await peer_notices.notify_peer_rollback(self._store, peer.name)
        further = message.upto > number or anew or cursor is None or cursor.feed != message.feed
        reached = Cursor(message.feed, message.upto, message.turn, message.mark) if further else cursor
        assert reached is not None
        if cursor is not None and cursor.whole:
            # until everything was sent with the records that came from us: what came without them is sent again
            reached = reached._replace(whole=message.more) if message.whole else cursor
        return await self._ingest_records(peer, message.items, reached, known, unavailable)

    async def missing_blobs(self, peer: Peer, message: Message) -> list[tuple[str, set[str]]]:
        """For each record the run, and the blobs that this store lacks; none for a record that will not be ingested."""
        if not any(True for item in message.items if item.run is not None for _ in blob_sizes(item.run)):
            return []
        batch = await BatchDecisions(self._fleet, self._own, peer, frozenset()).prepared(message.items)
        needed = [(await batch.decide(item)).blobs for item in message.items]
        runs = [item.run_id or "" for item in message.items]
        return [
            (run, {name for name in sorted(names) if await self._store.blob(name) is None})
            for run, names in zip(runs, needed, strict=True)
        ]

    async def _ingest_records(
        self,
        peer: Peer,
        items: Sequence[IncomingRecord],
        upto: Cursor,
        known: Slot,
        lacking: frozenset[str],
    ) -> IngestResult:
        """Ingest a batch, and move our cursor from the ``known`` one to ``upto``. If another process has moved the
        cursor meanwhile, the rest is left to the next message. ``lacking`` names blobs that are unavailable."""
        done = IngestResult()
        for tries in range(10 * BATCH_TRIES):
            batch = await BatchDecisions(self._fleet, self._own, peer, lacking).prepared(items)
            decisions = [await batch.decide(item) for item in items]
            cursor = known.put(upto._asdict())
            replay = await self.replay.reason_writes(peer, batch.doubted, batch.quota)
            together = decisions if tries < BATCH_TRIES else []
            try:
                for decision in decisions[len(together) :]:
                    await self._store.commit(decision.writes)
                    done.count(decision)  # a second decision about it is not news
                writes = [write for decision in together for write in decision.writes]
                await self._store.commit([cursor, *replay, *writes, *batch.refusals.writes()])
            except Conflict as conflict:
                if conflict.concerns("register", known.key):
                    return done
                log.debug("the batch is decided again: %s", conflict)
                continue
            for decision in together:
                done.count(decision)
            done.quota_exceeded = batch.quota.exceeded
            if done.quota_exceeded is not None:
                await peer_notices.notify_once(
                    self._store,
                    peer.name,
                    Notice(self._store.clock(), "refused", done.quota_exceeded),
                    QUOTA_TOPIC,
                )
            return done
        raise AsterismError(f"the records of peer {peer.name} could not be written: other processes were always faster")


def ingestible_part(received: Message, missing: Sequence[tuple[str, set[str]]]) -> tuple[Message, dict[str, int]]:
    """The message up to the first record with a missing blob, and the blobs to ask for, with their sizes. ``missing``
    has the run and the missing blobs of each record."""
    wanted = [names - received.lacks for _, names in missing]
    first = next((place for place, names in enumerate(wanted) if names), None)
    if first is None:
        return received, {}
    upto = received.items[first - 1].number if first else received.after
    part = replace(received, items=received.items[:first], upto=upto, more=True)
    names = sorted(set().union(*wanted))[:MAX_BLOBS_WANTED]
    sizes = {name: size for item in received.items if item.run for name, size in blob_sizes(item.run).items()}
    return part, {name: sizes[name] for name in names}


class ReplayRequests:
    """Resets our cursors in the feeds of peers of the store of ``fleet``, and remembers reasons to do so."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet, self._store, self._feed = fleet, fleet.store, feed_of(fleet.store)

    async def reason_writes(self, peer: Peer, doubted: set[str], used: Quota) -> list[Write]:
        """The writes that remember the sessions about which the peer was not believed, and an exceeded quota."""
        writes: list[Write] = []
        if doubted:
            slot = await read_slot(self._store, _doubted_key(peer), {})
            known = slot.value.get("sessions", ())
            after = [*known, *sorted(doubted.difference(known))][-MAX_DOUBTED_SESSIONS:]
            writes.append(slot.put({"sessions": after}))
        if used.exceeded is not None:
            slot = await read_slot(self._store, quota_key(peer))
            writes.append(slot.put({"room": used.remaining()}))
        return writes

    async def request(self, peer: Peer) -> None:
        """Reset our cursor in the feed of a peer if there is a reason. If another process moves the cursor at the same
        moment, the next sync tries again."""
        await self._after_ended_session(peer)
        await self._after_freed_quota(peer)

    async def _after_ended_session(self, peer: Peer) -> None:
        """The peer also has to send what it received from us: its records about the ended session can be used now."""
        slot = await read_slot(self._store, _doubted_key(peer), {})
        doubted = slot.value.get("sessions", ())
        if not doubted:
            return
        open_ids = {session.id for session in await self._store.sessions() if session.state == OPEN}
        still_open = [session_id for session_id in doubted if session_id in open_ids]
        if len(still_open) < len(doubted):
            await self._reset(peer, slot.put({"sessions": still_open}), whole=True)

    async def _after_freed_quota(self, peer: Peer) -> None:
        slot = await read_slot(self._store, quota_key(peer))
        if not slot.value:
            return
        limits = quota_limits(await self._fleet.settings())
        now = Quota(peer, await self._feed.usage(peer.store or ""), limits)
        if has_grown(slot.value["room"], now, limits):
            await self._reset(peer, slot.put({}))
            await peer_notices.clear_topic(self._store, peer.name, QUOTA_TOPIC)

    async def _reset(self, peer: Peer, reason: Write, *, whole: bool = False) -> None:
        cursor, known = await read_cursor(self._store, peer)
        if cursor is None:
            return
        start = Cursor(cursor.feed, 0, whole=whole or cursor.whole)
        await try_commit(self._store, [reason, known.put(start._asdict())])


def _doubted_key(peer: Peer) -> str:
    return peer_key(peer.name, "doubted")
