"""Whether a peer has really come as far in our feed as it says, or as far in what our feed was before the file of our
store was put back from an older copy.

Such a copy has the same ids, and its numbers go on from where it was made: a peer that has come to number 90 of what is
lost would be told nothing of the next 90 changes. So whatever is told goes with a **mark**, a random word that is
written down here after the changes were read and before they are told. The peer keeps it beside how far it has come. A
copy that was made before that does not have the mark, and one that was made later has everything that went with it.

Marks are counted for each peer, turn by turn. One of a higher turn than ours was given by us and is not known to us: we
were put back. Then we tell everything again and have everything told again, also what came from us. One that is not
known although its turn is not higher is an old one, perhaps because it is the peer that was put back: it is told
everything.

A peer may lie. A turn that is further ahead than turns can ever be is not taken over, and it is said once an hour at
most that a store was put back.

A peer of an earlier version has no marks, and is believed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from asterism.fleet.fleet import Fleet
from asterism.peers import peer_notices
from asterism.peers.messages import Cursor
from asterism.peers.registry import ROLLBACK_KEY, Peer, cursor_key, marks_key
from asterism.store.protocol import PutRegister, Register, feed_of
from asterism.store.store_errors import Conflict

MARKS_KEPT = 10
"""How many marks are remembered for each peer: it may not have heard of the last ones."""

MAX_TURN_LEAD = 1 << 32
"""By how many turns a peer can know more of them than we do: one a second for a hundred years. A turn beyond that is a
lie; taken over, it would soon leave us no number for the next one."""

ROLLBACK_WINDOW = 3600.0
"""What several peers say within so many seconds is one put-back of our store."""

LAST_TURN = 1 << 52
"""The last turn. What is beyond it was a lie that was taken over once, and marks begin anew."""


class FeedPosition(NamedTuple):
    """How far a peer has come. ``anew`` if what it says of that means nothing; ``put_back`` if that is because our
    store was put back."""

    number: int
    anew: bool = False
    put_back: bool = False


class FeedMarks:
    """For the feed with the id ``feed``, of the store of ``fleet``."""

    def __init__(self, fleet: Fleet, feed: str) -> None:
        self._fleet, self._store, self._id = fleet, fleet.store, feed
        self._feed = feed_of(fleet.store)

    async def position(self, peer: Peer, cursor: Cursor | None) -> FeedPosition:
        """What it means that a peer says it has come so far."""
        if cursor is None or cursor.feed != self._id:
            return FeedPosition(0)
        found = await self._found(peer)
        turn, marks, void = _parse_marks(found)
        if cursor.turn > turn or cursor.number > await self._feed.newest() or _void_marker(cursor) == void:
            return FeedPosition(0, anew=True, put_back=True)
        if not cursor.turn or not cursor.number:
            return FeedPosition(cursor.number)
        known = any(text == cursor.mark and number >= cursor.number for number, _, text in marks)
        return FeedPosition(cursor.number) if known else FeedPosition(0, anew=True)

    async def new_mark(self, peer: Peer, cursor: Cursor | None, number: int) -> tuple[int, str]:
        """A mark for what was read up to ``number``, and its turn. The one that the peer has is kept."""
        text = f"{self._fleet.chance.getrandbits(96):024x}"
        while True:
            found = await self._found(peer)
            turn, marks, void = _parse_marks(found)
            its = [one for one in marks[: 1 - MARKS_KEPT] if cursor is not None and one[2] == cursor.mark]
            marks = [*its, *marks[1 - MARKS_KEPT :], [number, turn + 1, text]]
            value = {"turn": turn + 1, "marks": marks, "void": void}
            try:
                await self._store.commit([PutRegister(marks_key(peer.store), value, found and found.revision)])
            except Conflict:  # somebody else tells it something, too
                continue
            return turn + 1, text

    async def record_rollback(self, peer: Peer, cursor: Cursor) -> None:
        """It is known now that our store was put back. That is said, and then everything is heard anew, too."""
        while True:
            found = await self._found(peer)
            turn, marks, void = _parse_marks(found)
            if void == _void_marker(cursor):
                return
            at = await self._store.register(cursor_key(peer.name))
            feed = at.value["feed"] if at is not None and at.value else "none"
            noticed, now = await self._store.register(ROLLBACK_KEY), self._store.clock()
            put_back = [PutRegister(ROLLBACK_KEY, {"at": now}, noticed and noticed.revision)]
            words = (
                f"this store was put back from an older copy of itself: peer {peer.name} knows of changes that are not "
                "here. Everything is exchanged anew with it"
            )
            turn = cursor.turn if turn < cursor.turn <= min(turn + MAX_TURN_LEAD, LAST_TURN) else turn
            value = {"turn": turn, "marks": marks, "void": _void_marker(cursor)}
            try:
                await self._store.commit(
                    [
                        PutRegister(marks_key(peer.store), value, found and found.revision),
                        PutRegister(cursor_key(peer.name), Cursor(feed, 0, whole=True)._asdict(), at and at.revision),
                        *(
                            put_back
                            if noticed is None or not 0.0 <= now - noticed.value["at"] < ROLLBACK_WINDOW
                            else []
                        ),
                        *await peer_notices.rollback_writes(self._store, peer.name, "here", words),
                    ]
                )
            except Conflict:
                continue
            return

    async def _found(self, peer: Peer) -> Register | None:
        return await self._store.register(marks_key(peer.store))


def _parse_marks(found: Register | None) -> tuple[int, list[list[Any]], str]:
    value = found.value if found is not None else {}
    if value.get("turn", 0) > LAST_TURN:
        value = {}
    return value.get("turn", 0), value.get("marks", []), value.get("void", "")


def _void_marker(cursor: Cursor) -> str:
    """What a cursor that means nothing is recognised by."""
    return f"{cursor.number} {cursor.turn} {cursor.mark}"
