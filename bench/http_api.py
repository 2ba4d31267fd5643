"""The HTTP API of a server in a process of its own: event streams beside a running plan, edits, memory over an hour.

Clients are connections of this process. A credential may have 32 requests under way and make 120 edits a minute, so the
clients share several. Wall time: the server and its clients have the machine together.
"""

import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from asterism import AsyncClient, Task, edits
from asterism.api.credentials import Credentials
from asterism.durable.journal_store import insert_plan
from asterism.durable.plan_requests import edit_plan
from asterism.fleet.fleet import Fleet
from asterism.fleet.retention import prune
from asterism.planfile.loader import examine
from bench.page import met, table

HEAD = """# Benchmarks: the server

Written by `python -m bench server`: `asterism serve` with a SQLite file in a process of its own, its clients in
another, on one machine. All times are wall time.
"""

CLIENTS_EACH = 20
"""How many streams one credential has."""

EDITS_EACH = 100
"""How many edits one credential makes: fewer than it may in a minute."""

TASK_SECONDS = 0.02

FLAT = 1.10
"""How much more memory than after the first quarter of an hour the server may have at the end."""


@dataclass(frozen=True)
class Sizes:
    tasks: int = 2000
    clients: int = 200
    edits: int = 200
    at_once: int = 8
    minutes: int = 60


FULL = Sizes()


# -- the server --------------------------------------------------------------------------------------------------------


