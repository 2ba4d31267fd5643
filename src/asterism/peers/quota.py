"""How much a peer may store here: runs, bytes of their records, and bytes of the large things they refer to.

What a peer tells is counted for it: each run that was first heard of from it, and by how much records have grown by its
words, whoever had created the run elsewhere. What it adds to a run that was created here is not counted, since that is
what it was given the run for. When a run is forgotten, what was counted for it is, too.

What does not fit is refused, with one notice; the sender keeps it, and is told why. Everything else of the meeting goes
on. When there is more room again, because runs were forgotten or the setting was raised, the peer is asked to tell
everything once more, so that nothing is lost.
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
"""What is said once of a peer that has used it up."""

REPLAY_FRACTION = 20
"""There is room again when a part in so many of what is allowed became free."""

_UNITS = Usage("runs", "bytes of records", "bytes of large inputs and outputs")  # type: ignore[arg-type]
_OPTIONS = Usage("--peer-runs", "--peer-bytes", "--peer-blobs")  # type: ignore[arg-type]


def quota_limits(settings: Settings) -> Usage:
    return Usage(int(settings.peer_runs), int(settings.peer_bytes), int(settings.peer_blobs))


def storage_cost(peer: Peer, mine: Run | None, theirs: Run, after: Run) -> Contribution:
    """What it takes to keep ``after``, which is made of ours and of what a peer has told."""
    known = blob_sizes(mine) if mine is not None else {}
    blobs = sum(size for name, size in blob_sizes(theirs).items() if name not in known)
    grown = _size(after) - (_size(mine) if mine is not None else 0)
    return Contribution(after.id, peer.store or "", int(mine is None), max(0, grown), blobs)


def _size(run: Run) -> int:
    return record_length((*row_codec.fixed(run), *row_codec.moving(run)))


class Quota:
    """Of one peer, while a batch of its records is judged."""

    def __init__(self, peer: Peer, used: Usage, most: Usage) -> None:
        self._peer, self._used, self._most = peer, used, most
        self.exceeded: str | None = None

    def reserve(self, cost: Contribution) -> str | None:
        """Why there is no room for it; if there is, it is taken."""
        after = Usage(*(one + more for one, more in zip(self._used, cost[2:], strict=True)))
        for wanted, most, more, what, setting in zip(after, self._most, cost[2:], _UNITS, _OPTIONS, strict=True):
            if wanted > most and more:
                self.exceeded = (
                    f"peer {self._peer.name} may store {most:,} {what} here, and there is no room for more: nothing is "
                    f"lost, and it is told again when there is (asterism fleet set {setting}, or forget old runs)"
                )
                return self.exceeded
        self._used = after
        return None

    def remaining(self) -> list[int]:
        """How much is left of each."""
        return [most - used for used, most in zip(self._used, self._most, strict=True)]


def has_grown(before: list[Any], quota: Quota, most: Usage) -> bool:
    """Whether there is more room than there was when something was refused, by enough to ask for it again."""
    return any(
        now >= then + max(1, limit // REPLAY_FRACTION)
        for then, now, limit in zip(before, quota.remaining(), most, strict=True)
    )


def quota_key(peer: Peer) -> str:
    """The key of the register that says how much room there was when something of a peer was last refused."""
    return peer_key(peer.name, "full")
