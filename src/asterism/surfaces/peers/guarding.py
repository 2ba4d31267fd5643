"""Who may talk to this store: whoever shows a token that it gave.

A token says which peer it is; nothing in a message does. An address that shows wrong ones too often is told to wait;
whoever shows a good one from there is listened to all the same, since many share an address. That is no protection of
the tokens, which nobody can guess, but of the log, and it tells a peer with an old token to ask less often.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from asterism.core.errors import AsterismError
from asterism.runtime.peers.invitations import hashed, valid_until
from asterism.runtime.peers.knowing import Peer, Peers
from asterism.store.protocol import Store

log = logging.getLogger("asterism.peers")

FAILURES = 10
WINDOW = 60.0
"""So many wrong tokens of one address within so many seconds are too many."""

ADDRESSES = 1000
"""Of how many addresses the failures are remembered."""


class NotAdmitted(AsterismError):
    """A request that is refused, with the status of HTTP that says so. ``retry_after`` is in seconds."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        self.status, self.retry_after = status, retry_after
        super().__init__(message)


class Guard:
    """``now`` counts seconds."""

    def __init__(self, store: Store, peers: Peers, now: Callable[[], float]) -> None:
        self._store, self._peers, self._now = store, peers, now
        self._failures: dict[str, list[float]] = {}

    async def admit(self, authorization: str, address: str) -> Peer:
        """Whose token it is. Raises NotAdmitted."""
        scheme, _, token = authorization.partition(" ")
        peer = await self._peers.find_by_token_hash(hashed(token.strip())) if scheme.lower() == "bearer" else None
        if peer is None:
            self._must_be_patient(address)
            self._failed(address)
            raise NotAdmitted(401, "the token is not known here: ask for a new invitation")
        until = await valid_until(self._store, peer)
        if until is not None and until < self._store.clock():
            self._must_be_patient(address)
            self._failed(address)
            raise NotAdmitted(403, f"the invitation of {peer.name} has run out: ask for a new one")
        return peer

    def _must_be_patient(self, address: str) -> None:
        failed = self._failures.get(address, ())
        since = self._now() - WINDOW
        recent = [at for at in failed if at > since]
        if len(recent) >= FAILURES:
            wait = recent[-FAILURES] - since
            raise NotAdmitted(429, f"too many wrong tokens came from {address}: wait for {wait:.0f} s", wait)

    def _failed(self, address: str) -> None:
        failed = self._failures.pop(address, [])
        if not failed:
            log.warning("a token that is not good came from %s", address)
        self._failures[address] = [*failed, self._now()][-FAILURES:]
        while len(self._failures) > ADDRESSES:
            del self._failures[next(iter(self._failures))]
