"""Reload of a plan: another process changed a run whose end was about to be written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import pytest

from asterism.core.errors import EditRejected
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddTask, EditBatch
from asterism.core.plan.status import ConstellationState
from asterism.core.run import transitions
from asterism.durable import compaction, journal_writer
from asterism.orchestrator.orchestrator import Orchestrator
from asterism.store.protocol import PutCopy, PutRegister, Query, Write
from asterism.store.store_errors import StoreUnavailable
from tests.durable import durable_work
from tests.durable.durable_scenes import (
    DONE,
    Stage,
    chain,
    ends_a_task,
    overtake,
    overtaken_slowly,
    refuse_next_end,
    slowly_completed,
    task,
    written,
)

pytestmark = pytest.mark.virtual_time


async def test_no_snapshot_contains_steps_that_were_dropped(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction is due when the journal is closed; the snapshot must not contain the dropped steps."""
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 1)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    orchestrator = stage.orchestrator(max_losses=0)
    plan = Constellation("nightly")
    plan.add(task("a", "wait"))
    plan.add(task("b"), "a")
    plan.add(task("c", "wait"))
    running = asyncio.ensure_future(orchestrator.run(plan))
    await written("a", "c")
    commit, held, go = stage.store.commit, asyncio.Event(), asyncio.Event()

    async def slow(writes: Sequence[Write]) -> None:
        if ends_a_task(writes):
            held.set()
            await go.wait()
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", slow)
    durable_work.gate("c").set()  # its end is on the way
    await held.wait()
    durable_work.gate("a").set()  # its end is known here, and waits behind
    await asyncio.sleep(1.0)
    running.cancel()
    await asyncio.sleep(journal_writer.COMMIT_RETRY_PAUSES[1])  # longer than LAST_COMMIT_TIMEOUT
    go.set()
    await asyncio.wait([running])
    monkeypatch.setattr(stage.store, "commit", commit)
    kept = await stage.load()
    assert str(kept.plan.node("a").status) == "running"


@pytest.mark.parametrize("what", ["edit", "cancel"])
async def test_commands_during_a_reload_take_effect(stage: Stage, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    orchestrator = stage.orchestrator()
    running = asyncio.ensure_future(orchestrator.run(chain("a", "b", call="wait")))
    await written("a")
    reached, go = overtaken_slowly(stage, monkeypatch)
    overtake(stage)
    await reached.wait()
    asyncio.get_running_loop().call_later(1.0, go.set)
    durable_work.gate("b").set()
    try:
        if what == "edit":
            await orchestrator.edit("nightly", EditBatch((AddTask(task("c")),), "ann"))
        else:
            await orchestrator.cancel("nightly")
    finally:
        go.set()
        result = await running
    stored = await stage.load()
    assert stored.plan.state == result.state
    assert ("c" in stored.plan.nodes) == (what == "edit")
    assert (str(result.state) == "cancelled") == (what == "cancel")


@pytest.mark.parametrize("where", ["load", "is_there"])
async def test_an_unavailable_store_does_not_end_a_reload(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    orchestrator = stage.orchestrator()
    running = asyncio.ensure_future(orchestrator.run(chain("a", "b", call="wait")))
    await written("a")
    registers, register = stage.store.registers, stage.store.register
    failed = []

    async def fails_once(prefix: str) -> Any:
        if prefix.startswith("journal/") and where == "load" and not failed:
            failed.append(prefix)
            raise StoreUnavailable("not now")
        return await registers(prefix)

    async def one_fails_once(key: str) -> Any:
        if key.startswith("journal/") and where == "is_there" and not failed:
            failed.append(key)
            raise StoreUnavailable("not now")
        return await register(key)

    monkeypatch.setattr(stage.store, "registers", fails_once)
    monkeypatch.setattr(stage.store, "register", one_fails_once)
    durable_work.gate("b").set()
    overtake(stage)
    assert (await running).state is ConstellationState.COMPLETED
    assert failed


async def test_a_reload_releases_the_slots_of_tasks_that_never_began(stage: Stage) -> None:
    orchestrator = stage.orchestrator(max_open_runs=50)
    plan = chain("a", "b", call="wait")
    running = asyncio.ensure_future(orchestrator.run(plan))
    await written("a")

    async def add_all_the_time() -> None:
        for number in range(40):
            with contextlib.suppress(EditRejected):
                Orchestrator.edit(orchestrator, "nightly", EditBatch((AddTask(task(f"x{number}")),), "ann"))
            await asyncio.sleep(0)

    durable_work.gate("b").set()
    refuse_next_end(stage)
    adding = asyncio.ensure_future(add_all_the_time())
    durable_work.gate("a").set()
    await adding
    assert (await running).state is ConstellationState.COMPLETED
    (place,) = list(orchestrator.scheduler.roster)
    assert place.running == 0


@pytest.mark.virtual_time(seeds=[None, *range(12)])
async def test_reloads_do_not_use_up_max_open_runs(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    orchestrator = stage.orchestrator(max_open_runs=2)
    plan = chain("a", "b", call="wait")
    running = asyncio.ensure_future(orchestrator.run(plan))
    await written("a")

    durable_work.gate("b").set()
    refuse_next_end(stage)

    async def add_all_the_time() -> None:
        for number in range(60):
            with contextlib.suppress(EditRejected):
                Orchestrator.edit(orchestrator, "nightly", EditBatch((AddTask(task(f"x{number}")),), "ann"))
            await asyncio.sleep(0)

    adding = asyncio.ensure_future(add_all_the_time())
    durable_work.gate("a").set()
    await adding
    done, _ = await asyncio.wait([running], timeout=3600.0)
    (place,) = list(orchestrator.scheduler.roster)
    assert place.running == 0
    assert done


async def test_an_edit_in_a_refused_commit_is_made_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    orchestrator = stage.orchestrator()
    running = asyncio.ensure_future(orchestrator.run(chain("a", "b", call="wait")))
    await written("a")
    reached, go = slowly_completed(stage, monkeypatch, refused=True)
    durable_work.gate("a").set()
    durable_work.gate("b").set()
    await reached.wait()
    amending = asyncio.ensure_future(orchestrator.edit("nightly", EditBatch((AddTask(task("c")),), "ann")))
    await asyncio.sleep(0)
    go.set()
    await asyncio.wait([amending])
    result = await running
    await amending
    assert "c" in result.plan if hasattr(result, "plan") else True
    assert DONE["c"] == 1


async def test_runs_of_a_peer_plan_of_the_same_name_are_not_cancelled(stage: Stage) -> None:
    await stage.device("kitchen")
    await stage.orchestrator(local=0).run(chain("a"))
    (own,) = await stage.store.find(Query())
    now = stage.store.clock()
    theirs = transitions.create(
        "theirs", own.work, {"name": "x"}, by="nightly", now=now, device="kitchen", origin=(own.workflow, 0)
    )
    await stage.store.start_feed()
    await stage.store.commit([PutCopy(theirs, None, "their store")])
    await stage.store.commit([PutRegister("plan/nightly", None, (await stage.store.register("plan/nightly")).revision)])
    for record in await stage.store.registers("journal/nightly/"):
        await stage.store.commit([PutRegister(record.key, None, record.revision)])
    assert (await stage.orchestrator().run(chain("b"))).state is ConstellationState.COMPLETED
    run = await stage.store.run("theirs")
    assert run is not None
    assert not run.ended
