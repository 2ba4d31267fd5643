"""Who works on a plan when it is taken over, on SQLite and PostgreSQL, in real time: one process, also while several
clients edit the plan; and a process takes work once it owns its plan."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from asterism.core.plan.edits import AddTask, EditBatch
from asterism.core.run.work import Workflow
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import insert_plan, load
from asterism.durable.plan_actor import edit_plan
from asterism.fleet.device.agent import DeviceAgent
from asterism.fleet.fleet import Fleet
from tests.durable import durable_work
from tests.durable.durable_scenes import chain, task

CLIENTS = 4
PATIENCE = 120.0


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    engine = f"sqlite:///{tmp_path}/fleet.db"
    return request.getfixturevalue("postgres_url") if request.param == "postgres" else engine


class Clients:
    """Edit a plan again and again, each as fast as it can. ``added`` are the tasks of the acknowledged edits."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.added: set[str] = set()
        self.busy = asyncio.Event()
        self._stopped = False

    async def _edit(self, client: int) -> None:
        async with await Fleet.open(self._url, by=f"client {client}") as fleet:
            number = 0
            while not self._stopped:
                name, number = f"c{client}-{number}", number + 1
                await edit_plan(fleet, "nightly", EditBatch((AddTask(task(name)),), fleet.by))
                self.added.add(name)
                if number == 3:
                    self.busy.set()

    @contextlib.asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as clients:
            for client in range(CLIENTS):
                clients.create_task(self._edit(client))
            await self.busy.wait()
            yield
            self._stopped = True


async def test_a_plan_is_resumed_while_clients_edit_it(url: str) -> None:
    durable_work.reset()
    async with asyncio.timeout(PATIENCE), await Fleet.open(url) as fleet:
        await insert_plan(fleet.store, chain("first", call="wait"))
        clients = Clients(url)
        async with clients.at_work():
            running = asyncio.create_task(DurableOrchestrator(fleet, local=2).run_stored("nightly"))
            begun = asyncio.create_task(durable_work.gate("first begun").wait())
            await asyncio.wait([running, begun], return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        durable_work.gate("first").set()
        result = await running
        assert result.state == "completed"
        stored = await load(fleet.store, "nightly")
        assert set(stored.plan.nodes) == {"first", *clients.added}, "no edit is lost"


async def test_of_several_that_resume_a_plan_while_clients_edit_it_one_runs_it(url: str) -> None:
    durable_work.reset()
    async with asyncio.timeout(PATIENCE), await Fleet.open(url) as fleet, contextlib.AsyncExitStack() as opened:
        await insert_plan(fleet.store, chain("first", call="wait"))
        others = [await opened.enter_async_context(await Fleet.open(url)) for _ in range(3)]
        async with Clients(url).at_work():
            resumed = [
                asyncio.create_task(DurableOrchestrator(other, host=f"host {number}", local=1).standby("nightly"))
                for number, other in enumerate(others)
            ]
            await durable_work.gate("first begun").wait()
        durable_work.gate("first").set()
        results = await asyncio.gather(*resumed)
        assert {str(result.state) for result in results} == {"completed"}
        assert set(durable_work.DONE.values()) == {1}, "each task is executed once"
        story = (await load(fleet.store, "nightly")).plan.story()
        # an owner that reads its plan again, since a message was withdrawn, takes it up once more
        owners = {entry.why.partition(",")[0] for entry in story if entry.what == "taken up"}
        assert len(owners) == 1, "one process ran it"


async def test_a_process_takes_work_once_it_owns_its_plan(url: str) -> None:
    durable_work.reset()
    async with asyncio.timeout(PATIENCE), await Fleet.open(url) as first, await Fleet.open(url) as second:
        plans = {name: chain(name, call="wait") for name in ("a", "b")}
        for name, plan in plans.items():
            plan.id, plan.source, plan.overlap = name, "film", ("queue", 1)
        ahead = asyncio.create_task(DurableOrchestrator(first, local=1).run(plans["a"]))
        await durable_work.gate("a begun").wait()
        behind = asyncio.create_task(DurableOrchestrator(second, local=2).run(plans["b"]))
        while not (waiting := [device for device in await first.devices() if device.device.startswith("b@")]):
            assert not behind.done()
        assert waiting[0].resting == "it does not run its plan yet"
        other = await second.create(Workflow("other", call="tests.durable.durable_work:work"), {"name": "other"})
        assert not (other.device or "").startswith("b@")
        durable_work.gate("b").set()
        durable_work.gate("a").set()
        assert {(await job).state for job in (ahead, behind)} == {"completed"}
        taken = await first.wait(other.id)
        began = (await load(first.store, "b")).plan.started_at
        assert taken.device is not None
        assert taken.device.startswith("a@") or (taken.started_at or 0.0) >= (began or 0.0), taken.story


async def test_a_device_that_is_leaving_refuses_nothing(url: str) -> None:
    """The creator of a run has not read yet that the device is leaving."""
    durable_work.reset()
    flow = Workflow("work", call="tests.durable.durable_work:wait")
    async with asyncio.timeout(PATIENCE), await Fleet.open(url) as fleet, await Fleet.open(url) as person:
        agent = DeviceAgent(fleet, "kitchen", slots=2)
        kitchen = asyncio.create_task(agent.run())
        await agent.joined.wait()
        await person.create(flow, {"name": "busy"})
        await durable_work.gate("busy begun").wait()
        agent.drain()
        run = await person.create(flow, {"name": "late"})
        durable_work.gate("busy").set()
        await kitchen
        other = DeviceAgent(fleet, "attic")
        attic = asyncio.create_task(other.run())
        durable_work.gate("late").set()
        ended = await person.wait(run.id)
        assert (ended.device, dict(ended.declined), ended.rounds) == ("attic", {}, 0)
        other.drain()
        await attic
