"""Calling a peer: HTTPS with httpx (the extra ``http``) to a server that is known by its certificate and nothing else.

Before the first request the certificate is looked at, and compared with the fingerprint that came with the invitation.
From then on it is the only one that is trusted, by the connections themselves, so that the secret is never sent to
anybody else. If there is an invitation that was not exchanged for the secret yet, that comes first (invitations.py).
The name of the machine and the dates of the certificate do not matter: the pin is the identity, machines get new
addresses, and clocks may be days apart. Proxies and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

from asterism.base.http_client import load_httpx
from asterism.core.errors import AsterismError
from asterism.peers.exchange import Exchange, PeerUnreachable
from asterism.peers.invitations import Invitation, new_token, peer_url, token_hash
from asterism.peers.message_codec import NotStrictJson, decode_message, encode_message
from asterism.peers.private_files import Token, TokenFile
from asterism.peers.registry import Peer, PeerExists, PeerRefused, PeerRegistry, UnknownPeer
from asterism.peers.sync_progress import SyncResult
from asterism.peers.tls_identity import fingerprint
from asterism.store.protocol import Store
from asterism.store.store_errors import StoreError

if TYPE_CHECKING:
    from httpx import AsyncClient

CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 60.0
"""How long to wait for a connection, and for each part of an answer, in seconds."""

MESSAGE_TIMEOUT = 300.0
BLOB_TIMEOUT = 3600.0
"""How long a message and something large may take in all, in seconds."""

MAX_MESSAGE_BYTES = 16 << 20
"""The longest message, in bytes; both sides hold to it. A batch is far smaller, but for a record that is large."""

MAX_BLOB_BYTES = 64 << 20
"""The longest blob that is read from a peer unless something else is said, in bytes."""

STORE_HEADER = "asterism-store"
"""The header that says which store asks for something large, or gives it: the one its secret belongs to."""

MAX_ERROR_CHARS = 500
"""How much of what a peer says of an error is passed on."""

NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, which Python has no name for."""

_RETRY_STATUSES = frozenset({408, 429})
_CONNECTION_ENDED = (
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
)
"""What OpenSSL says when a connection ends, or has not come yet: nothing about how the other side speaks."""


