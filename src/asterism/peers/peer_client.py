"""The HTTPS client of a peer, which trusts the pinned certificate and no other (the extra ``http``).

The pin is the fingerprint in the invitation, so the secret is never sent to another server (base/https_session.py). An
invitation that was not exchanged for the secret yet comes first (invitations.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Self
from urllib.parse import quote

from asterism.base.http_answers import AnswerRefused
from asterism.base.https_session import CONNECT_TIMEOUT, HttpsSession, Pin, is_temporary, problem_in, shown_text
from asterism.base.strict_json import NotStrictJson
from asterism.core.errors import AsterismError
from asterism.fleet.one_time_code import new_secret, secret_hash
from asterism.peers.exchange import Exchange, PeerUnreachable, SyncResult
from asterism.peers.invitations import Invitation, peer_url
from asterism.peers.messages import decode_message, encode_message
from asterism.peers.private_files import SERVER_NAME, Token, TokenFile
from asterism.peers.registry import Peer, PeerExists, PeerRefused, PeerRegistry, UnknownPeer
from asterism.store.protocol import Store
from asterism.store.store_errors import StoreError

READ_TIMEOUT = 60.0
"""The time limit of each part of an answer, in seconds."""

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

_WRONG_CERTIFICATE = (
    "the one in the invitation: it is another server, or its identity was created again; in that case remove the peer "
    "and accept a new invitation"
)


class PeerClient(HttpsSession):
    """The Transport to one peer, used in ``async with``. ``pin`` is the fingerprint of its certificate, ``most`` the
    limit for a blob in bytes. ``redeemed`` is called once an invitation was exchanged for the secret."""

    unreachable, refused = PeerUnreachable, PeerRefused
    needs = ("syncing with peers needs httpx", "peers")

    def __init__(
        self,
        url: str,
        pin: str,
        token: Token,
        *,
        most: int = MAX_BLOB_BYTES,
        redeemed: Callable[[], None] = lambda: None,
    ) -> None:
        pinned = Pin(pin, _WRONG_CERTIFICATE, party="a peer", server_name=SERVER_NAME)
        super().__init__(url, pinned, headers={}, silence=READ_TIMEOUT)
        self._token, self._most = token.secret, most
        self._invitation, self._redeemed = token.invitation, redeemed
        self._store = ""

    @property
    def parameters(self) -> tuple[object, ...]:
        """What makes it another client."""
        return self.url, self._pin, self._token, self._most

    async def send(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        self._store = str(message.get("store", ""))
        kind = {"content-type": "application/x-ndjson"}
        answer = await self._authorized(
            "POST", "/v1/meet", MAX_MESSAGE_BYTES, MESSAGE_TIMEOUT, kind, encode_message(message)
        )
        try:
            return decode_message(answer)
        except NotStrictJson as error:
            raise PeerRefused(f"the answer of {self.url} is not a message ({error}): it is not a peer") from None

    async def fetch_blob(self, blob: str, run: str) -> bytes:
        path = f"/v1/blobs/{blob}?run={quote(run, safe='')}"
        return await self._authorized("GET", path, self._most, BLOB_TIMEOUT, {STORE_HEADER: self._store})

    async def send_blob(self, blob: str, data: bytes) -> None:
        headers = {"content-type": "application/octet-stream", STORE_HEADER: self._store}
        await self._authorized("PUT", f"/v1/blobs/{blob}", MAX_MESSAGE_BYTES, BLOB_TIMEOUT, headers, data)

    async def _authorized(
        self, method: str, path: str, most: int, within: float, headers: Mapping[str, str], content: bytes = b""
    ) -> bytes:
        """The body of the answer. Raises PeerUnreachable and PeerRefused."""
        if self._invitation is not None:
            await self._redeem(self._invitation)
        return await self._answered(method, path, most, within, self._token, headers, content)

    async def _redeem(self, invitation: str) -> None:
        """Exchange the invitation for the secret. The other side receives only the hash of the secret."""
        data = json.dumps({"secret_sha256": secret_hash(self._token)}).encode()
        within, kind = CONNECT_TIMEOUT + READ_TIMEOUT, {"content-type": "application/json"}
        await self._answered("POST", "/v1/accept", MAX_MESSAGE_BYTES, within, invitation, kind, data)
        self._redeemed()
        self._invitation = None

    async def _answered(
        self, method: str, path: str, most: int, within: float, token: str, headers: Mapping[str, str], content: bytes
    ) -> bytes:
        authorized = {"authorization": f"Bearer {token}", **headers}
        try:
            status, body = await self.request(
                method, path, most=most, within=within, headers=authorized, content=content
            )
        except AnswerRefused as error:
            raise PeerRefused(f"{error}: it is not a peer, or faulty") from None
        if status == 200:
            return body
        problem = problem_in(body)
        # a server that also answers others has refused it before it reached the part for peers
        text = shown_text(problem.get("error", problem.get("detail")), MAX_ERROR_CHARS)
        kind = PeerUnreachable if is_temporary(status) else PeerRefused
        raise kind(f"{self.url} answered {status}{': ' if text else ''}{text}")


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
        self._clients: dict[tuple[object, ...], PeerClient] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self._clients.values():
            await client.close()

    def client(self, peer: Peer) -> PeerClient:
        """The client for a peer. Raises AsterismError if this store cannot call it."""
        client = client_for(self._store, peer, most=self._most)
        return self._clients.setdefault((peer.name, *client.parameters), client)


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
    tokens.put(called, Token(new_secret(), invitation.token))
