"""Buses, synchronizers and mocks of the user's own, with only the documented methods. The race must not come back."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterable
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock

import pytest

from asterism.compat.galaxy import (
    ConstellationModificationSynchronizer,
    Event,
    EventBus,
    EventType,
    IEventObserver,
    TaskConstellationOrchestrator,
    TaskStar,
    TaskStarLine,
)
from tests.compat.compat_scenes import DIALECTS, GALAXY, SEEDS, Agent, Devices, Dialect, Session, run
from tests.laboratory.plan_invariants import check_invariants

pytestmark = pytest.mark.virtual_time


class GatheringBus:
    """A bus as the documents show one: publishing waits for all observers at once. It uses nothing of Asterism."""

    def __init__(self) -> None:
        self.observers: list[tuple[Any, set[EventType] | None]] = []
        self.published: list[Event] = []

    def subscribe(self, observer: Any, event_types: Iterable[EventType] | None = None) -> None:
        self.observers.append((observer, None if event_types is None else set(event_types)))

    def unsubscribe(self, observer: Any) -> None:
        self.observers = [entry for entry in self.observers if entry[0] is not observer]

    async def publish_event(self, event: Event) -> None:
        self.published.append(event)
        wanting = [observer for observer, types in self.observers if types is None or event.event_type in types]
        await asyncio.gather(*(interested.on_event(event) for interested in wanting), return_exceptions=True)


class LoggingBus(EventBus):
    """A subclass that overrides ``publish_event`` to record the events."""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[Event] = []

    async def publish_event(self, event: Event) -> None:
        await asyncio.sleep(0.01)
        self.published.append(event)
        await super().publish_event(event)


class OwnSynchronizer(IEventObserver):
    """Written from the documents alone: futures by task, and the agent's plan as the base of the merge."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.pending: dict[str, asyncio.Future[bool]] = {}
        self.current: Any = None
        self.waited = 0

    async def on_event(self, event: Any) -> None:
        if event.event_type in (EventType.TASK_COMPLETED, EventType.TASK_FAILED):
            self.pending[event.task_id] = asyncio.get_running_loop().create_future()
        elif event.event_type is self.dialect.event_type("modified"):
            self.current = event.data.get(f"new_{self.dialect.noun}") or self.current
            for task_id in event.data["on_task_id"]:
                if task_id in self.pending:
                    self.pending.pop(task_id).set_result(True)

    async def wait_for_pending_modifications(self, timeout: float | None = None) -> bool:
        self.waited += 1
        while self.pending:
            await asyncio.wait(list(self.pending.values()))
        return True

    def merge(self, live: Any) -> Any:
        if self.current is None:
            return live
        merged = self.current
        for task_id, task in live.tasks.items():
            if task_id in merged.tasks and task.is_terminal and not merged.tasks[task_id].is_terminal:
                mine = merged.tasks[task_id]
                mine._status, mine._result, mine._error = task.status, task.result, task.error
                mine._execution_start_time = task.execution_start_time
                mine._execution_end_time = task.execution_end_time
        merged.update_state()
        return merged

    def merge_and_sync_constellation_states(self, orchestrator_constellation: Any) -> Any:
        return self.merge(orchestrator_constellation)

    def merge_and_sync_orion_states(self, orchestrator_orion: Any) -> Any:
        return self.merge(orchestrator_orion)


def replace_b(mine: Any, event: Any) -> None:
    if event.task_id == "A":
        mine.remove_task("B")
        mine.add_task(TaskStar("B'"))
        mine.add_dependency(TaskStarLine("A", "B'"))


each_dialect = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)
each_bus = pytest.mark.parametrize("make_bus", [EventBus, GatheringBus, LoggingBus])


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


@each_dialect
@each_bus
def test_a_custom_bus_loses_no_end(dialect: Dialect, make_bus: Any) -> None:
    for seed in SEEDS:
        plan = dialect.plan("A", "B", "C", lines=["A>B", "A>C"])
        devices = orchestrated(dialect, make_bus(), dialect.synchronizer_class, plan, seed=seed)
        assert sorted(devices.started) == ["A", "B'", "C"]
        assert 3.0 <= devices.at("C") < 3.5