class PeerClient:
    """A way to one peer: a Talk. ``pin`` is the fingerprint of its certificate, ``most`` how many bytes of something
    large are read. ``redeemed`` is called once an invitation was exchanged for the secret. Use it in ``async with``."""

    def __init__(
        self,
        url: str,
        pin: str,
        token: Token,
        *,
        most: int = MAX_BLOB_BYTES,
        redeemed: Callable[[], None] = lambda: None,
    ) -> None:
        self._url, self._pin, self._token, self._most = url, pin, token.secret, most
        self._invitation, self._redeemed = token.invitation, redeemed
        self._client: AsyncClient | None = None
        self._store = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def is_like(self, other: PeerClient) -> bool:
        """Whether both lead to the same peer in the same way."""
        mine, theirs = (self._url, self._pin, self._token), (other._url, other._pin, other._token)
        return mine == theirs and self._most == other._most

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        self._store = str(message.get("store", ""))
        kind = {"content-type": "application/x-ndjson"}
        answer = await self._asked(
            "POST", "/v1/meet", MAX_MESSAGE_BYTES, MESSAGE_TIMEOUT, content=encode_message(message), headers=kind
        )
        try:
            return decode_message(answer)
        except NotStrictJson as error:
            raise PeerRefused(f"{self._url} answers with no message ({error}): this is no peer") from None

    async def fetch_blob(self, blob: str, run: str) -> bytes:
        path = f"/v1/blobs/{blob}?run={quote(run, safe='')}"
        return await self._asked("GET", path, self._most, BLOB_TIMEOUT, headers={STORE_HEADER: self._store})

    async def send_blob(self, blob: str, data: bytes) -> None:
        headers = {"content-type": "application/octet-stream", STORE_HEADER: self._store}
        await self._asked("PUT", f"/v1/blobs/{blob}", MAX_MESSAGE_BYTES, BLOB_TIMEOUT, content=data, headers=headers)

    async def _asked(self, method: str, path: str, most: int, within: float, **terms: Any) -> bytes:
        """The body of an answer. Raises PeerUnreachable and PeerRefused."""
        if self._invitation is not None:
            await self._redeem(self._invitation)
        headers = {"authorization": f"Bearer {self._token}", **terms.pop("headers", {})}
        return await self._answered(method, path, most, within, headers=headers, **terms)

    async def _redeem(self, invitation: str) -> None:
        """Exchange the invitation for the secret: the other side gets to see only what it is recognised by."""
        headers = {"authorization": f"Bearer {invitation}", "content-type": "application/json"}
        data = json.dumps({"secret_sha256": token_hash(self._token)}).encode()
        await self._answered(
            "POST", "/v1/accept", MAX_MESSAGE_BYTES, CONNECT_TIMEOUT + READ_TIMEOUT, headers=headers, content=data
        )
        self._redeemed()
        self._invitation = None

    async def _answered(self, method: str, path: str, most: int, within: float, **terms: Any) -> bytes:
        client = self._client = self._client or await self._connected()
        with _translated_errors(self._url):
            async with asyncio.timeout(within), client.stream(method, path, **terms) as answer:
                body = await _read_body(answer.aiter_raw(), most, self._url)
        if answer.status_code == 200:
            return body
        why = f"{self._url} answered {answer.status_code}{_error_text(body)}"
        if answer.status_code in _RETRY_STATUSES or answer.status_code >= 500:
            raise PeerUnreachable(why)
        raise PeerRefused(why)

    async def _connected(self) -> AsyncClient:
        httpx = await load_httpx("peers are called with httpx", "peers")
        with _translated_errors(self._url):
            async with asyncio.timeout(CONNECT_TIMEOUT):
                certificate = await _fetch_certificate(self._url)
        if fingerprint(certificate) != self._pin:
            raise PeerRefused(_wrong_certificate(self._url))
        client: AsyncClient = httpx.AsyncClient(
            base_url=self._url,
            headers={"accept-encoding": "identity"},
            verify=_pinned_context(certificate),
            timeout=httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT),
            trust_env=False,
        )
        return client


def client_for(store: Store, peer: Peer, *, most: int = MAX_BLOB_BYTES) -> PeerClient:
    """How this store calls a peer; ``most`` is that of its settings. Raises AsterismError if it cannot."""
    if peer.url is None or peer.pin is None:
        raise AsterismError(
            f"{peer.name} calls this store, and not the other way round: sync there; or remove the peer on both "
            f"sides, and let {peer.name} invite this one"
        )
    tokens = TokenFile(store)
    token = tokens.get(peer.name)
    if token is None:
        raise AsterismError(
            f"the secret for {peer.name} is gone (it was beside {store.url}): remove the peer on both sides, and "
            "accept a new invitation"
        )
    redeemed = partial(tokens.put, peer.name, Token(token.secret))
    return PeerClient(peer.url, peer.pin, token, most=most, redeemed=redeemed)


class ClientPool:
    """Ways to peers that are called again and again: one to each, for as long as what is known of it stays the same.
    ``most`` is as for a Caller. Use it in ``async with``."""

    def __init__(self, store: Store, *, most: int = MAX_BLOB_BYTES) -> None:
        self._store, self._most = store, most
        self._clients: dict[str, PeerClient] = {}
        self._made: list[PeerClient] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for way in self._made:
            await way.close()

    def client(self, peer: Peer) -> PeerClient:
        """Raises AsterismError if it cannot be called."""
        new, old = client_for(self._store, peer, most=self._most), self._clients.get(peer.name)
        if old is None or not old.is_like(new):
            self._clients[peer.name] = new
            self._made.append(new)
            return new
        return old


async def find_peer(peers: PeerRegistry, text: str) -> Peer:
    """By its name, or by the address that was accepted. Raises UnknownPeer."""
    if "://" not in text:
        return await peers.get(text)
    address = peer_url(text)
    found = next((peer for peer in await peers.all() if peer.url == address), None)
    if found is None:
        raise UnknownPeer(
            f"no peer at {address} is known: whoever it is has to invite this store (asterism peer invite), and this "
            "one to accept"
        )
    return found


