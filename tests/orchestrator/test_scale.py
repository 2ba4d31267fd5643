"""Large plans run, and deep ones need no recursion. The limits are generous: this measures nothing."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, Task, edits
from asterism.orchestrator.scheduler import STARTS_PER_STEP, STARTS_PER_TURN
from tests.orchestrator.orchestrator_scenes import deadline


async def nothing() -> None:
    pass


def run_in_time(plan: Constellation, seconds: float = 600.0, **options: Any) -> Any:
    async def main() -> Any:
        return await deadline(Orchestrator([LocalDevice("device")], **options).run(plan), seconds)

    return asyncio.run(main())


@pytest.mark.parametrize("tasks", [5_000, pytest.param(100_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("concurrency", [None, 50])
def test_a_plan_of_very_many_tasks_runs(concurrency: int | None, tasks: int) -> None:
    plan = Constellation()
    for n in range(tasks):
        plan.add(Task(f"t{n}", call=nothing))
    result = run_in_time(plan, concurrency=concurrency)
    assert result.state == "completed"
    assert result.plan.counts[result["t0"].status] == tasks


async def test_others_get_their_turn_while_thousands_of_tasks_are_started() -> None:
    plan = Constellation()
    for n in range(5 * STARTS_PER_TURN):
        plan.add(Task(f"t{n}", call=nothing))
        if n % STARTS_PER_TURN == 0:  # to build the plan takes long, too, and is not what is watched here
            await asyncio.sleep(0)
    begun: list[int] = []  # how many had begun at each turn of another task
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(Orchestrator([LocalDevice("device")]).run(plan))

    def look() -> None:
        begun.append(sum(node.epoch > 0 for node in plan.nodes.values()))
        if begun[-1] < len(plan):
            loop.call_soon(look)

    loop.call_soon(look)
    await running
    steps = [after - before for before, after in pairwise(begun)]
    assert begun[-1] == len(plan)
    assert max(steps) <= STARTS_PER_STEP + STARTS_PER_TURN


DEEP = pytest.mark.parametrize("depth", [5_000, pytest.param(20_000, marks=pytest.mark.long)])


@DEEP
@pytest.mark.long
def test_a_chain_of_very_many_tasks_runs(depth: int) -> None:
    plan = Constellation()
    plan.add(Task("t0", call=nothing))
    for n in range(1, depth):
        plan.add(Task(f"t{n}", call=nothing), after=f"t{n - 1}")
    result = run_in_time(plan)
    assert result.state == "completed"
    assert len(result.summary.parallelism.path) == depth


@DEEP
def test_a_deep_plan_is_cut_off_by_one_failure_without_recursion(depth: int) -> None:
    async def broken() -> None:
        raise RuntimeError("at the top")

    plan = Constellation()
    plan.add(Task("t0", call=broken))
    for n in range(1, depth):
        plan.add(Task(f"t{n}", call=nothing), after=f"t{n - 1}")
    result = run_in_time(plan)
    assert result.state == "failed"
    assert result[f"t{depth - 1}"].status == "cancelled"


@pytest.mark.long
def test_a_deep_plan_is_removed_by_one_edit_without_recursion() -> None:
    async def editor(view: Any, events: Any) -> Any:
        return [edits.RemoveTask("t1", dependents="remove")] if events[0].task_id == "t0" else None

    plan = Constellation()
    plan.add(Task("t0", call=nothing))
    for n in range(1, 20_000):
        plan.add(Task(f"t{n}", call=nothing), after=f"t{n - 1}")
    result = run_in_time(plan, editor=editor)
    assert len(result) == 1
    assert result.state == "completed"


@pytest.mark.long
def test_a_deep_plan_runs_provisionally_and_is_confirmed_without_recursion() -> None:
    release = asyncio.Event()

    async def last() -> None:
        release.set()

    async def editor(view: Any, events: Any) -> None:
        if any(event.task_id == "t0" for event in events):
            await release.wait()

    plan = Constellation()
    plan.add(Task("t0", call=nothing))
    for n in range(1, 5_000):
        plan.add(Task(f"t{n}", call=last if n == 4_999 else nothing, revocable=True), after=f"t{n - 1}")
    result = run_in_time(plan, editor=editor, policy="speculative")
    assert result.state == "completed"


@pytest.mark.long
def test_ten_thousand_tasks_are_reviewed_one_by_one() -> None:
    async def editor(view: Any, events: Any) -> None:
        pass

    plan = Constellation()
    for n in range(10_000):
        plan.add(Task(f"t{n}", call=nothing))
    result = run_in_time(plan, editor=editor)
    assert result.state == "completed"


@pytest.mark.parametrize("times", [500, pytest.param(10_000, marks=pytest.mark.long)])
def test_an_editor_may_add_a_task_per_end_many_times(times: int) -> None:
    made = [0]

    async def editor(view: Any, events: Any) -> Any:
        made[0] += 1
        return [edits.AddTask(Task(f"more{made[0]}", call=nothing))] if made[0] <= times else None

    plan = Constellation()
    plan.add(Task("first", call=nothing))
    result = run_in_time(plan, editor=editor)
    assert len(result) == times + 1
    assert result.state == "completed"
