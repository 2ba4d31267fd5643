"""A plan whose run is over can be changed and run again: documented patterns are used in sequence on one object."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from asterism.compat.galaxy import ConstellationState, ModificationRejected, TaskStar, TaskStarLine, TaskStatus
from tests.compat.compat_scenes import DIALECTS, Devices, Dialect, Session, at
from tests.laboratory.plan_invariants import check_invariants

pytestmark = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)


def test_a_task_is_added_to_a_finished_plan_and_runs(dialect: Dialect) -> None:
    session = Session(dialect, Devices(answers={"A": 1, "B": 2}))
    session.agent()
    star = TaskStar("A")
    plan = dialect.plan(star)
    assert session.run(plan)["status"] == "completed"
    plan.add_task(TaskStar("B"))
    plan.add_dependency(TaskStarLine("A", "B"))
    assert plan.state is ConstellationState.EXECUTING, "one task has completed, another has not"
    assert [task.task_id for task in plan.get_ready_tasks()] == ["B"]
    outcome = session.run(plan)
    assert outcome["status"] == "completed"
    assert session.devices.started == ["A", "B"], "what has ended is not done again"
    assert {task_id: result.result for task_id, result in outcome["results"].items()} == {"A": 1, "B": 2}
    assert plan.tasks["A"] is star
    assert [event.task_id for event in session.diary.events if hasattr(event, "task_id")] == ["A", "A", "B", "B"]


def test_the_same_plan_may_be_run_three_times(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    plan = dialect.plan("A", "B", lines=["A>B"])
    for _ in range(3):
        assert session.run(plan)["status"] == "completed"
    assert session.devices.started == ["A", "B"]
    assert len(session.diary.of(dialect.event_type("completed"))) == 3


@pytest.mark.virtual_time
async def test_a_cancelled_plan_continues_with_new_tasks_below_an_unanswered_end(dialect: Dialect) -> None:
    """A's end was not answered when the run was cancelled: it must not hold tasks added below it forever."""
    session = Session(dialect, Devices())
    plan = dialect.plan("A", "B", lines=["A>B"])
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(1.5)
    await session.orchestrator.cancel_execution("plan")
    assert (await running)["status"] == "cancelled"
    plan.add_task(TaskStar("C"))
    plan.add_dependency(TaskStarLine("A", "C"))
    check_invariants(plan.plan)
    session.agent()
    outcome = await session.orchestrate(plan)
    assert session.devices.started == ["A", "C"]
    assert plan.tasks["B"].status is TaskStatus.CANCELLED, "what was cancelled stays so"
    assert outcome["results"]["C"].is_successful


