"""Requests that take long to compute, or that store much: they hold up nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.durable.journal_store import insert_plan, insertion, unstarted
from tests.server.server_scenes import ServerScene, server_scene

PLAN = "/api/v1/plans/nightly"
MANY = [{"op": "add_task", "task": {"id": f"new-{number}", "argv": ["true"]}} for number in range(5000)]


async def stored(scene: ServerScene, tasks: int = 1) -> None:
    plan = Constellation("nightly")
    for number in range(tasks):
        plan.add(Task(f"work-{number}", argv=["true"]))
    await insert_plan(scene.fleet.store, plan, {})


class HeldThreads(ThreadPoolExecutor):
    """The threads of a loop, which begin what they are given when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.given: asyncio.Queue[threading.Event] = asyncio.Queue()

    def submit(self, function: Callable[..., Any], /, *values: Any, **more: Any) -> Future[Any]:
        begin = threading.Event()
        self.given.put_nowait(begin)

        def later() -> Any:
            begin.wait()
            return function(*values, **more)

        return super().submit(later)


async def threads_used(request: Awaitable[httpx.Response], other: httpx.AsyncClient) -> int:
    """How often a request computes in a thread. Each time another request is answered before it goes on."""
    threads, used = HeldThreads(), 0
    asyncio.get_running_loop().set_default_executor(threads)
    answer = asyncio.ensure_future(request)
    while True:
        given = asyncio.create_task(threads.given.get())
        await asyncio.wait((answer, given), return_when=asyncio.FIRST_COMPLETED)
        if not given.done():
            given.cancel()
            assert (await answer).status_code == 200, answer.result().text
            return used
        try:
            assert (await other.get("/api/v1/me")).status_code == 200
            assert not answer.done()
        finally:
            given.result().set()
        used += 1


async def test_a_dry_run_of_many_edits_is_computed_beside_the_loop() -> None:
    async with server_scene() as scene, scene.client() as client, scene.client("observe") as other:
        await stored(scene)
        dry_run = client.post(f"{PLAN}/edits", json={"edits": MANY, "dry_run": True})
        assert await threads_used(dry_run, other) == 2  # the edits are read in a thread, and tried in another
        assert (await client.get(PLAN)).json()["version"] == 0


@pytest.mark.parametrize("path", ["", "?folded=true", "/copy", "/versions/0", "/drawing?form=mermaid"])
async def test_what_shows_all_tasks_of_a_plan_is_computed_beside_the_loop(path: str) -> None:
    async with server_scene() as scene, scene.client() as client, scene.client("observe") as other:
        await stored(scene, tasks=300)
        assert await threads_used(client.get(f"{PLAN}{path}"), other) == 1


@pytest.fixture
def large_plan() -> Constellation:
    plan = Constellation("nightly")
    for number in range(6000):
        needs = frozenset({f"tool-{number}"} if number < 60 else ())  # each of them waits for a cause of its own
        plan.add(Task(f"task-{number}", argv=["true"], needs=needs), {f"task-{number - 60}"} if number >= 60 else ())
    return plan


async def test_a_large_plan_is_shown_explained_and_drawn_beside_the_loop(large_plan: Constellation) -> None:
    """The loop watchdog fails this test if one step takes long."""
    async with server_scene() as scene, scene.client("observe") as client:
        store = scene.fleet.store
        _, writes = await asyncio.to_thread(insertion, store, *unstarted(large_plan, {}))
        await store.commit(writes)
        drawing = await client.get(f"{PLAN}/drawing", params={"form": "mermaid"})
        assert "task-5999" in drawing.json()["text"]
        assert len((await client.get(PLAN)).json()["tasks"]) == 6000
        assert len((await client.get(f"{PLAN}/versions/0")).json()["tasks"]) == 6000
        why = (await client.get(f"{PLAN}/why")).json()
        assert sum(len(cause["tasks"]) for cause in why["causes"]) + why["left"] == 60


async def test_two_heavy_requests_of_a_credential_are_computed_at_once_and_others_are_not_held_up() -> None:
    async with server_scene() as scene:
        await stored(scene)
        token = await scene.token("observe")
        caller = await scene.credentials.find(token)
        assert caller is not None
        async with contextlib.AsyncExitStack() as held, scene.client(token=token) as busy, scene.client() as other:
            for _ in range(2):
                await held.enter_async_context(scene.state.gate.heavy(caller))
            paths = "", "/copy", "/why", "/drawing?form=mermaid", "/files", "/versions/0"
            waiting = [asyncio.create_task(busy.get(f"{PLAN}{path}")) for path in paths]
            for _ in range(10):
                await asyncio.sleep(0)  # those that need not wait go on: the store is in memory
                assert (await other.get(f"{PLAN}/drawing")).status_code == 200
                assert (await busy.get(f"{PLAN}/tasks")).status_code == 200  # only those that take long wait
            assert not any(job.done() for job in waiting)
            await held.aclose()
            assert [(await job).status_code for job in waiting] == [200] * len(paths)


async def test_a_credential_stores_so_many_bytes_in_an_hour() -> None:
    async with server_scene() as scene, scene.client("event") as client, scene.client("operate") as other:
        await scene.fleet.configure(credential_bytes=100_000)
        event = {"name": "paid", "data": "x" * 40_000}
        statuses = [(await client.post("/api/v1/sent-events", json=event)).status_code for _ in range(4)]
        assert statuses == [201, 201, 429, 429]
        refused = await client.post("/api/v1/sent-events", json=event)
        assert 3500 <= int(refused.headers["retry-after"]) <= 3660
        assert "may store 100,000 bytes within an hour (setting credential_bytes): come again in" in refused.text
        assert (await client.post("/api/v1/sent-events", json={"name": "paid"})).status_code == 201  # there is room
        assert (await other.post("/api/v1/sent-events", json=event)).status_code == 201
        large = await other.post("/api/v1/sent-events", json={"name": "paid", "data": "x" * 120_000})
        assert (large.status_code, "this request alone has" in large.text) == (413, True), large.text


async def test_what_a_dry_run_reads_is_not_counted() -> None:
    async with server_scene() as scene, scene.client() as client:
        await stored(scene)
        await scene.fleet.configure(credential_bytes=100)
        edits = [{"op": "add_task", "task": {"id": "mail", "argv": ["true"], "description": "x" * 200}}]
        assert (await client.post(f"{PLAN}/edits", json={"edits": edits, "dry_run": True})).status_code == 200
        assert (await client.post(f"{PLAN}/edits", json={"edits": edits})).status_code == 413


async def test_a_description_is_whole_or_refused() -> None:
    async with server_scene() as scene, scene.client() as client:
        await stored(scene)
        add = {"op": "add_task", "task": {"id": "mail", "argv": ["true"], "description": "x" * 65_536}}
        assert (await client.post(f"{PLAN}/edits", json={"edits": [add]})).status_code == 200
        changed = {"op": "update_task", "task_id": "work", "changes": {"description": "x" * 65_537}}
        refused = await client.post(f"{PLAN}/edits", json={"edits": [changed]})
        assert refused.status_code == 422, refused.text
        assert "the description has 65,537 characters, and the limit is 65,536: shorten it" in refused.text
        text = f"asterism: 1\ntasks: {{work: {{shell: 'true', description: '{'x' * 65_537}'}}}}\n"
        refused = await client.post("/api/v1/plans", json={"text": text, "name": "other"})
        assert "description must have at most 65,536 characters, not 65,537: shorten it" in refused.text
