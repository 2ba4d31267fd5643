"""Files over the gateway, beside a bare upload: bytes per second in turn, and the memory of the server.

The bare upload is one Starlette endpoint of uvicorn that reads the request, hashes it, writes it to a file and syncs
that: no parts, no credentials, no name. Its client streams the same file. Both servers are processes on this machine,
without TLS. Of both, the file is compared with the hash of the source afterwards.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx

from asterism.core.record import replace
from asterism.core.run.run import PROCESSING, Owner
from asterism.core.run.work import Workflow
from asterism.execution.artifacts import chunks_of
from asterism.fleet.fleet import Fleet
from asterism.gateway.device_key import DeviceKey
from asterism.gateway.enrolment import invite
from asterism.gateway.gateway_connection import GatewayAccess
from asterism.gateway.gateway_transport import HttpTransport, enrol
from asterism.store.protocol import PutRun
from bench.child_process import child_process, first_line
from bench.runs.gateway import process_in
from tests.gateway.memory_outbox import MemoryOutbox

BAR = 0.5
"""The share of the speed of the bare upload, at least."""

FLAT = 64 * 1024 * 1024
"""How much the memory of the server may grow, in bytes, whatever the size."""

GIB = 1024**3


@dataclass(frozen=True)
class Sizes:
    size: int = 10 * GIB
    rounds: int = 1


@dataclass(frozen=True)
class Measured:
    """Bytes per second, the best of the rounds, and by how much the memory of the server grew."""

    sizes: Sizes
    bare: float
    gateway: float
    growth: int

    @property
    def share(self) -> float:
        return self.gateway / self.bare


FULL = Sizes()


def measure(sizes: Sizes = FULL) -> Measured:
    bare, gateway, growth = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "source"
        name = _write(source, sizes.size)
        for _ in range(sizes.rounds):
            bare.append(sizes.size / _bare(Path(folder), source, name))
            seconds, grown = asyncio.run(_through_gateway(Path(folder), source, name))
            gateway.append(sizes.size / seconds)
            growth = max(growth, grown)
    return Measured(sizes, max(bare), max(gateway), growth)


def _write(path: Path, size: int) -> str:
    """Write a file of which no two blocks are alike, and return its hash."""
    block, hashed = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(2**15)), hashlib.sha256()
    with path.open("wb") as file:
        for start in range(0, size, len(block)):
            data = (b"%020d" % start + block)[: min(len(block), size - start)]
            hashed.update(data)
            file.write(data)
    return hashed.hexdigest()


def check_arrived(path: Path, name: str) -> None:
    """Every byte is there. Raises AssertionError."""
    with path.open("rb") as file:
        assert hashlib.file_digest(file, "sha256").hexdigest() == name, f"{path} is not what was sent"


# -- bare --------------------------------------------------------------------------------------------------------------

BARE = """
import hashlib, os, socket, sys, threading
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

async def upload(request):
    hashed = hashlib.sha256()
    with open(sys.argv[1], "wb") as file:
        async for chunk in request.stream():
            hashed.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return PlainTextResponse(hashed.hexdigest())

listener = socket.create_server(("127.0.0.1", 0))
print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
server = uvicorn.Server(uvicorn.Config(Starlette(routes=[Route("/", upload, methods=["PUT"])]), log_level="warning"))

def until_the_end():
    sys.stdin.read()
    server.should_exit = True

threading.Thread(target=until_the_end, daemon=True).start()
server.run([listener])
"""


def _bare(folder: Path, source: Path, name: str) -> float:
    target = folder / "bare"
    with child_process([sys.executable, "-c", BARE, str(target)]) as server:
        url = first_line(server)
        began = time.perf_counter()
        answer = asyncio.run(_send(url, source))
        seconds = time.perf_counter() - began
    assert answer == name, "the server has another hash"
    check_arrived(target, name)
    target.unlink()
    return seconds


async def _send(url: str, source: Path) -> str:
    async def chunks() -> AsyncIterator[bytes]:
        with source.open("rb") as file:
            for chunk in chunks_of(file, lambda: None):
                yield chunk

    async with httpx.AsyncClient(timeout=None) as client:
        return (await client.put(url, content=chunks())).raise_for_status().text


# -- the gateway -------------------------------------------------------------------------------------------------------


async def _through_gateway(folder: Path, source: Path, name: str) -> tuple[float, int]:
    """The seconds of an upload, and by how many bytes the memory of the server grew."""
    store = f"sqlite:///{folder}/fleet.db"
    async with await Fleet.open(store) as fleet:
        await fleet.configure(device_bytes=2**50)
        with process_in(folder, "server", "bench.runs.gateway_server", store) as server:
            transport, key = HttpTransport(first_line(server)), DeviceKey.new()
            device = f"device-{time.monotonic_ns()}"
            await enrol(transport, key, device, await invite(fleet.store, name="*"))
            connection = GatewayAccess(transport, key, MemoryOutbox()).connect(Owner(device, device))
            await connection._ask(
                "join", {"host": "h", "can": [], "slots": 1, "backlog": 0, "timeout": 3600.0, "profile": {}}
            )
            run = await fleet.create(Workflow("upload", call="bench.runs.work:nothing"))
            changes = {"status": PROCESSING, "device": device, "session": device, "epoch": 1}
            await fleet.store.commit([PutRun(replace(run, **changes), run.revision)])
            [run] = await connection.own_runs()
            content = await connection.artifacts(run)
            await asyncio.to_thread(content.put, [b"the first"])
            before = resident(server.pid)
            began = time.perf_counter()
            with source.open("rb") as file:
                put = await asyncio.to_thread(content.put, chunks_of(file, lambda: None))
            seconds = time.perf_counter() - began
            grown = resident(server.pid, "VmHWM") - before
            await transport.close()
        assert put.name == name, f"{put} was put"
        kept = folder / "fleet.db.files" / name[:2] / name
        await asyncio.to_thread(check_arrived, kept, name)
        kept.unlink()
        return seconds, grown


def resident(process: int, field: str = "VmRSS") -> int:
    """The memory of a process, now or at its peak, in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


# -- page --------------------------------------------------------------------------------------------------------------

HEAD = """# Benchmarks: files

Written by `python -m bench files`; every figure on this page was measured in one run, side by side. Times vary from
machine to machine and from hour to hour: read the ratios.
"""


def page(measured: Measured) -> str:
    verdict = "reached" if measured.share >= BAR else "missed"
    flat = "reached" if measured.growth <= FLAT else "missed"
    return "\n".join(
        [
            "## An upload through the gateway",
            "",
            f"One file of {measured.sizes.size / GIB:.2g} GiB, in parts with the token of a grant, is hashed on both",
            "sides, synced and put under its hash. Beside it, a bare Starlette endpoint that hashes and syncs the same",
            "file. HTTP on this machine, without TLS; the client runs beside the server. What came was compared with",
            "the source.",
            "",
            "| upload | MB/s |",
            "| --- | ---: |",
            f"| bare | {measured.bare / 1e6:,.0f} |",
            f"| through the gateway | {measured.gateway / 1e6:,.0f} |",
            "",
            f"That is {measured.share:.0%}; the bar of {BAR:.0%} is {verdict}. The memory of the server grew by "
            f"{measured.growth / 1024**2:,.0f} MiB; the bar of {FLAT // 1024**2} MiB is {flat}.",
            "",
        ]
    )


if __name__ == "__main__":
    print(page(measure(Sizes(*map(int, sys.argv[1:])))))
