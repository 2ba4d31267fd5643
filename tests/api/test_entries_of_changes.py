"""The entries of new runs and of edits in the audit log: in the commit of the change, so that none is without the other
when the process is killed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from asterism.api.operation import API
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edit_rules import ApprovalRule
from asterism.core.plan.task import Task
from asterism.core.run.work import Workflow
from asterism.durable.journal_store import insert_plan
from asterism.durable.ownership import Ownership
from asterism.fleet.audit_log import PREFIX, PendingEntry
from asterism.store.protocol import PutRegister, PutRun
from asterism.store.store_errors import StoreUnavailable
from tests.durable.durable_scenes import chain, staged
from tests.durable.durable_work import gate
from tests.server.server_scenes import ServerScene, server_scene

pytestmark = pytest.mark.virtual_time

EDITS = {"edits": [{"op": "add_task", "task": {"id": "late", "call": "tests.durable.durable_work:work"}}]}


class Change:
    """``send`` makes the request of a change. ``is_part`` is whether a write is part of the change, and no entry."""

    def __init__(self, path: str, body: dict[str, Any], is_part: Callable[[Any], bool], target: str = "") -> None:
        self.path, self.body, self.is_part, self.target = path, body, is_part, target

    def send(self, client: httpx.AsyncClient) -> Awaitable[httpx.Response]:
        return client.post(f"{API}{self.path}", json=self.body)


def is_run(write: Any) -> bool:
    return isinstance(write, PutRun)


def is_step(write: Any) -> bool:
    return isinstance(write, PutRegister) and write.key.startswith("journal/")


def is_entry(write: Any) -> bool:
    return isinstance(write, PutRegister) and write.key.startswith(PREFIX)


PART = {"workflow": "work", "inputs": [{"n": 1}, {"n": 2}]}
CREATE = Change("/runs", {"workflow": "work", "key": "once"}, is_run)
CREATE_MANY = Change("/runs/bulk", PART, is_run, "work")
EDIT = Change("/plans/nightly/edits", EDITS, is_step, "nightly")
CHANGES = {"a run": CREATE, "runs": CREATE_MANY, "an edit at rest": EDIT, "an edit of a plan that runs here": EDIT}


@asynccontextmanager
async def scene_of(name: str) -> AsyncIterator[ServerScene]:
    """A server with a workflow, and a plan that it runs, or that rests."""
    async with staged() as stage:
        orchestrator = stage.orchestrator()
        scene = ServerScene(orchestrator.fleet)
        await scene.fleet.workflows.add(Workflow("work", shell="true"))
        if name.endswith("here"):
            stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
            await gate("a begun").wait()
        else:
            await insert_plan(stage.store, chain("a", "b"))
        yield scene
        await scene.state.close()


def watch_commits(scene: ServerScene, after: Callable[[list[Any]], Awaitable[None]] | None = None) -> list[list[Any]]:
    """The writes of each commit from now on. ``after`` is awaited after each commit."""
    commits, commit = list[list[Any]](), scene.fleet.store.commit

    async def watched(writes: Any) -> None:
        await commit(writes)
        commits.append(list(writes))
        if after is not None:
            await after(commits[-1])

    scene.fleet.store.commit = watched  # type: ignore[method-assign]
    return commits


async def entries(scene: ServerScene) -> list[tuple[str, str, str]]:
    values = [register.value for register in await scene.fleet.store.registers(PREFIX)]
    return [(value["outcome"], value["target"], value.get("detail", "")) for value in values]


@pytest.mark.parametrize("name", CHANGES)
async def test_a_change_and_its_entry_are_one_commit(name: str) -> None:
    change = CHANGES[name]
    async with scene_of(name) as scene, scene.client("operate") as client:
        commits = watch_commits(scene)
        answer = await change.send(client)
        assert answer.status_code in (200, 201), answer.text
        [together] = [commit for commit in commits if any(map(is_entry, commit))]
        assert any(map(change.is_part, together))
        [(outcome, target, _)] = await entries(scene)
        assert (outcome, target) == ("done", change.target or answer.json()["id"])


@pytest.mark.parametrize("beside", [True, False], ids=["in its commit", "after it"])
@pytest.mark.parametrize("name", CHANGES)
async def test_a_process_that_is_killed_after_a_change_has_left_its_entry(
    name: str, beside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an ablation, the entries are written after the commits of their changes: then they are lost."""
    change, killed = CHANGES[name], asyncio.Event()

    async def die(writes: list[Any]) -> None:
        if any(map(change.is_part, writes)):
            killed.set()
            await asyncio.Event().wait()

    if not beside:
        monkeypatch.setattr(PendingEntry, "write", lambda entry, target="": PutRegister(f"nothing/{target}", {}, None))
    async with scene_of(name) as scene, scene.client("operate") as client:
        watch_commits(scene, die)
        request = asyncio.ensure_future(change.send(client))
        await killed.wait()
        assert [outcome for outcome, *_ in await entries(scene)] == (["done"] if beside else [])
        request.cancel()
        await asyncio.wait([request])
        if beside:
            assert [outcome for outcome, *_ in await entries(scene)] == ["done"], "it was broken off after the change"