@dataclass
class Running:
    """A server, and the fleet on its store."""

    url: str
    process: "subprocess.Popen[bytes]"
    fleet: Fleet

    async def token(self, *scopes: str) -> str:
        return (await Credentials(self.fleet.store).create("bench", scopes or ("admin",), by="bench")).token

    @contextlib.asynccontextmanager
    async def clients(self, number: int) -> AsyncIterator[list[AsyncClient]]:
        """Clients, each with a credential of its own."""
        async with contextlib.AsyncExitStack() as stack:
            tokens = [await self.token() for _ in range(number)]
            yield [await stack.enter_async_context(AsyncClient(self.url, token)) for token in tokens]

    def memory(self) -> int:
        """The resident memory of the server, in bytes."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", text)
        return int(found[1]) * 1024 if found is not None else 0


@contextlib.asynccontextmanager
async def serving(*, local: int = 8) -> AsyncIterator[Running]:
    with tempfile.TemporaryDirectory() as folder:
        store = f"sqlite:///{folder}/fleet.db"
        words = ["serve", "--store", store, "--listen", "127.0.0.1:0", "--local", str(local), "--json"]
        command = [sys.executable, "-m", "asterism", *words]
        root = str(Path(__file__).parents[1])  # the server imports the tasks of this module
        with subprocess.Popen(  # noqa: ASYNC220
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": root}
        ) as process:
            assert process.stdout is not None
            try:
                first = json.loads(await asyncio.to_thread(process.stdout.readline))
                async with await Fleet.open(store, by="bench") as fleet:
                    yield Running(first["url"], process, fleet)
            finally:
                process.terminate()
                process.wait(60.0)


async def step() -> None:
    """What a task does."""
    await asyncio.sleep(TASK_SECONDS)


async def wait() -> None:
    await asyncio.sleep(3600.0)


def plan_text(name: str, tasks: int, call: str = "step", layer: int = 20) -> str:
    """A plan file: layers of short tasks, each after the task of its column in the layer before."""
    lines = ["asterism: 1", f"id: {name}", "tasks:"]
    for number in range(tasks):
        after = f", after: t{number - layer}" if number >= layer else ""
        lines.append(f"  t{number}: {{call: 'bench.http_api:{call}'{after}}}")
    return "\n".join(lines)


# -- event streams -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Streams:
    """``alone`` and ``followed`` are the seconds of a plan without and with clients. ``late`` is how long after the end
    of the plan the last client had its last event."""

    tasks: int
    clients: int
    events: int
    missing: int
    doubled: int
    alone: float
    followed: float
    late: float


class Follower:
    """A client of an event stream. It speaks HTTP/1.0, whose answers have no chunks; what came is read afterwards."""

    def __init__(self, url: str, token: str, plan: str, after: str) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port, self._token, self._path = int(port), token, f"/api/v1/plans/{plan}/events?after={after}"
        self._data, self.begun = bytearray(), asyncio.Event()

    @property
    def ids(self) -> list[str]:
        return [one.decode() for one in re.findall(rb"^id: (\S+)$", self._data, re.MULTILINE)]

    def has(self, identity: str) -> bool:
        return identity.encode() in self._data[-2000:]

    async def follow(self) -> None:
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
        try:
            writer.write(
                f"GET {self._path} HTTP/1.0\r\nHost: {self._host}:{self._port}\r\n"
                f"Authorization: Bearer {self._token}\r\n\r\n".encode()
            )
            status = await reader.readline()
            assert b" 200 " in status, status
            self.begun.set()
            while part := await reader.read(1 << 20):
                self._data += part
        finally:
            writer.close()


async def _measure_streams(sizes: Sizes) -> Streams:
    async with serving() as server, server.clients(1) as [client]:
        alone = await _stored(server, "alone", sizes.tasks)
        alone_seconds = await _run(client, "alone")
        start = await _stored(server, "followed", sizes.tasks)
        assert alone != start
        tokens = [await server.token("observe") for _ in range(-(-sizes.clients // CLIENTS_EACH))]
        followers = [
            Follower(server.url, tokens[number // CLIENTS_EACH], "followed", start) for number in range(sizes.clients)
        ]
        tasks = [asyncio.create_task(one.follow()) for one in followers]
        try:
            await asyncio.gather(*(one.begun.wait() for one in followers))
            seconds, ended = await _run(client, "followed"), time.perf_counter()
            expected = await _positions(client, "followed", start)
            async with asyncio.timeout(60.0):
                while not all(one.has(expected[-1]) for one in followers):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            late = time.perf_counter() - ended
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
    seen = [one.ids for one in followers]
    missing = sum(len(set(expected) - set(one)) for one in seen)
    doubled = sum(len(one) - len(set(one)) for one in seen)
    return Streams(sizes.tasks, sizes.clients, len(expected), missing, doubled, alone_seconds, seconds, late)


async def _stored(server: Running, name: str, tasks: int, call: str = "step") -> str:
    """Store a plan. Returns its position."""
    found, _ = examine(plan_text(name, tasks, call), name)
    assert found is not None
    return str((await insert_plan(server.fleet.store, found.constellation)).number)


async def _run(client: AsyncClient, name: str) -> float:
    """Let the server run a stored plan. Returns how long it took."""
    began = time.perf_counter()
    await client.resume_plan(name)
    while (await client.show_plan(name, tasks=False)).ended_at is None:  # noqa: ASYNC110
        await asyncio.sleep(0.1)
    return time.perf_counter() - began


async def _positions(client: AsyncClient, name: str, after: str) -> list[str]:
    found: list[str] = []
    while True:
        page = await client.read_changes(name, after)
        found += [event["position"] for event in page.items]
        if page.next is None:
            return found
        after = page.next


# -- edits -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edits:
    """Edits per second: by the library on the same store, by one client, by several at once, and by several at once if
    the plan runs."""

    tasks: int
    library: float
    one: float
    at_once: int
    several: float
    running: float


async def _measure_edits(sizes: Sizes) -> Edits:
    async with serving() as server, server.clients(3 * (-(-sizes.edits // EDITS_EACH))) as clients:
        for name in ("library", "one", "several", "running"):
            await _stored(server, name, 200, call="wait")
        share = len(clients) // 3
        began = time.perf_counter()
        for number in range(sizes.edits):
            await edit_plan(server.fleet, "library", edits.EditBatch(_after_the_first(number), "bench"))
        library = sizes.edits / (time.perf_counter() - began)
        one = await _edited(clients[:share], "one", 1, sizes.edits)
        several = await _edited(clients[share : 2 * share], "several", sizes.at_once, sizes.edits)
        await clients[0].resume_plan("running")
        while (await clients[0].show_plan("running", tasks=False)).owner is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        running = await _edited(clients[2 * share :], "running", sizes.at_once, sizes.edits)
    return Edits(200, library, one, sizes.at_once, several, running)


async def _edited(clients: list[AsyncClient], name: str, at_once: int, most: int) -> float:
    """Edits per second of so many editors at once."""
    numbers = iter(range(most))

    async def editor() -> None:
        for number in numbers:
            await clients[number // EDITS_EACH].edit_plan(name, _after_the_first(number))

    began = time.perf_counter()
    await asyncio.gather(*(editor() for _ in range(at_once)))
    seconds = time.perf_counter() - began
    assert (await clients[0].show_plan(name, tasks=False)).version == most
    return most / seconds


def _after_the_first(number: int) -> tuple[edits.AddTask, edits.AddDependency]:
    """A task that is not executed in the meantime."""
    return _add(number), edits.AddDependency("t0", f"x{number}")


def _add(number: int) -> edits.AddTask:
    return edits.AddTask(Task(f"x{number}", shell="true"))


# -- memory ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """The memory of the server in bytes after each quarter of the time, and the number of requests."""

    minutes: int
    requests: int
    quarters: list[int]

    @property
    def growth(self) -> float:
        return self.quarters[-1] / self.quarters[0]


async def _measure_memory(sizes: Sizes) -> Memory:
    """What happens in each minute is done at once, so an hour takes a few minutes: a program submits a plan and waits
    for it, an editor makes 6 edits, a page follows it and reads views, versions and layouts, a person logs in, and
    metrics are read 4 times. Every quarter of an hour what has ended is removed."""
    requests, quarters = 0, []
    async with serving() as server, server.clients(8) as clients:
        for minute in range(sizes.minutes):
            requests += await _minute(server, clients[minute % len(clients)], minute)
            if (minute + 1) % max(1, sizes.minutes // 4) == 0:
                quarters.append(server.memory())
    return Memory(sizes.minutes, requests, quarters)


async def _minute(server: Running, client: AsyncClient, minute: int) -> int:
    name = f"plan-{minute}"
    start = await _stored(server, name, 100)
    token = await server.token("observe")
    follower = Follower(server.url, token, name, start)
    following = asyncio.create_task(follower.follow())
    await follower.begun.wait()
    for number in range(6):
        await client.edit_plan(name, [_add(number)], reason="an edit")
    await client.resume_plan(name)
    await client.wait_plan(name)
    for _ in range(4):
        await client.metrics()
        await client.show_plan(name)
        await client.list_plans()
        await client.list_versions(name)
        await client.read_changes(name)
        await client.read_story(name)
        await client.list_runs()
        await client.list_devices()
        await _get(server.url, f"/api/v1/plans/{name}/layout", token)
    code = await Credentials(server.fleet.store).create_login("bench", ["admin"], by="bench")
    await _get(server.url, f"/login?code={code}")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    if minute % 15 == 14:
        while await prune(server.fleet.store, server.fleet.store.clock(), 1000):
            pass
    return 46


async def _get(url: str, path: str, token: str = "") -> None:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    credential = f"Authorization: Bearer {token}\r\n" if token else ""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}:{port}\r\n{credential}Connection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 303 ")), answer[:200]


# -- the page ----------------------------------------------------------------------------------------------------------


def streams(sizes: Sizes = FULL) -> str:
    found = asyncio.run(_measure_streams(sizes))
    rows = (
        ("events of the plan", f"{found.events:,}"),
        ("events sent", f"{found.events * found.clients:,}"),
        ("missing (bar: 0)", f"{found.missing}: {met(found.missing, 0)}"),
        ("sent twice (bar: 0)", f"{found.doubled}: {met(found.doubled, 0)}"),
        ("the plan without clients", f"{found.alone:.1f} s"),
        (
            f"the plan with {found.clients} clients",
            f"{found.followed:.1f} s ({found.followed / found.alone:.2f} times)",
        ),
        ("events sent per second", f"{found.events * found.clients / (found.followed + found.late):,.0f}"),
        ("the last event of the last client after the end of the plan", f"{found.late:.2f} s"),
    )
    return f"""## Event streams beside a running plan

