"""The HTTPS client of a peer, which trusts the pinned certificate and no other (the extra ``http``).

Before the first request the client reads the server's certificate and compares it with the fingerprint from the
invitation. A server that has another certificate for its other clients shows the right one to who asks for it by name.
From then on the connections trust only this certificate, so the secret is never sent to another server. An
invitation that was not exchanged for the secret yet comes first (invitations.py). The host name and the dates of the
certificate do not matter: the pin is the identity, machines get new addresses, and clocks may be days apart. Proxies
and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlsplit

from asterism.base.http_answers import AnswerRefused, read_answer
from asterism.base.strict_json import NotStrictJson
from asterism.core.errors import AsterismError
from asterism.execution.http_requests import load_httpx
from asterism.peers.exchange import Exchange, PeerUnreachable, SyncResult
from asterism.peers.invitations import Invitation, new_token, peer_url, token_hash
from asterism.peers.messages import decode_message, encode_message
from asterism.peers.private_files import SERVER_NAME, Token, TokenFile, fingerprint
from asterism.peers.registry import Peer, PeerExists, PeerRefused, PeerRegistry, UnknownPeer
from asterism.store.protocol import Store
from asterism.store.store_errors import StoreError

if TYPE_CHECKING:
    from httpx import AsyncClient

CONNECT_TIMEOUT = 10.0
READ_TIMEOUT = 60.0
"""The timeouts for a connection, and for each part of an answer, in seconds."""

MESSAGE_TIMEOUT = 300.0
BLOB_TIMEOUT = 3600.0
"""The time limits of a message and of a blob, in seconds."""

MAX_MESSAGE_BYTES = 16 << 20
"""The largest message, in bytes, on both sides. A batch is far smaller unless it has one large record."""

MAX_BLOB_BYTES = 64 << 20
"""The default limit for a blob that is read from a peer, in bytes."""

STORE_HEADER = "asterism-store"
"""The header with the id of the store that reads or sends a blob: the store that the secret belongs to."""

MAX_ERROR_CHARS = 500
"""How much of a peer's error message is quoted."""

NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which Python does not name."""

_RETRY_STATUSES = frozenset({408, 429})
_CONNECTION_ENDED = (
    ssl.SSLWantReadError,
    ssl.SSLWantWriteError,
    ssl.SSLEOFError,
    ssl.SSLZeroReturnError,
    ssl.SSLSyscallError,
)
"""Errors of OpenSSL about a connection that ended or is not open yet, not about the protocol."""


class PeerClient:
    """The Transport to one peer, used in ``async with``. ``pin`` is the fingerprint of its certificate, ``most`` the
    limit for a blob in bytes. ``redeemed`` is called once an invitation was exchanged for the secret."""

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
        self._server_name = ""
        self._store = ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def is_like(self, other: PeerClient) -> bool:
        """Whether both have the same parameters."""
        mine, theirs = (self._url, self._pin, self._token), (other._url, other._pin, other._token)
        return mine == theirs and self._most == other._most

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        self._store = str(message.get("store", ""))
        kind = {"content-type": "application/x-ndjson"}
        answer = await self._request(
            "POST", "/v1/meet", MAX_MESSAGE_BYTES, MESSAGE_TIMEOUT, content=encode_message(message), headers=kind
        )
        try:
            return decode_message(answer)
        except NotStrictJson as error:
            raise PeerRefused(f"the answer of {self._url} is not a message ({error}): it is not a peer") from None

    async def fetch_blob(self, blob: str, run: str) -> bytes:
        path = f"/v1/blobs/{blob}?run={quote(run, safe='')}"
        return await self._request("GET", path, self._most, BLOB_TIMEOUT, headers={STORE_HEADER: self._store})

    async def send_blob(self, blob: str, data: bytes) -> None:
        headers = {"content-type": "application/octet-stream", STORE_HEADER: self._store}
        await self._request("PUT", f"/v1/blobs/{blob}", MAX_MESSAGE_BYTES, BLOB_TIMEOUT, content=data, headers=headers)

    async def _request(self, method: str, path: str, most: int, within: float, **terms: Any) -> bytes:
        """The body of the answer. Raises PeerUnreachable and PeerRefused."""
        if self._invitation is not None:
            await self._redeem(self._invitation)
        headers = {"authorization": f"Bearer {self._token}", **terms.pop("headers", {})}
        return await self._send_request(method, path, most, within, headers=headers, **terms)

    async def _redeem(self, invitation: str) -> None:
        """Exchange the invitation for the secret. The other side receives only the hash of the secret."""
        headers = {"authorization": f"Bearer {invitation}", "content-type": "application/json"}
        data = json.dumps({"secret_sha256": token_hash(self._token)}).encode()
        await self._send_request(
            "POST", "/v1/accept", MAX_MESSAGE_BYTES, CONNECT_TIMEOUT + READ_TIMEOUT, headers=headers, content=data
        )
        self._redeemed()
        self._invitation = None

    async def _send_request(self, method: str, path: str, most: int, within: float, **terms: Any) -> bytes:
        client = self._client = self._client or await self._connected()
        names = {"sni_hostname": self._server_name}
        with _translated_errors(self._url):
            async with asyncio.timeout(within), client.stream(method, path, extensions=names, **terms) as answer:
                body = await read_answer(answer, most)
        if answer.status_code == 200:
            return body
        why = f"{self._url} answered {answer.status_code}{_error_text(body)}"
        if answer.status_code in _RETRY_STATUSES or answer.status_code >= 500:
            raise PeerUnreachable(why)
        raise PeerRefused(why)

    async def _connected(self) -> AsyncClient:
        httpx = await load_httpx("syncing with peers needs httpx", "peers")
        certificate = await self._pinned_certificate()
        client: AsyncClient = httpx.AsyncClient(
            base_url=self._url,
            headers={"accept-encoding": "identity"},
            verify=_pinned_context(certificate),
            timeout=httpx.Timeout(READ_TIMEOUT, connect=CONNECT_TIMEOUT),
            trust_env=False,
        )
        return client

    async def _pinned_certificate(self) -> bytes:
        """The certificate of the server. Raises PeerRefused if it is not the pinned one."""
        for name in (urlsplit(self._url).hostname or "", SERVER_NAME):
            with _translated_errors(self._url):
                async with asyncio.timeout(CONNECT_TIMEOUT):
                    certificate = await _fetch_certificate(self._url, name)
            if fingerprint(certificate) == self._pin:
                self._server_name = name
                return certificate
        raise PeerRefused(_wrong_certificate(self._url))


def client_for(store: Store, peer: Peer, *, most: int = MAX_BLOB_BYTES) -> PeerClient:
    """The client for a peer. Raises AsterismError if this store cannot call it."""
    if peer.url is None or peer.pin is None:
        raise AsterismError(
            f"this store cannot call {peer.name}, which has no address here: run the sync there; or remove the peer on "
            f"both sides, and let {peer.name} invite this store"
        )
    tokens = TokenFile(store)
    token = tokens.get(peer.name)
    if token is None:
        raise AsterismError(
            f"the secret for {peer.name} is missing (it was stored beside {store.url}): remove the peer on both sides, "
            "and accept a new invitation"
        )
    redeemed = partial(tokens.put, peer.name, Token(token.secret))
    return PeerClient(peer.url, peer.pin, token, most=most, redeemed=redeemed)


class ClientPool:
    """Clients that are reused, in ``async with``: one for each peer, as long as its address, pin and secret stay the
    same. ``most`` is as for a PeerClient."""

    def __init__(self, store: Store, *, most: int = MAX_BLOB_BYTES) -> None:
        self._store, self._most = store, most
        self._clients: dict[str, PeerClient] = {}
        self._made: list[PeerClient] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._made:
            await client.close()

    def client(self, peer: Peer) -> PeerClient:
        """The client for a peer. Raises AsterismError if this store cannot call it."""
        new, old = client_for(self._store, peer, most=self._most), self._clients.get(peer.name)
        if old is None or not old.is_like(new):
            self._clients[peer.name] = new
            self._made.append(new)
            return new
        return old


async def find_peer(peers: PeerRegistry, text: str) -> Peer:
    """The peer with this name or this address. Raises UnknownPeer."""
    if "://" not in text:
        return await peers.get(text)
    address = peer_url(text)
    peer_at_address = next((peer for peer in await peers.all() if peer.url == address), None)
    if peer_at_address is None:
        raise UnknownPeer(
            f"there is no peer at {address}: invite this store there (asterism peer invite), and accept the invitation "
            "here"
        )
    return peer_at_address


async def accept_invitation(exchange: Exchange, invitation: Invitation, name: str | None = None) -> SyncResult:
    """Add the store that wrote an invitation as a peer, and sync with it. ``name`` is its name here. If it is
    unreachable, or this is interrupted, the invitation is kept for the next sync, and accepting it again continues. If
    it is refused, nothing is kept. Raises PeerUnreachable, PeerRefused, PeerExists."""
    store, called = exchange.fleet.store, name or invitation.name
    tokens = TokenFile(store)
    await _prepare(exchange.peers, tokens, invitation, called)
    try:
        most = (await exchange.fleet.settings()).largest_blob
        async with client_for(store, await exchange.peers.get(called), most=most) as caller:
            return await exchange.sync(called, caller)
    except (PeerUnreachable, StoreError):
        raise
    except AsterismError:
        tokens.remove(called)
        await exchange.peers.remove(called)
        raise


async def _prepare(peers: PeerRegistry, tokens: TokenFile, invitation: Invitation, called: str) -> None:
    """Store the peer, a new secret and the invitation before anything is sent. If the same invitation was accepted
    before, its secret stays."""
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


async def _fetch_certificate(url: str, name: str) -> bytes:
    """The certificate of the server for this name; nothing but the TLS handshake is sent."""
    parts = urlsplit(url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    _, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context, server_hostname=name)
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return bytes(certificate or b"")


def _pinned_context(certificate: bytes) -> ssl.SSLContext:
    """A TLS context that trusts this certificate and no other."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
    context.load_verify_locations(cadata=certificate)
    return context


