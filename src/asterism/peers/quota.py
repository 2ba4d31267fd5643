"""Storage quota of a peer: runs, bytes of records, and bytes of the blobs they refer to.

A peer is charged for each run that was first received from it, and for the growth of records by what it sends, even if
another store created the run. It is not charged for additions to a run that was created here, since that is what it
received the run for. When a run is forgotten, its charge is dropped.

A record beyond the quota is refused with one notice; the sender keeps it and receives the reason. The rest of the sync
continues. When there is room again, because runs were forgotten or the setting was raised, the peer is asked to send
everything once more (resend_requests.py), so nothing is lost.
"""

from __future__ import annotations

from typing import Any

from asterism.core.run.run import Run
from asterism.fleet.settings import Settings
from asterism.peers.messages import record_length
from asterism.peers.registry import Peer, peer_key
from asterism.store import row_codec
from asterism.store.dump_format import blob_sizes
from asterism.store.protocol import Contribution, Usage

QUOTA_TOPIC = "quota"
"""The topic of the notice about an exceeded quota."""

REPLAY_FRACTION = 20
"""The peer is asked for everything again when one part in so many of the quota became free."""

_UNITS = Usage("runs", "bytes of records", "bytes of large inputs and outputs")  # type: ignore[arg-type]
_OPTIONS = Usage("--peer-runs", "--peer-bytes", "--peer-blobs")  # type: ignore[arg-type]


def quota_limits(settings: Settings) -> Usage:
    return Usage(int(settings.peer_runs), int(settings.peer_bytes), int(settings.peer_blobs))


def storage_cost(peer: Peer, mine: Run | None, theirs: Run, after: Run) -> Contribution:
    """The charge for storing ``after``, which was merged from our record and the peer's."""
    known = blob_sizes(mine) if mine is not None else {}
    blobs = sum(size for name, size in blob_sizes(theirs).items() if name not in known)
    growth = _length(after) - (_length(mine) if mine is not None else 0)
    return Contribution(after.id, peer.store or "", int(mine is None), max(0, growth), blobs)


def _length(run: Run) -> int:
    return record_length((*row_codec.fixed(run), *row_codec.moving(run)))


class Quota:
    """The quota of one peer while a batch of its records is ingested. ``exceeded`` says which limit refused a record,
    None if none did."""

    def __init__(self, peer: Peer, used: Usage, limits: Usage) -> None:
        self._peer, self._used, self._limits = peer, used, limits
        self.exceeded: str | None = None

    def reserve(self, cost: Contribution) -> str | None:
        """Charge a record. Returns why it does not fit, None if it does."""
        after = Usage(*(one + more for one, more in zip(self._used, cost[2:], strict=True)))
        for wanted, limit, more, unit, option in zip(after, self._limits, cost[2:], _UNITS, _OPTIONS, strict=True):
            if wanted > limit and more:
                self.exceeded = (
                    f"peer {self._peer.name} has used its quota of {limit:,} {unit} in this store. It keeps the "
                    f"refused records, and sends them again when there is room: raise the limit with `asterism fleet "
                    f"set {option}`, or forget old runs"
                )
                return self.exceeded
        self._used = after
        return None

    def remaining(self) -> list[int]:
        """What is left of each limit."""
        return [limit - used for used, limit in zip(self._used, self._limits, strict=True)]


def has_grown(before: list[Any], quota: Quota, limits: Usage) -> bool:
    """Whether there is enough more room than at the time of a refusal to ask for the records again."""
    return any(
        now >= then + max(1, limit // REPLAY_FRACTION)
        for then, now, limit in zip(before, quota.remaining(), limits, strict=True)
    )


def quota_key(peer: Peer) -> str:
    """The key of the register with the room that was left when a record of a peer was last refused."""
    return peer_key(peer.name, "full")
