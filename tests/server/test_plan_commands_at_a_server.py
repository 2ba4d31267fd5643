"""Commands of plans at a server that runs them: cancel waits for the end, logs are followed, and names are signed."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from asterism.api.client import AsyncClient
from asterism.api.client_errors import ApiError, ServerUnreachable
from asterism.api.documents import PlanLog
from asterism.api.local import plan_handlers
from asterism.api.system import LocalSystem
from asterism.cli.log_output import LogOptions, print_plan_log
from asterism.cli.plan import plan_watch
from asterism.core.plan.edits import RemoveTask
from asterism.durable.plan_history import versions
from asterism.durable.task_logs import stored_logs
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import PutRegister
from tests.durable.durable_scenes import Stage, written
from tests.durable.durable_work import gate
from tests.server.server_scenes import BASE, ServerScene, ended, plan_server, plan_text

pytestmark = pytest.mark.virtual_time

TEARDOWN = '\n  drop: {call: "tests.durable.durable_work:work", inputs: {name: drop}, teardown: a}'


async def connected(scene: ServerScene, *scopes: str) -> AsyncClient:
    transport = httpx.ASGITransport(scene.app)
    return AsyncClient(BASE, await scene.token(*scopes), transport=transport)


async def test_cancel_waits_for_the_process_that_runs_the_plan(capsys: pytest.CaptureFixture[str]) -> None:
    async with plan_server() as (scene, stage), await connected(scene) as client:
        await client.submit_plan(plan_text("a", "b", call="wait"))
        await stage.until(gate("a begun").is_set)
        assert await plan_watch.cancel(client, "nightly", "not tonight", as_json=False) == 0
        assert (await client.show_plan("nightly")).state == "cancelled"
        told = capsys.readouterr()
        assert told.out == "Plan 'nightly' is cancelled, by ann: not tonight.\n"
        assert "nightly@here runs 'nightly', and was asked to cancel it." in told.err
        assert await plan_watch.cancel(client, "nightly", "", as_json=False) == 0
        assert "was already cancelled, by ann: not tonight." in capsys.readouterr().out


async def test_cancel_ends_with_75_if_no_device_can_execute_the_teardowns(capsys: pytest.CaptureFixture[str]) -> None:
    async with plan_server(local=0) as (scene, stage), await connected(scene) as client:
        device = await stage.device("kitchen")
        await client.submit_plan(plan_text("a", call="wait") + TEARDOWN)
        await stage.until(gate("a begun").is_set)
        device.drain(hand_back=True)
        assert await plan_watch.cancel(client, "nightly", "", as_json=False) == plan_watch.TEARDOWNS_WAIT
        told = capsys.readouterr().err
        assert "no device can execute its teardowns (drop: " in told
        assert told.endswith("nightly@here goes on with it when a device that can has joined.\n")


# -- names -------------------------------------------------------------------------------------------------------------


async def test_a_caller_of_a_server_signs_with_no_other_name() -> None:
    async with plan_server() as (scene, stage), await connected(scene) as client:
        await client.submit_plan(plan_text("a", "b", call="wait"))
        await stage.until(gate("a begun").is_set)
        with pytest.raises(ApiError, match="the author is 'ann'") as refused:
            await client.edit_plan("nightly", [RemoveTask("b")], author="bob")
        assert refused.value.status == 403
        await client.edit_plan("nightly", [RemoveTask("b")], author="ann")
        gate("a").set()
        assert [edit.author for edit in await versions(stage.fleet().store, "nightly")] == ["", "ann"]


# -- logs --------------------------------------------------------------------------------------------------------------


async def print_line(fleet: Fleet, task: str, number: int) -> None:
    """As if the execution of a task printed its line of this number."""
    store, about = fleet.store, {"task": task, "epoch": 1, "attempt": 1}
    [log] = [log.id for log in await stored_logs(store, "nightly") if log.task == task] or [
        fleet.run_ids.new(store.clock())
    ]
    writes = [
        (f"log/nightly/{log}", about),
        (f"log-part/nightly/{log}/{number:012d}", [[store.clock(), "stdout", f"{task} {number}"]]),
    ]
    new = [PutRegister(key, value, None) for key, value in writes if await store.register(key) is None]
    await store.commit(new)


class CutConnection:
    """A system whose every second answer about logs is lost on the way."""

    def __init__(self, system: Any, stage: Stage) -> None:
        self._system, self._stage, self.asked = system, stage, 0

    async def read_plan_logs(self, *fields: Any, **named: Any) -> PlanLog:
        self.asked += 1
        page: PlanLog = await self._system.read_plan_logs(*fields, **named)
        fleet = self._stage.fleet()
        if self.asked in (2, 4):
            raise ServerUnreachable("the connection was cut")
        if self.asked in (1, 3):
            await print_line(fleet, "a", 2 + self.asked // 2)
        elif self.asked == 5:
            gate("a").set()
        return page


@pytest.mark.parametrize("where", ["store", "server"])
async def test_logs_that_are_followed_have_every_line_once_though_connections_are_cut(
    where: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with plan_server() as (scene, stage), await connected(scene) as client:
        await client.submit_plan(plan_text("a", "b", call="wait"))
        await written("a")
        gate("b").set()
        await print_line(stage.fleet(), "a", 1)
        system = CutConnection(client if where == "server" else LocalSystem(stage.fleet()), stage)
        await print_plan_log(system, "nightly", None, LogOptions(follow=True))  # type: ignore[arg-type]
        told = capsys.readouterr()
        assert told.out.splitlines() == ["a | a 1", "a | a 2", "a | a 3"]
        assert "The server cannot be reached: the connection was cut; trying again" in told.err


async def test_a_page_of_logs_continues_after_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_handlers, "MOST_LINES", 1)
    async with plan_server() as (scene, stage), await connected(scene) as client:
        text = plan_text("a", "b", "c", call="wait")
        await client.submit_plan(text.replace("    after: a", "").replace("    after: b", ""))
        for task in ("a", "b", "c"):
            await written(task)
            await print_line(stage.fleet(), task, 1)
            gate(task).set()
        async with scene.client() as watching:
            await ended(watching)
        for settled in (0.0, 1000.0):
            monkeypatch.setattr(plan_handlers, "SETTLED_AFTER", settled)
            page = await client.read_plan_logs("nightly")
            lines = [line.task for line in page.items]
            while page.more:
                page = await client.read_plan_logs("nightly", after=page.next)
                lines += [line.task for line in page.items]
            assert sorted(lines) == ["a", "b", "c"]
            assert (await client.read_plan_logs("nightly", after=page.next)).items == []
        with pytest.raises(ApiError, match="is not the `next` of an earlier answer"):
            await client.read_plan_logs("nightly", after="1.2")
