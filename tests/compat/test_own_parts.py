"""Subclasses of the synchronizer; other buses and synchronizers are refused."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from asterism.compat.galaxy import (
    ConstellationModificationSynchronizer,
    Event,
    EventBus,
    EventType,
    TaskConstellationOrchestrator,
    TaskStar,
    TaskStarLine,
)
from asterism.core.plan.invariants import check_invariants
from tests.compat.compat_scenes import GALAXY, Agent, Devices, Dialect, run

pytestmark = pytest.mark.virtual_time


def replace_b(mine: Any, event: Any) -> None:
    if event.task_id == "A":
        mine.remove_task("B")
        mine.add_task(TaskStar("B'"))
        mine.add_dependency(TaskStarLine("A", "B'"))


def orchestrated(dialect: Dialect, bus: Any, synchronizer: Any, plan: Any, *, seed: int | None = None) -> Devices:
    """Run a plan with an agent that replaces B after two seconds."""
    devices = Devices("one", "two")
    orchestrator = dialect.orchestrator_class(devices, event_bus=bus)
    orchestrator.set_modification_synchronizer(synchronizer(orchestrator))
    bus.subscribe(orchestrator._modification_synchronizer)
    bus.subscribe(Agent(dialect, bus, replace_b, seconds=2.0))
    outcome = run(getattr(orchestrator, f"orchestrate_{dialect.noun}")(plan), seed=seed)
    check_invariants(plan.plan)
    assert outcome["status"] == "completed"
    return devices


class Filtering(ConstellationModificationSynchronizer):
    """Only failures need an answer: the documented hook is overridden."""

    async def on_event(self, event: Event) -> None:
        if event.event_type is not EventType.TASK_COMPLETED:
            await super().on_event(event)


class Thoughtful(ConstellationModificationSynchronizer):
    """Waits before it registers an end."""

    async def on_event(self, event: Event) -> None:
        await asyncio.sleep(0.5)
        await super().on_event(event)


def test_a_subclass_that_overrides_on_event_is_called_through_it() -> None:
    plan = GALAXY.plan("A", "B", "C", lines=["A>B", "A>C"])
    devices = orchestrated(GALAXY, EventBus(), Thoughtful, plan)
    assert sorted(devices.started) == ["A", "B'", "C"]


def test_a_subclass_may_leave_events_out() -> None:
    devices, bus = Devices(answers={"B": RuntimeError("no")}), EventBus()
    orchestrator = TaskConstellationOrchestrator(devices, event_bus=bus)
    synchronizer = Filtering(orchestrator)
    synchronizer.set_modification_timeout(30.0)
    orchestrator.set_modification_synchronizer(synchronizer)
    bus.subscribe(synchronizer)
    run(orchestrator.orchestrate_constellation(GALAXY.plan("A", "B", "C", lines=["A>B", "B>C"])))
    assert devices.at("B") < 1.5, "a success is not waited for"
    assert 31.5 < devices.at("C") < 32.5, "a failure is"


def test_a_subclass_may_override_the_wait() -> None:
    class Counting(ConstellationModificationSynchronizer):
        waits = 0

        async def wait_for_pending_modifications(self, timeout: float | None = None) -> bool:
            self.waits += 1
            return await super().wait_for_pending_modifications(timeout)

    made: list[Counting] = []

    def make(orchestrator: Any) -> Counting:
        made.append(Counting(orchestrator))
        return made[0]

    devices = orchestrated(GALAXY, EventBus(), make, GALAXY.plan("A", "B", "C", lines=["A>B", "A>C"]))
    assert sorted(devices.started) == ["A", "B'", "C"]
    assert made[0].waits >= 2


class LoggingBus(EventBus):
    async def publish_event(self, event: Event) -> None:
        raise NotImplementedError


@pytest.mark.parametrize("bus", [LoggingBus(), Mock(spec=EventBus), object()])
def test_a_bus_that_a_run_would_not_call_is_refused(bus: Any) -> None:
    with pytest.raises(TypeError, match="is an EventBus"):
        TaskConstellationOrchestrator(Devices(), event_bus=bus)


@pytest.mark.parametrize("synchronizer", [None, Mock(), object()])
def test_a_synchronizer_that_is_none_is_refused(synchronizer: Any) -> None:
    with pytest.raises(TypeError, match="ConstellationModificationSynchronizer"):
        TaskConstellationOrchestrator(Devices()).set_modification_synchronizer(synchronizer)
