"""Groups of a plan in a store: expanded once, whatever process does it, and gathered after a crash."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.execution.foreach_expansion import deferred_group
from asterism.store.protocol import Query
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Stage, left, task

NAMES = ["a", "b", "c"]


def grouped(call: str = "work", **inputs: Any) -> Constellation:
    plan = Constellation("nightly")
    plan.add(Task("list", call="tests.durable.durable_work:given", inputs={"value": NAMES, **inputs}))
    template = Task("it", call=f"tests.durable.durable_work:{call}", inputs={"name": "{item}"})
    plan.add(deferred_group(template, {"from": "list"}, {}), "list")
    plan.add(task("last"), "it")
    return plan


RESULTS = [f"{name} done" for name in NAMES]


@pytest.mark.virtual_time
async def test_elements_are_runs_and_the_group_is_none(stage: Stage) -> None:
    await stage.device("kitchen")
    result = await stage.orchestrator(local=0).run(grouped(), params={"day": "monday"})
    assert result["it"].value == RESULTS
    keys = {run.key for run in await stage.store.find(Query())}
    assert {str(key).split("/")[1] for key in keys} == {"list", "it[a]", "it[b]", "it[c]", "last"}
    stored = await stage.load()
    assert stored.plan["it"].value == RESULTS
    assert stored.head.params == {"day": "monday"}


@pytest.mark.virtual_time
async def test_another_process_continues_with_the_same_elements(stage: Stage) -> None:
    durable_work.gate("a").set()
    await left(stage.orchestrator().run(grouped("wait")), lambda: DONE["a"] and "b begun" in durable_work.GO, stage)
    stored = await stage.load()
    assert stored.plan.version == 1
    for name in NAMES:
        durable_work.gate(name).set()
    result = await stage.orchestrator(host="there").run_stored("nightly")
    assert result["it"].value == RESULTS
    assert (await stage.load()).plan.version == 1
    assert DONE["a"] == 1


@pytest.mark.virtual_time
async def test_a_list_whose_end_is_known_is_expanded_by_the_next_owner(stage: Stage) -> None:
    """The end of the list is in the journal, and its owner died before it expanded the group."""
    orchestrator = stage.orchestrator()

    def paused() -> bool:
        if "list begun" in durable_work.GO and not durable_work.gate("list").is_set():
            orchestrator.pause("nightly")
            durable_work.gate("list").set()
        return orchestrator.stored is not None and orchestrator.stored.plan["list"].status == "completed"

    await left(orchestrator.run(grouped(until="list")), paused, stage)
    stored = await stage.load()
    assert stored.plan["list"].status == "completed"
    assert "it[a]" not in stored.plan
    result = await stage.orchestrator(host="there").run_stored("nightly")
    assert result["it"].value == RESULTS


@pytest.mark.virtual_time
async def test_start_and_end_of_a_group_are_in_one_record(stage: Stage) -> None:
    """So no process ever finds a group that is running: it would wait for a run that does not exist."""
    await stage.orchestrator().run(grouped())
    records = [
        record.value["steps"] for record in await stage.store.registers("journal/nightly/") if "steps" in record.value
    ]
    ours = [[step["step"] for step in steps if step.get("task") == "it"] for steps in records]
    assert ["start", "finish"] in ours
    assert all(kinds in ([], ["start", "finish"]) for kinds in ours)