@each_dialect
@each_bus
def test_a_custom_synchronizer_holds_the_plan_and_merges(dialect: Dialect, make_bus: Any) -> None:
    for seed in SEEDS:
        plan = dialect.plan("A", "B", "C", lines=["A>B", "A>C"])
        own = OwnSynchronizer(dialect)
        devices = orchestrated(dialect, make_bus(), lambda orchestrator, own=own: own, plan, seed=seed)
        assert sorted(devices.started) == ["A", "B'", "C"]
        assert own.waited >= 2


def test_the_ablation_without_the_wait_for_a_custom_bus(monkeypatch: pytest.MonkeyPatch, complaints: list[str]) -> None:
    """Without the wait for the bus the synchronizer does not know of the end yet, and B starts."""

    async def at_once(self: Any, observer: object, timeout: float) -> None:
        return None

    monkeypatch.setattr("asterism.compat.event_bus.Outlet.delivered", at_once)
    plan = GALAXY.plan("A", "B", lines=["A>B"])
    devices = orchestrated(GALAXY, LoggingBus(), GALAXY.synchronizer_class, plan)
    assert "B" in devices.started
    assert "task 'B' is running" in complaints.pop(), "the agent comes too late"


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


class Counting(ConstellationModificationSynchronizer):
    """Overrides the documented private handlers and the documented wait."""

    heard = 0
    waits = 0

    async def _handle_task_event(self, event: Any) -> None:
        self.heard += 1
        await super()._handle_task_event(event)

    async def wait_for_pending_modifications(self, timeout: float | None = None) -> bool:
        self.waits += 1
        return await super().wait_for_pending_modifications(timeout)


@each_bus
def test_a_subclass_that_overrides_on_event_is_called_through_it(make_bus: Any) -> None:
    plan = GALAXY.plan("A", "B", "C", lines=["A>B", "A>C"])
    devices = orchestrated(GALAXY, make_bus(), Thoughtful, plan)
    assert sorted(devices.started) == ["A", "B'", "C"]


@each_bus
def test_a_subclass_may_leave_events_out(make_bus: Any) -> None:
    devices, bus = Devices(answers={"B": RuntimeError("no")}), make_bus()
    orchestrator = TaskConstellationOrchestrator(devices, event_bus=bus)
    synchronizer = Filtering(orchestrator)
    synchronizer.set_modification_timeout(30.0)
    orchestrator.set_modification_synchronizer(synchronizer)
    bus.subscribe(synchronizer)
    run(orchestrator.orchestrate_constellation(GALAXY.plan("A", "B", "C", lines=["A>B", "B>C"])))
    assert devices.at("B") < 1.5, "a success is not waited for"
    assert 31.5 < devices.at("C") < 32.5, "a failure is"


@each_bus
def test_a_subclass_may_override_the_other_documented_methods(make_bus: Any) -> None:
    made: list[Counting] = []

    def make(orchestrator: Any) -> Counting:
        made.append(Counting(orchestrator))
        return made[0]

    devices = orchestrated(GALAXY, make_bus(), make, GALAXY.plan("A", "B", "C", lines=["A>B", "A>C"]))
    assert sorted(devices.started) == ["A", "B'", "C"]
    assert made[0].heard == 6
    assert made[0].waits >= 2