@pytest.mark.virtual_time
async def test_ended_tasks_cannot_be_changed_after_the_run(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    plan = dialect.plan("A", "B", lines=["A>B"])
    await session.orchestrate(plan)
    for mistake in (
        lambda: plan.remove_task("A"),
        lambda: setattr(plan.tasks["B"], "description", "something else"),
        lambda: plan.add_dependency(TaskStarLine("A", "B")),
    ):
        with pytest.raises(ModificationRejected):
            mistake()
    assert plan.state is ConstellationState.COMPLETED
    assert plan.execution_duration == 2.0
    other = dialect.plan("A", "B")
    other.tasks["B"].cancel()
    running = asyncio.ensure_future(session.orchestrate(other))
    await at(0.5)
    await session.orchestrator.cancel_execution("plan")
    await running
    with pytest.raises(ModificationRejected):
        other.remove_task("A")
    assert other.state == "cancelled", "a change that is refused opens nothing"


def test_an_answer_after_the_end_of_the_run_changes_nothing(dialect: Dialect) -> None:
    """Between the end of a run and its return the plan is not opened again: added tasks would never run."""
    session = Session(dialect, Devices())
    session.synchronizer.set_modification_timeout(0.5)
    refused: list[str] = []

    async def late(mine: Any) -> None:
        await asyncio.sleep(0.7)
        with pytest.raises(ModificationRejected) as caught:
            mine.add_task(TaskStar("late"))
        refused.append(caught.value.violations[0].rule)

    class Late(type(session.diary)):  # type: ignore[misc]
        async def on_event(self, event: Any) -> None:
            if event.event_type is dialect.event_type("completed"):
                await late(event.data[dialect.noun])

    session.bus.subscribe(Late(session.bus))
    plan = dialect.plan("A")
    session.run(plan)
    assert refused == ["ended"]
    assert list(plan.tasks) == ["A"]


def test_a_plan_begun_by_hand_can_be_orchestrated(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    plan = dialect.plan("A", "B", "C", lines=["A>B", "B>C"])
    plan.start_execution()
    plan.start_task("A")
    assert [task.task_id for task in plan.mark_task_completed("A", True, result=1)] == ["B"]
    assert session.run(plan)["status"] == "completed"
    assert session.devices.started == ["B", "C"]


def test_a_failed_task_may_be_retried_by_hand_and_run_again(dialect: Dialect) -> None:
    session = Session(dialect, Devices(answers={"A": [RuntimeError("no"), "yes"]}))
    session.agent()
    plan = dialect.plan(TaskStar("A", retry_count=0), "B")
    assert session.run(plan)["status"] == "partially_failed"
    star = plan.tasks["A"]
    assert not star.should_retry()
    with pytest.raises(ValueError, match="used up"):
        star.retry()
    star._status = TaskStatus.PENDING
    assert session.run(plan)["status"] == "completed"
    assert session.devices.started == ["A", "B", "A"]
    assert session.diary.tasks(type(session.diary.events[0].event_type).TASK_STARTED) == ["A", "B", "A"]


def test_tasks_given_up_below_a_failure_run_after_its_retry(dialect: Dialect) -> None:
    """The documented system leaves such tasks pending. Here the end of a run cancels them; a retry puts them back."""
    session = Session(dialect, Devices(answers={"A": [RuntimeError("no"), "yes"]}))
    session.agent()
    lines = [TaskStarLine.create_success_only("A", "B"), "B>C", TaskStarLine.create_conditional("A", "D", "", bool)]
    plan = dialect.plan("A", "B", "C", "D", "off", lines=[*lines, "A>off"])
    plan.tasks["off"].cancel()
    assert session.run(plan)["status"] == "failed"
    assert [task.status.value for task in plan.get_all_tasks()] == ["failed"] + ["cancelled"] * 4
    plan.tasks["A"]._status = TaskStatus.PENDING
    check_invariants(plan.plan)
    assert session.run(plan)["status"] == "completed"
    assert sorted(session.devices.started) == ["A", "A", "B", "C", "D"]
    assert plan.tasks["off"].status is TaskStatus.CANCELLED, "somebody wanted that"


@pytest.mark.virtual_time
async def test_an_answer_from_before_the_run_is_merged_when_it_begins(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    plan, other = dialect.plan("A"), dialect.plan("A", id="another")
    mine = copy.deepcopy(plan)
    mine.add_task(TaskStar("B"))
    await session.synchronizer.on_event(dialect.modified("plan", ["A"], mine))
    await session.orchestrate(plan)
    await session.synchronizer.on_event(dialect.modified("plan", ["A"], dialect.plan("A", "never")))
    await session.orchestrate(other)
    assert sorted(session.devices.started) == ["A", "A", "B"], "what was meant for one plan is not put into another"


def test_the_copy_of_a_finished_plan_can_be_edited_and_run(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    plan = dialect.plan("A")
    session.run(plan)
    mine = copy.deepcopy(plan)
    mine.add_task(TaskStar("B"))
    assert session.run(mine)["status"] == "completed"
    assert session.devices.started == ["A", "B"]


@pytest.mark.virtual_time
async def test_a_copy_can_be_merged_into_a_finished_plan_by_hand(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    plan = dialect.plan("A")
    await session.orchestrate(plan)
    mine = copy.deepcopy(plan)
    mine.add_task(TaskStar("B"))
    await session.synchronizer.on_event(dialect.modified("plan", ["A"], mine))
    merge = getattr(session.synchronizer, f"merge_and_sync_{dialect.noun}_states")
    assert list(merge(plan).tasks) == ["A", "B"]
    assert (await session.orchestrate(plan))["status"] == "completed"
    assert session.devices.started == ["A", "B"]
