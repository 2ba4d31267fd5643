"""kill -9 of the server or the device in the middle of files: nothing half there, and the work goes on."""

from __future__ import annotations

import asyncio
import hashlib
import random
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from asterism.base.content_store import ContentFolder
from asterism.fleet.fleet import Fleet
from asterism.gateway import device_storage, gateway_content
from asterism.gateway.gateway_transport import HttpTransport
from tests.forked_commands import ForkedProgram
from tests.gateway.test_gateway_files import CONTENT, NAME, PART, Relay, chunks, granted, joined

SERVER = """
import sys
from asterism.gateway import device_storage
from bench.runs import gateway_server

device_storage.FILE_PART = int(sys.argv[2])
with gateway_server.loop.runner() as runner:
    runner.run(gateway_server.main(sys.argv[1]))
"""

DEVICE = """
import asyncio, sys
from asterism.core.run.run import Owner
from asterism.gateway import gateway_content
from asterism.gateway.gateway_connection import GatewayAccess
from asterism.gateway.gateway_transport import HttpTransport
from asterism.gateway.device_key import DeviceKey
from tests.gateway.memory_outbox import MemoryOutbox

url, key, device, session, part = sys.argv[1:]
gateway_content.FILE_PART = int(part)

def chunks():
    for number in range(5):
        yield bytes(int(part))
    print("sent", flush=True)
    sys.stdin.read()

async def main():
    access = GatewayAccess(HttpTransport(url), DeviceKey.from_text(key), MemoryOutbox())
    connection = access.connect(Owner(device, session))
    [run] = await connection.own_runs()
    await asyncio.to_thread((await connection.artifacts(run)).put, chunks())

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def small_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for module in (device_storage, gateway_content):
        monkeypatch.setattr(module, "FILE_PART", PART)
    monkeypatch.setattr(gateway_content, "PAUSE", (0.001, 0.05))


@contextmanager
def process(program: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process that is killed at the end at the latest."""
    with ForkedProgram(program, *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as started:
        try:
            yield started
        finally:
            started.kill()


async def line(started: subprocess.Popen[str]) -> str:
    assert started.stdout is not None
    return (await asyncio.to_thread(started.stdout.readline)).strip()


class Scene:
    """A server as a process behind a relay, which a test may kill and start again."""

    def __init__(self, fleet: Fleet, store: str, relay: Relay, url: str) -> None:
        self.fleet, self._store, self._relay, self.url = fleet, store, relay, url
        self.stop: Callable[[], None] = lambda: None

    async def start(self) -> None:
        server = process(SERVER, self._store, str(PART))
        started = server.__enter__()
        self._relay.port = urlsplit(await line(started)).port or 0
        self.stop = lambda: server.__exit__(None, None, None)

    def kill(self) -> None:
        self.stop()
        self.stop = lambda: None

    async def place(self) -> ContentFolder:
        place = await self.fleet.artifacts()
        assert isinstance(place, ContentFolder)
        return place


@asynccontextmanager
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    store, relay = f"sqlite:///{tmp_path}/fleet.db", Relay()
    async with await Fleet.open(store) as fleet, await asyncio.start_server(relay.serve, "127.0.0.1", 0) as front:
        here = Scene(fleet, store, relay, f"http://127.0.0.1:{front.sockets[0].getsockname()[1]}")
        await here.start()
        try:
            yield here
        finally:
            here.kill()


@pytest.mark.slow
async def test_kill_9_of_the_server_costs_no_byte_of_an_upload_or_a_download(tmp_path: Path) -> None:
    loop, chance = asyncio.get_running_loop(), random.Random(5)
    async with scene(tmp_path) as here:
        transport = HttpTransport(here.url)
        connection = await joined(here.fleet, transport, "lab-1")
        run = await granted(here.fleet, connection.owner, None)
        await connection.own_runs()
        content: Any = await connection.artifacts(run)
        killed = []

        async def kill_and_start() -> None:
            here.kill()
            await here.start()

        def with_kills() -> Iterator[bytes]:
            at = chance.randrange(1, 18)
            for number, chunk in enumerate(chunks()):
                if number == at:
                    killed.append(number)
                    asyncio.run_coroutine_threadsafe(kill_and_start(), loop).result()
                yield chunk

        assert await asyncio.to_thread(content.put, with_kills()) == (NAME, len(CONTENT))
        assert len(killed) == 1
        assert (await here.place()).path(NAME).read_bytes() == CONTENT

        def read() -> bytes:
            file = content._content.open(NAME)
            data = file.read(PART)
            asyncio.run_coroutine_threadsafe(kill_and_start(), loop).result()
            return bytes(data + file.read())

        # a server that was started again knows what a run may read from its input alone
        again = await granted(here.fleet, connection.owner, {"film": {"files_from": "a.film", "manifests": [NAME]}})
        await connection.own_runs()
        content = await connection.artifacts(again)
        assert hashlib.sha256(await asyncio.to_thread(read)).hexdigest() == NAME
        await transport.close()


@pytest.mark.slow
async def test_kill_9_of_a_device_leaves_nothing_to_see_and_the_next_one_sends_all(tmp_path: Path) -> None:
    async with scene(tmp_path) as here:
        transport = HttpTransport(here.url)
        connection = await joined(here.fleet, transport, "lab-1")
        run = await granted(here.fleet, connection.owner, None)
        key = connection._access.key.to_text()  # type: ignore[attr-defined]
        with process(DEVICE, here.url, key, "lab-1", connection.owner.session, str(PART)) as device:
            assert await line(device) == "sent"
            device.send_signal(signal.SIGKILL)
        place = await here.place()
        assert list(place.names()) == []
        assert len(list(place.folder.glob(".new-*"))) == 1
        place.sweep(float("inf"))  # as retention does after an hour
        assert list(place.folder.glob(".new-*")) == []
        await connection.own_runs()
        content = await connection.artifacts(run)
        assert await asyncio.to_thread(content.put, iter(chunks())) == (NAME, len(CONTENT))
        await transport.close()
