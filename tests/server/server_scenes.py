"""A server in the test process: its application without a socket, a store in memory, and clients with credentials."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx

from asterism.api.credentials import Credentials
from asterism.base.http_limits import Bodies
from asterism.durable.plan_runner import PlanRunner
from asterism.fleet.fleet import Fleet
from asterism.server.endpoint import ServerState
from asterism.server.http_service import server_app
from asterism.server.request_guard import SERVER_LIMITS, Gate
from asterism.store.memory import MemoryStore
from tests.durable.durable_scenes import Stage, staged

BASE = "http://127.0.0.1:7400"


class ServerScene:
    """``app`` is the application. ``client`` makes a client of it, by default with a token of the scope ``admin``."""

    def __init__(self, fleet: Fleet, **options: Any) -> None:
        self.fleet, self.credentials = fleet, Credentials(fleet.store)
        gate = Gate(self.credentials, asyncio.get_running_loop().time, https=False, **options)
        self.state = ServerState(fleet, gate, Bodies(SERVER_LIMITS))
        self.app = server_app(self.state, ["127.0.0.1", "localhost"])

    async def token(self, *scopes: str, name: str = "ann", **options: Any) -> str:
        return (await self.credentials.create(name, scopes or ["admin"], by="test", **options)).token

    @asynccontextmanager
    async def client(self, *scopes: str, token: str | None = None, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
        headers["authorization"] = f"Bearer {token or await self.token(*scopes)}"
        async with self.stranger(**headers) as client:
            yield client

    @asynccontextmanager
    async def stranger(self, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
        """A client without credentials."""
        transport = httpx.ASGITransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url=BASE, headers=headers) as client:
            yield client


@asynccontextmanager
async def server_scene(**options: Any) -> AsyncIterator[ServerScene]:
    async with Fleet(MemoryStore(), by="server") as fleet:
        scene = ServerScene(fleet, **options)
        yield scene
        await scene.state.close()


# -- plans that run, in virtual time -----------------------------------------------------------------------------------


@asynccontextmanager
async def plan_server(local: int = 4, **options: Any) -> AsyncIterator[tuple[ServerScene, Stage]]:
    """A server that runs plans. The tasks of plan files are functions of tests/durable/durable_work.py."""
    async with staged() as stage:
        scene = ServerScene(stage.fleet(), **options)
        runner = PlanRunner(stage.fleet(), make=lambda fleet: stage.orchestrator(local=local))
        stage.spawn(runner.run())
        scene.state.submitted = runner.wake
        yield scene, stage
        await scene.state.close()


def plan_text(*tasks: str, call: str = "work") -> str:
    """A plan file in which each task comes after the one before it."""
    lines = ["asterism: 1", "id: nightly", "tasks:"]
    for before, name in zip(["", *tasks], tasks, strict=False):
        lines += [f"  {name}:", f"    call: tests.durable.durable_work:{call}", f"    inputs: {{name: {name}}}"]
        lines += [f"    after: {before}"] if before else []
    return "\n".join(lines)


async def ended(client: httpx.AsyncClient, name: str = "nightly") -> dict[str, Any]:
    """The plan when it has ended."""
    for _ in range(1000):
        document = (await client.get(f"/api/v1/plans/{name}")).json()
        if document["state"] in ("completed", "failed", "partially_failed", "cancelled"):
            return dict(document)
        await asyncio.sleep(0.5)
    raise AssertionError(f"{name} has not ended")


class EventClient:
    """A client of an event stream, which the transport of httpx would read to its end first."""

    def __init__(self, scene: ServerScene, path: str, token: str, **headers: str) -> None:
        self._sent: asyncio.Queue[bytes] = asyncio.Queue()
        self._leaving = asyncio.Event()
        self._text, self.events = "", list[dict[str, Any]]()
        self.comments, self.status, self.over = 0, 0, False
        path, _, query = path.partition("?")
        all_headers = {"host": "127.0.0.1:7400", "authorization": f"Bearer {token}", **headers}
        scope = {
            "type": "http",
            "method": "GET",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in all_headers.items()],
            "client": ("127.0.0.1", 1),
            "http_version": "1.1",
            "scheme": "http",
            "server": ("127.0.0.1", 7400),
        }
        self.task = asyncio.create_task(scene.app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        await self._leaving.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return
        if not message.get("more_body"):
            self.over = True
        self._text += message["body"].decode()
        *whole, self._text = self._text.split("\n\n")
        for part in whole:
            fields = dict(line.split(": ", 1) for line in part.splitlines() if not line.startswith(":"))
            self.comments += part.startswith(":")
            if "data" in fields:
                self.events.append({**json.loads(fields["data"]), "id": fields["id"], "event": fields["event"]})
        await asyncio.sleep(0)

    async def until(self, number: int) -> list[dict[str, Any]]:
        """The events, when there are so many."""
        for _ in range(10_000):
            if len(self.events) >= number or self.task.done():
                break
            await asyncio.sleep(0.1)
        assert len(self.events) >= number, self.events
        return self.events

    async def leave(self) -> None:
        self._leaving.set()
        await self.task
