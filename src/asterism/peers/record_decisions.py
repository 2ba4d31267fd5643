"""Decisions about incoming records: merge each record of a peer with ours, or refuse it with a reason.

The **authority** of a run is the store that decides about it. A record of another authority is stored as a copy that is
left to that store (``left_to``).

A person can request a pause or a cancellation in one store while another store's record of the run wins the merge. The
story entry of the request survives beside the winning record, but the request itself is part of the record that lost.
The authority of the run repeats the request once: a request whose entry is known already has had its chance, and may
have been withdrawn since.

Which statements of a peer are believed at all is decided by ``Trust``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple, TypeGuard

from asterism.core.errors import RunRefused
from asterism.core.history import Entry
from asterism.core.run import transitions
from asterism.core.run.merge import (
    KEPT,
    NotTheSameRun,
    differing_fields,
    is_forgotten,
    loss_reason,
    merge_keeping,
    merge_records,
    next_revision,
    outranks,
    own_result,
    own_story,
    was_taken_away,
)
from asterism.core.run.run import CLAIMED, COMPLETED, OWNED, PROCESSING, Progress, Run
from asterism.core.run.session import ABROAD, OPEN, Session
from asterism.fleet.fleet import Fleet
from asterism.fleet.ledger import failure_notice
from asterism.fleet.retention import HANDED, LOST
from asterism.peers import peer_notices
from asterism.peers.messages import IncomingRecord, printable
from asterism.peers.registry import Peer, PeerRegistry, is_in_future, largest_clock_lag
from asterism.peers.storage_limits import Quota, limit_merged, quota_limits, storage_cost
from asterism.store.dump_format import blobs_of
from asterism.store.protocol import Notice, PutCopy, PutPriority, PutRegister, PutRun, Write, feed_of, read_slot

MAX_LOSS_CHARS = 1000
"""The length limit of the reason for a loss."""

MAX_OWNER_KEEPS = 100
"""How often an owner confirms a run that others have declared lost."""

_REQUEST_ENTRIES = ("asked to pause", "asked to cancel", "paused", "failed")


class Decision(NamedTuple):
    """The writes for one record. ``blobs`` are the blobs it refers to and ours does not, if it is ingested."""

    writes: Sequence[Write] = ()
    taken: bool = False
    refused: bool = False
    lost: str | None = None
    blobs: frozenset[str] = frozenset()


_IGNORED = Decision()


class BatchDecisions:
    """The decisions of one try to ingest a batch of ``peer`` into the store of ``fleet``, whose id is ``own``.
    ``lacking`` names blobs that are unavailable. ``doubted`` are open sessions of ours about which the peer was not
    believed."""

    def __init__(self, fleet: Fleet, own: str, peer: Peer, lacking: frozenset[str]) -> None:
        self._fleet, self._store, self._feed = fleet, fleet.store, feed_of(fleet.store)
        self._peers, self._own = PeerRegistry(fleet.store), own
        self._peer, self._lacking = peer, lacking
        self._seen: set[str] = set()
        self.doubted: set[str] = set()

    async def prepared(self, items: Sequence[IncomingRecord]) -> BatchDecisions:
        """Read the peers, the sessions and our records."""
        settings = await self._fleet.settings()
        self._now = self._store.clock()
        self._oldest = self._now - settings.keep
        self._all = peers = await self._peers.all()
        sessions = await self._store.sessions(ended=True)
        self._trust = Trust(self._peer, peers, sessions, self._now, settings.peer_timeout)
        ids = {item.run.id for item in items if item.run is not None}
        self._mine = {run_id: await self._store.run(run_id) for run_id in sorted(ids)}
        # after the runs: if one is written in between, its revision differs from the one we have read
        self._left = await self._feed.left_to(sorted(ids))
        self._received = await self._feed.came_from_peers(sorted(ids))
        self.quota = Quota(self._peer, await self._feed.usage(self._peer.store or ""), quota_limits(settings))
        self.refusals = await peer_notices.RefusalNotices.load(self._store, self._peer.name, self._now)
        return self

    # -- one record --------------------------------------------------------------------------------------------------

    async def decide(self, item: IncomingRecord) -> Decision:
        theirs = item.run
        if theirs is None:
            return await self._refuse(item.run_id, item.error)
        if theirs.id in self._seen:
            return await self._refuse(theirs.id, "the message contains it twice")
        self._seen.add(theirs.id)
        mine = self._mine[theirs.id]
        work = theirs.work.without_rules
        if mine is not None and mine.work.without_rules == work:
            work = mine.work
        # keys and revisions belong to the store that gave them, rules to the one that knows the devices
        theirs = theirs.changed(key=None if mine is None else mine.key, revision=1, work=work)
        if mine is None and theirs.ended and (theirs.ended_at or 0.0) + self._clock_lag(item.by) < self._oldest:
            return _IGNORED  # it is older than what this store keeps
        if mine is None and is_forgotten(theirs):
            return _IGNORED
        if self._trust.belongs_to_other_peer(theirs) and not (mine is not None and is_forgotten(mine)):
            return _IGNORED
        if self._lacking and not self._lacking.isdisjoint(blobs_of(theirs)):
            return await self._refuse(theirs.id, "a large input or output of it is unavailable")
        by, unconfirmed = item.by, self._trust.unconfirmed(theirs, mine)
        if unconfirmed is not None:
            if theirs.status is COMPLETED and self._depends_on_sender(mine):
                return await self._redo(mine, unconfirmed)
            lost = await self._lost_by_own_device(theirs, mine)
            if lost is None:
                return await self._refuse(theirs.id, unconfirmed)
            theirs, by = lost, self._own
        try:
            decision = await (self._decide_new(theirs, by) if mine is None else self._decide_known(mine, theirs, by))
        except NotTheSameRun as error:
            return await self._refuse(theirs.id, f"it differs from our record in {', '.join(error.fields)}")
        if not decision.taken:
            return decision
        blobs = frozenset(blobs_of(theirs)).difference(blobs_of(mine) if mine is not None else ())
        if mine is None or mine.id in self._received:
            cost = storage_cost(self._peer, mine, theirs, _record_write(decision.writes).run)
            if self.quota.reserve(cost) is not None:
                return Decision(refused=True)
            decision = decision._replace(writes=[*decision.writes, cost])
        return decision._replace(blobs=blobs)

    def _clock_lag(self, by: str) -> float:
        """How many seconds the clock may be behind that dated a record of the store ``by``. A peer that lies about its
        clock only affects whether we accept its old records."""
        return largest_clock_lag(peer for peer in self._all if peer.store == by or peer.name == self._peer.name)

    def _depends_on_sender(self, mine: Run | None) -> TypeGuard[Run]:
        """Whether our copy is open and left to the sender."""
        return mine is not None and not mine.ended and self._left.get(mine.id) == self._peer.store

    async def _redo(self, mine: Run, unconfirmed: str) -> Decision:
        """Do a run again that the sender believes to be completed by a device of ours: it will not change its mind."""
        why = f"peer {self._peer.name} reports it as completed, but this store has no result: {unconfirmed}"
        if mine.status in OWNED:
            after = transitions.lose(mine, self._now, why)
        else:
            after = transitions.adopt(mine, self._now, why)
        return Decision([PutRun(after, mine.revision)], taken=True)

    async def _lost_by_own_device(self, theirs: Run, mine: Run | None) -> Run | None:
        """The record of a run that one of our devices is said to own, as lost by that device, if that session is over
        (see the module). None if it is not; or if the run is ours to decide, since then it continues here and the
        sender learns of that."""
        if theirs.status not in OWNED or (mine is not None and not mine.ended and mine.id not in self._left):
            return None
        if self._trust.is_open(theirs.session):
            self.doubted.add(f"{theirs.session}")
            return None
        why = f"{theirs.device} has no record of it since its store was restored from an older copy"
        return transitions.lose(theirs, self._now, why)

    async def _refuse(self, run_id: str | None, why: str) -> Decision:
        if run_id is None:
            notice = Notice(self._now, "refused", f"peer {self._peer.name}: {why}")
            await peer_notices.notify_once(self._store, self._peer.name, notice)
            return Decision(refused=True)
        return Decision(self.refusals.refuse(run_id, why), refused=True)

    def _authority(self, by: str, run: Run) -> str | None:
        """The id of the store that decides about a run whose record is theirs; None if that is this store. A store that
        is not heard from is replaced by the sender, which may hear from it. An ended run is never ours, since another
        clock dated its end."""
        if not run.ended and (by == self._own or self._trust.is_own(run)):
            return None
        return by if self._trust.is_heard(by) else self._peer.store

    async def _decide_new(self, theirs: Run, by: str) -> Decision:
        left_to = self._authority(by, theirs)
        put = PutRun(theirs, None) if left_to is None else PutCopy(theirs, None, left_to, left_to == self._peer.store)
        return Decision([put], taken=True)

    async def _decide_known(self, mine: Run, theirs: Run, by: str) -> Decision:
        was_left_to = self._left.get(mine.id)
        reached = await self._progress(mine)
        ours = mine
        if self._still_owned_here(mine, theirs) and mine.grant is not None:
            ours = transitions.confirm_ownership(
                ours, mine.grant, f"peer {self._peer.name} declared it lost", self._now
            )
        ours_wins, resolved = self._merge(ours, theirs)
        resolved = limit_merged(mine, theirs, resolved)
        left_to = was_left_to if ours_wins else self._authority(by, theirs)
        same = not ours_wins and left_to == self._peer.store and resolved.changed(revision=theirs.revision) == theirs
        requested = self._with_request(mine, theirs, resolved, ours_wins, left_to)
        if requested is not resolved:
            resolved, left_to = requested, None
        after = next_revision(mine, resolved)
        if after is None:
            return self._transfer_authority(mine, theirs, by, was_left_to)
        put = PutRun(after, mine.revision) if left_to is None else PutCopy(after, mine.revision, left_to, same)
        lost = loss_reason(ours.changed(progress=reached), resolved) if self._trust.is_own(mine) else None
        lost = (
            printable(lost, MAX_LOSS_CHARS) if lost is not None else None
        )  # it may quote the peer, and goes into logs
        writes: list[Write] = [put, *(await self._loss_writes(mine, lost, reached) if lost is not None else ())]
        writes += [PutPriority(after.id, after.priority)] if after.priority != mine.priority else []
        writes += await self._hand_over_writes(mine, after, was_left_to, left_to)
        return Decision(writes, taken=True, lost=lost)

    def _still_owned_here(self, mine: Run, theirs: Run) -> bool:
        """Whether a device of ours still works on a run that others have declared lost, and may keep it. The number is
        limited, since a peer that lies may declare it lost with every message."""
        return (
            mine.keep == "original"
            and self._trust.is_own(mine)
            and self._trust.is_open(mine.session)
            and was_taken_away(mine, theirs)
            and not outranks(mine, theirs)
            and sum(entry.what == KEPT for entry in own_story(mine)) < MAX_OWNER_KEEPS
        )

    def _merge(self, mine: Run, theirs: Run) -> tuple[bool, Run]:
        """Whether our record wins, and the merged record."""
        if not self._trust.is_own(theirs):
            return outranks(mine, theirs), merge_records(mine, theirs)
        # our record has all statements of our own device: only a request can be new
        if theirs.grant is not None and theirs.grant == mine.grant and only_adds_request(mine, theirs):
            theirs = theirs.changed(progress=mine.progress)
            return False, merge_records(mine, theirs)
        return True, merge_keeping(mine, theirs)

    def _with_request(self, mine: Run, theirs: Run, resolved: Run, ours_wins: bool, left_to: str | None) -> Run:
        if not ours_wins:
            return reapply_request(mine, theirs, resolved, self._now)
        return reapply_request(theirs, mine, resolved, self._now) if left_to is None else resolved

    def _transfer_authority(self, mine: Run, theirs: Run, by: str, was_left_to: str | None) -> Decision:
        """Nothing is new in the record, but exactly one store has to be its authority."""
        again = mine.changed(revision=mine.revision + 1)
        if mine.ended or theirs.changed(revision=mine.revision) != mine:
            return _IGNORED
        if was_left_to is None and by == self._peer.store and self._trust.is_senders(mine):
            # our request has reached the store of the owner
            return Decision([PutCopy(again, mine.revision, by)])
        if was_left_to == self._peer.store and by == self._own:  # each store has left it to the other
            return Decision([PutRun(again, mine.revision)])
        if was_left_to == self._peer.store and by != was_left_to and self._trust.is_heard(by):
            # the sender has left it to a third store: so do we, or three stores could each leave it to the next
            return Decision([PutCopy(again, mine.revision, by, same=False)])  # the third store has to learn of it
        return _IGNORED

    # -- writes beside the record ------------------------------------------------------------------------------------

    async def _progress(self, mine: Run) -> Progress | None:
        if mine.status not in OWNED:
            return mine.progress
        report = (await self._store.reports([mine.id])).get(mine.id)
        return report.progress if report is not None and report.progress is not None else mine.progress

    async def _loss_writes(self, mine: Run, why: str, reached: Progress | None) -> list[Write]:
        """The notice about the loss, and the register for `peer keep`."""
        slot = await read_slot(self._store, f"{LOST}{mine.id}")
        lost = {"device": mine.device, "epoch": mine.epoch, "progress": None if reached is None else list(reached)}
        far = f" (progress: {reached})" if reached is not None else ""
        return [
            Notice(self._now, "conflict", f"{why}{far}", mine.id, mine.device),
            slot.put(lost),
        ]

    async def _hand_over_writes(
        self, mine: Run, after: Run, was_left_to: str | None, left_to: str | None
    ) -> list[Write]:
        """Remember that a run was ours when another store takes it over, and give the notice here if it fails there."""
        key = f"{HANDED}{mine.id}"
        if mine.ended or (left_to is None and not after.ended):
            return []
        register = await self._store.register(key)
        if not after.ended:
            return [PutRegister(key, {}, None)] if was_left_to is None and register is None else []
        notices = failure_notice(after, self._now) if was_left_to is None or register is not None else []
        return notices if register is None else [*notices, PutRegister(key, None, register.revision)]


def _record_write(writes: Sequence[Write]) -> PutRun | PutCopy:
    """The write of the record itself."""
    return next(write for write in writes if isinstance(write, PutRun | PutCopy))


# -- requests that a merge dropped -------------------------------------------------------------------------------------


def reapply_request(lost: Run, known: Run, winner: Run, now: float) -> Run:
    """``winner`` with the request of ``lost``, unless it contains it or ``known`` has its entry already."""
    request, by, entry = _request_of(lost)
    if request is None or winner.ended or entry is None or entry in own_story(winner) or entry in known.story:
        return winner
    with contextlib.suppress(RunRefused):
        return transitions.cancel(winner, now, by) if request == "cancel" else transitions.pause(winner, now, by)
    return winner


def _request_of(run: Run) -> tuple[str | None, str, Entry | None]:
    """The request in a record, who made it, and its story entry."""
    entry = next((entry for entry in reversed(own_story(run)) if entry.what in _REQUEST_ENTRIES), None)
    if run.cancelled:
        return "cancel", (run.error or "").removeprefix("cancelled by "), entry
    if run.stop_request is not None:
        return run.stop_request, run.stop_requested_by or "unknown", entry
    if run.paused is not None:
        return "pause", run.paused.removeprefix("by "), entry
    return None, "", None


# -- what a peer is believed -------------------------------------------------------------------------------------------


_OWNER_ENTRIES = frozenset({"claimed", "processing", "completed", KEPT})
"""The story entries that only an owner writes."""

_OWNER_REQUESTS = frozenset({"asked to pause", "asked to cancel", "resumed"})
"""The story entries of a person about a run that a device owns."""

_REQUEST_FIELDS = frozenset({"stop_request", "stop_requested_by", "progress"})
"""The fields that such a request changes; and the progress, which a store adds to what it sends."""


class Trust:
    """Which statements of a peer about a run are believed: it knows which peer each session and device belongs to, at
    one moment. ``sender`` is the peer whose records are judged.

    No store speaks for another store's devices.

    - Statements of *our* devices (that they claimed a run, work on it, have completed it) count only if we have them:
      our record is the truth, and a record that claims more is not confirmed. It is false, or this store was rolled
      back. All that another store can add to a run that one of our devices owns is a request to pause, cancel or resume
      it.
    - Statements of a direct peer's devices are believed from that peer alone while it is heard from. From others they
      are ignored, since the peer's own feed brings them.
    - Everything else is up to the sender: a peer can take a run from us, or end it, as it could if it shared our store.
      It cannot make us believe that our own devices did.

    A store that was rolled back has forgotten what its devices did since, and does not believe its peers about it. But
    one store has to continue such a run, or each would leave it to the other. So a run that one of our devices is said
    to own, in a session that is over, counts as lost by that device: it is offered again, and is ours to decide. A run
    that one is said to have completed, while our copy is open and left to the peer that says so, is done again. Its
    result is kept as superseded, or keeps the other one from being the result (core/run/merge.py)."""

    def __init__(
        self, sender: Peer, peers: Sequence[Peer], sessions: Sequence[Session], now: float, peer_timeout: float
    ) -> None:
        self.sender = sender
        self._peer_of_session: dict[str, str | None] = {}  # by session id; None for our own
        self._open: set[str] = set()  # our own open sessions
        devices: dict[str, tuple[bool, str | None]] = {}
        names = {peer.name for peer in peers}
        for session in sessions:
            if session.peer is not None and session.peer not in names:
                continue  # of a peer that was removed
            self._peer_of_session[session.id] = session.peer
            if session.peer is None and session.state == OPEN:
                self._open.add(session.id)
            present = session.state == ABROAD or session.id in self._open
            if present or session.device not in devices:  # a device may have moved from one store to another
                devices[session.device] = (present, session.peer)
        self._peer_of_device = {name: peer for name, (_, peer) in devices.items()}
        heard = [peer for peer in peers if _is_heard(peer, now, peer_timeout)]
        self._heard = {peer.name for peer in heard}
        self._stores = {peer.store for peer in heard}

    def is_heard(self, store: str) -> bool:
        """Whether it is the store of a direct peer that is heard from."""
        return store in self._stores

    def peer_of(self, run: Run) -> str | None:
        """The name of the peer whose device owns a run or has completed it; "" if the device is ours, None if it is
        unknown."""
        if run.session is not None and run.session in self._peer_of_session:
            return self._peer_of_session[run.session] or ""
        if run.device is not None and run.device in self._peer_of_device:
            return self._peer_of_device[run.device] or ""
        return None

    def is_own(self, run: Run) -> bool:
        """Whether the record is a statement of one of our devices: it has claimed the run, works on it or has completed
        it."""
        return is_owner_statement(run) and self.peer_of(run) == ""

    def is_senders(self, run: Run) -> bool:
        """Whether the record is a statement of a device of the sender."""
        return is_owner_statement(run) and self.peer_of(run) == self.sender.name

    def is_open(self, session: str | None) -> bool:
        """Whether it is an open session of a device of ours."""
        return session in self._open

    def belongs_to_other_peer(self, theirs: Run) -> bool:
        """Whether another peer, which is heard from, is the one to say it."""
        peer = self.peer_of(theirs) if is_owner_statement(theirs) else None
        return bool(peer) and peer != self.sender.name and peer in self._heard

    def unconfirmed(self, theirs: Run, mine: Run | None) -> str | None:
        """Why a record about one of our devices is not accepted; None if our own record confirms it."""
        if not self.is_own(theirs):
            return None
        reason = (
            f"{theirs.device} is a device of this store, which has no report of it that the run is {theirs.status}; "
            "such a report is not accepted from a peer, also if this store was restored from an older copy and has "
            "lost it"
        )
        if mine is None:
            return reason
        if not set(_owner_entries(theirs)) <= set(mine.story):
            return reason
        if theirs.status is COMPLETED and not set(map(repr, own_result(theirs))) <= set(
            map(repr, (*own_result(mine), *mine.superseded))
        ):
            return f"{theirs.device} is a device of this store, and reported another result"
        return None


def _is_heard(peer: Peer, now: float, peer_timeout: float) -> bool:
    at = peer.heard_at
    return at is not None and now - at <= peer_timeout and not is_in_future(at, now)


def is_owner_statement(run: Run) -> bool:
    """Whether the status of a run is one that only its owner reports."""
    return run.status in (CLAIMED, PROCESSING, COMPLETED)


def only_adds_request(mine: Run, theirs: Run) -> bool:
    """Whether ``theirs`` is ``mine`` with a request of a person, and nothing else."""
    ours, story = own_story(mine), own_story(theirs)
    added = story[len(ours) :]
    return (
        bool(added)
        and story[: len(ours)] == ours
        and all(entry.what in _OWNER_REQUESTS for entry in added)
        and set(differing_fields(mine, theirs)) <= _REQUEST_FIELDS
    )


def _owner_entries(run: Run) -> tuple[Entry, ...]:
    """The entries of the owner in the present assignment."""
    story = own_story(run)
    begins = max((place for place, entry in enumerate(story) if entry.what.startswith("assigning to ")), default=0)
    return tuple(entry for entry in story[begins:] if entry.what in _OWNER_ENTRIES)
