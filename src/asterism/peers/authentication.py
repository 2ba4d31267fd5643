"""Authentication of peers by bearer tokens, and the exchange of invitations for tokens.

Nothing in a message identifies a peer, only the token does. An invitation is good for the exchange and nothing else.
An address that sends too many wrong tokens has to wait; a valid token from the same address is accepted all the same,
since many clients can share an address. The limit does not protect the tokens, which cannot be guessed, but the log,
and it makes a peer with an old token ask less often.
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
"""The most wrong tokens of one address within so many seconds."""

MAX_ADDRESSES = 1000
"""The number of addresses whose failures are remembered."""


class Authenticator:
    """Checks the tokens of requests. ``now`` is a monotonic clock in seconds."""

    def __init__(self, store: Store, peers: PeerRegistry, now: Callable[[], float]) -> None:
        self._store, self._peers, self._now = store, peers, now
        self._failures: dict[str, list[float]] = {}

    async def authenticate(self, authorization: str, address: str) -> Peer:
        """The peer that has this token. Raises RequestRefused."""
        token = _bearer_token(authorization)
        peer = await self._peers.find_by_token_hash(token_hash(token)) if token is not None else None
        if peer is None:
            self._check_rate(address)
            self._record_failure(address)
            raise RequestRefused(401, "unknown token: ask for a new invitation")
        return peer

    async def check_invitation(self, authorization: str, address: str) -> None:
        """Raises RequestRefused unless the token is that of an invitation of this store, used or not."""
        token = _bearer_token(authorization)
        if token is None or await self._peers.find_by_invitation_hash(token_hash(token)) is None:
            raise self._unknown_invitation(address)

    async def redeem(self, authorization: str, address: str, secret_sha256: str) -> Peer:
        """Exchange an invitation for a secret, and return the peer. Raises RequestRefused."""
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
        return RequestRefused(401, "unknown invitation: ask for a new one")

    def _check_rate(self, address: str) -> None:
        failed = self._failures.get(address, ())
        since = self._now() - FAILURE_WINDOW
        recent = [at for at in failed if at > since]
        if len(recent) >= MAX_FAILURES:
            wait = recent[-MAX_FAILURES] - since
            raise RequestRefused(429, f"too many wrong tokens from {address}: wait {wait:.0f} s", wait)

    def _record_failure(self, address: str) -> None:
        failed = self._failures.pop(address, [])
        if not failed:
            log.warning("received a wrong token from %s", address)
        self._failures[address] = [*failed, self._now()][-MAX_FAILURES:]
        while len(self._failures) > MAX_ADDRESSES:
            del self._failures[next(iter(self._failures))]


def _bearer_token(authorization: str) -> str | None:
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None
