"""What a peer is believed. Nobody speaks for somebody else.

- The words of *our* devices (that they claimed a run, work on it, have completed it) count only if we have them: our
  own record of them is the truth, and a record that says more than it is forged. All that somebody elsewhere can add
  to a run in the hands of one of our devices is a wish.
- The words of a direct peer's devices are believed from that peer alone, as long as it is heard of; from others they
  are passed over, since its own feed brings them.
- Everything else is the sender's own affair: a peer can take a run from us, or end it, as it could if it shared our
  store. It cannot make us believe that our own devices said so.

A store whose file was put back from a copy has forgotten what its devices said since, and does not believe its peers
about it. But somebody has to go on with such a run, or each would leave it to the other. So what a device of ours is
said to have, in a life of it that is over, is taken for lost by that device: the run is given away again, and is ours
to judge. What it is said to have completed, while our copy is open and left to the peer that says so, is done again.
Its result is kept as superseded, or keeps the other one from being the result (core/run/merge.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from asterism.core.history import Entry
from asterism.core.run.merge import KEPT, differing_fields, own_result, own_story
from asterism.core.run.run import CLAIMED, COMPLETED, PROCESSING, Run
from asterism.core.run.session import ABROAD, OPEN, Session
from asterism.peers.registry import Peer, is_in_future, session_host

_OWNER_ENTRIES = frozenset({"claimed", "processing", "completed", KEPT})
"""What only the owner says."""

_REQUEST_ENTRIES = frozenset({"asked to pause", "asked to cancel", "resumed"})
"""What a person may say of a run that somebody works on."""

_REQUEST_FIELDS = frozenset({"stop_request", "stop_requested_by", "progress"})
"""What such a word changes; and how far it has come, which a store adds to what it sends."""


class Trust:
    """Who is who, at one moment. ``sender`` is the peer that speaks."""

    def __init__(
        self, sender: Peer, peers: Sequence[Peer], sessions: Sequence[Session], now: float, peer_timeout: float
    ) -> None:
        self.sender = sender
        self._ids: dict[str, str | None] = {}  # a session's peer; None for our own
        self._open: set[str] = set()  # of our own
        names: dict[str, tuple[bool, str | None]] = {}
        by_host = {session_host(peer.name): peer.name for peer in peers}
        for session in sessions:
            whose = by_host.get(session.host)
            if whose is None and session.peer is not None:
                continue  # of a peer that is none any more
            self._ids[session.id] = whose
            if whose is None and session.state == OPEN:
                self._open.add(session.id)
            there = session.state == ABROAD or session.id in self._open
            if there or session.device not in names:  # a name may have moved from one store to another
                names[session.device] = (there, whose)
        self._names = {name: whose for name, (_, whose) in names.items()}
        heard = [
            peer
            for peer in peers
            if peer.heard_at is not None
            and now - peer.heard_at <= peer_timeout
            and not is_in_future(peer.heard_at, now)
        ]
        self._heard = {peer.name for peer in heard}
        self._stores = {peer.store for peer in heard}

    def is_heard(self, store: str) -> bool:
        """Whether it is the store of a direct peer that we hear of."""
        return store in self._stores

    def peer_of(self, run: Run) -> str | None:
        """The name of the peer whose device owns a run or has completed it; "" if it is one of ours, None if nobody
        is known who could have."""
        if run.session is not None and run.session in self._ids:
            return self._ids[run.session] or ""
        if run.device is not None and run.device in self._names:
            return self._names[run.device] or ""
        return None

    def is_own(self, run: Run) -> bool:
        """Whether one of our devices speaks in it: it has claimed the run, works on it or has completed it."""
        return is_owner_statement(run) and self.peer_of(run) == ""

    def is_senders(self, run: Run) -> bool:
        return is_owner_statement(run) and self.peer_of(run) == self.sender.name

    def is_open(self, session: str | None) -> bool:
        """Whether it is the present life of a device of ours."""
        return session in self._open

    def belongs_to_other_peer(self, theirs: Run) -> bool:
        """Whether it is for another peer to say."""
        whose = self.peer_of(theirs) if is_owner_statement(theirs) else None
        return bool(whose) and whose != self.sender.name and whose in self._heard

    def forgery(self, theirs: Run, mine: Run | None) -> str | None:
        """Why it cannot be true, if it is about one of our devices; None if it can."""
        if not self.is_own(theirs):
            return None
        what = f"{theirs.device} is a device of ours, and has not said that the run is {theirs.status}"
        if mine is None:
            return what
        if not set(_owner_entries(theirs)) <= set(mine.story):
            return what
        if theirs.status is COMPLETED and not set(map(repr, own_result(theirs))) <= set(
            map(repr, (*own_result(mine), *mine.superseded))
        ):
            return f"{theirs.device} is a device of ours, and its result was another one"
        return None


def is_owner_statement(run: Run) -> bool:
    """Whether somebody has said something in it that only an owner says."""
    return run.status in (CLAIMED, PROCESSING, COMPLETED)


def only_adds_request(mine: Run, theirs: Run) -> bool:
    """Whether ``theirs`` is what ``mine`` was when somebody made a wish, and nothing else."""
    ours, line = own_story(mine), own_story(theirs)
    more = line[len(ours) :]
    return (
        bool(more)
        and line[: len(ours)] == ours
        and all(entry.what in _REQUEST_ENTRIES for entry in more)
        and set(differing_fields(mine, theirs)) <= _REQUEST_FIELDS
    )


def _owner_entries(run: Run) -> tuple[Entry, ...]:
    """What its owner has said in the present assignment."""
    line = own_story(run)
    begins = max((place for place, entry in enumerate(line) if entry.what.startswith("assigning to ")), default=0)
    return tuple(entry for entry in line[begins:] if entry.what in _OWNER_ENTRIES)
