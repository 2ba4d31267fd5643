"""The documented manager: devices that connect and disconnect, single tasks, assignments."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from asterism.compat.galaxy import (
    ConstellationManager,
    EventType,
    TaskConstellationOrchestrator,
    TaskStar,
    TaskStatus,
)
from tests.compat.compat_scenes import DIALECTS, GALAXY, Devices, Dialect, Session, at, run

pytestmark = pytest.mark.virtual_time

each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)


# -- devices that come and go ------------------------------------------------------------------------------------------


@each_dialect
def test_a_device_that_disconnects_is_logged_and_published(dialect: Dialect, caplog: pytest.LogCaptureFixture) -> None:
    devices = Devices(profiles={"one": {"os": "linux"}, "two": {"os": "linux"}})
    session = Session(dialect, devices)

    def unplug(mine: Any, event: Any) -> None:
        devices.connected = ["two"] if event.task_id == "A" else ["one", "two"]

    session.agent(unplug)
    plan = dialect.plan(*(TaskStar(name, target_device_id="two") for name in "ABC"), lines=["A>B", "B>C"])
    with caplog.at_level(logging.WARNING):
        assert session.run(plan)["status"] == "completed"
    gone, back = (event for event in session.diary.events if hasattr(event, "device_id"))
    assert (gone.event_type, gone.device_id, gone.device_status) == (
        EventType.DEVICE_DISCONNECTED,
        "one",
        "disconnected",
    )
    assert (gone.device_info, set(gone.all_devices)) == ({"os": "linux"}, {"one", "two"})
    assert gone.data == {f"{dialect.noun}_id": "plan"}
    assert (back.event_type, back.device_id, back.device_status) == (EventType.DEVICE_CONNECTED, "one", "connected")
    assert "device 'one' has disconnected" in caplog.text


@each_dialect
async def test_a_task_is_not_assigned_to_a_disconnected_device(dialect: Dialect) -> None:
    """It disconnects after the last poll of the orchestrator; its task waits for it and does not fail."""
    devices = Devices("one")
    session = Session(dialect, devices)

    def unplug(mine: Any, event: Any) -> None:
        if event.task_id == "A":
            devices.connected = []

    session.agent(unplug)
    running = asyncio.ensure_future(session.orchestrate(dialect.plan("A", "B", lines=["A>B"])))
    await at(20.0)
    assert devices.started == ["A"]
    devices.connected = ["one"]
    outcome = await running
    assert outcome["status"] == "completed"
    assert 20.0 <= devices.at("B") <= 22.0
    statuses = [event.device_status for event in session.diary.events if hasattr(event, "device_id")]
    assert statuses == ["disconnected", "connected"]


def test_the_ablation_a_disconnected_device_gets_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asterism.compat.managed_devices.Fleet.is_connected", lambda self, device: True)
    devices = Devices("one")
    session = Session(GALAXY, devices)
    session.agent(lambda mine, event: devices.connected.clear())
    session.run(GALAXY.plan("A", "B", lines=["A>B"]))
    assert devices.at("B") == 1.0


@each_dialect
async def test_the_time_to_wait_for_a_device_can_be_set(dialect: Dialect) -> None:
    devices = Devices("one", "two")
    devices.connected = ["one"]
    session = Session(dialect, devices)
    session.agent()
    session.orchestrator.set_device_timeout(7.0)
    plan = dialect.plan(TaskStar("A", target_device_id="two"))
    await session.orchestrate(plan)
    assert asyncio.get_running_loop().time() < 8.5
    assert "within 7 s" in str(plan.tasks["A"].error)
    with pytest.raises(ValueError, match="above 0"):
        session.orchestrator.set_device_timeout(0)


def test_a_manager_that_cannot_list_its_devices(caplog: pytest.LogCaptureFixture) -> None:
    class Reticent(Devices):
        def get_all_devices(self, connected: bool = False) -> Any:
            raise OSError("no registry")

    session = Session(GALAXY, Reticent())
    session.agent()
    assert session.run(GALAXY.plan("A"))["status"] == "completed"
    assert "could not list its devices" in caplog.text


# -- the orchestrator's other methods ----------------------------------------------------------------------------------


def test_a_single_task() -> None:
    devices = Devices("one", "two", answers={"A": [RuntimeError("once"), {"rows": 7}], "B": RuntimeError("no")})
    orchestrator = TaskConstellationOrchestrator(devices)
    star = TaskStar("A", description="collect", retry_count=1)
    assert run(orchestrator.execute_single_task(task=star, target_device_id="two")) == {"rows": 7}
    assert [call["device_id"] for call in devices.calls] == ["two", "two"]
    assert star.status is TaskStatus.COMPLETED
    with pytest.raises(RuntimeError, match="no"):
        run(orchestrator.execute_single_task(TaskStar("B")))
    plan = GALAXY.plan("C")
    assert run(orchestrator.execute_single_task(plan.tasks["C"])) is None
    assert plan.tasks["C"].status is TaskStatus.PENDING, "a copy of it was carried out"
    assert run(orchestrator.execute_single_task(star)) == {"rows": 7}, "what has ended is not done again"
    with pytest.raises(ValueError, match="does not know the device 'three'"):
        run(orchestrator.execute_single_task(TaskStar("D"), "three"))
    devices.connected = []
    with pytest.raises(ValueError, match="no device is connected"):
        run(orchestrator.execute_single_task(TaskStar("D")))
    with pytest.raises(ValueError, match="no device manager"):
        run(TaskConstellationOrchestrator().execute_single_task(TaskStar("D")))


def test_a_single_task_has_its_timeout() -> None:
    devices = Devices(seconds={"A": 100.0})
    with pytest.raises(TimeoutError):
        run(TaskConstellationOrchestrator(devices).execute_single_task(TaskStar("A", timeout=3.0)))


@each_dialect
async def test_the_status_of_a_run(dialect: Dialect) -> None:
    session = Session(dialect, Devices(answers={"B": RuntimeError("no")}, seconds={"C": 5.0}))
    session.agent()
    plan = dialect.plan("A", "B", "C", "D", lines=["C>D"])
    status_of = getattr(session.orchestrator, f"get_{dialect.noun}_status")
    assert await status_of(plan) is None
    orchestrate = getattr(session.orchestrator, f"orchestrate_{dialect.noun}")
    running = asyncio.ensure_future(orchestrate(plan, metadata={"user": "me"}))
    await at(1.5)
    status = await status_of(plan)
    assert status is not None
    assert {key: status[key] for key in status if key != "statistics"} == {
        f"{dialect.noun}_id": "plan",
        "name": "plan",
        "state": "executing",
        "ready_tasks": [],
        "running_tasks": ["C"],
        "completed_tasks": ["A"],
        "failed_tasks": ["B"],
        "metadata": {"user": "me"},
    }
    assert status["statistics"]["total_tasks"] == 4
    await running
    assert await status_of(plan) is None
    assert session.diary.of(dialect.event_type("started"))[0].data["metadata"] == {"user": "me"}
    (end,) = session.diary.of(dialect.event_type("completed"))
    assert end.data["execution_duration"] == 6.0 == plan.execution_duration
    (first, *_) = session.diary.of(EventType.TASK_COMPLETED)
    assert first.data["execution_time"] == 1.0
    assert (first.data["result"].end_time - first.data["result"].start_time).total_seconds() >= 0


# -- who does what -----------------------------------------------------------------------------------------------------

PROFILES = {
    "pc": {"device_type": "windows", "capabilities": ["office"], "metadata": {"room": 1}},
    "phone": SimpleNamespace(os="Android", capabilities=["camera"], metadata=None),
}


def test_available_devices() -> None:
    devices = Devices(profiles={**PROFILES, "off": {}})
    devices.connected = ["pc", "phone"]
    expected = [
        {
            "device_id": "pc",
            "device_type": "windows",
            "capabilities": ["office"],
            "status": "connected",
            "metadata": {"room": 1},
        },
        {
            "device_id": "phone",
            "device_type": "android",
            "capabilities": ["camera"],
            "status": "connected",
            "metadata": {},
        },
    ]
    assert run(ConstellationManager(devices).get_available_devices()) == expected
    assert run(TaskConstellationOrchestrator(devices).get_available_devices()) == expected
    assert run(ConstellationManager().get_available_devices()) == []


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("round_robin", ["pc", "phone", "pc", "phone"]),
        ("load_balance", ["pc", "phone", "pc", "phone"]),
        ("capability_match", ["phone", "pc", "pc", "pc"]),
    ],
)
def test_the_strategies(strategy: str, expected: list[str]) -> None:
    manager = ConstellationManager(Devices(profiles=PROFILES))
    wishes = ["android", "windows", None, "ios"]
    plan = GALAXY.plan(*(TaskStar(f"t{n}", device_type=wish) for n, wish in enumerate(wishes)))
    chosen = run(manager.assign_devices_automatically(plan, strategy=strategy))
    assert list(chosen.values()) == expected
    assert [task.target_device_id for task in plan.get_all_tasks()] == expected
    assert manager.validate_constellation_assignments(plan) == (True, [])


def test_preferences_and_single_assignments() -> None:
    manager = ConstellationManager(Devices(profiles=PROFILES))
    plan = GALAXY.plan("A", "B", "C", "done")
    plan.mark_task_completed("done", True)
    preferences = {"A": "phone", "B": "unheard of"}
    chosen = run(manager.assign_devices_automatically(plan, "load_balance", preferences))
    assert chosen == {"A": "phone", "B": "pc", "C": "pc"}
    assert manager.reassign_task_device(plan, "C", "phone")
    assert not manager.reassign_task_device(plan, "nothing", "phone")
    with pytest.raises(ValueError, match="completed"):
        manager.reassign_task_device(plan, "done", "phone")
    assert manager.get_device_utilization(plan) == {"phone": 2, "pc": 1}
    info = manager.get_task_device_info(plan, "C")
    assert info is not None
    assert (info["device_id"], info["capabilities"]) == ("phone", ["camera"])
    assert manager.get_task_device_info(plan, "done") is None
    assert manager.clear_device_assignments(plan) == 3
    valid, errors = manager.validate_constellation_assignments(plan)
    assert not valid
    assert errors[0] == "task 'A' has no device"
    with pytest.raises(ValueError, match="strategy is one of"):
        run(manager.assign_devices_automatically(plan, "astrology"))
    with pytest.raises(ValueError, match="no device is connected"):
        run(ConstellationManager(Devices(profiles={})).assign_devices_automatically(plan))


def test_registered_plans() -> None:
    manager, plan = ConstellationManager(), GALAXY.plan("A", "B", lines=["A>B"])
    assert manager.register_constellation(plan, metadata={"priority": "high"}) == "plan"
    assert manager.get_constellation("plan") is plan
    (listed,) = manager.list_constellations()
    assert listed == {
        "constellation_id": "plan",
        "name": "plan",
        "state": "ready",
        "task_count": 2,
        "dependency_count": 1,
        "metadata": {"priority": "high"},
    }
    status = run(manager.get_constellation_status("plan"))
    assert status is not None
    assert status["ready_tasks"] == ["A"]
    assert manager.unregister_constellation("plan")
    assert not manager.unregister_constellation("plan")
    assert manager.get_constellation("plan") is None
    assert run(manager.get_constellation_status("plan")) is None