@pytest.mark.parametrize("kind", [Mock, MagicMock])
def test_mocks_stand_in_for_everything(kind: Any) -> None:
    bus, synchronizer = kind(), kind()
    bus.publish_event = AsyncMock()
    synchronizer.wait_for_pending_modifications = AsyncMock(return_value=True)
    synchronizer.merge_and_sync_constellation_states = Mock(side_effect=lambda orchestrator_constellation: None)
    manager = kind()
    manager.get_connected_devices.return_value = ["device"]
    manager.assign_task_to_device = Devices().assign_task_to_device
    orchestrator = TaskConstellationOrchestrator(manager, event_bus=bus)
    orchestrator.set_modification_synchronizer(synchronizer)
    outcome = run(orchestrator.orchestrate_constellation(GALAXY.plan("A", "B", lines=["A>B"])))
    assert outcome["status"] == "completed"
    kinds = [call.args[0].event_type for call in bus.publish_event.await_args_list]
    assert kinds.count(EventType.TASK_COMPLETED) == 2
    assert kinds[-1] is EventType.CONSTELLATION_COMPLETED
    assert synchronizer.wait_for_pending_modifications.await_count >= 2


def test_a_mock_with_the_specification_of_ours_is_taken_for_a_mock() -> None:
    bus, synchronizer = Mock(spec=EventBus), Mock(spec=ConstellationModificationSynchronizer)
    orchestrator = TaskConstellationOrchestrator(Devices(), event_bus=bus)
    orchestrator.set_modification_synchronizer(synchronizer)
    assert run(orchestrator.orchestrate_constellation(GALAXY.plan("A")))["status"] == "completed"
    assert bus.publish_event.await_count == 4
    assert synchronizer.wait_for_pending_modifications.await_count == 1


def test_a_bus_that_fails_does_not_stop_the_plan(complaints: list[str]) -> None:
    bus = Mock()
    bus.publish_event = AsyncMock(side_effect=RuntimeError("the broker is down"))
    orchestrator = TaskConstellationOrchestrator(Devices(), event_bus=bus)
    assert run(orchestrator.orchestrate_constellation(GALAXY.plan("A")))["status"] == "completed"
    assert "failed to publish" in complaints[0]
    complaints.clear()


async def test_two_plans_of_one_id_are_refused_on_any_bus() -> None:
    bus = GatheringBus()
    first, second = (TaskConstellationOrchestrator(Devices(), event_bus=bus) for _ in range(2))
    running = asyncio.ensure_future(first.orchestrate_constellation(GALAXY.plan("A")))
    await asyncio.sleep(0.5)
    with pytest.raises(ValueError, match="is running on this event bus"):
        await second.orchestrate_constellation(GALAXY.plan("A"))
    await running


def test_an_invalid_merge_result_of_a_synchronizer_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    own = OwnSynchronizer(GALAXY)
    own.current = "no plan at all"
    own.merge = lambda live: own.current  # type: ignore[method-assign]
    session = Session(GALAXY, Devices())
    session.orchestrator.set_modification_synchronizer(own)
    assert session.run(GALAXY.plan("A"))["status"] == "completed"
    assert "must return a constellation" in caplog.text


def test_a_slow_observer_of_a_gathering_bus_delays_no_other_event() -> None:
    class Slow(IEventObserver):
        async def on_event(self, event: Event) -> None:
            await asyncio.sleep(1000.0)

    bus, devices = GatheringBus(), Devices()
    bus.subscribe(Slow())
    orchestrator = TaskConstellationOrchestrator(devices, event_bus=bus)
    run(orchestrator.orchestrate_constellation(GALAXY.plan("A", "B", lines=["A>B"])))
    assert devices.at("B") == 1.0
    assert len(bus.published) == 6


def test_private_fields_written_into_a_copy_are_visible_there() -> None:
    """The documented merge, by hand: the private fields of an idle copy."""
    live = GALAXY.plan("Z", "A", "B", lines=["A>B", "B>Z"])
    mine = copy.deepcopy(live)
    live.mark_task_completed("A", True, result=1)
    live.mark_task_completed("B", False, error=RuntimeError("no"))
    own = OwnSynchronizer(GALAXY)
    own.current = mine
    merged = own.merge(live)
    assert merged is mine
    assert [(task.status.value, task.result) for task in merged.get_all_tasks()] == [
        ("pending", None),
        ("completed", 1),
        ("failed", None),
    ]
    assert [task.task_id for task in merged.get_ready_tasks()] == ["Z"]
    check_invariants(merged.plan)
