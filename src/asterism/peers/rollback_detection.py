"""Rollback detection: notice that a store file was restored from an older copy of itself.

The question is whether a peer's cursor refers to our feed as it is, or as it was before a rollback. A restored copy
has the same ids, and its change numbers continue from where it was made: a peer whose cursor is at number 90 of the
lost part would miss the next 90 changes. So every batch that is sent carries a **mark**, a random word that is stored
here after the changes were read and before they are sent. The peer keeps the mark with its cursor. A copy made before
that does not contain the mark; one made later contains all changes that went with it.

Marks are numbered for each peer; the number is the **turn**. A cursor with a higher turn than ours has a mark that we
gave and do not know: we were rolled back. Then both sides send everything again, including what came from the other
side. An unknown mark whose turn is not higher is an old one, perhaps because the peer was rolled back: the peer is
sent everything.

A peer may lie. A turn that is further ahead than turns can be is not adopted, and a rollback is reported at most once
an hour (peer_notices.py). A peer of an earlier version sends no marks, and its cursor is believed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from asterism.fleet.fleet import Fleet
from asterism.peers import peer_notices
from asterism.peers.messages import Cursor
from asterism.peers.registry import ROLLBACK_KEY, Peer, cursor_key, marks_key
from asterism.store.optimistic_update import retry_on_conflict
from asterism.store.protocol import PutRegister, Register, Write, feed_of

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
    """The marks of the feed with the id ``feed`` of the store of ``fleet``."""

    def __init__(self, fleet: Fleet, feed: str) -> None:
        self._fleet, self._store, self._id = fleet, fleet.store, feed
        self._feed = feed_of(fleet.store)

    async def position(self, peer: Peer, cursor: Cursor | None) -> FeedPosition:
        """The position that a peer's cursor stands for."""
        if cursor is None or cursor.feed != self._id:
            return FeedPosition(0)
        turn, marks, void = _parse_marks(await self._register(peer))
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
            register = await self._register(peer)
            turn, marks, void = _parse_marks(register)
            present = [mark for mark in marks[: 1 - MARKS_KEPT] if cursor is not None and mark[2] == cursor.mark]
            marks = [*present, *marks[1 - MARKS_KEPT :], [number, turn + 1, text]]
            value = {"turn": turn + 1, "marks": marks, "void": void}
            await self._store.commit([PutRegister(marks_key(peer.store), value, register and register.revision)])
            return turn + 1, text

        return await retry_on_conflict(attempt)

    async def record_rollback(self, peer: Peer, cursor: Cursor) -> None:
        """Note that a peer's cursor proves a rollback of our store: void the cursor, ask the peer for everything, and
        give a notice."""
        message = (
            f"this store was restored from an older copy: peer {peer.name} has changes that are missing here. All "
            "records are exchanged again with it"
        )

        async def attempt() -> None:
            register = await self._register(peer)
            turn, marks, void = _parse_marks(register)
            if void == _cursor_text(cursor):
                return
            at = await self._store.register(cursor_key(peer.name))
            feed = at.value["feed"] if at is not None and at.value else "none"
            turn = cursor.turn if turn < cursor.turn <= min(turn + MAX_TURN_LEAD, LAST_TURN) else turn
            value = {"turn": turn, "marks": marks, "void": _cursor_text(cursor)}
            await self._store.commit(
                [
                    PutRegister(marks_key(peer.store), value, register and register.revision),
                    PutRegister(cursor_key(peer.name), Cursor(feed, 0, whole=True)._asdict(), at and at.revision),
                    *await self._time_writes(),
                    *await peer_notices.rollback_writes(self._store, peer.name, "here", message),
                ]
            )

        await retry_on_conflict(attempt)

    async def _time_writes(self) -> list[Write]:
        """The write of the time of the rollback, unless another peer has just reported the same one."""
        register, now = await self._store.register(ROLLBACK_KEY), self._store.clock()
        if register is not None and 0.0 <= now - register.value["at"] < ROLLBACK_WINDOW:
            return []
        return [PutRegister(ROLLBACK_KEY, {"at": now}, register and register.revision)]

    async def _register(self, peer: Peer) -> Register | None:
        return await self._store.register(marks_key(peer.store))


def _parse_marks(register: Register | None) -> tuple[int, list[list[Any]], str]:
    value = register.value if register is not None else {}
    if value.get("turn", 0) > LAST_TURN:
        value = {}
    return value.get("turn", 0), value.get("marks", []), value.get("void", "")


def _cursor_text(cursor: Cursor) -> str:
    """A cursor as text, by which a void one is recognised."""
    return f"{cursor.number} {cursor.turn} {cursor.mark}"
