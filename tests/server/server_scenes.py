"""A server in the test process: its application without a socket, a store in memory, and clients with credentials."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from asterism.base.http_limits import Bodies
from asterism.fleet.fleet import Fleet
from asterism.server.app import server_app
from asterism.server.credentials import Credentials
from asterism.server.endpoint import ServerState
from asterism.server.request_guard import SERVER_LIMITS, Gate
from asterism.store.memory import MemoryStore

BASE = "http://127.0.0.1:7400"


class ServerScene:
    """``app`` is the application. ``client`` makes a client of it, by default with a token of the scope ``admin``."""

    def __init__(self, fleet: Fleet, **terms: Any) -> None:
        self.fleet, self.credentials = fleet, Credentials(fleet.store)
        gate = Gate(self.credentials, asyncio.get_running_loop().time, https=False, **terms)
        self.state = ServerState(fleet, gate, Bodies(SERVER_LIMITS))
        self.app = server_app(self.state, ["127.0.0.1", "localhost"])

    async def token(self, *scopes: str, name: str = "ann", **terms: Any) -> str:
        return (await self.credentials.create(name, scopes or ["admin"], by="test", **terms)).token

    @asynccontextmanager
    async def client(self, *scopes: str, token: str | None = None, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
        headers["authorization"] = f"Bearer {token or await self.token(*scopes)}"
        async with self.stranger(**headers) as client:
            yield client

    @asynccontextmanager
    async def stranger(self, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
        """A client without credentials."""
        transport = httpx.ASGITransport(self.app)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url=BASE, headers=headers) as client:
            yield client


@asynccontextmanager
async def server_scene(**terms: Any) -> AsyncIterator[ServerScene]:
    async with Fleet(MemoryStore(), by="server") as fleet:
        yield ServerScene(fleet, **terms)
