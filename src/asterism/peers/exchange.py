"""One meeting of two stores: each tells what is new since they met last, until neither has anything left to say. What
happens during the meeting is for the next one, or under a steady load it would have no end.

Who calls says something, who is called answers, and both messages have the same shape: whose store it is and what its
clock says; how far it has come in the other's feed; what is new in its own, and the workflows that are needed for it;
with the first message of a meeting its devices. How far one has come is kept with what was taken, so a meeting can be
broken off anywhere and the next goes on there. A message that comes twice changes nothing, and one that comes after
another was lost is passed over: the answer says where to go on.

Who it is that speaks is known from the connection, never from the message. A store is known by its id, which is bound
at the first contact.

Who calls is told how much of what it said was refused, and the first reasons. In a store of which no device is there
nobody hands out what waits: then it is done when a peer has said which devices it has.

What is large comes before the record that refers to it, but only if the record would be taken: who calls fetches what
it lacks; who is called takes the records before that, says what it wants, and is given it before the next message.
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
"""By how many seconds two clocks may differ before it is said."""

MAX_QUESTION_ROUNDS = 20
"""How often the two ask each other in one meeting what they still know."""


class PeerUnreachable(AsterismError):
    """A peer does not answer just now."""


class Transport(Protocol):
    """A way to the other side. Each raises PeerUnreachable if there is no answer, and PeerRefused if the other side
    will not have it."""

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]: ...

    async def fetch_blob(self, blob: str, run: str) -> bytes: ...

    async def send_blob(self, blob: str, data: bytes) -> None: ...


class _Endpoint(NamedTuple):
    """Our side of all meetings: the ids of our store and of its feed, and what goes out and comes in."""

    store: str
    feed: str
    outgoing: Outgoing
    ingest: Ingest


class Exchange:
    """Everything between a fleet's store and its peers but the wire. ``peers`` are those of the store. ``ask_every`` is
    how much time is between two times that a peer is asked what it still knows, in seconds."""

    def __init__(self, fleet: Fleet, *, ask_every: float = forgotten_runs.CHECK_INTERVAL) -> None:
        self.fleet, self.peers = fleet, PeerRegistry(fleet.store)
        self._endpoint: _Endpoint | None = None
        self._forgotten_runs = forgotten_runs.ForgottenRunCheck(fleet, ask_every)
        self._monitor = Monitor(fleet, fleet.by)  # hands out while nobody else does, and knows how far it came
        self._peer_cursors: dict[str, Cursor] = {}  # how far each peer has come in our feed, as it said last
        self._requested_blobs: dict[str, dict[str, int]] = {}  # what each peer was asked for, and its size

    # -- who calls ---------------------------------------------------------------------------------------------------

    async def sync(self, peer: str, transport: Transport) -> SyncResult:
        """The client's side: asks ``transport`` until nothing is left. Raises UnknownPeer, PeerRefused, and what ``transport``
        raises."""
        done = SyncProgress(await (await self._open()).outgoing.newest())
        known = await self._exchange_records(peer, transport, done)
        if done.anew:
            await self._forgotten_runs.reset(known)
        if not done.in_vain and self._forgotten_runs.is_due(known):
            await self._ask_about_copies(known, transport, done)
        return done.result()

    async def _exchange_records(self, peer: str, transport: Transport, done: SyncProgress) -> Peer:
        _, feed, outgoing, ingest = await self._open()
        known = await self.peers.get(peer)
        if peer in self._peer_cursors and not await outgoing.accepts(known, self._peer_cursors[peer]):
            del self._peer_cursors[
                peer
            ]  # it was told more another way, or removed and invited again: it says how far it is
        lacks: frozenset[str] = frozenset()
        given: Counter[str] = Counter()
        devices: Any = await remote_devices.own_devices(self.fleet.store)
        while True:
            part = (
                await outgoing.next_batch(known, self._peer_cursors[peer])
                if peer in self._peer_cursors
                else OutgoingBatch()
            )
            message = await self._message(known, part, devices, lacks=lacks)
            asked = self.fleet.store.clock()
            answer = parse_message(await transport.send(message))
            if devices is not None:
                known = await self._handle_greeting(peer, answer, (asked + self.fleet.store.clock()) / 2, done)
                devices = None
            self._check_sender(known, answer)
            done.taken.add(await self._ingest(known, answer, await self._fetch_missing(known, answer, transport)))
            done.refused_there(answer)
            done.began_anew(part, answer)
            before, now = self._peer_cursors.get(peer), answer.cursor or Cursor(feed, 0)
            done.sent += len(part.records) if before != now else 0
            self._peer_cursors[peer] = now
            given.update(answer.wants.keys())
            lacks = await self._send_wanted(answer.wants, transport, given)
            at, _ = await ingest.cursor(known)
            heard = at.number if at is not None and at.feed == done.feed else -1
            idle = not answer.items and not answer.more
            all_heard = idle or heard >= done.theirs
            if all_heard and not answer.wants and not await outgoing.is_behind(known, now, done.upto):
                return known
            told = min(now.number, await outgoing.newest()) if now.feed == feed else -1
            if done.is_stalled(told, heard, bool(set(answer.wants) - lacks)):
                log.warning("the meeting with peer %s gets nowhere, and is ended", peer)
                return known

    async def _ask_about_copies(self, known: Peer, transport: Transport, done: SyncProgress) -> None:
        """Whether it still knows what is left to it; it asks the same of us."""
        owed: list[str] = []
        asks = await self._forgotten_runs.next_runs(known)
        for _ in range(MAX_QUESTION_ROUNDS):
            message = await self._message(known, OutgoingBatch())
            answer = parse_message(await transport.send(message | {"asks": asks, "unknown": owed}))
            self._check_sender(known, answer)
            done.closed += await self._forgotten_runs.close_unknown(known, answer.unknown)
            owed = await self._forgotten_runs.unknown_here(answer.asks or ())
            if not asks and not answer.asks:
                return
            asks = await self._forgotten_runs.next_runs(known) if asks else []

    async def _handle_greeting(self, peer: str, answer: Message, now: float, done: SyncProgress) -> Peer:
        """What is only in the first answer of a meeting."""
        known = await self._record_contact(peer, answer, now)
        done.taken.refused += await remote_devices.store_announcement(self.fleet.store, peer, answer.devices)
        done.skew, done.feed, done.theirs = known.skew or 0.0, answer.feed, answer.newest
        if await self._assign_waiting():
            done.upto = await (await self._open()).outgoing.newest()
        return known

    async def _fetch_missing(self, peer: Peer, message: Message, transport: Transport) -> frozenset[str]:
        """Fetch what is large and not kept here. Returns what could not be had."""
        missing = set()
        needed = {name: run for run, names in await self._missing_blobs(peer, message) for name in names}
        for name in sorted(needed):
            try:
                await self._keep_blob(name, await transport.fetch_blob(name, needed[name]))
            except PeerRefused as error:
                log.warning("%s cannot be had: %s", name, error)
                missing.add(name)
        return frozenset(missing)

    async def _send_wanted(
        self, wanted: Mapping[str, int], transport: Transport, given: Counter[str]
    ) -> frozenset[str]:
        """Give what the other side lacks. Returns what we lack, too; or what it will not have, though it was given it
        several times: it may have forgotten that it asked, or find it too large."""
        lacks = set()
        for name in sorted(wanted):
            data = await self.fleet.store.blob(name)
            if data is None or len(data) != wanted[name] or given[name] > MAX_STALLED_ROUNDS:
                lacks.add(name)
                continue
            try:
                await transport.send_blob(name, data)
            except PeerRefused as error:
                log.warning("%s was not wanted after all: %s", name, error)
        return frozenset(lacks)

    # -- who is called -----------------------------------------------------------------------------------------------

    async def answer(self, peer: str, message: Mapping[str, Any]) -> dict[str, Any]:
        """The server's side: ``peer`` is whose token it was. Raises PeerRefused."""
        _, feed, outgoing, _ = await self._open()
        asked = parse_message(message)
        known = await self.peers.get(peer)
        devices: Any = None
        if asked.devices is not None or known.store is None:
            known = await self._record_contact(peer, asked, self.fleet.store.clock())
            await remote_devices.store_announcement(self.fleet.store, peer, asked.devices or [])
            await self._assign_waiting()
            devices = await remote_devices.own_devices(self.fleet.store)
        self._check_sender(known, asked)
        whole, wants = await self._ingestible_part(known, asked)
        taken = await self._ingest(known, whole, asked.lacks)
        for text in taken.lost:
            log.warning("%s", text)
        before = self._requested_blobs.get(peer, {})  # of another message, perhaps, which is being answered too
        self._requested_blobs[peer] = before | wants if len(before) < MAX_BLOBS_WANTED else wants
        part = await outgoing.next_batch(known, asked.cursor or Cursor(feed, 0))
        if asked.anew or part.anew:
            await self._forgotten_runs.reset(known)
        answer = await self._message(known, part, devices, wants=wants)
        reasons = await peer_notices.refusal_reasons(self.fleet.store, peer, whole.items, taken.refused)
        if taken.full is not None:
            reasons = [taken.full[:MAX_REASON_CHARS], *reasons][:MAX_REASONS]
        answer |= {"refused": taken.refused, "reasons": reasons}
        return answer if asked.asks is None else answer | await self._answer_questions(known, asked)

    async def _answer_questions(self, peer: Peer, asked: Message) -> dict[str, Any]:
        """What is not known here of what the peer asked about; and what we ask. What it says of others than it was
        asked about counts for nothing."""
        for text in await self._forgotten_runs.close_unknown(peer, asked.unknown):
            log.warning("%s", text)
        return {
            "unknown": await self._forgotten_runs.unknown_here(asked.asks or ()),
            "asks": await self._forgotten_runs.next_runs(peer),
        }

    async def _ingestible_part(self, peer: Peer, asked: Message) -> tuple[Message, dict[str, int]]:
        """The records that can be taken, and what is missing for the next ones, with its size."""
        missing = [(run, names - asked.lacks) for run, names in await self._missing_blobs(peer, asked)]
        first = next((place for place, (_, names) in enumerate(missing) if names), None)
        if first is None:
            return asked, {}
        upto = asked.items[first - 1].number if first else asked.after
        cut = replace(asked, items=asked.items[:first], upto=upto, more=True)
        names = sorted(set().union(*(names for _, names in missing)))[:MAX_BLOBS_WANTED]
        sizes = {name: size for item in asked.items if item.run for name, size in blob_sizes(item.run).items()}
        return cut, {name: sizes[name] for name in names}

    async def read_blob(self, peer: str, blob: str, run: str) -> bytes | None:
        """The server's side of GET /v1/blobs/NAME: what a run refers to of which the peer is told, as it is of all that
        are kept here; None if it is not kept here, or does not belong to that run."""
        await self.peers.get(peer)
        found = await self.fleet.store.run(run) if is_blob_name(blob) else None
        return await self.fleet.store.blob(blob) if found is not None and blob in blob_sizes(found) else None

    def wanted_size(self, peer: str, blob: str) -> int:
        """How many bytes a large thing has that a peer was asked for. Raises PeerRefused if it was not."""
        size = self._requested_blobs.get(peer, {}).get(blob)
        if size is None:
            raise PeerRefused("nobody has asked for it")
        return size

    async def receive_blob(self, peer: str, blob: str, data: bytes) -> None:
        """The server's side of PUT /v1/blobs/NAME. Raises PeerRefused if the name is not that of the bytes, if it is
        too large, or nobody has asked for it."""
        await self.peers.get(peer)
        self.wanted_size(peer, blob)
        await self._keep_blob(blob, data)
        self._requested_blobs[peer].pop(blob, None)

    # -- both --------------------------------------------------------------------------------------------------------

    async def _open(self) -> _Endpoint:
        if self._endpoint is None:
            store = await store_identity(self.fleet.store, self.fleet.clock)
            feed = await feed_of(self.fleet.store).start_feed()
            self._endpoint = _Endpoint(
                store, feed, Outgoing(self.fleet, store, feed), Ingest(self.fleet, self.peers, store)
            )
        return self._endpoint

    async def _message(
        self,
        peer: Peer,
        part: OutgoingBatch,
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
            "after": part.after,
            "upto": part.upto,
            "turn": part.turn,
            "mark": part.mark,
            "anew": part.anew,
            "put_back": part.put_back,
            "whole": part.whole,
            "more": part.more,
            "newest": newest,
            "records": part.records,
            "workflows": part.workflows,
            "devices": devices,
            "wants": dict(wants or {}),
            "lacks": sorted(lacks),
        }

    async def _assign_waiting(self) -> bool:
        """Give away what waits, if nobody else does: who is elected, or is there and will be. Says whether it did."""
        now = self.fleet.store.clock()
        there = [one for one in await self.fleet.store.sessions() if one.state == OPEN and one.reachable(now)]
        if there or await self.fleet.coordinator() is not None:
            return False
        try:
            await self._monitor.assign_waiting(await self.fleet.placer(fresh=True))
        except AsterismError as error:  # what waits can wait, and what is to be told cannot
            log.warning("what waits could not be given away: %s", error)
        return True

    async def _record_contact(self, peer: str, message: Message, now: float) -> Peer:
        """Bind it if it is new, remember that it was heard of, and compare the clocks."""
        ours = await self._open()
        if message.store == ours.store:
            raise PeerRefused(
                f"peer {peer} has a copy of the same store, and each would take itself for the other: restore the copy "
                "from a backup, which gives it an id of its own"
            )
        await ours.ingest.request_replay(await self.peers.bind(peer, message.store))
        skew = message.clock - now
        if abs(skew) > MAX_CLOCK_SKEW:
            words = f"the clock of peer {peer} is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} ours"
            await peer_notices.notify_once(
                self.fleet.store, peer, Notice(self.fleet.store.clock(), "clock", words), "skew"
            )
        else:
            await peer_notices.clear_topic(self.fleet.store, peer, "skew")
        return await self.peers.record_contact(peer, skew)

    def _check_sender(self, peer: Peer, message: Message) -> None:
        if message.store != peer.store:
            raise PeerRefused(f"peer {peer.name} is store {(peer.store or '?')[:8]}…, and the message is of another")

    async def _ingest(self, peer: Peer, message: Message, lacking: frozenset[str]) -> IngestResult:
        ingest = (await self._open()).ingest
        cursor, known = await ingest.cursor(peer)
        number = cursor.number if cursor is not None and cursor.feed == message.feed else 0
        anew = message.anew and message.after == 0
        if message.after > number:
            return IngestResult()  # something got lost in between: we say how far we have come
        if not message.items and not anew and (message.upto <= message.after or message.upto <= number):
            return IngestResult()
        if message.put_back:
            await peer_notices.notify_peer_rollback(self.fleet.store, peer.name)
        flows = await self._workflows_in(message)
        further = message.upto > number or anew or cursor is None or cursor.feed != message.feed
        reached = Cursor(message.feed, message.upto, message.turn, message.mark) if further else cursor
        assert reached is not None
        if cursor is not None and cursor.whole:
            # until all was told, with what we are said to have: what was told without it is told again
            reached = reached._replace(whole=message.more) if message.whole else cursor
        return await ingest.ingest(peer, message.items, reached, known, flows, lacking)

    async def _workflows_in(self, message: Message) -> dict[str, Workflow | str]:
        """The workflows that came with the runs that need them, by kind; or what is wrong with them, in words."""
        needed = {item.run.kind for item in message.items if item.run is not None}
        found: dict[str, Workflow | str] = {}
        for data in message.workflows:
            try:
                flow = without_rules(Workflow.from_json(data))
                kind = f"{flow.name}@{flow.version}"
                if kind in needed:
                    found[kind] = await self.fleet.workflows.objection(flow) or flow
            except (InvalidWorkflow, NotJson, TypeError, ValueError, RecursionError) as error:
                log.warning("a workflow of a peer cannot be kept: %s", printable(str(error), MAX_REASON_CHARS))
        return found

    async def _missing_blobs(self, peer: Peer, message: Message) -> list[tuple[str, set[str]]]:
        """For each record that would be taken if we had it, the run and what is large in it and not kept here. Nothing
        is fetched for the others."""
        ingest = (await self._open()).ingest
        if not any(True for item in message.items if item.run is not None for _ in blob_sizes(item.run)):
            return []
        wanted = await ingest.needed_blobs(peer, message.items, await self._workflows_in(message))
        runs = [item.name or "" for item in message.items]
        return [
            (run, {name for name in sorted(names) if await self.fleet.store.blob(name) is None})
            for run, names in zip(runs, wanted, strict=True)
        ]

    async def _keep_blob(self, name: str, data: bytes) -> None:
        most = (await self.fleet.settings()).most
        if len(data) > most:
            raise PeerRefused(f"it has {len(data):,} bytes, and this fleet keeps {most:,} at most")
        if hashlib.sha256(data).hexdigest() != name:
            raise PeerRefused("its name is not that of its bytes")
        await self.fleet.store.put_blob(data)
