"""Large plans that are read again: only new records are read, and the plan is as it would be loaded."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddTask, EditBatch
from asterism.core.plan.task import Task
from asterism.durable import plan_actor, stored_plans
from asterism.durable.journal_store import StoredConstellation, UnknownConstellation, insert_plan, load
from asterism.durable.plan_actor import edit_plan
from asterism.durable.stored_plans import read_plan, task_runs
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import Query, Store
from tests.durable.durable_scenes import Stage, chain
from tests.durable.test_kept_plans import remove

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The plans that are loaded from now on; those of two tasks are large."""
    names: list[str] = []

    async def counted(store: Store, name: str, *conditions: Any) -> Any:
        names.append(name)
        return await load(store, name, *conditions)

    for module in (plan_actor, stored_plans):
        monkeypatch.setattr(module, "load", counted)
    monkeypatch.setattr(stored_plans, "LARGE", 2)
    return names


async def add(fleet: Fleet, task: str) -> None:
    await edit_plan(fleet, "nightly", EditBatch((AddTask(Task(task)),), "bob"))


async def test_a_plan_that_is_read_again_costs_its_new_records(stage: Stage, loaded: list[str]) -> None:
    await insert_plan(stage.store, chain("a", "b"))
    fleet = stage.fleet()
    for task in ("c", "d", "e"):
        await read_plan(fleet, "nightly")
        await add(fleet, task)
    read = (await read_plan(fleet, "nightly")).record
    fresh = await load(stage.store, "nightly")
    assert loaded == ["nightly", "nightly"]  # once to be read, and once to be edited
    assert read.plan.to_json() == fresh.plan.to_json()
    facts = [(stored.number, stored.steps, stored.head, stored.revision) for stored in (read, fresh)]
    assert facts[0] == facts[1]


async def test_a_running_plan_is_read_as_it_is(stage: Stage, loaded: list[str]) -> None:
    await insert_plan(stage.store, chain("a", "b", "c"))
    fleet = stage.fleet()
    await read_plan(fleet, "nightly")
    await stage.orchestrator().run_stored("nightly")
    read = (await read_plan(fleet, "nightly")).record.plan
    assert read.counts["completed"] == 3
    assert read.to_json() == (await load(stage.store, "nightly")).plan.to_json()


async def test_a_small_plan_is_loaded_each_time(stage: Stage, loaded: list[str]) -> None:
    await insert_plan(stage.store, chain("a"))
    fleet = stage.fleet()
    assert (await read_plan(fleet, "nightly")).record is not (await read_plan(fleet, "nightly")).record
    assert not fleet.read_plans


async def test_a_plan_that_was_removed_or_replaced_is_not_told_from_memory(stage: Stage, loaded: list[str]) -> None:
    await insert_plan(stage.store, chain("a", "b"))
    fleet = stage.fleet()
    await read_plan(fleet, "nightly")
    await remove(stage.store)
    with pytest.raises(UnknownConstellation):
        await read_plan(fleet, "nightly")
    await insert_plan(stage.store, chain("x", "y"))
    assert list((await read_plan(fleet, "nightly")).record.plan.nodes) == ["x", "y"]


async def test_the_runs_of_one_task_are_searched_by_its_name(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await stage.device("kitchen")
    await stage.orchestrator(local=0).run(chain("a", "ab", "A"))
    found: list[int] = []
    find = stage.store.find

    async def counted(query: Query) -> Any:
        runs = await find(query)
        found.append(len(runs))
        return runs

    monkeypatch.setattr(stage.store, "find", counted)
    assert [run.task for run in await task_runs(stage.store, "nightly", "ab")] == ["ab"]
    assert [run.task for run in await task_runs(stage.store, "nightly", "A")] == ["A"]
    assert found == [1, 2]  # capital and small letters are the same for a search


async def test_only_so_many_tasks_are_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_plans, "MOST_KEPT_TASKS", 5)
    fleet = stage.fleet()
    for name in ("one", "two", "three"):
        plan = Constellation(name)
        for task in ("a", "b"):
            plan.add(Task(task))
        await insert_plan(stage.store, plan)
        await read_plan(fleet, name)
    assert list(fleet.read_plans) == ["two", "three"]


async def test_ablation_without_the_mark_a_replaced_plan_is_told_from_memory(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def current(store: Store, kept: StoredConstellation) -> bool:
        return True

    monkeypatch.setattr(stored_plans, "refresh", current)
    await insert_plan(stage.store, chain("a", "b"))
    fleet = stage.fleet()
    await read_plan(fleet, "nightly")
    await remove(stage.store)
    assert list((await read_plan(fleet, "nightly")).record.plan.nodes) == ["a", "b"]