{found.clients} clients follow a plan of {found.tasks:,} tasks in layers of 20, which the server itself executes; a task
takes {TASK_SECONDS * 1000:g} ms. Each client compares the ids that came with the events of the journal.

""" + table(("what", "value"), rows)


def edits_per_second(sizes: Sizes = FULL) -> str:
    found = asyncio.run(_measure_edits(sizes))
    many = f"{found.at_once} clients at once"
    rows = (
        ("the library, on the same store", f"{found.library:,.0f}", "1.00"),
        ("the API, one client", f"{found.one:,.0f}", f"{found.one / found.library:.2f}"),
        (f"the API, {many}", f"{found.several:,.0f}", f"{found.several / found.library:.2f}"),
        (f"the API, {many}, a plan that runs", f"{found.running:,.0f}", f"{found.running / found.library:.2f}"),
    )
    return f"""## Edits

Edits of a plan of {found.tasks} tasks, each a batch with a new task and its dependency, committed to the file. If no
process runs the plan, each edit loads it; else its owner, the server here, applies edits that come together in one
commit.

""" + table(("by", "edits per second", "ratio"), rows)


def memory(sizes: Sizes = FULL) -> str:
    found = asyncio.run(_measure_memory(sizes))
    step = found.minutes // len(found.quarters)
    rows = [
        (f"{(number + 1) * step} minutes", f"{one / 1e6:,.0f} MB", f"{one / found.quarters[0]:.2f}")
        for number, one in enumerate(found.quarters)
    ]
    return f"""## Memory over an hour

Each minute a plan of 100 tasks is stored, followed, edited six times and run; a page reads views, versions and layouts,
somebody logs in, and metrics are read. What happens in a minute is done without pauses: {found.requests:,} requests.
Every quarter of an hour what has ended is removed. The bar is {FLAT:g} times the memory after the first quarter:
{met(found.growth, FLAT)}.

""" + table(("after", "resident memory", "ratio"), rows)
