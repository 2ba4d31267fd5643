"""Durable plans on SQLite and PostgreSQL, in real time."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from asterism.base import expressions
from asterism.core.errors import EditRejected, PlanError
from asterism.core.plan.edits import AddTask, EditBatch
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import load
from asterism.durable.plan_actor import edit_plan
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import PutRegister, Query, Write
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, chain, task


async def left_and_taken_up(url: str) -> None:
    durable_work.reset()
    plan = chain(*(f"t{number}" for number in range(20)))
    plan.add(task("slow", "wait"), "t19")
    plan.add(task("last"), "slow")
    async with await Fleet.open(url) as fleet:
        running = asyncio.create_task(DurableOrchestrator(fleet, local=2).run(plan))
        await durable_work.gate("slow begun").wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    durable_work.gate("slow").set()
    async with await Fleet.open(url) as fleet:
        again = DurableOrchestrator(fleet, local=2)
        result = await again.run_stored("nightly")
        assert result.state == "completed"
        assert set(DONE.values()) == {1}
        kept = await load(fleet.store, "nightly", expressions)
        assert again.stored is not None
        assert kept.plan.to_json() == again.stored.plan.to_json()
        assert all(run.status == "completed" for run in await fleet.runs(Query()))
        assert await fleet.store.check() == []


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


async def test_a_plan_in_a_file_is_stopped_and_resumed(tmp_path: Path) -> None:
    await left_and_taken_up(f"sqlite:///{tmp_path}/fleet.db")


async def test_a_plan_on_a_server_is_stopped_and_resumed(postgres_url: str) -> None:
    await left_and_taken_up(postgres_url)


async def edited_by_another_process(url: str) -> None:
    durable_work.reset()
    batch = EditBatch((AddTask(task("added")),), "bob")
    async with await Fleet.open(url) as fleet, await Fleet.open(url, by="bob") as other:
        orchestrator = DurableOrchestrator(fleet, local=2)
        running = asyncio.create_task(orchestrator.run(chain("a", "b", call="wait")))
        await durable_work.gate("a begun").wait()
        assert (await edit_plan(other, "nightly", batch)).by == f"nightly@{socket.gethostname()}"
        with pytest.raises(EditRejected, match="already exists"):
            await edit_plan(other, "nightly", batch)
        commit = fleet.store.commit

        async def withdrawn_before(writes: Sequence[Write]) -> None:
            """The answer comes too late: the request is gone, and nothing of the commit happens."""
            late = [write for write in writes if isinstance(write, PutRegister) and write.key.startswith("mailbox/")]
            if late:
                fleet.store.commit = commit  # type: ignore[method-assign]
                await other.store.commit([PutRegister(late[0].key, None, late[0].expected)])
            await commit(writes)

        fleet.store.commit = withdrawn_before  # type: ignore[method-assign]
        with pytest.raises(PlanError, match="is no longer in the store"):
            await edit_plan(other, "nightly", EditBatch((AddTask(task("late")),), "bob"))
        for name in "ab":
            durable_work.gate(name).set()
        assert set((await running).values) == {"a", "b", "added"}
        assert await fleet.store.registers("mailbox/") == []


async def test_a_plan_in_a_file_is_edited_while_it_runs(tmp_path: Path) -> None:
    await edited_by_another_process(f"sqlite:///{tmp_path}/fleet.db")


async def test_a_plan_on_a_server_is_edited_while_it_runs(postgres_url: str) -> None:
    await edited_by_another_process(postgres_url)
