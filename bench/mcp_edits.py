"""Edits per second through MCP, beside the library and the HTTP API, on the same kind of plan.

The plan has a task that runs all the time and 100 tasks after it; each edit changes the timeout of one of them, so the
plan does not grow. It is in a SQLite file, and one process runs it and applies every edit: durable before it is
answered. There are two clients; several callers share them, and each sends its edits one after the other, for a fixed
time. With stdio each client has a server of its own process, and one of these runs the plan; with HTTP the server is in
the process of the clients, so the figures of HTTP have the processor time of both sides in one process.
"""

import asyncio
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from asterism import AsyncClient
from asterism.api.credentials import Credentials
from asterism.base.listen_address import ListenAddress
from asterism.core.plan.edits import EditBatch
from asterism.core.plan.status import RUNNING
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.plan_actor import edit_plan
from asterism.durable.plan_runner import runs_plans
from asterism.durable.stored_plans import StoredPlan, read_plan
from asterism.fleet.fleet import Fleet
from asterism.mcp.mcp_http import mcp_routes
from asterism.server.http_service import HttpService, http_service

TASKS = 100
CALLERS = (1, 2, 16)
"""How many callers edit at once."""

LIBRARY, HTTP_API = "library", "HTTP API"
MANY = 1_000_000_000
"""More edits in a minute than any round has."""

RUNS_WITHIN = 60.0
"""Seconds after which the plan must run."""

Edit = Callable[[list[dict[str, Any]]], Awaitable[Any]]


@dataclass(frozen=True)
class Sizes:
    """``seconds`` are those of one measurement; there are three for each way in each round."""

    seconds: float = 1.5
    rounds: int = 2


@dataclass(frozen=True)
class Rate:
    """Edits per second of all callers together, the best of the rounds."""

    way: str
    callers: int
    per_second: float


FULL = Sizes()


def plan_file() -> str:
    lines = ["asterism: 1", "id: bench", "tasks:", "  work: {shell: sleep 3600}"]
    return "\n".join([*lines, *(f"  t{number}: {{shell: 'true', after: work}}" for number in range(TASKS))])


def change(number: int) -> list[dict[str, Any]]:
    return [{"op": "update_task", "task_id": f"t{number % TASKS}", "changes": {"timeout": 60 + number}}]


def measure(sizes: Sizes = FULL) -> list[Rate]:
    best: dict[tuple[str, int], float] = {}
    for _ in range(sizes.rounds):
        for way in (_library, _http_api, _mcp_stdio, _mcp_http):
            for rate in asyncio.run(way(sizes)):
                key = rate.way, rate.callers
                best[key] = max(best.get(key, 0.0), rate.per_second)
    return [Rate(way, callers, per_second) for (way, callers), per_second in best.items()]


async def _rate(way: str, fleet: Fleet, clients: Sequence[Edit], callers: int, seconds: float) -> Rate:
    """Raises AssertionError unless every edit is in the plan, and the same process ran the plan all the time."""
    before = await read_plan(fleet, "bench")
    began, numbers = time.perf_counter(), itertools.count()

    async def send(client: Edit) -> int:
        """The number of edits until the time is up; one at least."""
        done = 0
        while not done or time.perf_counter() - began < seconds:
            await client(change(next(numbers)))
            done += 1
        return done

    done = sum(await asyncio.gather(*(send(clients[number % len(clients)]) for number in range(callers))))
    rate = Rate(way, callers, done / (time.perf_counter() - began))
    check_edits(before, await read_plan(fleet, "bench"), done)
    return rate


def check_edits(before: StoredPlan, after: StoredPlan, edits: int) -> None:
    """Raise AssertionError unless the plan has so many versions more, its last changes are those of the edits, and it
    ran all the time, with the same owner."""
    versions = after.record.plan.version - before.record.plan.version
    assert versions == edits, f"{edits} edits, and {versions} new versions"
    changed = [after.record.plan[f"t{number % TASKS}"].task.timeout for number in range(max(0, edits - TASKS), edits)]
    wrong = [timeout for timeout in changed if timeout is None or not 60 <= timeout < 60 + edits]
    assert not wrong, f"tasks have the timeouts {wrong}"
    assert after.owner is not None, f"no process runs the plan, which is {after.record.plan.state}"
    shown = [
        (view.owner and view.owner.id, view.record.head.epoch, view.record.plan.counts[RUNNING])
        for view in (before, after)
    ]
    assert shown[0] == shown[1], f"the plan did not run all the time: {shown}"
    assert shown[0][2] == 1, f"{shown[0][2]} tasks run"


async def _rates(way: str, fleet: Fleet, clients: Sequence[Edit], seconds: float) -> list[Rate]:
    return [await _rate(way, fleet, clients, callers, seconds) for callers in CALLERS]


