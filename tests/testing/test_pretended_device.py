"""``run_plan``: plans in virtual time whose tasks take, return and fail as a test says."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from asterism import Constellation, Result, Task, edits
from asterism.testing import Deadlock, PretendedFailure, run_plan

SECONDS = {"fetch": 40, "build": 600, "test": 900}
RunPlan = Callable[..., Result]


def release() -> Constellation:
    plan = Constellation("release")
    plan.add(Task("fetch", argv=("git", "pull")))
    plan.add(Task("build", shell="make", needs={"compiler"}, device="tower", timeout=700, retries=1), after="fetch")
    plan.add(Task("test", call=print), after="build")
    return plan


def test_tasks_take_their_time_and_return_what_they_are_told() -> None:
    result = run_plan(release(), takes=SECONDS, returns={"test": "green"})
    assert result.values == {"fetch": None, "build": None, "test": "green"}
    assert result["build"].device == "tower"
    assert round(result.summary.makespan) == 40 + 600 + 900


def test_attempts_fail_as_often_as_they_are_told() -> None:
    once = run_plan(release(), fails={"build": 1})
    assert (once.state, once["build"].attempts) == ("completed", 2)
    always = run_plan(release(), fails={"build": math.inf})
    assert (always.state, always["build"].attempts) == ("partially_failed", 2)
    assert isinstance(always["build"].error, PretendedFailure)
    assert always["build"].reason == "PretendedFailure: attempt 2 was told to fail"


def test_timeouts_are_real() -> None:
    result = run_plan(release(), takes={"build": 3600})
    assert "700" in result["build"].reason


def test_options_are_those_of_the_orchestrator() -> None:
    async def repair(view: Any, events: Any) -> Any:
        await asyncio.sleep(60)
        if any(event.kind == "task_failed" for event in events):
            return [edits.AddTask(Task("rebuild", needs={"farm"})), edits.AddDependency("fetch", "rebuild")]
        return None

    result = run_plan(release(), fails={"build": math.inf}, can={"farm"}, editor=repair)
    assert result["rebuild"].status == "completed"
    slots = [run_plan(wide(), slots=number).summary.makespan for number in (1, 2)]
    assert [round(seconds) for seconds in slots] == [4, 2]


def test_a_plan_that_waits_for_ever_is_an_error() -> None:
    async def never(view: Any, events: Any) -> Any:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_plan(release(), editor=never, edit_timeout=math.inf)


def wide() -> Constellation:
    plan = Constellation("wide")
    for number in range(4):
        plan.add(Task(f"t{number}"))
    return plan


def order_of_ends(result: Result) -> list[str | None]:
    return [entry.task for entry in result.story() if entry.what == "completed" and entry.task is not None]


@pytest.mark.plan_seeds(3)
def test_a_marked_test_runs_with_each_seed(run_plan: RunPlan, request: pytest.FixtureRequest) -> None:
    assert request.node.name.endswith(f"[seed{request.node.callspec.params['run_plan']}]")
    assert run_plan(wide()).state == "completed"


def test_a_seed_decides_the_order_of_what_happens_at_the_same_time() -> None:
    orders = [order_of_ends(run_plan(wide(), seed=seed)) for seed in (1, 1, 2, 3, 4)]
    assert orders[0] == orders[1]
    assert len(set(map(tuple, orders))) > 1


def test_the_fixture_takes_a_seed_from_the_test(run_plan: RunPlan) -> None:
    orders = [order_of_ends(run_plan(wide(), seed=seed)) for seed in (1, 2, 3, 4)]
    assert len(set(map(tuple, orders))) > 1
