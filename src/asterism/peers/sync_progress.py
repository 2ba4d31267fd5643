"""What has come of a meeting, and whether it still comes to something: a peer that says the same for ever, or each time
that everything begins anew, is not listened to without end. The next meeting goes on where this one ended."""

from __future__ import annotations

from dataclasses import dataclass, field

from asterism.peers.ingest import IngestResult
from asterism.peers.messages import Message
from asterism.peers.outgoing import OutgoingBatch

MAX_STALLED_ROUNDS = 3
"""After how many rounds without any progress a meeting ends."""

MAX_RESTARTS = 2
"""How often everything may begin anew in one meeting: one store was put back, or both were."""

MAX_ROUNDS = 10_000
"""How many rounds a meeting has, whatever progress there is."""

MAX_REPORTED_REASONS = 20
"""How many reasons for what a peer refused are told of one meeting."""


@dataclass(frozen=True, slots=True)
class SyncResult:
    """What came of a meeting. ``lost`` says of each run that was lost here why; ``skew`` is by how many seconds the
    peer's clock is ahead of ours; ``refused_there`` says why the peer refused records of ours, of many not of all.
    ``closed`` says of copies that were closed why; ``put_back`` is whose store was put back from an older copy of
    itself, "here" or "there"."""

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
    """What has come of a meeting so far. ``feed`` and ``theirs`` are the peer's feed as it was when the meeting began,
    ``upto`` how far ours is told. ``in_vain`` if the meeting was ended before all was said."""

    upto: int
    sent: int = 0
    skew: float = 0.0
    taken: IngestResult = field(default_factory=IngestResult)
    refused: int = 0
    reasons: list[str] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    put_back: str | None = None
    feed: str = ""
    theirs: int = 0
    told: int = -1
    heard: int = -1
    vain: int = 0
    rounds: int = 0
    anew: int = 0
    in_vain: bool = False

    def refused_there(self, answer: Message) -> None:
        self.refused += answer.refused
        self.reasons += list(answer.reasons)[: max(0, MAX_REPORTED_REASONS - len(self.reasons))]

    def began_anew(self, part: OutgoingBatch, answer: Message) -> None:
        """Somebody's store was put back, or it is told everything for another reason: numbers begin again. Not as often
        as somebody says so, or there would be no end."""
        if part.anew or answer.anew:
            self.anew += 1
            if self.anew <= MAX_RESTARTS:
                self.told = self.heard = -1
        if part.put_back or answer.put_back:
            self.put_back = "here" if part.put_back else "there"

    def is_stalled(self, told: int, heard: int, helped: bool) -> bool:
        """Whether another round would be in vain: neither side comes further than ever in this meeting, nor was
        ``helped`` with what it lacked; or there were too many."""
        further = told > self.told or heard > self.heard
        self.told, self.heard = max(told, self.told), max(heard, self.heard)
        self.vain = 0 if further or helped else self.vain + 1
        self.rounds += 1
        self.in_vain = self.vain >= MAX_STALLED_ROUNDS or self.rounds >= MAX_ROUNDS
        return self.in_vain

    def result(self) -> SyncResult:
        more = self.refused - len(self.reasons)
        others = [f"{more} more, for which it says no reason" if self.reasons else f"{more}, and it says no reason"]
        reasons = tuple(self.reasons + (others if more > 0 else []))
        taken = self.taken
        closed = tuple(self.closed)
        return SyncResult(
            self.sent, taken.taken, taken.refused, tuple(taken.lost), self.skew, reasons, closed, self.put_back
        )