async def test_a_run_whose_key_is_taken_has_an_entry_for_each_request() -> None:
    async with scene_of("a run") as scene, scene.client("operate") as client:
        first, second = [(await CREATE.send(client)).json()["id"] for _ in range(2)]
        assert first == second
        assert await entries(scene) == [("done", first, "workflow work")] * 2


async def test_a_commit_whose_answer_is_lost_leaves_one_entry() -> None:
    async with scene_of("a run") as scene, scene.client("operate") as client:
        lost = list[Any]()

        async def lose(writes: list[Any]) -> None:
            if not lost and any(map(is_run, writes)):
                lost.append(writes)
                raise StoreUnavailable("the connection was cut")

        watch_commits(scene, lose)
        created = await CREATE.send(client)
        assert created.status_code == 201, created.text
        assert lost
        assert await entries(scene) == [("done", created.json()["id"], "workflow work")]


async def test_an_edit_that_waits_or_is_rejected_has_the_entry_that_says_so() -> None:
    async with server_scene() as scene, scene.client("operate") as client:
        plan = Constellation("nightly")
        plan.add(Task("a", call="tests.durable.durable_work:work"))
        rules = {"rules": [ApprovalRule.parse("all").to_json()], "timeout": 5000.0}
        await insert_plan(scene.fleet.store, plan, {"approvals": rules})
        answer = await EDIT.send(client)
        assert answer.status_code == 409, answer.text
        unknown = {"edits": [{"op": "remove_task", "task_id": "nobody"}]}
        assert (await client.post(f"{API}/plans/nightly/edits", json=unknown)).status_code == 422
        waiting, rejected = await entries(scene)
        assert (waiting[:2], rejected[:2]) == (("done", "nightly"), ("refused", "nightly"))
        assert "waits" in waiting[2]


async def test_an_edit_that_is_not_written_has_no_entry_that_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "an edit of a plan that runs here"

    async def left(self: Ownership, change: Callable[[], Any]) -> Any:
        change()
        assert self.running is not None
        self.running.journal.seal()
        await self.running.journal.commit()

    async with scene_of(name) as scene, scene.client("operate") as client:
        monkeypatch.setattr(Ownership, "change", left)
        assert (await EDIT.send(client)).status_code == 504
        assert [outcome for outcome, *_ in await entries(scene)] == ["failed"]


async def test_an_edit_whose_answer_is_lost_has_the_entry_of_its_commit_and_no_other() -> None:
    async with scene_of("an edit at rest") as scene, scene.client("operate") as client:

        async def lose(writes: list[Any]) -> None:
            if any(map(is_step, writes)):
                raise StoreUnavailable("the connection was cut")

        watch_commits(scene, lose)
        assert (await EDIT.send(client)).status_code == 503
        assert [outcome for outcome, *_ in await entries(scene)] == ["done"]
