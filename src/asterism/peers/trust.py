"""Trust: which statements of a peer about a run are believed.

No store speaks for another store's devices.

- Statements of *our* devices (that they claimed a run, work on it, have completed it) count only if we have them: our
  record is the truth, and a record that claims more is not confirmed. It is false, or this store was rolled back. All
  that another store can add to a run that one of our devices owns is a request to pause, cancel or resume it.
- Statements of a direct peer's devices are believed from that peer alone while it is heard from. From others they are
  ignored, since the peer's own feed brings them.
- Everything else is up to the sender: a peer can take a run from us, or end it, as it could if it shared our store. It
  cannot make us believe that our own devices did.

A store that was rolled back has forgotten what its devices did since, and does not believe its peers about it. But
one store has to continue such a run, or each would leave it to the other. So a run that one of our devices is said
to own, in a session that is over, counts as lost by that device: it is offered again, and is ours to decide. A run that
one is said to have completed, while our copy is open and left to the peer that says so, is done again. Its result is
kept as superseded, or keeps the other one from being the result (core/run/merge.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from asterism.core.history import Entry
from asterism.core.run.merge import KEPT, differing_fields, own_result, own_story
from asterism.core.run.run import CLAIMED, COMPLETED, PROCESSING, Run
from asterism.core.run.session import ABROAD, OPEN, Session
from asterism.peers.registry import Peer, is_in_future

_OWNER_ENTRIES = frozenset({"claimed", "processing", "completed", KEPT})
"""The story entries that only an owner writes."""

_OWNER_REQUESTS = frozenset({"asked to pause", "asked to cancel", "resumed"})
"""The story entries of a person about a run that a device owns."""

_REQUEST_FIELDS = frozenset({"stop_request", "stop_requested_by", "progress"})
"""The fields that such a request changes; and the progress, which a store adds to what it sends."""


class Trust:
    """Which peer each session and device belongs to, at one moment. ``sender`` is the peer whose records are judged."""

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
