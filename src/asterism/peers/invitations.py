"""Invitations: one line that tells another store where this one is, how to know it, and what to show it.

::

    https://kitchen-pc:7420/#kitchen-pc.TOKEN.FINGERPRINT

The name is how the inviter would like to be called, the token is 32 random bytes, and the fingerprint is that of the
inviter's certificate. The line is a secret: whoever uses it first is the peer. The store that wrote it keeps only the
SHA-256 of the token.

It is good for one thing, once, within a day (or as long as was said): to be exchanged for another secret. The guest
makes that secret, writes it down, and then shows the invitation together with the secret's SHA-256. From then on it is
the secret that is asked for, and nobody has ever seen it but the guest. If the answer is lost, or either side is killed
before or after it, the guest does the same once more: an invitation that was exchanged for this very secret is answered
as it was the first time, and with any other secret it is refused. So the line is worth nothing any more, wherever it
was left.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

from asterism.base.url_text import masked_url
from asterism.core.errors import AsterismError
from asterism.peers.registry import Peer, PeerExists, PeerRegistry, check_peer_name, peer_key
from asterism.peers.tls_identity import tls_identity
from asterism.store.protocol import PutRegister, Store
from asterism.store.store_errors import Conflict

VALID_FOR = 86_400.0
"""How long an invitation can be used for the first time, in seconds."""

DEFAULT_PORT = 7420
TOKEN_BYTES = 32
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_HOST = re.compile(r"[A-Za-z0-9._~%:-]+")
_URL = re.compile(r"https?://[^\s'\"]*", re.IGNORECASE)
_EXAMPLE = "https://kitchen-pc:7420/#kitchen-pc.TOKEN.FINGERPRINT"


class InvitationUsed(AsterismError):
    """An invitation that has run out, or was used by somebody else."""


class InvalidInvitation(AsterismError, ValueError):
    """A line that is no invitation, or an address that no peer can have."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """``name`` is the inviter's. The token is not shown when it is printed by accident."""

    url: str
    name: str
    token: str = field(repr=False)
    fingerprint: str

    def line(self) -> str:
        return f"{self.url}/#{quote(self.name, safe='')}.{self.token}.{self.fingerprint}"


async def invite(store: Store, name: str, *, url: str, own_name: str, valid_for: float = VALID_FOR) -> Invitation:
    """Let another store be the peer ``name``. ``url`` is where it can reach this one, ``own_name`` what it will call
    this one unless it knows better. Somebody who was invited before and never came is invited anew, and the line
    before is worth nothing. Raises PeerKnown for one that came."""
    address, identity = peer_url(url), tls_identity(store)
    check_peer_name(name)
    check_peer_name(own_name)
    peers, token, now = PeerRegistry(store), new_token(), store.clock()
    await _store_expiry(store, name, now + valid_for)
    try:
        await peers.add(name, invitation_sha256=token_hash(token), invited_at=now)
    except PeerExists:
        known = await peers.get(name)
        if known.store is not None or known.invitation_sha256 is None:
            raise
        await peers.update(name, invitation_sha256=token_hash(token), token_sha256=None, invited_at=now)
    return Invitation(address, own_name, token, identity.fingerprint)


async def expires_at(store: Store, peer: Peer) -> float | None:
    """When the invitation of a peer runs out, by the clock of the store; None if it was used, or there was none."""
    if peer.store is not None or peer.token_sha256 is not None or peer.invitation_sha256 is None:
        return None
    found = await store.register(_expiry_key(peer.name))
    until = (found.value or {}).get("until") if found is not None else None
    return float(until) if until is not None else (peer.invited_at or 0.0) + VALID_FOR


async def redeem(store: Store, invitation_sha256: str, secret_sha256: str) -> Peer | None:
    """Exchange an invitation for a secret, of which both are told by their SHA-256; the same again if that was done.
    None if there is no such invitation. Raises InvitationUsed."""
    peers = PeerRegistry(store)
    while True:
        peer = await peers.find_by_invitation_hash(invitation_sha256)
        if peer is None or peer.token_sha256 == secret_sha256:
            return peer
        if peer.token_sha256 is not None:
            raise InvitationUsed(f"the invitation of {peer.name} was used already: if not by you, ask for a new one")
        until = await expires_at(store, peer)
        if until is not None and until < store.clock():
            raise InvitationUsed(f"the invitation of {peer.name} has run out: ask for a new one")
        if (after := await peers.redeem(peer, secret_sha256)) is not None:
            return after


async def _store_expiry(store: Store, name: str, until: float) -> None:
    while True:
        found = await store.register(_expiry_key(name))
        try:
            await store.commit([PutRegister(_expiry_key(name), {"until": until}, found and found.revision)])
        except Conflict:
            continue
        return


def _expiry_key(name: str) -> str:
    return peer_key(name, "invitation")


def new_token() -> str:
    return urlsafe_b64encode(secrets.token_bytes(TOKEN_BYTES)).decode().rstrip("=")


def token_hash(token: str) -> str:
    """What is kept of a token by the store that gave it."""
    return hashlib.sha256(token.encode()).hexdigest()


def parse_invitation(line: str) -> Invitation:
    """The whole command that was printed will do as well. Raises InvalidInvitation, without the line: it may hold a
    secret."""
    found = _URL.search(line)
    address, sharp, words = (found[0] if found is not None else "").partition("#")
    name, token, fingerprint = ["", "", *words.rsplit(".", 2)][-3:]
    if not sharp or not name:
        raise InvalidInvitation(f"this is no invitation: one looks like {_EXAMPLE}")
    if not _is_token(token) or _FINGERPRINT.fullmatch(fingerprint) is None:
        raise InvalidInvitation("this invitation is damaged: a part of the line is missing, or was changed")
    try:
        called = unquote(name, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInvitation("this invitation is damaged: its name is no text") from None
    return Invitation(peer_url(address), called, token, fingerprint)


def _is_token(token: str) -> bool:
    if re.fullmatch(r"[A-Za-z0-9_-]{43}", token) is None:
        return False
    return len(urlsafe_b64decode(f"{token}=")) == TOKEN_BYTES


def peer_url(text: str) -> str:
    """``https://host:port`` of an address as people write it: without a slash at its end, and with the port. Raises
    InvalidInvitation."""
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInvitation(f"{_without_secrets(text)!r} is no address: {error}") from None
    if parts.scheme != "https":
        raise InvalidInvitation(f"the address of a peer begins with https://, and {_without_secrets(text)!r} does not")
    if not host or _HOST.fullmatch(host) is None:
        raise InvalidInvitation(f"{_without_secrets(text)!r} names no machine: write https://kitchen-pc:{DEFAULT_PORT}")
    if parts.username is not None or parts.query or parts.path.strip("/"):
        raise InvalidInvitation(
            f"the address of a peer is https://, a machine and a port, and nothing more: https://{host}:{port or DEFAULT_PORT}"
        )
    shown = f"[{host}]" if ":" in host else host
    return f"https://{shown}:{port or DEFAULT_PORT}"


def _without_secrets(text: str) -> str:
    """The token of an invitation stands after the #."""
    return masked_url(text.partition("#")[0])
