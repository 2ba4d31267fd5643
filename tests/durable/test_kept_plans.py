"""Kept plans: an edit of a plan that no process runs does not load it again, and never uses a plan that has changed."""

from __future__ import annotations

import asyncio
import contextlib
import random
from typing import Any

import pytest

from asterism.core.errors import EditRejected
from asterism.core.plan.edits import AddDependency, AddTask, EditBatch, RemoveTask
from asterism.core.plan.journal import UnreadableJournal
from asterism.core.plan.task import Task
from asterism.durable import journal_store, plan_actor
from asterism.durable.journal_store import StoredConstellation, insert_plan, load
from asterism.durable.plan_actor import edit_plan
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import PutRegister, Store
from tests.durable import durable_work
from tests.durable.durable_scenes import Stage, chain
from tests.long_tests import rest_long

pytestmark = pytest.mark.virtual_time


def added(name: str, *after: str) -> EditBatch:
    task = Task(name, call="tests.durable.durable_work:value")
    return EditBatch((AddTask(task), *(AddDependency(source, name) for source in after)), "bob")


async def always_current(store: Store, kept: StoredConstellation) -> bool:
    """The ablation: a kept plan is used without a look at the store."""
    return True


async def edit(fleet: Fleet, batch: EditBatch) -> int:
    return (await edit_plan(fleet, "nightly", batch)).applied.version


async def remove(store: Store) -> None:
    """Remove the plan, as retention removes one that has ended."""
    records = [*await store.registers("journal/nightly/"), await store.register("plan/nightly")]
    await store.commit([PutRegister(record.key, None, record.revision) for record in records if record is not None])


