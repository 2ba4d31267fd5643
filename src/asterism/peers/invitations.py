"""Invitations: one line with the address, certificate fingerprint and token of the inviting store.

::

    https://kitchen-pc:7420/#kitchen-pc.TOKEN.FINGERPRINT

The name is the inviter's proposal for its own name, the token is 32 random bytes, and the fingerprint identifies the
inviter's certificate. The line is a secret: the first store that uses it becomes the peer. The inviting store keeps
only the SHA-256 of the token.

An invitation can be exchanged for a secret, once, within a day or its given lifetime (fleet/one_time_code.py). The
guest creates the secret, writes it to its token file, and then sends the invitation's token with the SHA-256 of the
secret. If the answer is lost, or either side is killed before or after it, the guest repeats the request.
"""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from asterism.base.text import masked_url
from asterism.core.errors import AsterismError
from asterism.core.record import Record, decode
from asterism.fleet.one_time_code import SECRET_BYTES, Refusal, is_first_use, new_secret, secret_hash
from asterism.peers.private_files import tls_identity
from asterism.peers.registry import Peer, PeerExists, PeerRegistry, check_peer_name, peer_key
from asterism.store.optimistic_update import retried, update_register
from asterism.store.protocol import Store
from asterism.store.row_codec import readable

VALID_FOR = 86_400.0
"""The lifetime of an unused invitation, in seconds."""

DEFAULT_PORT = 7420
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_HOST = re.compile(r"[A-Za-z0-9._~%:-]+")
_URL = re.compile(r"https?://[^\s'\"]*", re.IGNORECASE)
_EXAMPLE = "https://kitchen-pc:7420/#kitchen-pc.TOKEN.FINGERPRINT"


class InvitationUsed(AsterismError):
    """The invitation has expired, or another store has used it."""


class InvalidInvitation(AsterismError, ValueError):
    """A line that is not an invitation, or an address that is not valid for a peer."""


class Invitation(Record):
    """``name`` is the name of the inviter. ``repr`` hides the token."""

    url: str
    name: str
    token: str
    fingerprint: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}, {self.name!r}, …)"

    def line(self) -> str:
        return f"{self.url}/#{quote(self.name, safe='')}.{self.token}.{self.fingerprint}"


async def invite(store: Store, name: str, *, url: str, own_name: str, valid_for: float = VALID_FOR) -> Invitation:
    """Invite another store as the peer ``name``. ``url`` is the address of this store, ``own_name`` its proposed name
    at the other side. An earlier invitation of that name that was not used becomes worthless. Raises PeerExists if the
    peer has accepted one."""
    address, identity = peer_url(url), tls_identity(store)
    check_peer_name(name)
    check_peer_name(own_name)
    peers, token, now = PeerRegistry(store), new_secret(), store.clock()
    await update_register(store, _expiry_key(name), lambda _: {"until": now + valid_for})
    try:
        await peers.add(name, invitation_sha256=secret_hash(token), invited_at=now)
    except PeerExists:
        known = await peers.get(name)
        if known.store is not None or known.invitation_sha256 is None:
            raise
        await peers.update(name, invitation_sha256=secret_hash(token), token_sha256=None, invited_at=now)
    return Invitation(address, own_name, token, identity.fingerprint)


async def expires_at(store: Store, peer: Peer) -> float | None:
    """When the invitation of a peer expires, by the store's clock; None if it was used, or there is none."""
    if peer.store is not None or peer.token_sha256 is not None or peer.invitation_sha256 is None:
        return None
    register = await store.register(_expiry_key(peer.name))
    if register is None or not register.value:
        return (peer.invited_at or 0.0) + VALID_FOR
    return next(iter(readable(lambda expiry: expiry.read(expiry_of), [register])), 0.0)  # a damaged one has expired


def expiry_of(value: Any) -> float:
    """When an invitation expires, from the value of its register."""
    return decode(float, value["until"])


@retried
async def redeem(store: Store, invitation_sha256: str, secret_sha256: str) -> Peer | None:
    """Exchange an invitation for a secret; both are given by their SHA-256. A repeated request succeeds again. None if
    there is no such invitation. Raises InvitationUsed."""
    peers = PeerRegistry(store)
    peer = await peers.find_by_hash("invitation_sha256", invitation_sha256)
    if peer is None:
        return None
    until = await expires_at(store, peer)
    refusal = Refusal(InvitationUsed, f"the invitation of {peer.name}", "ask for a new one")
    expired = until is not None and until < store.clock()
    first = is_first_use(secret_sha256, peer.token_sha256, expired, refusal)
    return await peers.redeem(peer, secret_sha256) if first else peer


def _expiry_key(name: str) -> str:
    return peer_key(name, "invitation")


def parse_invitation(line: str) -> Invitation:
    """The invitation in a line; text around it, such as a whole command, is ignored. Raises InvalidInvitation, whose
    message does not quote the line, since it may contain a secret."""
    url = _URL.search(line)
    address, sharp, words = (url[0] if url is not None else "").partition("#")
    name, token, fingerprint = ["", "", *words.rsplit(".", 2)][-3:]
    if not sharp or not name:
        raise InvalidInvitation(f"this is not an invitation; an example: {_EXAMPLE}")
    if not _is_token(token) or _FINGERPRINT.fullmatch(fingerprint) is None:
        raise InvalidInvitation("this invitation is damaged: part of the line is missing or changed")
    try:
        called = unquote(name, errors="strict")
    except UnicodeDecodeError:
        raise InvalidInvitation("this invitation is damaged: its name is not valid text") from None
    return Invitation(peer_url(address), called, token, fingerprint)


def _is_token(token: str) -> bool:
    if re.fullmatch(r"[A-Za-z0-9_-]{43}", token) is None:
        return False
    return len(urlsafe_b64decode(f"{token}=")) == SECRET_BYTES


def peer_url(text: str) -> str:
    """An address as people write it, as ``https://host:port``. Raises InvalidInvitation."""
    try:
        parts = urlsplit(text.strip())
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidInvitation(f"{_without_secrets(text)!r} is not a valid address: {error}") from None
    if parts.scheme != "https":
        raise InvalidInvitation(
            f"{_without_secrets(text)!r} is not a valid peer address: it has to begin with https://"
        )
    if not host or _HOST.fullmatch(host) is None:
        raise InvalidInvitation(
            f"{_without_secrets(text)!r} has no valid host (example: https://kitchen-pc:{DEFAULT_PORT})"
        )
    if parts.username is not None or parts.query or parts.path.strip("/"):
        raise InvalidInvitation(
            f"the address of a peer has a host and a port only, such as https://{host}:{port or DEFAULT_PORT}"
        )
    shown = f"[{host}]" if ":" in host else host
    return f"https://{shown}:{port or DEFAULT_PORT}"


def _without_secrets(text: str) -> str:
    """The part before the #, without a token and a password."""
    return masked_url(text.partition("#")[0])
