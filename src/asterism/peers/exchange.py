"""The exchange: both sides of a sync between two stores, apart from the connection.

In a sync each store sends what is new since the last one, until neither has anything left. Changes during the sync are
left to the next one, or a sync under steady load would not end.

The client sends a message and the server answers; both have the same fields (messages.py): the id and the clock of the
store, its cursor in the other's feed, new records and their workflows, and in the first message its devices. The cursor
is stored with the records that were ingested, so a sync can break off anywhere, and the next one continues there. A
message that arrives twice changes nothing. A message that arrives after a lost one is ignored: the answer says where to
continue.

The connection authenticates the peer; a message cannot claim to be from another one. The id of the peer's store is
bound at the first contact.

The client learns how many of its records were refused, and the first reasons. In a store without a reachable device no
monitor assigns waiting runs, so the exchange does it once a peer has announced its devices.

A blob arrives before the record that refers to it, and only if the record will be ingested: the client fetches the
blobs it lacks; the server ingests the records before the first missing blob, lists what it wants, and receives it
before the next message.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from asterism.core.errors import AsterismError, InvalidWorkflow, NotJson
from asterism.core.run.session import OPEN
from asterism.core.run.workflow import Workflow
from asterism.fleet.device.membership import store_identity
from asterism.fleet.fleet import Fleet
from asterism.fleet.monitor import Monitor
from asterism.fleet.workflows import without_rules
from asterism.peers import forgotten_runs, peer_notices, remote_devices
from asterism.peers.ingest import Ingest, IngestResult
from asterism.peers.messages import (
    MAX_BLOBS_WANTED,
    MAX_REASON_CHARS,
    MAX_REASONS,
    PROTOCOL,
    Cursor,
    Message,
    is_blob_name,
    parse_message,
    printable,
)
from asterism.peers.outgoing import Outgoing, OutgoingBatch
from asterism.peers.registry import Peer, PeerRefused, PeerRegistry
from asterism.peers.sync_progress import MAX_STALLED_ROUNDS, SyncProgress, SyncResult
from asterism.store.dump_format import blob_sizes
from asterism.store.protocol import Notice, feed_of

log = logging.getLogger("asterism.peers")

MAX_CLOCK_SKEW = 60.0
"""How many seconds two clocks may differ before a notice is given."""

MAX_QUESTION_ROUNDS = 20
"""How many messages of one sync ask about copies of runs."""


class PeerUnreachable(AsterismError):
    """The peer does not answer."""


class Transport(Protocol):
    """A connection to a peer. Each method raises PeerUnreachable if there is no answer, and PeerRefused if the peer
    refuses the request."""

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]: ...

    async def fetch_blob(self, blob: str, run: str) -> bytes: ...

    async def send_blob(self, blob: str, data: bytes) -> None: ...


class _Endpoint(NamedTuple):
    """Our end of all syncs: the ids of our store and of its feed, and both directions."""

    store: str
    feed: str
    outgoing: Outgoing
    ingest: Ingest


class Exchange:
    """Syncs between a fleet's store and its ``peers``. ``check_interval`` is the seconds between two checks of a peer
    for forgotten runs."""

    def __init__(self, fleet: Fleet, *, check_interval: float = forgotten_runs.CHECK_INTERVAL) -> None:
        self.fleet, self.peers = fleet, PeerRegistry(fleet.store)
        self._endpoint: _Endpoint | None = None
        self._forgotten_runs = forgotten_runs.ForgottenRunCheck(fleet, check_interval)
        self._monitor = Monitor(fleet, fleet.by)  # assigns waiting runs while no other monitor does
        self._peer_cursors: dict[str, Cursor] = {}  # the last cursor of each peer in our feed
        self._requested_blobs: dict[str, dict[str, int]] = {}  # the blobs each peer was asked for, with their sizes

    # -- the client --------------------------------------------------------------------------------------------------

    async def sync(self, peer: str, transport: Transport) -> SyncResult:
        """Sync with a peer as the client. Raises UnknownPeer, PeerRefused, and what ``transport`` raises."""
        progress = SyncProgress(await (await self._open()).outgoing.newest())
        known = await self._exchange_records(peer, transport, progress)
        if progress.restarts:
            await self._forgotten_runs.reset(known)
        if not progress.stalled and self._forgotten_runs.is_due(known):
            await self._ask_about_copies(known, transport, progress)
        return progress.result()

    async def _exchange_records(self, peer: str, transport: Transport, progress: SyncProgress) -> Peer:
        _, feed, outgoing, ingest = await self._open()
        known = await self.peers.get(peer)
        if peer in self._peer_cursors and not await outgoing.accepts(known, self._peer_cursors[peer]):
            del self._peer_cursors[peer]  # another process synced with it, or it was invited again: it says where it is
        lacks: frozenset[str] = frozenset()
        sent_blobs: Counter[str] = Counter()
        devices: Any = await remote_devices.own_devices(self.fleet.store)
        while True:
            before = self._peer_cursors.get(peer)
            batch = await outgoing.next_batch(known, before) if before is not None else OutgoingBatch()
            message = await self._message(known, batch, devices, lacks=lacks)
            sent_at = self.fleet.store.clock()
            answer = parse_message(await transport.send(message))
            if devices is not None:
                known = await self._handle_greeting(peer, answer, (sent_at + self.fleet.store.clock()) / 2, progress)
                devices = None
            self._check_sender(known, answer)
            progress.ingested.add(
                await self._ingest(known, answer, await self._fetch_missing(known, answer, transport))
            )
            progress.count_refusals(answer)
            progress.note_restart(batch, answer)
            cursor = answer.cursor or Cursor(feed, 0)
            progress.sent += len(batch.records) if before != cursor else 0
            self._peer_cursors[peer] = cursor
            sent_blobs.update(answer.wants.keys())
            lacks = await self._send_wanted(answer.wants, transport, sent_blobs)
            own, _ = await ingest.cursor(known)
            received_upto = own.number if own is not None and own.feed == progress.peer_feed else -1
            idle = not answer.items and not answer.more
            all_received = idle or received_upto >= progress.peer_newest
            if all_received and not answer.wants and not await outgoing.is_behind(known, cursor, progress.upto):
                return known
            sent_upto = min(cursor.number, await outgoing.newest()) if cursor.feed == feed else -1
            if progress.is_stalled(sent_upto, received_upto, bool(set(answer.wants) - lacks)):
                log.warning("the sync with peer %s makes no progress and ends", peer)
                return known

    async def _ask_about_copies(self, known: Peer, transport: Transport, progress: SyncProgress) -> None:
        """Ask whether the peer still knows the runs that are left to it; it asks the same (forgotten_runs.py)."""
        unknown: list[str] = []
        asks = await self._forgotten_runs.next_runs(known)
        for _ in range(MAX_QUESTION_ROUNDS):
            message = await self._message(known, OutgoingBatch())
            answer = parse_message(await transport.send(message | {"asks": asks, "unknown": unknown}))
            self._check_sender(known, answer)
            progress.closed += await self._forgotten_runs.close_unknown(known, answer.unknown)
            unknown = await self._forgotten_runs.unknown_here(answer.asks or ())
            if not asks and not answer.asks:
                return
            asks = await self._forgotten_runs.next_runs(known) if asks else []

    async def _handle_greeting(self, peer: str, answer: Message, now: float, progress: SyncProgress) -> Peer:
        """Handle what only the first answer of a sync contains."""
        known = await self._record_contact(peer, answer, now)
        progress.ingested.refused += await remote_devices.store_announcement(self.fleet.store, peer, answer.devices)
        progress.skew, progress.peer_feed, progress.peer_newest = known.skew or 0.0, answer.feed, answer.newest
        if await self._assign_waiting():
            progress.upto = await (await self._open()).outgoing.newest()
        return known

    async def _fetch_missing(self, peer: Peer, message: Message, transport: Transport) -> frozenset[str]:
        """Fetch the blobs that this store lacks. Returns those that are unavailable."""
        unavailable = set()
        needed = {name: run for run, names in await self._missing_blobs(peer, message) for name in names}
        for name in sorted(needed):
            try:
                await self._keep_blob(name, await transport.fetch_blob(name, needed[name]))
            except PeerRefused as error:
                log.warning("cannot fetch blob %s: %s", name, error)
                unavailable.add(name)
        return frozenset(unavailable)

    async def _send_wanted(
        self, wanted: Mapping[str, int], transport: Transport, sent_blobs: Counter[str]
    ) -> frozenset[str]:
        """Send the blobs that the other side lacks. Returns those that this store lacks as well, and those that the
        peer wants again after several tries: it may have forgotten its request, or find the blob too large."""
        lacks = set()
        for name in sorted(wanted):
            data = await self.fleet.store.blob(name)
            if data is None or len(data) != wanted[name] or sent_blobs[name] > MAX_STALLED_ROUNDS:
                lacks.add(name)
                continue
            try:
                await transport.send_blob(name, data)
            except PeerRefused as error:
                log.warning("blob %s was refused: %s", name, error)
        return frozenset(lacks)

    # -- the server --------------------------------------------------------------------------------------------------

    async def answer(self, peer: str, message: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a message of ``peer``, which the connection has authenticated. Raises PeerRefused."""
        _, feed, outgoing, _ = await self._open()
        received = parse_message(message)
        known = await self.peers.get(peer)
        devices: Any = None
        if received.devices is not None or known.store is None:
            known = await self._record_contact(peer, received, self.fleet.store.clock())
            await remote_devices.store_announcement(self.fleet.store, peer, received.devices or [])
            await self._assign_waiting()
            devices = await remote_devices.own_devices(self.fleet.store)
        self._check_sender(known, received)
        complete, wants = await self._ingestible_part(known, received)
        ingested = await self._ingest(known, complete, received.lacks)
        for reason in ingested.lost:
            log.warning("%s", reason)
        before = self._requested_blobs.get(peer, {})  # perhaps of another message that is answered at the same time
        self._requested_blobs[peer] = before | wants if len(before) < MAX_BLOBS_WANTED else wants
        batch = await outgoing.next_batch(known, received.cursor or Cursor(feed, 0))
        if received.anew or batch.anew:
            await self._forgotten_runs.reset(known)
        answer = await self._message(known, batch, devices, wants=wants)
        reasons = await peer_notices.refusal_reasons(self.fleet.store, peer, complete.items, ingested.refused)
        if ingested.quota_exceeded is not None:
            reasons = [ingested.quota_exceeded[:MAX_REASON_CHARS], *reasons][:MAX_REASONS]
        answer |= {"refused": ingested.refused, "reasons": reasons}
        return answer if received.asks is None else answer | await self._answer_questions(known, received)

    async def _answer_questions(self, peer: Peer, received: Message) -> dict[str, Any]:
        """The runs that this store does not know, and our own questions."""
        for reason in await self._forgotten_runs.close_unknown(peer, received.unknown):
            log.warning("%s", reason)
        unknown = await self._forgotten_runs.unknown_here(received.asks or ())
        return {"unknown": unknown, "asks": await self._forgotten_runs.next_runs(peer)}

    async def _ingestible_part(self, peer: Peer, received: Message) -> tuple[Message, dict[str, int]]:
        """The message up to the first record with a missing blob, and the blobs to ask for, with their sizes."""
        missing = [(run, names - received.lacks) for run, names in await self._missing_blobs(peer, received)]
        first = next((place for place, (_, names) in enumerate(missing) if names), None)
        if first is None:
            return received, {}
        upto = received.items[first - 1].number if first else received.after
        part = replace(received, items=received.items[:first], upto=upto, more=True)
        names = sorted(set().union(*(names for _, names in missing)))[:MAX_BLOBS_WANTED]
        sizes = {name: size for item in received.items if item.run for name, size in blob_sizes(item.run).items()}
        return part, {name: sizes[name] for name in names}

    async def read_blob(self, peer: str, blob: str, run: str) -> bytes | None:
        """The blob for GET /v1/blobs/NAME; None if it is not stored here, or ``run`` does not refer to it."""
        await self.peers.get(peer)
        found = await self.fleet.store.run(run) if is_blob_name(blob) else None
        return await self.fleet.store.blob(blob) if found is not None and blob in blob_sizes(found) else None

    def wanted_size(self, peer: str, blob: str) -> int:
        """The size of a blob that a peer was asked for. Raises PeerRefused if it was not."""
        size = self._requested_blobs.get(peer, {}).get(blob)
        if size is None:
            raise PeerRefused("this store did not ask for this blob")
        return size

    async def receive_blob(self, peer: str, blob: str, data: bytes) -> None:
        """Store the blob of PUT /v1/blobs/NAME. Raises PeerRefused if its name is not the hash of its bytes, if it is
        too large, or if the peer was not asked for it."""
        await self.peers.get(peer)
        self.wanted_size(peer, blob)
        await self._keep_blob(blob, data)
        self._requested_blobs[peer].pop(blob, None)

    # -- both sides --------------------------------------------------------------------------------------------------

    async def _open(self) -> _Endpoint:
        if self._endpoint is None:
            store = await store_identity(self.fleet.store, self.fleet.clock)
            feed = await feed_of(self.fleet.store).start_feed()
            outgoing, ingest = Outgoing(self.fleet, store, feed), Ingest(self.fleet, self.peers, store)
            self._endpoint = _Endpoint(store, feed, outgoing, ingest)
        return self._endpoint

    async def _message(
        self,
        peer: Peer,
        batch: OutgoingBatch,
        devices: Any = None,
        *,
        wants: Mapping[str, int] | None = None,
        lacks: frozenset[str] = frozenset(),
    ) -> dict[str, Any]:
        store, feed, outgoing, ingest = await self._open()
        cursor, _ = await ingest.cursor(peer)
        newest = await outgoing.newest()
        return {
            "protocol": PROTOCOL,
            "store": store,
            "clock": self.fleet.store.clock(),
            "feed": feed,
            "cursor": None if cursor is None else cursor._asdict(),
            "after": batch.after,
            "upto": batch.upto,
            "turn": batch.turn,
            "mark": batch.mark,
            "anew": batch.anew,
            "put_back": batch.put_back,
            "whole": batch.whole,
            "more": batch.more,
            "newest": newest,
            "records": batch.records,
            "workflows": batch.workflows,
            "devices": devices,
            "wants": dict(wants or {}),
            "lacks": sorted(lacks),
        }

    async def _assign_waiting(self) -> bool:
        """Assign waiting runs if no monitor does: none is elected, and no device is there to be. Returns whether it
        did."""
        now = self.fleet.store.clock()
        reachable = [one for one in await self.fleet.store.sessions() if one.state == OPEN and one.reachable(now)]
        if reachable or await self.fleet.coordinator() is not None:
            return False
        try:
            await self._monitor.assign_waiting(await self.fleet.placer(fresh=True))
        except AsterismError as error:  # assignments can wait, the sync cannot
            log.warning("waiting runs could not be assigned: %s", error)
        return True

    async def _record_contact(self, peer: str, message: Message, now: float) -> Peer:
        """Bind a new peer to its store, note the contact, and compare the clocks."""
        endpoint = await self._open()
        if message.store == endpoint.store:
            raise PeerRefused(
                f"peer {peer} is a copy of this store and has the same id: restore the copy from a backup, which gives "
                "it an id of its own"
            )
        await endpoint.ingest.request_replay(await self.peers.bind(peer, message.store))
        skew, store = message.clock - now, self.fleet.store
        if abs(skew) > MAX_CLOCK_SKEW:
            text = f"the clock of peer {peer} is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} ours"
            await peer_notices.notify_once(store, peer, Notice(store.clock(), "clock", text), "skew")
        else:
            await peer_notices.clear_topic(store, peer, "skew")
        return await self.peers.record_contact(peer, skew)

    def _check_sender(self, peer: Peer, message: Message) -> None:
        if message.store != peer.store:
            raise PeerRefused(f"peer {peer.name} is store {(peer.store or '?')[:8]}…, but the message is from another")

    async def _ingest(self, peer: Peer, message: Message, unavailable: frozenset[str]) -> IngestResult:
        ingest = (await self._open()).ingest
        cursor, known = await ingest.cursor(peer)
        number = cursor.number if cursor is not None and cursor.feed == message.feed else 0
        anew = message.anew and message.after == 0
        if message.after > number:
            return IngestResult()  # a message was lost: our cursor says where to continue
        if not message.items and not anew and (message.upto <= message.after or message.upto <= number):
            return IngestResult()
        if message.put_back:
            await peer_notices.notify_peer_rollback(self.fleet.store, peer.name)
        flows = await self._workflows_in(message)
        further = message.upto > number or anew or cursor is None or cursor.feed != message.feed
        reached = Cursor(message.feed, message.upto, message.turn, message.mark) if further else cursor
        assert reached is not None
        if cursor is not None and cursor.whole:
            # until everything was sent with the records that came from us: what came without them is sent again
            reached = reached._replace(whole=message.more) if message.whole else cursor
        return await ingest.ingest(peer, message.items, reached, known, flows, unavailable)

    async def _workflows_in(self, message: Message) -> dict[str, Workflow | str]:
        """The workflows of the message that its runs need, by kind; or why one is refused."""
        needed = {item.run.kind for item in message.items if item.run is not None}
        found: dict[str, Workflow | str] = {}
        for data in message.workflows:
            try:
                flow = without_rules(Workflow.from_json(data))
                kind = f"{flow.name}@{flow.version}"
                if kind in needed:
                    found[kind] = await self.fleet.workflows.objection(flow) or flow
            except (InvalidWorkflow, NotJson, TypeError, ValueError, RecursionError) as error:
                log.warning("a workflow of a peer is invalid: %s", printable(str(error), MAX_REASON_CHARS))
        return found

    async def _missing_blobs(self, peer: Peer, message: Message) -> list[tuple[str, set[str]]]:
        """For each record the run, and the blobs that this store lacks; none for a record that will not be ingested."""
        ingest = (await self._open()).ingest
        if not any(True for item in message.items if item.run is not None for _ in blob_sizes(item.run)):
            return []
        needed = await ingest.needed_blobs(peer, message.items, await self._workflows_in(message))
        runs = [item.run_id or "" for item in message.items]
        return [
            (run, {name for name in sorted(names) if await self.fleet.store.blob(name) is None})
            for run, names in zip(runs, needed, strict=True)
        ]

    async def _keep_blob(self, name: str, data: bytes) -> None:
        most = (await self.fleet.settings()).most
        if len(data) > most:
            raise PeerRefused(f"it has {len(data):,} bytes, and the limit of this fleet is {most:,}")
        if hashlib.sha256(data).hexdigest() != name:
            raise PeerRefused("its name is not the hash of its bytes")
        await self.fleet.store.put_blob(data)