def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The plans that are loaded from now on, to be edited."""
    names: list[str] = []

    async def counted(store: Store, name: str, *conditions: Any) -> Any:
        names.append(name)
        return await load(store, name, *conditions)

    monkeypatch.setattr(plan_actor, "load", counted)
    return names


async def test_a_plan_is_loaded_for_the_first_edit_only(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await insert_plan(stage.store, chain("a"))
    fleet, loaded = stage.fleet(), loads(monkeypatch)
    for number in range(5):
        assert await edit(fleet.named("bob"), added(f"x{number}", "a")) == number + 1
        with pytest.raises(EditRejected):
            await edit(fleet, EditBatch((RemoveTask("unknown"),)))
    assert loaded == ["nightly"]
    assert fleet.kept_plans["nightly"].plan.to_json() == (await stage.load()).plan.to_json()


@pytest.mark.parametrize("guarded", [True, False])
async def test_an_edit_is_judged_by_what_another_process_wrote(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    if not guarded:
        monkeypatch.setattr(plan_actor, "refresh", always_current)
    await insert_plan(stage.store, chain("a"))
    one, other, loaded = stage.fleet(), stage.fleet(), loads(monkeypatch)
    assert await edit(one, added("x")) == 1
    assert await edit(other, added("y")) == 2
    if guarded:
        assert await edit(one, added("z", "y")) == 3
        assert loaded == ["nightly", "nightly"]  # each process once: what the other one wrote is replayed
    else:
        with pytest.raises(EditRejected, match="'y'"):
            await edit(one, added("z", "y"))


@pytest.mark.parametrize("guarded", [True, False])
async def test_a_plan_that_changes_after_the_look_makes_the_edit_begin_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """A plan of the same name, whose head has the same revision: the commit expects the record before its own."""
    monkeypatch.setattr(plan_actor, "refresh", always_current)  # it changes right after the look
    if not guarded:
        monkeypatch.setattr(journal_store, "ExpectRegister", lambda key, revision: PutRegister(f"seen/{key}", 1, None))
    one, other = stage.fleet(), stage.fleet()
    await insert_plan(stage.store, chain("a"))
    await edit(one, added("x"))
    await remove(stage.store)
    await asyncio.sleep(1.0)
    await insert_plan(stage.store, chain("b"))
    await edit(other, added("y"))
    await edit(one, added("z"))
    if guarded:
        assert [task.id for task in (await stage.load()).plan] == ["b", "y", "z"]
    else:
        with pytest.raises(UnreadableJournal):  # it has the head of the one plan, and the journal of the other
            await stage.load()


@pytest.mark.parametrize("seed", rest_long(range(40), 3))
async def test_edits_of_several_processes_in_any_order(stage: Stage, seed: int) -> None:
    """Each accepted edit is in the plan and makes the next version, a rejected one changes nothing, and each process
    keeps the plan as it was after its own edit."""
    chance, fleets = random.Random(seed), [stage.fleet() for _ in range(3)]
    await insert_plan(stage.store, chain("a", "b"))
    names, version = {"a", "b"}, 0
    for number in range(25):
        fleet, kind = chance.choice(fleets), chance.random()
        if kind < 0.1:
            await remove(stage.store)
            await insert_plan(stage.store, chain("a", "b"))
            names, version = {"a", "b"}, 0
        elif kind < 0.3:
            with pytest.raises(EditRejected):
                await edit(fleet, added(f"x{number}", "unknown"))
        elif kind < 0.5 and len(names) > 3:
            gone = chance.choice(sorted(names - {"a", "b"}))
            version, names = version + 1, names - {gone}
            assert await edit(fleet, EditBatch((RemoveTask(gone, dependents="bridge"),), "bob")) == version
        else:
            version += 1
            assert await edit(fleet, added(f"x{number}", chance.choice(sorted(names)))) == version
            names = names | {f"x{number}"}
        stored = (await stage.load()).plan
        assert ({task.id for task in stored}, stored.version) == (names, version)
        kept = [fleet.kept_plans["nightly"] for fleet in fleets if "nightly" in fleet.kept_plans]
        current = [other.plan for other in kept if other.number == (await stage.load()).number]
        assert all(plan.to_json() == stored.to_json() for plan in current)
        await asyncio.sleep(0.1)


class NoLocks:
    def setdefault(self, *_: object) -> contextlib.AbstractAsyncContextManager[None]:
        return contextlib.nullcontext()


@pytest.mark.parametrize("guarded", [True, False])
async def test_edits_at_one_time_load_the_plan_once(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, guarded: bool
) -> None:
    """Without an order, each of them loads it, and all but one are in vain and begin again."""
    await insert_plan(stage.store, chain("a"))
    fleet, loaded = stage.fleet(), list[str]()

    async def slow(store: Store, name: str, *conditions: Any) -> Any:
        loaded.append(name)
        await asyncio.sleep(0.01)
        return await load(store, name, *conditions)

    monkeypatch.setattr(plan_actor, "load", slow)
    if not guarded:
        monkeypatch.setattr(fleet, "plan_locks", NoLocks())
    await asyncio.gather(*(edit(fleet, added(f"x{number}", "a")) for number in range(10)))
    assert (len(loaded) == 1) is guarded


async def test_edits_at_one_time_are_all_applied(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a"))
    fleet = stage.fleet()
    versions = await asyncio.gather(*(edit(fleet, added(f"x{number}", "a")) for number in range(10)))
    assert sorted(versions) == list(range(1, 11))
    assert len((await stage.load()).plan) == 11


async def test_few_plans_are_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_actor, "MOST_KEPT_TASKS", 4)
    fleet = stage.fleet()
    for name in ("p", "q", "r"):
        plan = chain("a")
        plan.id = name
        await insert_plan(stage.store, plan)
        await edit_plan(fleet, name, added("x"))
    assert list(fleet.kept_plans) == ["q", "r"]
    await edit_plan(fleet, "q", added("y"))
    assert list(fleet.kept_plans) == ["q"]


async def test_a_plan_that_runs_is_not_kept(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a", call="wait"))
    orchestrator = stage.orchestrator()
    await edit(orchestrator.fleet, added("x"))
    job = stage.spawn(orchestrator.run_stored("nightly"))
    await durable_work.gate("a begun").wait()
    assert orchestrator.fleet.kept_plans == {}
    durable_work.gate("a").set()
    await job
    await edit(orchestrator.fleet, added("y"))  # it reopens the plan, which is loaded again for the next edit
    assert orchestrator.fleet.kept_plans == {}
    await edit(orchestrator.fleet, added("z"))
    kept = orchestrator.fleet.kept_plans["nightly"]
    assert kept.plan.to_json() == (await stage.load()).plan.to_json()
