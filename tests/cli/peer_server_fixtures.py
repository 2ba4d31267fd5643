"""A server for peers in this process, with a fake exchange."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from cryptography.hazmat.primitives import serialization  # noqa: F401 - loading it takes too long for an event loop

from asterism.base.http_limits import Connections, Limits
from asterism.fleet.fleet import Fleet
from asterism.fleet.one_time_code import new_secret, secret_hash
from asterism.peers.invitations import invite, redeem
from asterism.peers.peer_client import PeerClient
from asterism.peers.peer_server import DEFAULT_LIMITS, Authenticator, open_socket, peer_app, serving, socket_url
from asterism.peers.private_files import Token, tls_identity
from asterism.peers.registry import PeerRefused, PeerRegistry
from asterism.store.sqlite import SqliteStore
from tests.process_scenes import PATIENCE

MOST = 5000


class Said(Exception):
    """An internal error."""


class Hearer:
    """A fake exchange: answers with the message and the name of the peer."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet, self.peers = fleet, PeerRegistry(fleet.store)
        self.error: Exception | None = None
        self.blobs: dict[str, bytes] = {}
        self.wanted: dict[str, int] = {}
        self.heard = 0

    async def answer(self, peer: str, message: Mapping[str, Any]) -> dict[str, Any]:
        self.heard += 1
        if self.error is not None:
            raise self.error
        return {"peer": peer, "message": message}

    async def read_blob(self, peer: str, blob: str, run: str) -> bytes | None:
        return self.blobs.get(blob)

    def wanted_size(self, peer: str, blob: str) -> int:
        if blob not in self.wanted:
            raise PeerRefused("nobody has asked for it")
        return self.wanted[blob]

    async def receive_blob(self, peer: str, blob: str, data: bytes) -> None:
        if hashlib.sha256(data).hexdigest() != blob:
            raise PeerRefused("the name is not that of the bytes")
        self.blobs[blob] = data


def trusting() -> ssl.SSLContext:
    """A TLS context that trusts every certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


async def connected(
    url: str, context: ssl.SSLContext | None = None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A raw connection; without a context it has no TLS."""
    host, port = url.removeprefix("https://").split(":")
    return await asyncio.open_connection(host, int(port), ssl=context)


class Scene:
    """A server at ``url`` with the fake exchange ``hearer``; ``clock`` is that of its store and its authenticator."""

    def __init__(self, hearer: Hearer, url: str, clock: list[float], connections: Connections) -> None:
        self.hearer, self.url, self.clock, self.connections = hearer, url, clock, connections

    async def invitation(self, name: str = "laptop", **options: Any) -> str:
        store = self.hearer.fleet.store
        return (await invite(store, name, url=self.url, own_name="kitchen", **options)).token

    async def token(self, name: str = "laptop") -> str:
        """The secret of a new peer, whose store is ``store of NAME``."""
        secret = new_secret()
        store = self.hearer.fleet.store
        assert await redeem(store, secret_hash(await self.invitation(name)), secret_hash(secret)) is not None
        await self.hearer.peers.bind(name, f"store of {name}")
        return secret

    def caller(self, token: str, invitation: str | None = None) -> PeerClient:
        """A client with this secret."""
        pin = tls_identity(self.hearer.fleet.store).fingerprint
        return PeerClient(self.url, pin, Token(token, invitation))

    def client(self, token: str = "") -> httpx.AsyncClient:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        options: dict[str, Any] = {"verify": trusting(), "headers": headers, "trust_env": False, "timeout": PATIENCE}
        return httpx.AsyncClient(base_url=self.url, **options)


@asynccontextmanager
async def serving_peer(folder: Path, limits: Limits = DEFAULT_LIMITS, most: int = MOST) -> AsyncIterator[Scene]:
    clock = [1000.0]
    store = await SqliteStore.open(folder / "kitchen.db", clock=lambda: clock[0])
    async with Fleet(store) as fleet:
        await fleet.configure(most=most)
        hearer = Hearer(fleet)
        guard = Authenticator(store, hearer.peers, lambda: clock[0])
        app = peer_app(hearer, guard, limits)  # type: ignore[arg-type]
        sock = open_socket("127.0.0.1:0")
        async with serving(app, sock, tls_identity(store), limits) as server:
            yield Scene(hearer, socket_url(sock), clock, server.listeners[0].connections)


def sentence(answer: httpx.Response) -> str:
    told = answer.json()
    assert list(told) == ["error"]
    return str(told["error"])
