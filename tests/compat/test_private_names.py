"""Private names that the documents show: writing one has an effect or raises."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest

from asterism.compat.galaxy import EventType, ModificationRejected, TaskPriority, TaskStar, TaskStarLine, TaskStatus
from tests.compat.compat_scenes import DIALECTS, GALAXY, Devices, Dialect, Session, at
from tests.laboratory.plan_invariants import check_invariants

pytestmark = pytest.mark.virtual_time

WHEN = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("name", "another"),
        ("description", "another"),
        ("tips", ["one"]),
        ("target_device_id", "robot"),
        ("priority", TaskPriority.HIGH),
        ("timeout", 5.0),
        ("retry_count", 2),
        ("expected_output_type", "text"),
        ("status", TaskStatus.COMPLETED),
        ("status", TaskStatus.FAILED),
        ("status", TaskStatus.CANCELLED),
        ("status", TaskStatus.RUNNING),
        ("result", {"rows": 7}),
        ("execution_start_time", WHEN),
        ("execution_end_time", WHEN),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_private_fields_can_be_written_and_read(name: str, value: Any, alone: bool) -> None:
    star = TaskStar("A")
    plan = GALAXY.plan(star) if not alone else None
    setattr(star, f"_{name}", value)
    assert getattr(star, name) == getattr(star, f"_{name}") == value
    if plan is not None:
        assert getattr(plan.tasks["A"], name) == value
        check_invariants(plan.plan)


@pytest.mark.parametrize(
    "name", ["task_id", "task_data", "current_retry", "dependencies", "dependents", "created_at", "updated_at"]
)
def test_writing_a_read_only_name_raises(name: str) -> None:
    star = GALAXY.plan("A", "B", lines=["A>B"]).tasks["A"]
    before = getattr(star, f"_{name}")
    with pytest.raises(AttributeError, match=f"_{name} cannot be written"):
        setattr(star, f"_{name}", before)
    assert getattr(star, f"_{name}") == before


def test_a_status_has_its_consequences_below() -> None:
    plan = GALAXY.plan("A", "B", lines=[TaskStarLine.create_success_only("A", "B")])
    star = plan.tasks["A"]
    assert plan.tasks["B"]._dependencies == {"A"}
    star._status = TaskStatus.COMPLETED
    assert plan.tasks["B"].is_ready_to_execute
    assert star.execution_end_time is not None
    star._status = TaskStatus.FAILED
    assert not plan.tasks["B"].is_ready_to_execute
    star._status = "WAITING_DEPENDENCY"
    assert (star.status, star.execution_end_time) == (TaskStatus.PENDING, None)
    check_invariants(plan.plan)


def test_a_condition_is_judged_again_when_the_result_is_written() -> None:
    line = TaskStarLine.create_conditional("A", "B", "large", lambda result: result is not None and result > 5)
    plan = GALAXY.plan("A", "B", lines=[line])
    plan.mark_task_completed("A", True, result=3)
    assert not plan.tasks["B"].is_ready_to_execute
    plan.tasks["A"]._result = 7
    assert plan.tasks["B"].is_ready_to_execute


@pytest.mark.parametrize("dialect", DIALECTS, ids=repr)
async def test_a_running_plan_refuses_writes_to_private_names(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    plan = dialect.plan("A", "B", lines=["A>B"])
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(0.5)
    for name, value in (("_status", TaskStatus.COMPLETED), ("_result", 1), ("_execution_end_time", WHEN)):
        for task in plan.tasks.values():
            with pytest.raises(ModificationRejected, match="devices report the progress"):
                setattr(task, name, value)
    await running
    assert session.devices.started == ["A", "B"]


def test_the_mappings_of_a_plan_are_read_only() -> None:
    plan = GALAXY.plan("A", "B", lines=["A>B"])
    for window in (plan.tasks, plan.dependencies, plan._tasks, plan._dependencies):
        with pytest.raises(TypeError):
            window["X"] = TaskStar("X")  # type: ignore[index]
    for name in ("_tasks", "_dependencies", "_state", "_execution_start_time", "_constellation_id"):
        with pytest.raises(AttributeError, match="cannot be written"):
            setattr(plan, name, {})
    plan._name = "another"
    assert plan.name == "another"
    assert plan._are_dependencies_satisfied("A")
    assert not plan._are_dependencies_satisfied("B")
    assert plan._would_create_cycle("B", "A")
    assert not plan._would_create_cycle("A", "B")


def test_the_private_names_of_a_line() -> None:
    line = TaskStarLine("A", "B")
    line._is_satisfied = True
    assert line.is_satisfied()
    line._is_satisfied = False
    assert not line.is_satisfied()
    line._dependency_type = "success_only"
    assert line.dependency_type.value == "success_only"
    GALAXY.plan("A", "B", lines=[line])
    with pytest.raises(ModificationRejected, match="judges it by itself"):
        line._is_satisfied = True
    for name in ("_line_id", "_from_task_id", "_to_task_id", "_metadata", "_condition_evaluator"):
        with pytest.raises(AttributeError, match="cannot be written"):
            setattr(line, name, None)


@pytest.mark.parametrize("dialect", DIALECTS, ids=repr)
async def test_pending_modifications_can_be_deleted_and_cleared(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    synchronizer = session.synchronizer
    running = asyncio.ensure_future(session.orchestrate(dialect.plan("A", "B", "C", lines=["A>B", "B>C"])))
    await at(1.5)
    assert list(synchronizer._pending_modifications) == ["A"]
    future = synchronizer._pending_modifications["A"]
    del synchronizer._pending_modifications["A"]
    assert future.result() is True
    assert not synchronizer.has_pending_modifications()
    await at(2.75)
    assert "B" in synchronizer._pending_modifications
    synchronizer._pending_modifications["B"].set_result(True)
    await at(4.0)
    assert session.devices.started == ["A", "B", "C"]
    synchronizer._pending_modifications = {}
    await running
    assert (session.devices.at("B"), session.devices.at("C")) == (1.5, 2.75)
    assert synchronizer._stats == {
        "total_modifications": 3,
        "completed_modifications": 2,
        "timeout_modifications": 1,
    }


@pytest.mark.parametrize("dialect", DIALECTS, ids=repr)
async def test_an_added_pending_modification_holds_the_plan(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    running = asyncio.ensure_future(session.orchestrate(dialect.plan("A", "B", lines=["A>B"])))
    await at(0.5)
    mine: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    session.synchronizer._pending_modifications["my own"] = mine
    assert session.synchronizer.get_pending_task_ids() == ["my own"]
    await at(5.0)
    assert session.devices.started == ["A"]
    mine.set_result(True)
    await running
    assert session.devices.at("B") == 5.0


async def test_the_private_names_of_the_bus_and_the_orchestrator() -> None:
    session = Session(GALAXY, Devices())
    session.bus.subscribe(other := Session(GALAXY, Devices()).diary, {EventType.TASK_FAILED})
    assert session.bus._all_observers == {session.synchronizer, session.diary}
    assert session.bus._observers == {EventType.TASK_FAILED: {other}}
    for name in ("_all_observers", "_observers"):
        with pytest.raises(AttributeError, match="use subscribe"):
            setattr(session.bus, name, {})
        with pytest.raises((AttributeError, TypeError)):
            getattr(session.bus, name)["x"] = 1
    orchestrator = session.orchestrator
    for name in ("_execution_tasks", "_constellation_manager", "_cancellation_requested"):
        with pytest.raises(AttributeError, match="cannot be written"):
            setattr(orchestrator, name, {})
    session.agent()
    more = Devices()
    orchestrator._device_manager = more
    orchestrator._modification_synchronizer = None
    running = asyncio.ensure_future(session.orchestrate(GALAXY.plan("A")))
    await at(0.5)
    assert list(orchestrator._execution_tasks) == ["A"]
    assert orchestrator._constellation_manager._device_manager is more
    done, _ = await asyncio.wait(orchestrator._execution_tasks.values())
    assert all(isinstance(task, asyncio.Task) for task in done)
    await running
    assert not orchestrator._execution_tasks
    assert more.started == ["A"]
    assert session.synchronizer.get_statistics()["total_modifications"] == 1, "it hears, and nobody waits"


async def test_a_run_that_is_being_cancelled_is_shown_as_in_the_documents() -> None:
    session = Session(GALAXY, Devices())
    running = asyncio.ensure_future(session.orchestrate(GALAXY.plan("A", id="cancelled")))
    await at(0.5)
    requested: list[bool] = []
    [execution] = session.orchestrator._execution_tasks.values()
    execution.add_done_callback(
        lambda ended: requested.append(session.orchestrator._cancellation_requested.get("cancelled", False))
    )
    assert not session.orchestrator._cancellation_requested.get("cancelled", False)
    assert await session.orchestrator.cancel_execution("cancelled")
    assert requested == [True]
    await running
    assert not session.orchestrator._cancellation_requested


def test_the_other_private_names_of_the_synchronizer() -> None:
    session = Session(GALAXY, Devices())
    synchronizer = session.synchronizer
    synchronizer._modification_timeout = 7.0
    assert synchronizer._modification_timeout == 7.0
    with pytest.raises(ValueError, match="above 0"):
        synchronizer._modification_timeout = 0
    live, mine = GALAXY.plan("A"), GALAXY.plan("A", "B")
    synchronizer._current_constellation = mine
    assert synchronizer.get_current_constellation() is mine
    assert synchronizer._current_constellation_id == "plan"
    with pytest.raises(AttributeError, match="cannot be written"):
        synchronizer._current_constellation_id = "another"
    assert "B" in synchronizer.merge_and_sync_constellation_states(live).tasks
    with pytest.raises(TypeError, match="constellation"):
        synchronizer._current_constellation = "nonsense"


def test_a_subclass_may_write_the_current_plan_in_a_run() -> None:
    """The documented handler writes ``_current_constellation``; it is merged before the next dispatch."""

    class Own(GALAXY.synchronizer_class):  # type: ignore[misc, name-defined]
        async def _handle_constellation_event(self, event: Any) -> None:
            if event.event_type is not GALAXY.event_type("modified"):
                return
            self._current_constellation = event.data["new_constellation"]
            for task_id in event.data["on_task_id"]:
                future = self._pending_modifications[task_id]
                future.set_result(True)
                del self._pending_modifications[task_id]

    def add(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            mine.remove_task("B")
            mine.add_task(TaskStar("new"))

    session = Session(GALAXY, Devices())
    session.bus.unsubscribe(session.synchronizer)
    own = Own(session.orchestrator)
    session.orchestrator.set_modification_synchronizer(own)
    session.bus.subscribe(own)
    session.agent(add)
    session.run(GALAXY.plan("A", "B", lines=["A>B"]))
    assert session.devices.started == ["A", "new"]
