"""The facts of the public API about runs: what orchestrators return, publish and refuse, and how devices are chosen."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from asterism.compat import galaxy, orion
from asterism.compat.galaxy import (
    ConstellationState,
    DependencyType,
    DeviceType,
    EventType,
    ExecutionResult,
    TaskConstellationOrchestrator,
    TaskStar,
    TaskStarLine,
    TaskStatus,
)
from tests.compat.compat_scenes import DIALECTS, GALAXY, Devices, Dialect, Diary, Session, at, run

pytestmark = pytest.mark.virtual_time

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)


@each_dialect
def test_what_orchestrate_returns(dialect: Dialect) -> None:
    session = Session(dialect, Devices(answers={"A": 1, "B": RuntimeError("no")}))
    session.agent()
    plan = dialect.plan("A", "B")
    outcome = session.run(plan)
    assert set(outcome) == {"results", "status", "total_tasks", "statistics"}
    assert outcome["status"] == "partially_failed"
    assert outcome["total_tasks"] == 2
    assert outcome["results"]["A"].result == 1
    assert str(outcome["results"]["B"].error) == "no"
    assert plan.tasks["A"].result is outcome["results"]["A"]
    assert plan.tasks["A"].target_device_id == "device"


@each_dialect
def test_it_runs_on_an_ordinary_event_loop(dialect: Dialect) -> None:
    session = Session(dialect, Devices(seconds={"A": 0.0, "B": 0.0}))
    session.agent()
    for _ in range(2):
        outcome = asyncio.run(session.orchestrate(dialect.plan("A", "B", lines=["A>B"])))
        assert outcome["status"] == "completed"
    assert session.synchronizer.get_statistics()["completed_modifications"] == 4


@each_dialect
def test_the_events_of_a_run(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    plan = dialect.plan("A")
    session.run(plan, {"A": "device"}, "load_balance")
    kinds = [event.event_type for event in session.diary.events]
    assert kinds == [
        dialect.event_type("started"),
        EventType.TASK_STARTED,
        EventType.TASK_COMPLETED,
        dialect.event_type("modified"),
        dialect.event_type("completed"),
    ]
    started, task = session.diary.events[:2]
    assert isinstance(started, dialect.event_class)
    assert getattr(started, f"{dialect.noun}_id") == "plan"
    assert getattr(started, f"{dialect.noun}_state") == "executing"
    assert started.data[dialect.noun] is plan
    assert started.data["device_assignments"] == {"A": "device"}
    assert (task.status, task.data[f"{dialect.noun}_id"]) == ("running", "plan")
    assert started.source_id == task.source_id == f"orchestrator_{id(session.orchestrator)}"


@each_dialect
def test_a_failed_run_is_reported(dialect: Dialect) -> None:
    session = Session(dialect, Devices(answers={"A": RuntimeError("no")}))
    session.agent()
    assert session.run(dialect.plan("A"))["status"] == "failed"
    (event,) = session.diary.of(dialect.event_type("failed"))
    assert getattr(event, f"{dialect.noun}_state") == "failed"


@each_dialect
async def test_reading_the_live_plan_shows_progress(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    star = TaskStar("A")
    plan = dialect.plan(star, "B", lines=["A>B"])
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(0.5)
    assert star.status is plan.tasks["A"].status is TaskStatus.RUNNING
    assert plan.state is ConstellationState.EXECUTING
    assert star.execution_start_time is not None
    await at(1.5)
    assert star.status is TaskStatus.COMPLETED
    assert plan.tasks["B"].status is TaskStatus.RUNNING
    await running
    assert plan.is_complete()
    assert plan.state is ConstellationState.COMPLETED


@each_dialect
def test_tasks_completed_by_hand_are_not_repeated(dialect: Dialect) -> None:
    """A was finished by hand; B was marked as running, but is not being executed."""
    session = Session(dialect, Devices())
    session.agent()
    plan = dialect.plan("A", "B", "C", lines=["A>B", "B>C"])
    plan.mark_task_completed("A", True)
    plan.tasks["B"].start_execution()
    assert session.run(plan)["status"] == "completed"
    assert session.devices.started == ["B", "C"]


@each_dialect
def test_an_empty_plan(dialect: Dialect) -> None:
    outcome = Session(dialect, Devices()).run(dialect.plan())
    assert (outcome["status"], outcome["results"], outcome["total_tasks"]) == ("completed", {}, 0)


@each_dialect
@pytest.mark.parametrize(
    ("assignments", "strategy", "said"),
    [
        ({"nothing": "one"}, None, "no task 'nothing'"),
        ({"A": "ghost"}, None, "'ghost', which the device manager does not know"),
        (None, "astrology", "strategy must be one of"),
    ],
)
def test_an_invalid_plan_is_refused(dialect: Dialect, assignments: Any, strategy: Any, said: str) -> None:
    session = Session(dialect, Devices("one"))
    plan = dialect.plan("A")
    with pytest.raises(ValueError, match=said):
        session.run(plan, assignments, strategy)
    session.agent()
    assert session.run(plan)["status"] == "completed", "nothing was begun"


@each_dialect
def test_unknown_tasks_and_devices_are_refused(dialect: Dialect) -> None:
    without = dialect.orchestrator_class()
    orchestrate = getattr(without, f"orchestrate_{dialect.noun}")
    with pytest.raises(ValueError, match="no device manager"):
        run(orchestrate(dialect.plan("A")))
    without.set_device_manager(Devices(profiles={}))
    with pytest.raises(ValueError, match="has no device"):
        run(orchestrate(dialect.plan("A")))
    without.set_device_manager(Devices())
    with pytest.raises(TypeError, match=dialect.noun):
        run(orchestrate("a plan"))
    line = TaskStarLine("A", "B", DependencyType.CONDITIONAL, condition="lost")
    with pytest.raises(ValueError, match="no condition_evaluator is known"):
        run(orchestrate(dialect.plan("A", "B", lines=[line])))


@each_dialect
async def test_one_plan_has_one_orchestrator(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    plan = dialect.plan("A")
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(0.5)
    with pytest.raises(ValueError, match="is being run already"):
        await Session(dialect, Devices()).orchestrate(plan)
    await running


@each_dialect
async def test_one_orchestrator_runs_several_plans(dialect: Dialect) -> None:
    session = Session(dialect, Unshared())
    session.agent(seconds=0.25)
    plans = [dialect.plan("A", "B", lines=["A>B"], id=name) for name in ("one", "two")]
    assert [outcome["status"] for outcome in (await asyncio.gather(*map(session.orchestrate, plans)))] == [
        "completed",
        "completed",
    ]
    assert session.synchronizer.get_statistics()["completed_modifications"] == 4


class Unshared(Devices):
    """A manager that does not mind two tasks of one id at once."""

    async def assign_task_to_device(self, *, task_id: str, **about: Any) -> ExecutionResult:
        await asyncio.sleep(1.0)
        return ExecutionResult(task_id, "completed")


# -- devices -----------------------------------------------------------------------------------------------------------


@each_dialect
def test_explicit_assignments_win(dialect: Dialect) -> None:
    devices = Devices("one", "two")
    session = Session(dialect, devices)
    session.agent()
    plan = dialect.plan(TaskStar("A", target_device_id="one"), TaskStar("B", target_device_id="one"))
    session.run(plan, {"A": "two"})
    assert {call["task_id"]: call["device_id"] for call in devices.calls} == {"A": "two", "B": "one"}


@each_dialect
def test_a_device_type_is_a_preference(dialect: Dialect) -> None:
    """Honoured if a device has the type, with a mapping or an object as its profile; ignored if no device has it."""
    profiles = {
        "desk": {"device_type": "windows"},
        "phone": SimpleNamespace(device_type=DeviceType.ANDROID),
        "rack": SimpleNamespace(os="Linux"),
    }
    devices = Devices(profiles=profiles)
    session = Session(dialect, devices)
    session.agent()
    wishes = ["windows", "android", "linux", "ios"]
    outcome = session.run(dialect.plan(*(TaskStar(wish, device_type=wish) for wish in wishes)))
    device_of = {call["task_id"]: call["device_id"] for call in devices.calls}
    assert outcome["status"] == "completed"
    assert (device_of["windows"], device_of["android"], device_of["linux"]) == ("desk", "phone", "rack")
    assert device_of["ios"] in profiles


@each_dialect
def test_devices_come_and_go(dialect: Dialect) -> None:
    devices = Devices("one", "two")
    devices.connected = ["one"]
    session = Session(dialect, devices)

    def swap(mine: Any, event: Any) -> None:
        devices.connected = ["two"]

    plan = dialect.plan("A", "B", TaskStar("C", target_device_id="two"), lines=["A>B", "B>C"])
    session.agent(swap)
    assert session.run(plan)["status"] == "completed"
    assert [call["device_id"] for call in devices.calls] == ["one", "two", "two"]


@each_dialect
def test_a_task_that_no_device_can_take_fails_in_time(dialect: Dialect) -> None:
    devices = Devices("one", "two")
    devices.connected = ["one"]
    session = Session(dialect, devices)
    session.agent()
    plan = dialect.plan(TaskStar("A", target_device_id="two"), "B")
    assert session.run(plan)["status"] == "partially_failed"
    assert "no device 'two' became available" in str(plan.tasks["A"].error)


def test_a_manager_that_cannot_list_the_connected_devices(caplog: pytest.LogCaptureFixture) -> None:
    class Shaky(Devices):
        asked = 0

        def get_connected_devices(self) -> list[str]:
            self.asked += 1
            if self.asked > 1:
                raise OSError("the network is down")
            return super().get_connected_devices()

    session = Session(GALAXY, Shaky())
    session.agent()
    assert session.run(GALAXY.plan("A", "B", lines=["A>B"]))["status"] == "completed"
    assert "could not list the connected devices" in caplog.text


@each_dialect
async def test_a_cancelled_task_satisfies_nothing(dialect: Dialect) -> None:
    """A running task may be cancelled on the live plan; it is asked to stop."""
    session = Session(dialect, Devices(seconds={"A": 100.0}))
    session.agent()
    plan = dialect.plan("A", "B", "X", lines=["A>B"])
    running = asyncio.ensure_future(session.orchestrate(plan))
    await at(0.5)
    plan.tasks["A"].cancel()
    assert (await running)["status"] == "partially_failed"
    assert (plan.tasks["A"].status, plan.tasks["B"].status) == (TaskStatus.CANCELLED, TaskStatus.CANCELLED)
    assert session.devices.started == ["A", "X"]


def test_quiet_orchestrators_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    for enabled in (True, False):
        orchestrator = TaskConstellationOrchestrator(Devices(), enable_logging=enabled)
        caplog.clear()
        run(orchestrator.orchestrate_constellation(GALAXY.plan("A")))
        assert ("plan starts: 1 tasks" in caplog.text) is enabled


def test_the_bus_of_the_process_is_the_default() -> None:
    diary = Diary(galaxy.get_event_bus())
    run(TaskConstellationOrchestrator(Devices()).orchestrate_constellation(GALAXY.plan("A")))
    assert diary.tasks(EventType.TASK_COMPLETED) == ["A"]
    assert galaxy.get_event_bus() is orion.get_event_bus()
