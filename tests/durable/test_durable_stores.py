"""Durable plans on SQLite and PostgreSQL, in real time."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from asterism.base import expressions
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import load
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Query
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
