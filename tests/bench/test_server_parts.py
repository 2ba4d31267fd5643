"""The benchmarks of the server: that they run, that they count what they say, and that there is no figure if the work
was not done."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, cast

import pytest

from asterism import AsyncClient, edits
from asterism.api.documents import Plan
from asterism.core.record import replace
from asterism.durable.plan_actor import edit_plan
from asterism.fleet.fleet import Fleet
from asterism.store.memory import MemoryStore
from bench import http_api, server_tasks

TINY = http_api.Sizes(tasks=20, rounds=1, clients=3, edits=4, at_once=2, hours=4, plans=1)


@pytest.mark.long
def test_the_server_is_measured_beside_the_library_and_the_bound() -> None:
    text = http_api.plan_section(TINY)
    assert "| lower bound: the time of the tasks on all slots | 0.1 s |" in text
    assert len(re.findall(r"^\| the (library|server)", text, re.MULTILINE)) == 2


@pytest.mark.long
def test_no_client_of_a_stream_misses_an_event() -> None:
    assert re.search(r"\| the plan with 3 clients \| [\d.]+ s", http_api.streams(TINY))


@pytest.mark.long
def test_edits_and_memory_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_api, "EDITED_TASKS", 20)
    monkeypatch.setattr(http_api, "EDITS_EACH", 1)  # so an editor needs several credentials
    assert len(re.findall(r"^\| the API", http_api.edits_per_second(TINY), re.MULTILINE)) == 3
    monkeypatch.setattr(http_api, "DAY_TASKS", 10)
    assert "| 4 | " in http_api.memory(TINY)


@pytest.mark.long
async def test_a_server_that_cannot_import_the_tasks_gives_no_figure(tmp_path: Path) -> None:
    async with http_api.serving(module_folder=tmp_path) as server, server.clients(1) as [client]:
        await http_api.store_plan(server.fleet, "plan", 3)
        with pytest.raises(AssertionError, match=r"the plan is failed: .*No module named 'bench'"):
            await http_api.run_plan(server, client, "plan", 3)
        await http_api.store_plan(server.fleet, "edited", 3, call="wait")
        await client.resume_plan("edited")
        with pytest.raises(AssertionError, match="edited is failed"):
            await http_api.running_plan(client, "edited")


async def test_the_library_runs_the_same_plan_and_proves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_api, "tune_gc", lambda: None)  # this process belongs to the tests
    assert await http_api.run_with_library(3) >= http_api.TASK_SECONDS
    monkeypatch.setattr(http_api, "DONE", "something else")
    monkeypatch.setattr(server_tasks.step, "__code__", _other_step.__code__)
    with pytest.raises(AssertionError, match="t0 has the value 'not done', not 'something else'"):
        await http_api.run_with_library(3)


async def _other_step() -> str:
    return "not done"


class _Client:
    """A client that reads this state of the plan."""

    def __init__(self, **fields: Any) -> None:
        self.fields = {"ended": False, "owner": None, "state": "ready", "counts": {}, **fields}

    async def watch_plan(self, name: str) -> Any:
        return cast(Any, type("Shown", (), self.fields))

    async def show_plan(self, name: str, tasks: bool) -> Any:
        return await self.watch_plan(name)


async def test_nobody_waits_for_an_owner_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_api, "OWNED_WITHIN", 0.0)
    with pytest.raises(AssertionError, match="no process runs plan, which is ready"):
        await http_api.ended_plan(cast(AsyncClient, _Client()), "plan")
    with pytest.raises(AssertionError, match="plan does not run, but is ready"):
        await http_api.running_plan(cast(AsyncClient, _Client()), "plan")
    monkeypatch.setattr(http_api, "PATIENCE", 0.0)
    with pytest.raises(AssertionError, match="plan is ready after 0 s"):
        await http_api.ended_plan(cast(AsyncClient, _Client(owner="somebody")), "plan")


async def test_an_edit_too_few_gives_no_figure() -> None:
    async with Fleet(MemoryStore()) as fleet:
        await http_api.store_plan(fleet, "plan", http_api.EDITED_TASKS, call="wait")
        for number in range(2):
            await edit_plan(fleet, "plan", edits.EditBatch(http_api.added_after_first(number), "bench"))
        await http_api.check_edits(fleet, "plan", 2)
        with pytest.raises(AssertionError, match="plan has version 2 after 3 edits"):
            await http_api.check_edits(fleet, "plan", 3)
        await edit_plan(fleet, "plan", edits.EditBatch((http_api.added_task(9),), "bench"))
        with pytest.raises(AssertionError, match="does not have the tasks that were added"):
            await http_api.check_edits(fleet, "plan", 3)
        await edit_plan(fleet, "plan", edits.EditBatch((edits.RemoveTask("x9"), http_api.added_task(2)), "bench"))
        with pytest.raises(AssertionError, match="version 4 after 3"):
            await http_api.check_edits(fleet, "plan", 3)


def test_edits_of_a_plan_that_did_not_run_all_the_time_give_no_figure() -> None:
    shown = _plan(owner="server", epoch=1, state="running", counts={"running": 8})
    http_api.check_same_owner(shown, shown)
    with pytest.raises(AssertionError, match="no process runs the plan any more"):
        http_api.check_same_owner(shown, replace(shown, owner=None))
    for change in ({"epoch": 2}, {"owner": "other"}, {"counts": {"running": 7}}):
        with pytest.raises(AssertionError, match="did not run all the time"):
            http_api.check_same_owner(shown, replace(shown, **cast(Any, change)))


def _plan(**fields: Any) -> Plan:
    names = Plan.__struct_fields__
    return Plan(**{name: fields.get(name) for name in names})


def _follower(*ids: str) -> http_api.Follower:
    follower = http_api.Follower("http://127.0.0.1:1", "token", "plan", "1")
    for identity in ids:
        follower._data += f"id: {identity}\nevent: task\ndata: {{}}\n\n: alive\n\n".encode()
    return follower


def test_a_follower_reads_the_ids_of_a_stream() -> None:
    follower = _follower("1.0", "2.0")
    assert follower.ids == ["1.0", "2.0"]
    assert follower.has("2.0")
    assert not follower.has("2.00")


@pytest.mark.parametrize(
    ("ids", "complaint"),
    [
        (("1", "3"), "client 1 misses 1 of 3 events"),
        (("1", "2", "2", "3"), "client 1 received 1 events twice"),
        (("1", "3", "2"), "client 1 received the events in another order"),
    ],
)
def test_a_client_that_misses_an_event_gives_no_figure(ids: tuple[str, ...], complaint: str) -> None:
    right = _follower("1", "2", "3")
    http_api.check_followers([right, right], ["1", "2", "3"])
    with pytest.raises(AssertionError, match=complaint):
        http_api.check_followers([right, _follower(*ids)], ["1", "2", "3"])
