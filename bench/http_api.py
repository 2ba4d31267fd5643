"""The HTTP API of a server in a process of its own: a plan that it runs beside the library, event streams, edits, and
memory over a day.

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
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from asterism import AsyncClient, DurableOrchestrator, Task, edits
from asterism.api.credentials import Credentials
from asterism.api.documents import Plan
from asterism.base.startup import tune_gc
from asterism.durable.journal_store import insert_plan, load
from asterism.durable.plan_actor import edit_plan
from asterism.fleet.fleet import Fleet
from asterism.fleet.retention import prune
from asterism.planfile.loader import examine
from bench.child_process import child_process, first_line
from bench.page import met, reached, table
from bench.proof import check_stored_plan
from bench.server_tasks import DONE, TASK_SECONDS

HEAD = """# Benchmarks: the server

Written by `python -m bench server`: `asterism serve` with a SQLite file in a process of its own, its clients in
another, on one machine. All times are wall time. There is a figure only if every plan completed, each of its tasks
executed once, and every edit is in its plan.
"""

CLIENTS_EACH = 20
"""How many streams one credential has."""

EDITS_EACH = 100
"""How many edits one credential makes: fewer than it may in a minute."""

SLOTS = 8
"""How many tasks the server executes at a time."""

EDITED_TASKS = 200
"""How many tasks the plan has that is edited."""

DAY_TASKS = 100
"""How many tasks each plan of the day has."""

OWNED_WITHIN = 30.0
"""Seconds after which the server must run a plan that it was told to run."""

PATIENCE = 300.0
"""Seconds after which a plan that has not ended counts as stuck: it takes seconds."""

BAR_PLAN = 1.2
"""A plan may take the server this many times the library's time …"""

BAR_FOLLOWED = 1.1
"""… and with all followers this many times its time without."""

BAR_ONE, BAR_RUNNING = 150.0, 400.0
"""Edits per second of one client of a plan that no process runs, and of several of a plan that runs."""

BAR_MEMORY = 1.05
"""How much more memory than after the first hour the server may have at the end."""


