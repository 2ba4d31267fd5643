"""Who may transport to this store: whoever shows the secret for which an invitation was exchanged.

The secret says which peer it is; nothing in a message does. An invitation is good for that exchange and nothing else.
An address that shows wrong ones too often is told to wait; whoever shows a good one from there is listened to all the
same, since many share an address. That is no protection of the secrets, which nobody can guess, but of the log, and it
tells a peer with an old secret to ask less often.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from asterism.base.http_limits import RequestRefused
from asterism.peers.invitations import InvitationUsed, redeem, token_hash
from asterism.peers.registry import Peer, PeerRegistry
from asterism.store.protocol import Store

log = logging.getLogger("asterism.peers")

MAX_FAILURES = 10
FAILURE_WINDOW = 60.0
"""So many wrong tokens of one address within so many seconds are too many."""

MAX_ADDRESSES = 1000
"""Of how many addresses the failures are remembered."""


class Authenticator:
    """``now`` counts seconds."""

    def __init__(self, store: Store, peers: PeerRegistry, now: Callable[[], float]) -> None:
        self._store, self._peers, self._now = store, peers, now
        self._failures: dict[str, list[float]] = {}

    async def authenticate(self, authorization: str, address: str) -> Peer:
        """Whose token it is. Raises RequestRefused."""
        token = _bearer_token(authorization)
        peer = await self._peers.find_by_token_hash(token_hash(token)) if token is not None else None
        if peer is None:
            self._check_rate(address)
            self._record_failure(address)
            raise RequestRefused(401, "the token is not known here: ask for a new invitation")
        return peer

    async def check_invitation(self, authorization: str, address: str) -> None:
        """Whether an invitation is shown that was written here, used or not. Raises RequestRefused."""
        token = _bearer_token(authorization)
        if token is None or await self._peers.find_by_invitation_hash(token_hash(token)) is None:
            raise self._unknown_invitation(address)

    async def redeem(self, authorization: str, address: str, secret_sha256: str) -> Peer:
        """Whose invitation it is; from now on the peer has that secret instead. Raises RequestRefused."""
        token = _bearer_token(authorization)
        try:
            peer = await redeem(self._store, token_hash(token), secret_sha256) if token is not None else None
        except InvitationUsed as error:
            self._check_rate(address)
            self._record_failure(address)
            raise RequestRefused(403, str(error)) from None
        if peer is None:
            raise self._unknown_invitation(address)
        return peer

    def _unknown_invitation(self, address: str) -> RequestRefused:
        self._check_rate(address)
        self._record_failure(address)
        return RequestRefused(401, "the invitation is not known here: ask for a new one")

    def _check_rate(self, address: str) -> None:
        failed = self._failures.get(address, ())
        since = self._now() - FAILURE_WINDOW
        recent = [at for at in failed if at > since]
        if len(recent) >= MAX_FAILURES:
            wait = recent[-MAX_FAILURES] - since
            raise RequestRefused(429, f"too many wrong tokens came from {address}: wait for {wait:.0f} s", wait)

    def _record_failure(self, address: str) -> None:
        failed = self._failures.pop(address, [])
        if not failed:
            log.warning("a token that is not good came from %s", address)
        self._failures[address] = [*failed, self._now()][-MAX_FAILURES:]
        while len(self._failures) > MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]


def _bearer_token(authorization: str) -> str | None:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
