"""A real server in a thread of the test process, for commands that reach it over HTTP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from asterism.api.credentials import Credentials
from asterism.base.listen_address import ListenAddress
from asterism.fleet.fleet import Fleet
from asterism.server.http_service import HttpService, http_service

Value = TypeVar("Value")


@dataclass
class ServerThread:
    """``url`` is the address of the server."""

    store: str
    certificate: Path | None = None
    url: str = ""
    _ready: threading.Event = field(default_factory=threading.Event)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _error: BaseException | None = None

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._error = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        pem = None if self.certificate is None else str(self.certificate)
        address = ListenAddress("127.0.0.1", 0, pem, pem)
        async with await Fleet.open(self.store, by="server") as fleet, http_service(fleet, address) as service:
            self.fleet, self.service = fleet, service
            self.url = service.url
            self._ready.set()
            await self._stop.wait()

    def ask(self, question: Callable[[HttpService], Awaitable[Value]]) -> Value:
        """Ask something in the thread of the server."""

        async def answer() -> Value:
            return await question(self.service)

        return asyncio.run_coroutine_threadsafe(answer(), self._loop).result(30)

    def token(self, *scopes: str, **options: Any) -> str:
        async def create(service: HttpService) -> str:
            credentials = Credentials(service.state.fleet.store)
            return (await credentials.create("ann", scopes or ["admin"], by="test", **options)).token

        return self.ask(create)

    def code(self, *scopes: str) -> str:
        async def create(service: HttpService) -> str:
            return await Credentials(service.state.fleet.store).create_login("ann", scopes or ["operate"], by="test")

        return self.ask(create)


@contextmanager
def server_thread(store: str, certificate: Path | None = None) -> Iterator[ServerThread]:
    """A server of a store. ``certificate`` is a PEM file with a key and its certificate."""
    server = ServerThread(store, certificate)
    thread = threading.Thread(target=server.run)
    thread.start()
    server._ready.wait(30)
    if server._error is not None:
        raise server._error
    try:
        yield server
    finally:
        server._loop.call_soon_threadsafe(server._stop.set)
        thread.join(30)
        if server._error is not None:
            raise server._error
