"""``restate``: a server of its own, and a service in this process whose handler does each task with ``ctx.run_typed``;
measured is one call of the handler through the server, from the request to the response.

A handler has to start its steps in an order that is the same every time. So a wave of tasks whose parents have ended is
gathered, and the next wave waits for all of it.
"""

import asyncio
import itertools
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from typing import Any

import httpx

from bench import loop
from bench.durable import restate_server
from bench.durable.peers import Measure, recorded
from bench.durable.work import step, trace
from bench.graphs import Graph, check, waves
from bench.measure import Sample, family_cpu, timed_result

NAME = "restate"
SETTINGS = (
    f"{loop.WORDS}; its server as it comes (RocksDB, its log synchronised with the disk), a service served by "
    "Hypercorn; one call of a handler, each task a `ctx.run_typed`, waves gathered"
)
LIMIT = {"wide": 1_000, "chain": 500, "layered": 1_000}
CALL_LIMIT = 240.0


def VERSION() -> str:
    return f"{restate_server.VERSION}, SDK {version('restate-sdk')}"


def _application(known: dict[str, list[list[int]]]) -> Any:
    import restate

    service = restate.Service("bench")

    @service.handler()
    async def execute(ctx: restate.Context, name: str) -> int:
        for wave in known[name]:
            futures = [ctx.run_typed(str(number), step, number=number) for number in wave]
            await restate.gather(*futures)
            for future in futures:
                await future  # raises what the step raised
        return sum(map(len, known[name]))

    return restate.app([service])


@contextmanager
def _served(application: Any) -> Iterator[int]:
    """The application on a port of this machine, by an event loop in a thread of its own."""
    from hypercorn.asyncio import serve
    from hypercorn.config import Config

    with socket.create_server(("127.0.0.1", 0)) as listening, loop.runner() as runner:
        config = Config()
        config.bind = [f"fd://{os.dup(listening.fileno())}"]  # closed by it
        config.h2_max_concurrent_streams = config.keep_alive_max_requests = 2**31 - 1  # as its documents say
        config.loglevel = "ERROR"
        stop = asyncio.Event()

        def main() -> None:
            runner.run(serve(application, config, shutdown_trigger=stop.wait))

        events = runner.get_loop()
        thread = Thread(target=main, name="hypercorn", daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            events.call_soon_threadsafe(stop.set)
            thread.join()


def _records(admin: httpx.Client, invocation: str) -> int:
    """The results of steps that the journal of a call has."""
    query = f"SELECT count(*) AS steps FROM sys_journal WHERE id = '{invocation}' AND entry_type = 'Notification: Run'"
    response = admin.post("/query", json={"query": query}, headers={"accept": "application/json"}).raise_for_status()
    return int(response.json()["rows"][0]["steps"])


@contextmanager
def session(folder: Path) -> Iterator[Measure]:
    known: dict[str, list[list[int]]] = {}
    numbers = itertools.count()
    with ExitStack() as stack:
        port = stack.enter_context(_served(_application(known)))
        sockets = stack.enter_context(restate_server.running(folder / "restate"))
        admin = stack.enter_context(restate_server.client(sockets, "admin"))
        ingress = stack.enter_context(restate_server.client(sockets, "ingress"))
        admin.post("/deployments", json={"uri": f"http://127.0.0.1:{port}"}).raise_for_status()

        def measure(graph: Graph) -> Sample:
            name = str(next(numbers))
            known[name] = waves(graph)
            trace.clear()
            sample, response = timed_result(
                len(graph), lambda: ingress.post("/bench/execute", json=name, timeout=CALL_LIMIT), family_cpu
            )
            assert response.raise_for_status().json() == len(graph), response.text
            check(graph, trace)
            recorded(_records(admin, response.headers["x-restate-id"]), len(graph), "recorded steps")
            return sample

        yield measure
