"""``Orchestrator.retry``: what failed runs again in the same plan, and completed tasks keep their results."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from asterism.core.errors import AlreadyRunning, EditRejected, PlanError
from asterism.core.plan import edits
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.orchestrator.devices import LocalDevice
from asterism.orchestrator.orchestrator import Orchestrator
from tests.laboratory.plan_invariants import check_invariants

pytestmark = pytest.mark.virtual_time


class Workshop:
    """Counts executions; ``broken`` names the tasks that fail."""

    def __init__(self, *broken: str) -> None:
        self.broken = set(broken)
        self.done: Counter[str] = Counter()

    def task(self, name: str, **options: Any) -> Task:
        async def work() -> str:
            self.done[name] += 1
            if name in self.broken:
                raise RuntimeError("boom")
            return f"{name} {self.done[name]}"

        return Task(name, call=work, **options)

    def chain(self, *names: str) -> Constellation:
        plan = Constellation("nightly")
        for before, name in zip((None, *names), names, strict=False):
            plan.add(self.task(name), before)
        return plan


def orchestrator(**options: Any) -> Orchestrator:
    return Orchestrator([LocalDevice("laptop", slots=2)], **options)


async def test_what_failed_runs_again_and_the_rest_keeps_its_results() -> None:
    shop = Workshop("b")
    runner = orchestrator()
    result = await runner.run(shop.chain("a", "b", "c"))
    assert result.state == "partially_failed"
    shop.broken.clear()
    result = await runner.retry(result)
    assert result.state == "completed"
    assert shop.done == {"a": 1, "b": 2, "c": 1}
    assert result.values == {"a": "a 1", "b": "b 2", "c": "c 1"}
    assert result["b"].attempts == 2
    assert [entry.what for entry in result.story() if entry.task is None] == [
        *("began", "partially_failed", "reopened", "completed"),
    ]
    check_invariants(result.plan)


async def test_another_orchestrator_retries_the_plan_as_often_as_needed() -> None:
    shop = Workshop("a")
    plan = shop.chain("a")
    await orchestrator().run(plan)
    assert (await orchestrator().retry(plan)).state == "failed"
    shop.broken.clear()
    assert (await orchestrator().retry(plan)).state == "completed"
    assert shop.done["a"] == 3


async def test_a_retry_has_all_its_retries_again() -> None:
    shop = Workshop("a")
    plan = Constellation("nightly")
    plan.add(shop.task("a", retries=1, backoff=0.01))
    runner = orchestrator()
    result = await runner.run(plan)
    assert shop.done["a"] == 2
    result = await runner.retry(result)
    assert shop.done["a"] == 4
    assert result["a"].attempts == 4


async def test_from_a_task_everything_below_it_runs_again() -> None:
    shop = Workshop()
    runner = orchestrator()
    result = await runner.run(shop.chain("a", "b", "c"))
    result = await runner.retry(result, from_tasks=["b"])
    assert shop.done == {"a": 1, "b": 2, "c": 2}
    assert result.state == "completed"


async def test_edits_come_first_all_or_none() -> None:
    shop = Workshop("b")
    runner = orchestrator()
    result = await runner.run(shop.chain("a", "b", "c"))
    with pytest.raises(EditRejected):
        await runner.retry(result, edits=[edits.UpdateTask("b", timeout=1), edits.RemoveTask("nothing")])
    assert result.state == "partially_failed", "nothing has changed"
    result = await runner.retry(result, edits=[edits.UpdateTask("b", call=lambda: 4)])
    assert result.state == "completed"
    assert result["b"].value == 4
    assert result["c"].status == "completed"


async def test_a_plan_that_an_edit_reopened_is_continued() -> None:
    shop = Workshop("a")
    runner = orchestrator()
    result = await runner.run(shop.chain("a"))
    result.plan.add(shop.task("fix"), handles="a")
    assert result.plan.state == "executing"
    result = await runner.retry(result.plan)
    assert (result.state, result.repaired, result.exit_code) == ("completed", True, 0)
    assert shop.done == {"a": 1, "fix": 1}


async def test_an_editor_reviews_the_ends_of_a_retry() -> None:
    seen: list[str] = []

    async def editor(view: Any, events: Any) -> None:
        seen.extend(event.task_id for event in events if getattr(event, "task_id", None))

    shop = Workshop("b")
    runner = orchestrator(editor=editor)
    result = await runner.run(shop.chain("a", "b", "c"))
    shop.broken.clear()
    seen.clear()
    assert (await runner.retry(result)).state == "completed"
    assert seen == ["b", "c"]


async def test_a_plan_that_runs_cannot_be_retried() -> None:
    release = asyncio.Event()
    plan = Constellation("nightly")
    plan.add(Task("a", call=release.wait))
    runner = orchestrator()
    running = asyncio.create_task(runner.run(plan))
    await asyncio.sleep(1)
    with pytest.raises(AlreadyRunning, match="plan 'nightly' is running already"):
        await runner.retry(plan)
    release.set()
    result = await running
    with pytest.raises(PlanError, match="in plan 'nightly' no task failed"):
        await runner.retry(result)
    with pytest.raises(PlanError, match="it cannot run again; use retry"):
        await runner.run(plan)
    with pytest.raises(PlanError, match="is created: only a plan that has ended can be retried"):
        await runner.retry(Constellation("new"))


async def test_an_edit_just_after_the_end_is_rejected_and_changes_nothing() -> None:
    """Between its last step and the return of ``run``, the plan still belongs to its orchestrator."""
    rejected: list[EditRejected] = []
    plan = Workshop().chain("a")
    runner = orchestrator()

    async def late(event: Any) -> None:
        if event.kind == "constellation_completed":
            await asyncio.sleep(0.5)  # the last step is over, and run waits for its observers
            try:
                plan.edit([edits.AddTask(Task("late"))])
            except EditRejected as error:
                rejected.append(error)

    runner.events.subscribe(late)
    result = await runner.run(plan)
    assert result.state == "completed"
    (only,) = rejected
    assert [violation.rule for violation in only.violations] == ["ended"]
    assert "late" not in plan
    plan.edit([edits.AddTask(Task("late", call=lambda: 0))])
    assert (await runner.retry(plan))["late"].value == 0