@dataclass(frozen=True)
class Sizes:
    tasks: int = 2000
    rounds: int = 2
    clients: int = 200
    edits: int = 400
    at_once: int = 8
    hours: int = 24
    plans: int = 10
    """In each hour."""


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
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        resident = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert resident is not None, f"the server has ended: {status}"
        return int(resident[1]) * 1024

    def processor_seconds(self) -> float:
        """The processor time of the server so far: beside other work it says more than wall time."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.asynccontextmanager
async def serving(*, local: int = SLOTS, module_folder: Path = Path(__file__).parents[1]) -> AsyncIterator[Running]:
    """A server that imports the tasks of its plans from ``module_folder``."""
    with tempfile.TemporaryDirectory() as folder:
        store, log = f"sqlite:///{folder}/fleet.db", Path(folder) / "log"
        words = ["serve", "--store", store, "--listen", "127.0.0.1:0", "--local", str(local), "--json"]
        server = [sys.executable, "-m", "asterism", *words]
        environment = {**os.environ, "PYTHONPATH": str(module_folder)}
        with (
            log.open("wb") as errors,
            child_process(server, terminate=True, cwd=folder, env=environment, stderr=errors) as process,
        ):
            line = await asyncio.to_thread(first_line, process)
            async with await Fleet.open(store, by="bench") as fleet:
                yield Running(json.loads(line)["url"], process, fleet)
            assert process.poll() is None, f"the server has ended: {log.read_text()[-4000:]}"


def task_names(tasks: int) -> list[str]:
    return [f"t{number}" for number in range(tasks)]


def plan_text(name: str, tasks: int, call: str = "step", layer: int = 20) -> str:
    """A plan file: layers of short tasks, each after the task of its column in the layer before."""
    lines = ["asterism: 1", f"id: {name}", "tasks:"]
    for number in range(tasks):
        after = f", after: t{number - layer}" if number >= layer else ""
        lines.append(f"  t{number}: {{call: 'bench.server_tasks:{call}'{after}}}")
    return "\n".join(lines)


async def store_plan(fleet: Fleet, name: str, tasks: int, call: str = "step") -> str:
    """Store a plan. Returns its position."""
    file, mistakes = examine(plan_text(name, tasks, call), name)
    assert file is not None, mistakes
    return str((await insert_plan(fleet.store, file.constellation)).number)


async def run_plan(server: Running, client: AsyncClient, name: str, tasks: int) -> float:
    """Let the server run a stored plan. Returns the seconds from the request to its end, as recorded. Raises
    AssertionError unless each of its tasks was executed once, and completed."""
    began = time.time()
    await client.resume_plan(name)
    ended = await ended_plan(client, name)
    assert ended.ended_at is not None
    await check_stored_plan(server.fleet.store, name, dict.fromkeys(task_names(tasks), DONE))
    return ended.ended_at - began


async def ended_plan(client: AsyncClient, name: str) -> Plan:
    """The plan when it has ended. Raises AssertionError if no process runs it, or if it takes too long."""
    began = time.monotonic()
    while not (plan := await client.watch_plan(name)).ended:
        waited = time.monotonic() - began
        assert plan.owner is not None or waited < OWNED_WITHIN, f"no process runs {name}, which is {plan.state}"
        assert waited < PATIENCE, f"{name} is {plan.state} after {waited:.0f} s: {plan.counts}"
    return plan


# -- a plan ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlanTimes:
    """Seconds of the same plan, the best of the rounds: run by the library in this process, and by the server."""

    tasks: int
    library: float
    server: float

    @property
    def bound(self) -> float:
        """No schedule takes less."""
        return self.tasks * TASK_SECONDS / SLOTS


async def measure_plan(sizes: Sizes) -> PlanTimes:
    library, server = [], []
    for _ in range(sizes.rounds):
        library.append(await run_with_library(sizes.tasks))
        async with serving() as running, running.clients(1) as [client]:
            await store_plan(running.fleet, "plan", sizes.tasks)
            server.append(await run_plan(running, client, "plan", sizes.tasks))
    times = PlanTimes(sizes.tasks, min(library), min(server))
    assert min(times.library, times.server) >= 0.99 * times.bound, f"less than the tasks themselves take: {times}"
    return times


async def run_with_library(tasks: int) -> float:
    """Seconds of ``DurableOrchestrator`` in this process, from the call to the recorded end."""
    with tempfile.TemporaryDirectory() as folder:
        async with await Fleet.open(f"sqlite:///{folder}/fleet.db", by="bench") as fleet:
            await store_plan(fleet, "plan", tasks)
            tune_gc()  # as the server does
            began = time.time()
            result = await DurableOrchestrator(fleet, local=SLOTS).run_stored("plan")
            await check_stored_plan(fleet.store, "plan", dict.fromkeys(task_names(tasks), DONE))
            assert result.plan.ended_at is not None
            return result.plan.ended_at - began


# -- event streams -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Streams:
    """``alone`` and ``followed`` are the seconds of a plan without and with clients, and ``processor`` those of the
    server's processor time. ``late`` is how long after the end of the plan the last client had its last event."""

    tasks: int
    clients: int
    events: int
    alone: float
    followed: float
    late: float
    processor: tuple[float, float]


class Follower:
    """A client of an event stream. It speaks HTTP/1.0, whose answers have no chunks; what came is read afterwards."""

    def __init__(self, url: str, token: str, plan: str, after: str) -> None:
        self._host, _, port = url.removeprefix("http://").partition(":")
        self._port, self._token, self._path = int(port), token, f"/api/v1/plans/{plan}/events?after={after}"
        self._data, self.begun = bytearray(), asyncio.Event()

    @property
    def ids(self) -> list[str]:
        return [identity.decode() for identity in re.findall(rb"^id: (\S+)$", self._data, re.MULTILINE)]

    def has(self, identity: str) -> bool:
        return f"id: {identity}\n".encode() in self._data[-2000:]

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


