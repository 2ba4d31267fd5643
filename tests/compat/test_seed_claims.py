"""The claims of the documentation about its locking: the race it removes, the merge, the timeout, the batch."""

from __future__ import annotations

import asyncio
import copy
from typing import Any

import pytest

from asterism.compat.event_bus import PromptObserver
from asterism.compat.galaxy import EventType, TaskStar, TaskStarLine, TaskStatus
from asterism.compat.vocabulary import STATE_LEVELS
from tests.compat.compat_scenes import DIALECTS, SEEDS, Devices, Dialect, Session, at

pytestmark = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)


@pytest.mark.parametrize("seconds", [0.0, 0.5, 3.0])
def test_scenario_without_locking(dialect: Dialect, seconds: float) -> None:
    """A ends; while the agent removes B and adds B', the orchestrator must not dispatch B, and must find B'."""

    def edit(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            mine.remove_task("B")
            mine.add_task(TaskStar("B'"))
            mine.add_dependency(TaskStarLine("A", "B'"))

    for seed in SEEDS:
        session = Session(dialect, Devices("one", "two"))
        session.agent(edit, seconds)
        plan = dialect.plan("A", "B", "C", lines=["A>B", "A>C"])
        assert session.run(plan, seed=seed)["status"] == "completed"
        assert sorted(session.devices.started) == ["A", "B'", "C"]
        assert session.devices.at("C") == session.devices.at("B'") == 1.0 + seconds
        assert "B" not in plan.tasks


def test_without_a_synchronizer_the_race_is_there(dialect: Dialect) -> None:
    """The ablation: the same agent, without a synchronizer to make the orchestrator wait for it."""
    session = Session(dialect, Devices())
    session.bus.unsubscribe(session.synchronizer)
    session.agent(lambda mine, event: mine.remove_task("B") if event.task_id == "A" else None, 0.5)
    session.run(dialect.plan("A", "B", lines=["A>B"]))
    assert session.devices.started == ["A", "B"]


def test_the_end_is_pending_before_any_dispatch(dialect: Dialect) -> None:
    """Registered in the call that publishes: every observer of the end finds it pending."""
    session = Session(dialect, Devices())
    pending_when_heard: list[bool] = []

    def look(mine: Any, event: Any) -> None:
        pending_when_heard.append(event.task_id in session.synchronizer.get_pending_task_ids())

    session.agent(look)
    for seed in SEEDS:
        session.run(dialect.plan("A", "B", lines=["A>B"], id=f"plan {seed}"), seed=seed)
    assert all(pending_when_heard)
    assert len(pending_when_heard) == 2 * len(SEEDS)


def test_the_end_is_registered_in_the_step_that_records_it(dialect: Dialect) -> None:
    """Not one turn of the loop passes between the answer of the device and the notice of the synchronizer."""
    turns: list[int] = []

    class Marked(Devices):
        async def assign_task_to_device(self, **about: Any) -> Any:
            result = await super().assign_task_to_device(**about)
            asyncio.get_running_loop().call_soon(turns.append, 1)
            return result

    session = Session(dialect, Marked())

    class Watcher(PromptObserver):
        def notice(self, event: Any) -> None:
            if event.event_type is EventType.TASK_COMPLETED:
                pending_at.append((session.synchronizer.get_pending_task_ids(), len(turns)))

    pending_at: list[tuple[list[str], int]] = []
    session.bus.subscribe(Watcher())
    session.agent()
    session.run(dialect.plan("A", "B", lines=["A>B"]))
    assert pending_at == [(["A"], 0), (["B"], 1)]


@pytest.mark.virtual_time
async def test_the_merge_keeps_what_completed_while_the_edit_was_in_flight(dialect: Dialect) -> None:
    """t0 A ends, t1 the agent edits its copy in which B runs, t2 B ends, t3 the agent publishes, t4 nothing is lost."""
    session = Session(dialect, Devices(seconds={"A": 1.0, "B": 2.0}, answers={"B": "B's own"}))
    plan = dialect.plan("A", "B", "C", lines=["B>C"])
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(1.5)
    mine = copy.deepcopy(plan)
    assert (mine.tasks["A"].status, mine.tasks["B"].status) == (TaskStatus.COMPLETED, TaskStatus.RUNNING)
    mine.add_task(TaskStar("D"))
    await at(2.5)
    assert plan.tasks["B"].status is TaskStatus.COMPLETED
    await session.bus.publish_event(dialect.modified("plan", ["A", "B"], mine))
    assert plan.tasks["B"].status is TaskStatus.COMPLETED
    assert plan.tasks["B"].result.result == "B's own"
    assert mine.tasks["B"].status is TaskStatus.COMPLETED, "the agent's copy has caught up"
    session.agent()
    assert (await running)["status"] == "completed"
    assert sorted(session.devices.started) == ["A", "B", "C", "D"]


@pytest.mark.virtual_time
async def test_the_same_merge_by_hand(dialect: Dialect) -> None:
    """The documented method, without an orchestrator."""
    synchronizer = dialect.synchronizer_class(None)
    live = dialect.plan("A", "B", "C")
    live.tasks["A"].start_execution()
    live.tasks["B"].start_execution()
    mine = copy.deepcopy(live)
    mine.add_task(TaskStar("new"))
    mine.remove_task("C")
    live.mark_task_completed("B", True, result="kept")
    live.mark_task_completed("A", False, error=RuntimeError("kept too"))
    await synchronizer.on_event(dialect.modified("plan", ["A"], mine))
    assert synchronizer.current() is mine
    merge = getattr(synchronizer, f"merge_and_sync_{dialect.noun}_states")
    merged = merge(**{f"orchestrator_{dialect.noun}": live})
    assert {task_id: task.status.value for task_id, task in merged.tasks.items()} == {
        "A": "failed",
        "B": "completed",
        "new": "pending",
    }
    assert merged.tasks["B"].result == "kept"
    assert str(merged.tasks["A"].error) == "kept too"
    assert getattr(synchronizer, f"get_current_{dialect.noun}")() is merged


def test_nothing_to_merge_returns_the_plan_itself(dialect: Dialect) -> None:
    synchronizer, plan = dialect.synchronizer_class(None), dialect.plan("A")
    assert getattr(synchronizer, f"get_current_{dialect.noun}")() is None
    assert getattr(synchronizer, f"merge_and_sync_{dialect.noun}_states")(plan) is plan


def test_states_are_ordered_by_progress(dialect: Dialect) -> None:
    assert STATE_LEVELS == {
        TaskStatus.PENDING: 0,
        TaskStatus.WAITING_DEPENDENCY: 1,
        TaskStatus.RUNNING: 2,
        TaskStatus.COMPLETED: 3,
        TaskStatus.FAILED: 3,
        TaskStatus.CANCELLED: 3,
    }
    further = dialect.synchronizer_class(None)._is_state_more_advanced
    assert further(TaskStatus.COMPLETED, TaskStatus.RUNNING)
    assert further(TaskStatus.FAILED, TaskStatus.PENDING)
    assert further(TaskStatus.RUNNING, TaskStatus.PENDING)
    assert not further(TaskStatus.COMPLETED, TaskStatus.FAILED)


def test_the_timeout_never_deadlocks(dialect: Dialect) -> None:
    """No answer ever arrives: each end holds the plan for the timeout, 600 seconds by default, and no longer."""
    session = Session(dialect, Devices())
    plan = dialect.plan("A", "B", lines=["A>B"])
    assert session.run(plan)["status"] == "completed"
    assert session.devices.at("B") == 601.0
    assert (
        session.synchronizer.get_statistics().items()
        >= {
            "total_modifications": 2,
            "completed_modifications": 0,
            "timeout_modifications": 2,
        }.items()
    )
    assert not session.synchronizer.has_pending_modifications()


@pytest.mark.virtual_time
async def test_every_end_has_its_own_deadline(dialect: Dialect) -> None:
    session = Session(dialect, Devices(seconds={"B": 3.0}))
    running = asyncio.ensure_future(session.orchestrate(dialect.plan("A", "B", "C", lines=["A>C"])))
    await at(602.0)
    assert session.synchronizer.get_pending_task_ids() == ["B"]
    assert session.devices.started == ["A", "B"], "the plan is held until the last of them is over"
    await at(603.5)
    assert session.devices.started == ["A", "B", "C"]
    session.synchronizer.clear_pending_modifications()
    await running
    assert session.devices.at("C") == 603.0


def test_a_timeout_can_be_set(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.synchronizer.set_modification_timeout(5.0)
    session.run(dialect.plan("A", "B", lines=["A>B"]))
    assert session.devices.at("B") == 6.0
    for nonsense in (0, -1.0):
        with pytest.raises(ValueError, match="above 0"):
            session.synchronizer.set_modification_timeout(nonsense)


@pytest.mark.virtual_time
async def test_an_answer_after_the_timeout_is_merged_like_any_other_edit(dialect: Dialect) -> None:
    session = Session(dialect, Devices(seconds={"B": 20.0}))
    session.synchronizer.set_modification_timeout(5.0)
    plan = dialect.plan("A", "B", "C", lines=["A>B", "B>C"])
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(2.0)
    mine = copy.deepcopy(plan)
    mine.remove_task("C")
    mine.add_task(TaskStar("late but welcome"))
    mine.add_dependency(TaskStarLine("B", "late but welcome"))
    await at(8.0)
    assert plan.tasks["B"].status is TaskStatus.RUNNING
    await session.bus.publish_event(dialect.modified("plan", ["A"], mine))
    session.agent()
    await running
    assert session.devices.started == ["A", "B", "late but welcome"]
    assert session.synchronizer.get_statistics()["timeout_modifications"] == 1


@pytest.mark.virtual_time
async def test_waiting_by_hand(dialect: Dialect) -> None:
    """``wait_for_pending_modifications``: at once, after an answer, after the timeout, with ends that come later."""
    synchronizer = dialect.synchronizer_class(None)
    loop = asyncio.get_running_loop()
    assert await synchronizer.wait_for_pending_modifications() is True
    await synchronizer.on_event(dialect.ended("A"))
    await synchronizer.on_event(dialect.ended("A"))  # the same end, published twice
    waiting = asyncio.ensure_future(synchronizer.wait_for_pending_modifications())
    await at(1.0)
    await synchronizer.on_event(dialect.ended("B"))
    await synchronizer.on_event(dialect.modified("plan", ["A"]))
    await at(2.0)
    assert not waiting.done(), "B came while it waited for A"
    await synchronizer.on_event(dialect.modified("plan", ["B"]))
    assert await waiting is True
    await synchronizer.on_event(dialect.ended("C"))
    assert await synchronizer.wait_for_pending_modifications(timeout=7.0) is False
    assert loop.time() == 9.0
    assert not synchronizer.has_pending_modifications()
    await synchronizer.on_event(dialect.ended("D"))
    await at(700.0)
    assert not synchronizer.has_pending_modifications(), "it times out although nobody waits"
    await synchronizer.on_event(dialect.ended("E"))
    synchronizer.clear_pending_modifications()
    assert (
        synchronizer.get_statistics().items()
        >= {
            "total_modifications": 5,
            "completed_modifications": 2,
            "timeout_modifications": 3,
        }.items()
    )


def test_running_tasks_continue_while_the_plan_is_held(dialect: Dialect) -> None:
    session = Session(dialect, Devices(seconds={"long": 4.0}))
    plan = dialect.plan("A", "long", "B", lines=["A>B"])
    session.agent(seconds=2.0)
    session.run(plan)
    assert session.devices.at("B") == 3.0
    assert session.diary.tasks(EventType.TASK_COMPLETED) == ["A", "long", "B"]


def test_ends_that_come_together_are_answered_before_anything_starts(dialect: Dialect) -> None:
    """The batch: A, B and C end at once; nothing is dispatched until the last of the three answers has arrived."""
    session = Session(dialect, Devices())
    plan = dialect.plan("A", "B", "C", "D", lines=["A>D"])
    agent = session.agent(seconds=1.0)
    session.run(plan)
    assert session.devices.at("D") == 4.0
    assert agent.heard == ["A", "B", "C", "D"]


def test_the_first_thing_dispatched_is_the_most_urgent(dialect: Dialect) -> None:
    urgent = TaskStar("urgent", priority="critical")
    plan = dialect.plan("A", TaskStar("idle", priority=1), "usual", urgent, lines=["A>idle", "A>usual", "A>urgent"])
    assert [task.task_id for task in dialect.plan("x", TaskStar("y", priority=4)).get_ready_tasks()] == ["y", "x"]
    session = Session(dialect, Devices())
    session.agent()
    session.run(plan)
    assert session.devices.started == ["A", "urgent", "usual", "idle"]
