"""A fire between devices and a gateway: the server is killed, connections are cut and stalled, devices are frozen."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from asterism.core.run.run import Run
from asterism.core.run.work import Workflow
from asterism.fleet.fleet import Fleet
from asterism.gateway.enrolment import invite
from asterism.store.protocol import Query
from tests.laboratory.chaos.fire import ROOT, SLOTS, TERMS, Fire

DIRECTIONS = ("requests", "answers")
STALLS = (("requests",), ("answers",), DIRECTIONS)


class Proxy:
    """Forwards connections to the server, wherever it listens now. While it stalls, connections stay open, and nothing
    passes in one direction or in both: a request does not arrive, or its answer does not."""

    def __init__(self, fire: GatewayFire) -> None:
        self._fire = fire
        self._writers: set[asyncio.StreamWriter] = set()
        self._flows = {direction: asyncio.Event() for direction in DIRECTIONS}
        for flows in self._flows.values():
            flows.set()
        self.url = ""

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield
        finally:
            server.close()
            self.cut()

    def cut(self) -> None:
        """Break every connection."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def stall(self, seconds: float, directions: Sequence[str] = DIRECTIONS) -> None:
        for direction in directions:
            self._flows[direction].clear()
        await asyncio.sleep(seconds)
        for direction in directions:
            self._flows[direction].set()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            port = int((self._fire.folder / "port").read_text())
            there, out = await asyncio.open_connection("127.0.0.1", port)
        except (OSError, ValueError):
            writer.transport.abort()
            self._writers.discard(writer)
            return
        self._writers.add(out)
        flows = [
            asyncio.create_task(self._flow(reader, out, "requests")),
            asyncio.create_task(self._flow(there, writer, "answers")),
        ]
        try:
            await asyncio.wait(flows, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for flow in flows:
                flow.cancel()
            await asyncio.gather(*flows, return_exceptions=True)
            for stream in (writer, out):
                stream.transport.abort()
                self._writers.discard(stream)

    async def _flow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: str) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                await self._flows[direction].wait()
                writer.write(data)
                await writer.drain()


@dataclass
class GatewayFire(Fire):
    """``kills`` of the server, as many cuts and stalls, and as many devices that are killed or frozen in turn."""

    devices: int = 2
    kills: int = 3
    devices_killed: int = 0
    codes: dict[str, str] = field(default_factory=dict)
    url: str = ""

    def start(self, name: str) -> None:
        if name == "server":
            words = ["tests.laboratory.chaos.server", self.store, str(self.folder / "port")]
        else:
            words = ["tests.laboratory.chaos.gateway_device", self.url, name, str(SLOTS), self.codes[name]]
        environment = {**os.environ, "CHAOS_DIARY": str(self.diary), "XDG_STATE_HOME": str(self.folder / name)}
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=ROOT,
                env=environment,
                stderr=log,
                stdout=log,
                stdin=subprocess.DEVNULL,
            )

    async def strike(self, proxy: Proxy) -> None:
        """Cut and stall connections, kill the server, kill and freeze devices, in turn."""
        chance = random.Random(self.seed)
        for number in range(self.kills):
            await asyncio.sleep(chance.uniform(0.2, 1.0))
            proxy.cut()
            await asyncio.sleep(chance.uniform(0.1, 0.5))
            await proxy.stall(chance.choice([0.2, 1.0, 5.0]), STALLS[number % len(STALLS)])
            if chance.random() < 0.5:
                proxy.cut()  # what was stalled is lost
            self.processes["server"].kill()
            self.processes["server"].wait()
            self.killed += 1
            (self.folder / "port").unlink(missing_ok=True)
            await asyncio.sleep(chance.choice([0.0, 0.3, 1.5, 5.0]))
            self.start("server")
            await self._strike_device(chance, kills=number % 2 == 0)

    async def _strike_device(self, chance: random.Random, *, kills: bool) -> None:
        name = chance.choice(sorted(self.codes))
        if kills:
            self.processes[name].kill()
            self.processes[name].wait()
            self.devices_killed += 1
            self.start(name)
        else:
            self.processes[name].send_signal(signal.SIGSTOP)
            self.stopped += 1
            await asyncio.sleep(chance.choice([0.2, 1.0, 6.0]))
            self.processes[name].send_signal(signal.SIGCONT)

    async def play(self) -> tuple[list[str], list[Run]]:
        proxy = Proxy(self)
        try:
            async with await Fleet.open(self.store, by="chaos") as fleet, proxy.listening():
                await fleet.configure(hold=2.0)
                self.url = proxy.url
                for number in range(self.devices):
                    self.codes[f"device-{number}"] = await invite(fleet.store, name="*")
                for name in ("server", *self.codes):
                    self.start(name)
                await self._until_joined(fleet)
                made, _ = await asyncio.gather(self.feed(fleet), self.strike(proxy))
                await self._until_done(fleet, made)
                return made, await fleet.runs(Query())
        finally:
            self.end_all()

    async def _until_joined(self, fleet: Fleet) -> None:
        """Wait until every device has joined once: its code is valid for ten minutes."""
        await fleet.workflows.add(Workflow("plain", call="tests.laboratory.chaos.work:work", **TERMS))  # type: ignore[arg-type]
        while {session.device for session in await fleet.devices()} < set(self.codes):
            assert all(process.poll() is None for process in self.processes.values()), "a process has ended"
            await asyncio.sleep(0.05)
