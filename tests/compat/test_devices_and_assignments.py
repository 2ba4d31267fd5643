"""The documented manager: devices that connect and disconnect, single tasks, assignments."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from asterism.compat.galaxy import (
    EventType,
    TaskStar,
)
from tests.compat.compat_scenes import DIALECTS, GALAXY, Devices, Dialect, Session, at

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
    monkeypatch.setattr("asterism.compat.plan_orchestrator.Fleet.is_connected", lambda self, device: True)
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


# -- who does what -----------------------------------------------------------------------------------------------------

PROFILES = {
    "pc": {"device_type": "windows", "capabilities": ["office"], "metadata": {"room": 1}},
    "phone": SimpleNamespace(os="Android", capabilities=["camera"], metadata=None),
}