@contextlib.asynccontextmanager
async def following(followers: list[Follower]) -> AsyncIterator[None]:
    """All of them follow; if one of them cannot, its error is raised."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(follower.follow()) for follower in followers]
        for follower in followers:
            await follower.begun.wait()
        yield
        for task in tasks:
            task.cancel()


async def measure_streams(sizes: Sizes) -> Streams:
    async with serving() as server, server.clients(1) as [client]:
        await store_plan(server.fleet, "alone", sizes.tasks)
        began = server.processor_seconds()
        alone = await run_plan(server, client, "alone", sizes.tasks)
        alone_processor = server.processor_seconds() - began
        start = await store_plan(server.fleet, "followed", sizes.tasks)
        tokens = [await server.token("observe") for _ in range(-(-sizes.clients // CLIENTS_EACH))]
        followers = [
            Follower(server.url, tokens[number // CLIENTS_EACH], "followed", start) for number in range(sizes.clients)
        ]
        async with following(followers):
            began = server.processor_seconds()
            seconds, ended = await run_plan(server, client, "followed", sizes.tasks), time.perf_counter()
            expected = await read_positions(client, "followed", start, sizes.tasks)
            async with asyncio.timeout(60.0):
                while not all(follower.has(expected[-1]) for follower in followers):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            late = time.perf_counter() - ended
            processor = alone_processor, server.processor_seconds() - began
        check_followers(followers, expected)
    return Streams(sizes.tasks, sizes.clients, len(expected), alone, seconds, late, processor)


def check_followers(followers: list[Follower], expected: list[str]) -> None:
    """Each follower received each event once, in order."""
    for number, follower in enumerate(followers):
        ids = follower.ids
        if ids == expected:
            continue
        missing, doubled = Counter(expected) - Counter(ids), Counter(ids) - Counter(expected)
        assert not missing, f"client {number} misses {missing.total()} of {len(expected)} events"
        assert not doubled, f"client {number} received {doubled.total()} events twice, or that are not of this plan"
        raise AssertionError(f"client {number} received the events in another order")


async def read_positions(client: AsyncClient, name: str, after: str, tasks: int) -> list[str]:
    """The positions of the events of a plan, which are all that should be: each task started and completed once."""
    events = []
    while True:
        page = await client.read_changes(name, after)
        events += page.items
        if page.next is None:
            break
        after = page.next
    for what in ("started", "completed"):
        names = Counter(event["task"] for event in events if event["kind"] == "task" and event["what"] == what)
        assert names == dict.fromkeys(task_names(tasks), 1), f"not each of {tasks} tasks {what} once: {names}"
    return [event["position"] for event in events]


# -- edits -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edits:
    """Edits per second: by the library on the same store, by one client, by several at once, and by several at once if
    the plan runs."""

    library: float
    single: "Rate"
    at_once: int
    several: "Rate"
    running: "Rate"


class Rate(NamedTuple):
    """Edits per second, and the milliseconds of the server's processor time for each."""

    per_second: float
    processor: float


async def measure_edits(sizes: Sizes) -> Edits:
    async with serving() as server:
        for name in ("library", "one", "several", "running"):
            await store_plan(server.fleet, name, EDITED_TASKS, call="wait")
        began = time.perf_counter()
        for number in range(sizes.edits):
            await edit_plan(server.fleet, "library", edits.EditBatch(added_after_first(number), "bench"))
        library = sizes.edits / (time.perf_counter() - began)
        await check_edits(server.fleet, "library", sizes.edits)
        single = await edit_with_clients(server, "one", 1, sizes.edits)
        several = await edit_with_clients(server, "several", sizes.at_once, sizes.edits)
        async with server.clients(1) as [client]:
            await client.resume_plan("running")
            before = await running_plan(client, "running")
            running = await edit_with_clients(server, "running", sizes.at_once, sizes.edits)
            check_same_owner(before, await client.show_plan("running", tasks=False))
    return Edits(library, single, sizes.at_once, several, running)


async def running_plan(client: AsyncClient, name: str) -> Plan:
    """The plan as soon as a process runs it, and as many of its tasks run as there are slots. Raises AssertionError if
    that takes too long."""
    began = time.monotonic()
    while True:
        plan = await client.show_plan(name, tasks=False)
        if plan.owner is not None and plan.counts.get("running", 0) >= SLOTS:
            return plan
        assert not plan.ended, f"{name} is {plan.state}: {plan.counts}"
        assert time.monotonic() - began < OWNED_WITHIN, f"{name} does not run, but is {plan.state}: {plan.counts}"
        await asyncio.sleep(0.05)


def check_same_owner(before: Plan, after: Plan) -> None:
    """The plan ran all the time: it has the owner that it had, in the same epoch, and the same number of tasks run."""
    assert after.owner is not None, f"no process runs the plan any more, which is {after.state}"
    shown = [(plan.owner, plan.epoch, plan.state, plan.counts["running"]) for plan in (before, after)]
    assert shown[0] == shown[1], f"the plan did not run all the time: {shown}"