# -- the ways ----------------------------------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def _served() -> AsyncIterator[tuple[Fleet, HttpService]]:
    """A server that runs the plan."""
    with tempfile.TemporaryDirectory() as folder:
        fleet = await Fleet.open(f"sqlite:///{folder}/fleet.db")
        async with (
            fleet,
            http_service(fleet, ListenAddress("127.0.0.1", 0), more=mcp_routes) as service,
            runs_plans(fleet, partial(DurableOrchestrator, local=1)) as runner,
        ):
            service.state.submitted = runner.wake
            service.state.gate._edits._most = MANY
            async with AsyncClient(service.url, await _token(fleet)) as client:
                await client.submit_plan(plan_file())
            await _running(fleet)
            yield fleet, service


async def _token(fleet: Fleet) -> str:
    return (await Credentials(fleet.store).create("bench", ["admin"], by="bench")).token


async def _running(fleet: Fleet) -> None:
    """Wait until the plan runs. Raises TimeoutError."""
    async with asyncio.timeout(RUNS_WITHIN):
        while not (await read_plan(fleet, "bench")).record.plan.counts[RUNNING]:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _library(sizes: Sizes) -> list[Rate]:
    async with _served() as (fleet, _):

        async def edit(edits: list[dict[str, Any]]) -> None:
            await edit_plan(fleet, "bench", EditBatch.from_json({"edits": edits}))

        return await _rates(LIBRARY, fleet, [edit], sizes.seconds)


async def _http_api(sizes: Sizes) -> list[Rate]:
    async with _served() as (fleet, service), contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(service.url, await _token(fleet))) for _ in range(2)]
        return await _rates(HTTP_API, fleet, [partial(client.edit_plan, "bench") for client in clients], sizes.seconds)


async def _mcp_http(sizes: Sizes) -> list[Rate]:
    async with _served() as (fleet, service), contextlib.AsyncExitStack() as stack:
        clients = []
        for _ in range(2):
            headers = {"authorization": f"Bearer {await _token(fleet)}"}
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=60.0))
            transport = streamable_http_client(f"{service.url}/mcp", http_client=http)
            clients.append(await stack.enter_async_context(Client(transport)))
        return await _rates(
            "MCP, streamable HTTP", fleet, [partial(_edit, client) for client in clients], sizes.seconds
        )


async def _mcp_stdio(sizes: Sizes) -> list[Rate]:
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/fleet.db"
        words = ["-m", "asterism", "mcp", "--store", url]
        with (Path(folder) / "log").open("w") as log:
            first = StdioServerParameters(command=sys.executable, args=[*words, "--local", "1"])
            other = StdioServerParameters(command=sys.executable, args=words)
            async with Client(_stdio(first, log)) as owner, await Fleet.open(url) as fleet:
                submitted = await owner.call_tool("submit_plan", {"text": plan_file()})
                assert not submitted.is_error, str(submitted.content)
                await _running(fleet)
                async with Client(_stdio(other, log)) as beside:
                    clients = [partial(_edit, owner), partial(_edit, beside)]
                    return await _rates("MCP, stdio", fleet, clients, sizes.seconds)


def _stdio(parameters: StdioServerParameters, log: Any) -> Any:
    from mcp.client.stdio import stdio_client

    return stdio_client(parameters, errlog=log)


async def _edit(client: Client, edits: list[dict[str, Any]]) -> None:
    result = await client.call_tool("edit_plan", {"plan": "bench", "edits": edits})
    if result.is_error:
        raise RuntimeError(str(result.content))


# -- the page ----------------------------------------------------------------------------------------------------------


def page(rates: Sequence[Rate], sizes: Sizes = FULL) -> str:
    per_second = {(rate.way, rate.callers): rate.per_second for rate in rates}

    def ratio(rate: Rate, other: str) -> str:
        return f"{rate.per_second / per_second[other, rate.callers]:.0%}"

    rows = [
        f"| {rate.way} | {rate.callers} | {rate.per_second:,.0f} | {1000 / rate.per_second * rate.callers:.1f} ms "
        f"| {ratio(rate, LIBRARY)} | {ratio(rate, HTTP_API)} |"
        for rate in rates
    ]
    return "\n".join(
        [
            "## Edits through MCP",
            "",
            f"A plan of {TASKS + 1} tasks in a SQLite file runs. Callers, who share two clients, edit it for",
            f"{sizes.seconds:g} s, one edit after the other each; the best of {sizes.rounds} rounds counts. An edit is",
            "checked, applied by the process that runs the plan, and durable before it is answered. *Library* is",
            "`edit_plan` in that process. With HTTP, clients and server share this process. With stdio each client has",
            "a process of its own, and one of these runs the plan.",
            "",
            "| way | callers | edits per second | time of an edit | of the library | of the HTTP API |",
            "| --- | ---: | ---: | ---: | ---: | ---: |",
            *rows,
            "",
        ]
    )


if __name__ == "__main__":
    print(page(measure()))