async def accept_invitation(exchange: Exchange, invitation: Invitation, name: str | None = None) -> SyncResult:
    """Become the peer of the store that wrote an invitation, and meet it. ``name`` is what it is called here. If it
    cannot be reached, or this is broken off, the invitation is kept for the next meeting, and to accept it again goes
    on with it; if it is refused nothing is kept. Raises PeerUnreachable, PeerRefused, PeerKnown."""
    store, called = exchange.fleet.store, name or invitation.name
    tokens = TokenFile(store)
    await _prepare(exchange.peers, tokens, invitation, called)
    try:
        most = (await exchange.fleet.settings()).most
        async with client_for(store, await exchange.peers.get(called), most=most) as caller:
            return await exchange.sync(called, caller)
    except (PeerUnreachable, StoreError):
        raise
    except AsterismError:
        tokens.remove(called)
        await exchange.peers.remove(called)
        raise


async def _prepare(peers: PeerRegistry, tokens: TokenFile, invitation: Invitation, called: str) -> None:
    """Write down what it takes to go on with, before anybody hears of it: a secret of our own making beside the
    invitation. What was begun before with the same invitation stays as it is."""
    try:
        await peers.add(called, url=invitation.url, pin=invitation.fingerprint)
    except PeerExists:
        known, token = await peers.get(called), tokens.get(called)
        if known.url != invitation.url or known.pin != invitation.fingerprint or known.store is not None:
            raise
        if token is not None and token.invitation not in (None, invitation.token):
            raise
        if token is not None:
            return
    tokens.put(called, Token(new_token(), invitation.token))


async def _fetch_certificate(url: str) -> bytes:
    """The certificate of whoever is there; nothing but the handshake is said to them."""
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return bytes(certificate or b"")


def _pinned_context(certificate: bytes) -> ssl.SSLContext:
    """Trusts this certificate and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
    context.load_verify_locations(cadata=certificate)
    return context


async def _read_body(parts: AsyncIterator[bytes], most: int, url: str) -> bytes:
    body = bytearray()
    async for part in parts:
        body += part
        if len(body) > most:
            raise PeerRefused(f"{url} answers with more than {most:,} bytes: this is no peer, or something is wrong")
    return bytes(body)


@contextlib.contextmanager
def _translated_errors(url: str) -> Iterator[None]:
    """What goes wrong on the way, in sentences."""
    import httpx  # it is there: a peer is called after load_httpx

    try:
        yield
    except TimeoutError:
        raise PeerUnreachable(f"{url} does not answer") from None
    except (httpx.HTTPError, OSError) as error:
        if isinstance(error, httpx.TimeoutException):
            raise PeerUnreachable(f"{url} does not answer") from None
        cause = _cause(error)
        if isinstance(cause, ssl.SSLCertVerificationError):
            raise PeerRefused(_wrong_certificate(url)) from None
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, _CONNECTION_ENDED):
            reason = cause.reason or str(cause)
            raise PeerRefused(f"{url} does not speak TLS as a peer does ({reason}): is it another service?") from None
        raise PeerUnreachable(f"{url} is out of reach: {_system_error(cause)}") from None


def _cause(error: BaseException) -> BaseException:
    """What an error came of: the first in its chain that says something of its own."""
    found, inner = error, error.__cause__ or error.__context__
    while inner is not None:
        if not isinstance(inner, _CONNECTION_ENDED):
            found = inner
        inner = inner.__cause__ or inner.__context__
    return found


def _system_error(error: BaseException) -> str:
    """What the system has to say; what asyncio says of it names the address again."""
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        return os.strerror(error.errno)
    if isinstance(error, OSError) and not error.strerror:
        return "nobody answers at any of its addresses"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def _wrong_certificate(url: str) -> str:
    return (
        f"{url} shows another certificate than the one it was invited with: it is not the peer it claims to be, or its "
        "identity was made anew; then remove the peer and accept a new invitation"
    )


def _error_text(body: bytes) -> str:
    """What the other side says of its refusal, made harmless."""
    try:
        told = json.loads(body)
        said = told["error"] if isinstance(told, dict) else ""
    except (ValueError, RecursionError, KeyError):
        said = ""
    if not isinstance(said, str) or not said:
        return ""
    return ": " + "".join(letter if letter.isprintable() else " " for letter in said[:MAX_ERROR_CHARS])
