"""The progress and the result of a sync, and the decision to end one that stalls.

A peer that repeats itself forever, or restarts again and again, does not keep a sync open without end. The next sync
continues where this one ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from asterism.peers.ingest import IngestResult
from asterism.peers.messages import Message
from asterism.peers.outgoing import OutgoingBatch

MAX_STALLED_ROUNDS = 3
"""After how many rounds without progress a sync ends."""

MAX_RESTARTS = 2
"""How often a sync may restart from the beginning: one store was rolled back, or both were."""

MAX_ROUNDS = 10_000
"""After how many rounds a sync ends in any case."""

MAX_REPORTED_REASONS = 20
"""How many of the peer's reasons for refusals a result contains."""


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
            self.sent,
            self.ingested.taken,
            self.ingested.refused,
            tuple(self.ingested.lost),
            self.skew,
            tuple(self.reasons + (rest if more > 0 else [])),
            tuple(self.closed),
            self.put_back,
        )