async def edit_with_clients(server: Running, name: str, at_once: int, number: int) -> Rate:
    """The edits of so many editors at once, each with credentials and a connection of its own."""
    share = -(-number // at_once)
    each = -(-share // EDITS_EACH)
    async with server.clients(at_once * each) as clients:

        async def edit(editor: int) -> None:
            for place, edited in enumerate(range(editor, number, at_once)):
                client = clients[editor * each + place // EDITS_EACH]
                await client.edit_plan(name, added_after_first(edited))

        began, used = time.perf_counter(), server.processor_seconds()
        await asyncio.gather(*map(edit, range(at_once)))
        seconds, used = time.perf_counter() - began, server.processor_seconds() - used
    await check_edits(server.fleet, name, number)
    return Rate(number / seconds, 1000 * used / number)


async def check_edits(fleet: Fleet, name: str, number: int) -> None:
    """The stored plan has exactly the tasks that were added, each after the first, and a version for each edit."""
    plan = (await load(fleet.store, name)).plan
    added = [f"x{place}" for place in range(number)]
    assert plan.version == number, f"{name} has version {plan.version} after {number} edits"
    ids = Counter(task.id for task in plan)
    assert ids == Counter([*task_names(EDITED_TASKS), *added]), f"{name} does not have the tasks that were added"
    loose = [task for task in added if [source.source for source in plan[task].dependencies] != ["t0"]]
    assert not loose, f"{name} has tasks that do not depend on the first: {loose[:5]}"


def added_after_first(number: int) -> tuple[edits.AddTask, edits.AddDependency]:
    """A task that is not executed in the meantime."""
    return added_task(number), edits.AddDependency("t0", f"x{number}")


def added_task(number: int) -> edits.AddTask:
    return edits.AddTask(Task(f"x{number}", call="bench.server_tasks:step"))


# -- memory ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """The memory of the server in bytes after each hour, and the number of requests and of tasks executed."""

    plans: int
    tasks: int
    requests: int
    hours: list[int]

    @property
    def growth(self) -> float:
        return self.hours[-1] / self.hours[0]


EDITS_OF_DAY = 6
"""How often each plan of the day is edited, before it runs."""


async def measure_memory(sizes: Sizes) -> Memory:
    """What happens in each hour is done at once, so a day takes minutes: a program stores a plan and waits for its end,
    an editor makes 6 edits, a page follows it and reads views, versions and layouts, a person logs in, and metrics are
    read 4 times. Every hour what has ended is removed."""
    requests, hours = 0, []
    async with serving() as server, server.clients(8) as clients:
        for hour in range(sizes.hours):
            for number in range(hour * sizes.plans, (hour + 1) * sizes.plans):
                requests += await live_through_plan(server, clients[number % len(clients)], f"plan-{number}")
            while await prune(server.fleet.store, server.fleet.store.clock(), 1000):
                pass
            left = (await clients[0].list_plans()).items
            assert not left, f"{len(left)} plans that have ended were not removed"
            hours.append(server.memory())
    plans = sizes.hours * sizes.plans
    return Memory(plans, plans * (DAY_TASKS + EDITS_OF_DAY), requests, hours)


async def live_through_plan(server: Running, client: AsyncClient, name: str) -> int:
    """Returns the number of requests."""
    start = await store_plan(server.fleet, name, DAY_TASKS)
    token = await server.token("observe")
    follower = Follower(server.url, token, name, start)
    async with following([follower]):
        for number in range(EDITS_OF_DAY):
            await client.edit_plan(name, [added_task(number)], reason="an edit")
        await client.resume_plan(name)
        ended = await ended_plan(client, name)
        names = [*task_names(DAY_TASKS), *(f"x{number}" for number in range(EDITS_OF_DAY))]
        await check_stored_plan(server.fleet.store, name, dict.fromkeys(names, DONE))
        assert ended.version == EDITS_OF_DAY, f"{name} has version {ended.version}"
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


def plan_section(sizes: Sizes = FULL) -> str:
    times = asyncio.run(measure_plan(sizes))
    ratio = times.server / times.library
    rows = (
        ("lower bound: the time of the tasks on all slots", f"{times.bound:.1f} s", "", ""),
        ("the library, in this process", f"{times.library:.1f} s", "1.00", ""),
        ("the server", f"{times.server:.1f} s", f"{ratio:.2f}", f"≤ {BAR_PLAN:g}: {met(ratio, BAR_PLAN)}"),
    )
    return f"""## A plan that the server runs

A stored plan of {times.tasks:,} tasks in layers of 20 on {SLOTS} slots, each with a SQLite file of its own; a task
takes {TASK_SECONDS * 1000:g} ms. From the call, or the request, to the recorded end; the best of {sizes.rounds} rounds
by turns.

""" + table(("by", "time", "ratio", "bar"), rows)


def streams(sizes: Sizes = FULL) -> str:
    streams = asyncio.run(measure_streams(sizes))
    ratio, sent = streams.followed / streams.alone, streams.events * streams.clients
    rows = (
        ("events of the plan", f"{streams.events:,}", ""),
        ("events sent", f"{sent:,}", ""),
        ("the plan without clients", f"{streams.alone:.1f} s", ""),
        (
            f"the plan with {streams.clients} clients",
            f"{streams.followed:.1f} s ({ratio:.2f} times)",
            f"≤ {BAR_FOLLOWED:g}: {met(ratio, BAR_FOLLOWED)}",
        ),
        ("processor time of the server without and with them", "{:.1f} s, {:.1f} s".format(*streams.processor), ""),
        ("events sent per second", f"{sent / (streams.followed + streams.late):,.0f}", ""),
        ("the last event of the last client after the end of the plan", f"{streams.late:.2f} s", ""),
    )
    return f"""## Event streams beside a running plan

{streams.clients} clients follow a plan of {streams.tasks:,} tasks in layers of 20, which the server itself executes on
{SLOTS} slots; a task takes {TASK_SECONDS * 1000:g} ms. Each client received each event of the journal once, in order:
otherwise there would be no figure.

""" + table(("what", "value", "bar"), rows)


def edits_per_second(sizes: Sizes = FULL) -> str:
    rates = asyncio.run(measure_edits(sizes))
    many = f"the API, {rates.at_once} clients at once"

    def row(by: str, rate: Rate, bar: float | None = None) -> tuple[str, str, str, str, str]:
        edits = rate.per_second
        verdict = f"≥ {bar:g}: {reached(edits, bar)}" if bar is not None else ""
        return by, f"{edits:,.0f}", f"{edits / rates.library:.2f}", f"{rate.processor:.1f} ms", verdict

    rows = (
        ("the library, on the same store, no process runs the plan", f"{rates.library:,.0f}", "1.00", "", ""),
        row("the API, one client, no process runs the plan", rates.single, BAR_ONE),
        row(f"{many}, no process runs the plan", rates.several),
        row(f"{many}, a plan that the server runs", rates.running, BAR_RUNNING),
    )
    return f"""## Edits

{sizes.edits} edits of a plan of {EDITED_TASKS} tasks, each a batch with a new task and its dependency, committed to the
file. If no process runs the plan, an edit takes it as the last edit left it, unless another process has changed it
since; else its owner, the server here, applies edits that come together in one commit. The plan that runs has {SLOTS}
tasks at work and the same owner before and after the edits.

""" + table(("by", "edits per second", "ratio", "server's processor time for each", "bar"), rows)


def memory(sizes: Sizes = FULL) -> str:
    memory = asyncio.run(measure_memory(sizes))
    shown = sorted({1, *range(4, sizes.hours + 1, 4), sizes.hours})
    rows = [
        (str(hour), f"{memory.hours[hour - 1] / 1e6:,.0f} MB", f"{memory.hours[hour - 1] / memory.hours[0]:.2f}")
        for hour in shown
    ]
    return f"""## Memory over a day

A simulated day: in each of {sizes.hours} hours {sizes.plans} plans of {DAY_TASKS} tasks are stored, followed, edited
six times and run to their end; a page reads views, versions and layouts, somebody logs in, and metrics are read. It is
done without pauses: {memory.plans:,} plans, {memory.tasks:,} tasks, {memory.requests:,} requests. Every hour what has
ended is removed. The bar is {BAR_MEMORY:g} times the memory after the first hour: {met(memory.growth, BAR_MEMORY)}.

""" + table(("hours", "resident memory", "ratio"), rows)
