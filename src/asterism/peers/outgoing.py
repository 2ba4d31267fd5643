"""Outgoing batches: changed runs that a peer has not received.

A record that is too large for any message is skipped with a notice; the others are sent.

Every batch carries a mark of our feed, by which both sides notice that a store file was restored from an older copy of
itself: see ``FeedMarks``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from asterism.core.json_values import JsonObject
from asterism.core.run.run import OWNED, Run
from asterism.fleet.fleet import Fleet
from asterism.peers import peer_notices
from asterism.peers.messages import (
    MAX_BATCH_BYTES,
    MAX_BATCH_RECORDS,
    MAX_RECORD_BYTES,
    MAX_RECORD_CHARS,
    Cursor,
    encoded_size,
    fits_message,
)
from asterism.peers.registry import ROLLBACK_KEY, Peer, cursor_key, marks_key
from asterism.peers.storage_limits import sendable_record
from asterism.store.optimistic_update import retried, retry_on_conflict
from asterism.store.protocol import Change, Notice, ProgressReport, Slot, Write, feed_of, read_slot


@dataclass(frozen=True, slots=True)
class OutgoingBatch:
    """The changes of the feed after ``after`` up to ``upto``, without those that came from the peer. All fields are
    those of a message (messages.py)."""

    after: int = 0
    upto: int = 0
    more: bool = False
    turn: int = 0
    mark: str = ""
    anew: bool = False
    put_back: bool = False
    whole: bool = False
    records: list[JsonObject] = field(default_factory=list)


class Outgoing:
    """Batches out of the store of ``fleet``, whose id is ``own`` and whose feed has the id ``feed``."""

    def __init__(self, fleet: Fleet, own: str, feed: str) -> None:
        self._fleet, self._own = fleet, own
        self._feed = feed_of(fleet.store)
        self._marks = FeedMarks(fleet, feed)

    async def newest(self) -> int:
        """The number of the last change."""
        return await self._feed.newest()

    async def is_behind(self, peer: Peer, cursor: Cursor, upto: int) -> bool:
        """Whether changes up to ``upto`` are left to send to a peer with this cursor. The last changes may belong to
        runs that are forgotten by now; then nothing is left."""
        position = await self._marks.position(peer, cursor)
        return position.anew or (position.number < upto and bool(await self._feed.changes(position.number, 1)))

    async def accepts(self, peer: Peer, cursor: Cursor) -> bool:
        """Whether a cursor of an earlier sync is still valid. The peer may have received so much since that its old
        mark is forgotten, or it may be another store by now."""
        return peer.store is not None and not (await self._marks.position(peer, cursor)).anew

    async def next_batch(self, peer: Peer, cursor: Cursor | None) -> OutgoingBatch:
        """The next batch for a peer with this cursor; without a cursor it starts with the first change."""
        position = await self._marks.position(peer, cursor)
        if cursor is not None and position.rolled_back:
            await self._marks.record_rollback(peer, cursor)
        after, whole = position.number, cursor is None or cursor.whole
        fetched = await self._feed.changes(after, MAX_BATCH_RECORDS + 1)
        changes, more = fetched[:MAX_BATCH_RECORDS], len(fetched) > MAX_BATCH_RECORDS
        news = [change for change in changes if whole or not _came_from(peer, change)]
        reports = await self._fleet.store.reports([change.run.id for change in news if change.run.status in OWNED])
        records: list[JsonObject] = []
        size, upto = 0, after
        for change in changes:
            if whole or not _came_from(peer, change):
                record = sendable_record(
                    change.number, change.left_to or self._own, _with_progress(change.run, reports)
                )
                length = encoded_size(record)
                if not fits_message(record) or length > MAX_RECORD_BYTES:
                    await self._skip(peer, change.run)
                else:
                    size += length
                    if records and size > MAX_BATCH_BYTES:
                        more = True
                        break
                    records.append(record)
            upto = change.number
        # after the changes were read: a peer that returns the mark has received at least these (see the module)
        turn, mark = await self._marks.new_mark(peer, cursor, upto) if upto > after else (0, "")
        return OutgoingBatch(after, upto, more, turn, mark, position.anew, position.rolled_back, whole, records)

    async def _skip(self, peer: Peer, run: Run) -> None:
        reason = f"it is too large for a message (limit: {MAX_RECORD_CHARS:,} characters)"
        message = f"run {run.id} was not sent to peer {peer.name}: {reason}"
        notice = Notice(self._fleet.store.clock(), "refused", message, run.id)
        await peer_notices.notify_once(self._fleet.store, peer.name, notice)


def _came_from(peer: Peer, change: Change) -> bool:
    """Whether our record is the one that this peer sent."""
    return change.same and change.left_to == peer.store


def _with_progress(run: Run, reports: dict[str, ProgressReport]) -> Run:
    """The run with the progress its owner last reported."""
    report = reports.get(run.id)
    if report is None or report.progress is None or report.epoch != run.epoch:
        return run
    return run.changed(progress=report.progress)


# -- marks of the feed -------------------------------------------------------------------------------------------------


MARKS_KEPT = 10
"""How many marks are kept for each peer: it may not have received the last ones."""

MAX_TURN_LEAD = 1 << 32
"""How many turns a peer can be ahead of us: one a second for a hundred years. A turn beyond that is a lie, and adopting
it would soon leave no number for the next one."""

ROLLBACK_WINDOW = 3600.0
"""Reports of several peers within so many seconds are about the same rollback."""

LAST_TURN = 1 << 52
"""The last valid turn. A stored turn beyond it came from a lie that was adopted, and marks start again."""


class FeedPosition(NamedTuple):
    """The number up to which a peer has our feed. ``anew`` if its cursor is void and it is sent everything;
    ``rolled_back`` if the reason is a rollback of our store."""

    number: int
    anew: bool = False
    rolled_back: bool = False


class FeedMarks:
    """The marks of the feed with the id ``feed`` of the store of ``fleet``, by which a rollback is noticed.

    The question is whether a peer's cursor refers to our feed as it is, or as it was before a rollback. A restored copy
    has the same ids, and its change numbers continue from where it was made: a peer whose cursor is at number 90 of the
    lost part would miss the next 90 changes. So every batch that is sent carries a **mark**, a random word that is
    stored here after the changes were read and before they are sent. The peer keeps the mark with its cursor. A copy
    made before that does not contain the mark; one made later contains all changes that went with it.

    Marks are numbered for each peer; the number is the **turn**. A cursor with a higher turn than ours has a mark that
    we gave and do not know: we were rolled back. Then both sides send everything again, including what came from the
    other side. An unknown mark whose turn is not higher is an old one, perhaps because the peer was rolled back: the
    peer is sent everything.

    A peer may lie. A turn that is further ahead than turns can be is not adopted, and a rollback is reported at most
    once an hour (peer_notices.py). A cursor without a mark is believed."""

    def __init__(self, fleet: Fleet, feed: str) -> None:
        self._fleet, self._store, self._id = fleet, fleet.store, feed
        self._feed = feed_of(fleet.store)

    async def position(self, peer: Peer, cursor: Cursor | None) -> FeedPosition:
        """The position that a peer's cursor stands for."""
        if cursor is None or cursor.feed != self._id:
            return FeedPosition(0)
        turn, marks, void = _parse_marks(await self._slot(peer))
        if cursor.turn > turn or cursor.number > await self._feed.newest() or _cursor_text(cursor) == void:
            return FeedPosition(0, anew=True, rolled_back=True)
        if not cursor.turn or not cursor.number:
            return FeedPosition(cursor.number)
        known = any(text == cursor.mark and number >= cursor.number for number, _, text in marks)
        return FeedPosition(cursor.number) if known else FeedPosition(0, anew=True)

    async def new_mark(self, peer: Peer, cursor: Cursor | None, number: int) -> tuple[int, str]:
        """Store a mark for the changes up to ``number``; returns its turn and the mark. The peer's present mark is
        kept."""
        text = f"{self._fleet.chance.getrandbits(96):024x}"

        async def attempt() -> tuple[int, str]:
            slot = await self._slot(peer)
            turn, marks, void = _parse_marks(slot)
            present = [mark for mark in marks[: 1 - MARKS_KEPT] if cursor is not None and mark[2] == cursor.mark]
            marks = [*present, *marks[1 - MARKS_KEPT :], [number, turn + 1, text]]
            value = {"turn": turn + 1, "marks": marks, "void": void}
            await self._store.commit([slot.put(value)])
            return turn + 1, text

        return await retry_on_conflict(attempt)

    @retried
    async def record_rollback(self, peer: Peer, cursor: Cursor) -> None:
        """Note that a peer's cursor proves a rollback of our store: void the cursor, ask the peer for everything, and
        give a notice."""
        message = (
            f"this store was restored from an older copy: peer {peer.name} has changes that are missing here. All "
            "records are exchanged again with it"
        )
        slot = await self._slot(peer)
        turn, marks, void = _parse_marks(slot)
        if void == _cursor_text(cursor):
            return
        at = await read_slot(self._store, cursor_key(peer.name))
        feed = at.value["feed"] if at.value else "none"
        turn = cursor.turn if turn < cursor.turn <= min(turn + MAX_TURN_LEAD, LAST_TURN) else turn
        value = {"turn": turn, "marks": marks, "void": _cursor_text(cursor)}
        await self._store.commit(
            [
                slot.put(value),
                at.put(Cursor(feed, 0, whole=True)._asdict()),
                *await self._time_writes(),
                *await peer_notices.rollback_writes(self._store, peer.name, "here", message),
            ]
        )

    async def _time_writes(self) -> list[Write]:
        """The write of the time of the rollback, unless another peer has just reported the same one."""
        slot, now = await read_slot(self._store, ROLLBACK_KEY), self._store.clock()
        if slot.value is not None and 0.0 <= now - slot.value["at"] < ROLLBACK_WINDOW:
            return []
        return [slot.put({"at": now})]

    async def _slot(self, peer: Peer) -> Slot:
        return await read_slot(self._store, marks_key(peer.store), {})


def _parse_marks(slot: Slot) -> tuple[int, list[list[Any]], str]:
    value = slot.value
    if value.get("turn", 0) > LAST_TURN:
        value = {}
    return value.get("turn", 0), value.get("marks", []), value.get("void", "")


def _cursor_text(cursor: Cursor) -> str:
    """A cursor as text, by which a void one is recognised."""
    return f"{cursor.number} {cursor.turn} {cursor.mark}"
