"""Many devices without work in one process, until its input ends:
``python -m bench.runs.idle_crowd URL KEYS FIRST``."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from asterism.base.http_limits import raise_descriptor_limit
from asterism.base.startup import tune_gc
from asterism.fleet.device.agent import DeviceAgent
from asterism.gateway.device_key import DeviceKey
from asterism.gateway.gateway_connection import GatewayAccess
from asterism.gateway.gateway_messages import PREFIX, GatewayRefused
from asterism.store.store_errors import StoreUnavailable
from bench import loop
from bench.runs.idle_devices import PER_PROCESS
from tests.gateway.memory_outbox import MemoryOutbox

AT_ONCE = 10
"""How many devices join at the same time, until their first heartbeat was answered."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class LeanTransport:
    """Messages over plain connections that stay open, as those of a device do. A client of httpx for each of so many
    devices would cost more than the devices."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port = int(port)
        self._free: list[Streams] = []

    async def send(self, operation: str, body: Any, token: str | None, *, timeout: float) -> Any:
        try:
            async with asyncio.timeout(timeout):
                streams = self._free.pop() if self._free else await asyncio.open_connection(self._host, self._port)
                status, content = await self._exchange(streams, operation, json.dumps(body).encode(), token)
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise StoreUnavailable(f"{self.url}: {error}") from None
        self._free.append(streams)
        answer = json.loads(content)
        if status == 200:
            return answer
        if status == 429 or status >= 500:
            raise StoreUnavailable(str(answer))
        raise GatewayRefused(str(answer), str(answer.get("kind", "")))

    async def _exchange(self, streams: Streams, operation: str, body: bytes, token: str | None) -> tuple[int, bytes]:
        reader, writer = streams
        credential = "" if token is None else f"authorization: Bearer {token}\r\n"
        head = f"POST {PREFIX}/{operation} HTTP/1.1\r\nhost: {self._host}:{self._port}\r\n{credential}"
        writer.write(f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        try:
            answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            size = answer.partition("content-length: ")[2].partition("\r\n")[0]
            return int(answer.split()[1]), await reader.readexactly(int(size))
        except BaseException:
            writer.close()
            raise

    async def close(self) -> None:
        for _, writer in self._free:
            writer.close()


class Nowhere:
    """A machine of which nothing is asked: there are many in one process."""

    host = "bench"

    def acquire(self) -> bool:
        return True

    def kill_orphans(self, session: str) -> None:
        """There are none."""

    def close(self) -> None:
        """Nothing is held."""


async def main(url: str, keys: list[str], first: int) -> None:
    tune_gc()
    raise_descriptor_limit()
    lines = keys[first : first + PER_PROCESS]
    room, living = asyncio.Semaphore(AT_ONCE), []

    async def join(name: str, key: str) -> None:
        access = GatewayAccess(LeanTransport(url), DeviceKey.from_text(key), MemoryOutbox())
        agent = DeviceAgent(access, name, host=Nowhere(), measure=lambda: {"os": "bench", "cpus": 4})
        async with room:
            living.append(asyncio.create_task(agent.run()))
            joined = asyncio.create_task(agent.joined.wait())
            await asyncio.wait([living[-1], joined], return_when=asyncio.FIRST_COMPLETED)
            while not (agent.lease.has_been_renewed or living[-1].done()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    await asyncio.gather(*(join(*line.split()) for line in lines))
    print("joined", flush=True)
    ended, running = asyncio.Event(), asyncio.get_running_loop()

    def heard() -> None:
        if not os.read(0, 1000):
            running.remove_reader(0)
            ended.set()

    running.add_reader(0, heard)
    await ended.wait()
    os._exit(0)  # the server ends as well: nobody waits for so many to leave


if __name__ == "__main__":
    with loop.runner() as runner:
        runner.run(main(sys.argv[1], Path(sys.argv[2]).read_text().splitlines(), int(sys.argv[3])))