@contextlib.contextmanager
def _translated_errors(url: str) -> Iterator[None]:
    """Translate errors of the connection into PeerUnreachable and PeerRefused."""
    import httpx  # installed: load_httpx was called before

    try:
        yield
    except AnswerRefused as error:
        raise PeerRefused(f"{error}: it is not a peer, or faulty") from None
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
            raise PeerRefused(f"{url} does not use TLS as a peer does ({reason}): is it another service?") from None
        raise PeerUnreachable(f"{url} is unreachable: {_system_error(cause)}") from None


def _cause(error: BaseException) -> BaseException:
    """The root cause of an error that is not just the end of the connection."""
    cause, inner = error, error.__cause__ or error.__context__
    while inner is not None:
        if not isinstance(inner, _CONNECTION_ENDED):
            cause = inner
        inner = inner.__cause__ or inner.__context__
    return cause


def _system_error(error: BaseException) -> str:
    """The message of the system; that of asyncio would repeat the address."""
    if isinstance(error, OSError) and not isinstance(error, socket.gaierror) and error.errno:
        return os.strerror(error.errno)
    if isinstance(error, OSError) and not error.strerror:
        return "none of its addresses answers"
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def _wrong_certificate(url: str) -> str:
    return (
        f"the certificate of {url} is not the one in the invitation: it is another server, or its identity was created "
        "again; in that case remove the peer and accept a new invitation"
    )


def _error_text(body: bytes) -> str:
    """The error message of the other side, without control characters."""
    try:
        document = json.loads(body)
        # a server that also answers others has refused it before it reached the part for peers
        message = document.get("error", document.get("detail")) if isinstance(document, dict) else ""
    except (ValueError, RecursionError):
        message = ""
    if not isinstance(message, str) or not message:
        return ""
    return ": " + "".join(letter if letter.isprintable() else " " for letter in message[:MAX_ERROR_CHARS])
