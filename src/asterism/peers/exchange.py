"""The exchange: both sides of a sync between two stores, independent of the transport.

In a sync each store sends what is new since the last one, until neither has anything left. Changes during the sync are
left to the next one, or a sync under steady load would not end.

The client sends a message and the server answers; both have the same fields (messages.py): the id and the clock of the
store, its cursor in the other's feed, new records, and in the first message its devices. The cursor
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
import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple, Protocol

from asterism.core.errors import AsterismError
from asterism.core.json_values import JsonObject
from asterism.core.run.session import OPEN
from asterism.execution.task_inputs import call_apart
from asterism.fleet.device.membership import store_identity
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import blob_of
from asterism.fleet.monitor import Monitor
from asterism.peers import forgotten_runs, peer_notices, remote_devices
from asterism.peers.ingest import Ingest, IngestResult, ingestible_part, read_cursor
from asterism.peers.messages import (
    MAX_BLOBS_WANTED,
    MAX_REASON_CHARS,
    MAX_REASONS,
    PROTOCOL,
    Cursor,
    Message,
    is_blob_name,
    parse_message,
)
from asterism.peers.outgoing import Outgoing, OutgoingBatch
from asterism.peers.registry import Peer, PeerRefused, PeerRegistry
from asterism.store.dump_format import blob_sizes
from asterism.store.protocol import Notice, feed_of

log = logging.getLogger("asterism.peers")

MAX_CLOCK_SKEW = 60.0
"""How many seconds two clocks may differ before a notice is given."""

MAX_STALLED_ROUNDS = 3
"""After how many rounds without progress a sync ends."""

MAX_RESTARTS = 2
"""How often a sync may restart from the beginning: one store was rolled back, or both were."""

MAX_ROUNDS = 10_000
"""After how many rounds a sync ends in any case."""

MAX_REPORTED_REASONS = 20
"""How many of the peer's reasons for refusals a result contains."""

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


@dataclass(frozen=True, slots=True)
class SyncResult:
    """``lost`` has the reason for each run that a device here lost; ``skew`` is how many seconds the peer's clock is
    ahead of ours; ``refused_there`` has the peer's reasons for refusing records of ours, up to a limit; ``closed`` has
    the reasons for copies that were closed; ``put_back`` says which store was rolled back, "here" or "there"."""

    sent: int = 0
    taken: int = 0
    refused: int = 0
    lost: tuple[str, ...] = ()
    skew: float = 0.0
    refused_there: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()
    put_back: str | None = None


@dataclass(slots=True)
class SyncProgress:
    """The state of a sync. ``upto`` is the last change of our feed that this sync sends; ``peer_feed`` and
    ``peer_newest`` are the peer's feed and its last change when the sync began. ``sent_upto`` and ``received_upto`` are
    the furthest positions so far. ``stalled`` if the sync ended before everything was exchanged."""

    upto: int
    sent: int = 0
    skew: float = 0.0
    ingested: IngestResult = field(default_factory=IngestResult)
    refused_there: int = 0
    reasons: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    put_back: str | None = None
    peer_feed: str = ""
    peer_newest: int = 0
    sent_upto: int = -1
    received_upto: int = -1
    stalled_rounds: int = 0
    rounds: int = 0
    restarts: int = 0
    stalled: bool = False

    def count_refusals(self, answer: Message) -> None:
        self.refused_there += answer.refused
        self.reasons += list(answer.reasons)[: max(0, MAX_REPORTED_REASONS - len(self.reasons))]

    def note_restart(self, batch: OutgoingBatch, answer: Message) -> None:
        """Let positions start again if either side sends everything anew. The number of restarts is limited, since a
        peer may claim one with every message."""
        if batch.anew or answer.anew:
            self.restarts += 1
            if self.restarts <= MAX_RESTARTS:
                self.sent_upto = self.received_upto = -1
        if batch.put_back or answer.put_back:
            self.put_back = "here" if batch.put_back else "there"

    def is_stalled(self, sent_upto: int, received_upto: int, helped: bool) -> bool:
        """Whether to end the sync: for several rounds neither side got further than before in this sync or received a
        blob it lacked (``helped``), or there were too many rounds."""
        further = sent_upto > self.sent_upto or received_upto > self.received_upto
        self.sent_upto = max(sent_upto, self.sent_upto)
        self.received_upto = max(received_upto, self.received_upto)
        self.stalled_rounds = 0 if further or helped else self.stalled_rounds + 1
        self.rounds += 1
        self.stalled = self.stalled_rounds >= MAX_STALLED_ROUNDS or self.rounds >= MAX_ROUNDS
        return self.stalled

    def result(self) -> SyncResult:
        more = self.refused_there - len(self.reasons)
        rest = [f"{more} more, without a reason" if self.reasons else f"{more}, without a reason"]
        return SyncResult(
            sent=self.sent,
            taken=self.ingested.taken,
            refused=self.ingested.refused,
            lost=tuple(self.ingested.lost),
            skew=self.skew,
            refused_there=tuple(self.reasons + (rest if more > 0 else [])),
            closed=tuple(self.closed),
            put_back=self.put_back,
        )


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
        # the blobs that each peer was asked for: their sizes, and whether they are inputs
        self._requested_blobs: dict[str, dict[str, tuple[int, bool]]] = {}

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
        devices: Any = await remote_devices.announced_devices(self.fleet.store, known)
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
            unavailable = await self._fetch_missing(known, answer, transport)
            progress.ingested.add(await ingest.ingest(known, answer, unavailable))
            progress.count_refusals(answer)
            progress.note_restart(batch, answer)
            cursor = answer.cursor or Cursor(feed, 0)
            progress.sent += len(batch.records) if before != cursor else 0
            self._peer_cursors[peer] = cursor
            sent_blobs.update(answer.wants.keys())
            lacks = await self._send_wanted(answer.wants, transport, sent_blobs)
            own, _ = await read_cursor(self.fleet.store, known)
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
        progress.ingested.refused += await remote_devices.store_announcement(self.fleet.store, known, answer.devices)
        progress.skew, progress.peer_feed, progress.peer_newest = known.skew or 0.0, answer.feed, answer.newest
        if await self._assign_waiting():
            progress.upto = await (await self._open()).outgoing.newest()
        return known

    async def _fetch_missing(self, peer: Peer, message: Message, transport: Transport) -> frozenset[str]:
        """Fetch the blobs that this store lacks. Returns those that are unavailable."""
        unavailable = set()
        missing = await (await self._open()).ingest.missing_blobs(peer, message)
        needed = {name: run for run, names in missing for name in names}
        for name in sorted(needed):
            try:
                data = await transport.fetch_blob(name, needed[name])
                await self._keep_blob(name, data, is_input=name in _input_blobs(message))
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

    async def answer(self, peer: str, message: Mapping[str, Any]) -> JsonObject:
        """Answer a message of ``peer``, which the connection has authenticated. Raises PeerRefused."""
        _, feed, outgoing, ingest = await self._open()
        received = parse_message(message)
        known = await self.peers.get(peer)
        devices: Any = None
        if received.devices is not None or known.store is None:
            known = await self._record_contact(peer, received, self.fleet.store.clock())
            await remote_devices.store_announcement(self.fleet.store, known, received.devices or [])
            await self._assign_waiting()
            devices = await remote_devices.announced_devices(self.fleet.store, known)
        self._check_sender(known, received)
        missing = await ingest.missing_blobs(known, received)
        complete, wants = ingestible_part(received, missing)
        ingested = await ingest.ingest(known, complete, received.lacks)
        for reason in ingested.lost:
            log.warning("%s", reason)
        before = self._requested_blobs.get(peer, {})  # perhaps of another message that is answered at the same time
        inputs = _input_blobs(received)
        requested = {name: (size, name in inputs) for name, size in wants.items()}
        self._requested_blobs[peer] = before | requested if len(before) < MAX_BLOBS_WANTED else requested
        batch = await outgoing.next_batch(known, received.cursor or Cursor(feed, 0))
        if received.anew or batch.anew:
            await self._forgotten_runs.reset(known)
        answer = await self._message(known, batch, devices, wants=wants)
        reasons = await peer_notices.refusal_reasons(self.fleet.store, peer, complete.items, ingested.refused)
        if ingested.quota_exceeded is not None:
            reasons = [ingested.quota_exceeded[:MAX_REASON_CHARS], *reasons][:MAX_REASONS]
        answer |= {"refused": ingested.refused, "reasons": reasons}
        return answer if received.asks is None else answer | await self._answer_questions(known, received)

    async def _answer_questions(self, peer: Peer, received: Message) -> JsonObject:
        """The runs that this store does not know, and our own questions."""
        for reason in await self._forgotten_runs.close_unknown(peer, received.unknown):
            log.warning("%s", reason)
        unknown = await self._forgotten_runs.unknown_here(received.asks or ())
        return {"unknown": unknown, "asks": await self._forgotten_runs.next_runs(peer)}

    async def read_blob(self, peer: str, blob: str, run: str) -> bytes | None:
        """The blob for GET /v1/blobs/NAME; None if it is not stored here, or ``run`` does not refer to it."""
        await self.peers.get(peer)
        record = await self.fleet.store.run(run) if is_blob_name(blob) else None
        return await self.fleet.store.blob(blob) if record is not None and blob in blob_sizes(record) else None

    def wanted_size(self, peer: str, blob: str) -> int:
        """The size of a blob that a peer was asked for. Raises PeerRefused if it was not."""
        return self._requested(peer, blob)[0]

    def _requested(self, peer: str, blob: str) -> tuple[int, bool]:
        requested = self._requested_blobs.get(peer, {}).get(blob)
        if requested is None:
            raise PeerRefused("this store did not ask for this blob")
        return requested

    async def receive_blob(self, peer: str, blob: str, data: bytes) -> None:
        """Store the blob of PUT /v1/blobs/NAME. Raises PeerRefused if its name is not the hash of its bytes, if it is
        too large, or if the peer was not asked for it."""
        await self.peers.get(peer)
        _, is_input = self._requested(peer, blob)
        await self._keep_blob(blob, data, is_input=is_input)
        self._requested_blobs[peer].pop(blob, None)

    # -- both sides --------------------------------------------------------------------------------------------------

    async def _open(self) -> _Endpoint:
        if self._endpoint is None:
            store = await store_identity(self.fleet.store, self.fleet.clock)
            feed = await feed_of(self.fleet.store).start_feed()
            outgoing, ingest = Outgoing(self.fleet, store, feed), Ingest(self.fleet, store)
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
    ) -> JsonObject:
        store, feed, outgoing, _ = await self._open()
        cursor, _ = await read_cursor(self.fleet.store, peer)
        newest = await outgoing.newest()
        return {
            "protocol": PROTOCOL,
            "store": store,
            "clock": self.fleet.store.clock(),
            "feed": feed,
            "cursor": None if cursor is None else cursor._asdict(),
            "newest": newest,
            **{field.name: getattr(batch, field.name) for field in fields(batch)},
            "devices": devices,
            "wants": dict(wants or {}),
            "lacks": sorted(lacks),
        }

    async def _assign_waiting(self) -> bool:
        """Assign waiting runs if no monitor does: none is elected, and no device is there to be. Returns whether it
        did."""
        now = self.fleet.store.clock()
        reachable = [
            session for session in await self.fleet.store.sessions() if session.state == OPEN and session.reachable(now)
        ]
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
        await endpoint.ingest.replay.request(await self.peers.bind(peer, message.store))
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

    async def _keep_blob(self, name: str, data: bytes, *, is_input: bool) -> None:
        """Store a blob of a peer. The limit is that of a value; an input may have several. Raises PeerRefused."""
        settings = await self.fleet.settings()
        if len(data) > settings.largest_blob:
            raise PeerRefused(f"it has {len(data):,} bytes, and this fleet takes {settings.largest_blob:,} at most")
        size = await call_apart(_largest_result, data) if is_input and len(data) > settings.most else len(data)
        if size > settings.most:
            raise PeerRefused(f"it has {size:,} bytes, and the limit of this fleet is {settings.most:,}")
        if hashlib.sha256(data).hexdigest() != name:
            raise PeerRefused("its name is not the hash of its bytes")
        await self.fleet.store.put_blob(data)


def _input_blobs(message: Message) -> set[str | None]:
    """The blobs that are inputs of runs, not results."""
    return {blob_of(item.run.input) for item in message.items if item.run is not None}


def _largest_result(data: bytes) -> int:
    """The size of the largest result in an input, as JSON; that of the whole if it is no object."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return len(data)
    if not isinstance(value, dict):
        return len(data)
    return max((len(json.dumps(part, separators=(",", ":"))) for part in value.values()), default=0)
