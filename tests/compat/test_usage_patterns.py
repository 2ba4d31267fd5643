"""The usage patterns of the documentation, with nothing changed but their import lines.

What they take for granted (``device_manager``, ``my_constellation`` …) is set up above each; their own lines stand
between the two rules."""

from __future__ import annotations

from typing import Any

import pytest

from asterism.compat import galaxy, orion
from asterism.compat.galaxy import get_event_bus
from tests.compat.compat_scenes import GALAXY, ORION, Agent, Devices

pytestmark = pytest.mark.virtual_time


async def test_basic_orchestration() -> None:
    from asterism.compat.galaxy import TaskConstellationOrchestrator

    device_manager = Devices("one", "two")
    my_constellation = GALAXY.plan("A", "B", "C", lines=["A>B", "A>C"])
    # ----
    orchestrator = TaskConstellationOrchestrator(device_manager)

    results = await orchestrator.orchestrate_constellation(
        constellation=my_constellation, assignment_strategy="round_robin"
    )
    # ----
    assert results["status"] == "completed"
    assert [call["device_id"] for call in device_manager.calls] == ["one", "two", "one"]


async def test_with_custom_event_handlers(capsys: pytest.CaptureFixture[str]) -> None:
    from asterism.compat.galaxy import Event, EventType, IEventObserver, TaskConstellationOrchestrator

    event_bus, device_manager = get_event_bus(), Devices()
    constellation = GALAXY.plan("A", "B", lines=["A>B"])
    orchestrator = TaskConstellationOrchestrator(device_manager)

    # ----
    class ProgressTracker(IEventObserver):
        async def on_event(self, event: Event) -> None:
            if event.event_type == EventType.TASK_COMPLETED:
                print(f"✓ Task {event.task_id} completed")

    event_bus.subscribe(ProgressTracker())

    results = await orchestrator.orchestrate_constellation(constellation)
    # ----
    assert results["status"] == "completed"
    assert capsys.readouterr().out == "✓ Task A completed\n✓ Task B completed\n"


async def test_with_modification_synchronizer() -> None:
    from asterism.compat.galaxy import ConstellationModificationSynchronizer, TaskConstellationOrchestrator

    event_bus, device_manager = get_event_bus(), Devices()
    constellation = GALAXY.plan("A", "B", lines=["A>B"])
    orchestrator = TaskConstellationOrchestrator(device_manager)
    event_bus.subscribe(Agent(GALAXY, event_bus, seconds=2.0))
    # ----
    synchronizer = ConstellationModificationSynchronizer(orchestrator)
    orchestrator.set_modification_synchronizer(synchronizer)
    event_bus.subscribe(synchronizer)

    # Now edits are synchronized automatically
    results = await orchestrator.orchestrate_constellation(constellation)
    # ----
    assert results["status"] == "completed"
    assert device_manager.at("B") == 3.0  # one second of work, two of thought


async def test_setting_up_synchronization_in_galaxy() -> None:
    device_manager, constellation = Devices(), GALAXY.plan("A", "B", lines=["A>B"])
    get_event_bus().subscribe(Agent(GALAXY, get_event_bus()))

    async def main() -> Any:
        # ----
        from asterism.compat.galaxy import ConstellationModificationSynchronizer, TaskConstellationOrchestrator

        # Create orchestrator
        orchestrator = TaskConstellationOrchestrator(device_manager)

        # Create and attach synchronizer
        synchronizer = ConstellationModificationSynchronizer(orchestrator)
        orchestrator.set_modification_synchronizer(synchronizer)

        # Subscribe to events
        from asterism.compat.galaxy import get_event_bus

        event_bus = get_event_bus()
        event_bus.subscribe(synchronizer)

        # Orchestrate with synchronization
        results = await orchestrator.orchestrate_constellation(constellation)
        # ----
        return results, synchronizer

    results, synchronizer = await main()
    assert results["status"] == "completed"
    assert synchronizer.get_statistics()["completed_modifications"] == 2


async def test_setting_up_synchronization_in_orion() -> None:
    device_manager, orion = Devices(), ORION.plan("A", "B", lines=["A>B"])
    get_event_bus().subscribe(Agent(ORION, get_event_bus()))

    async def main() -> Any:
        # ----
        from asterism.compat.orion import OrionModificationSynchronizer, TaskOrionOrchestrator

        # Create orchestrator
        orchestrator = TaskOrionOrchestrator(device_manager)

        # Create and attach synchronizer
        synchronizer = OrionModificationSynchronizer(orchestrator)
        orchestrator.set_modification_synchronizer(synchronizer)

        # Subscribe to events
        from asterism.compat.orion import get_event_bus

        event_bus = get_event_bus()
        event_bus.subscribe(synchronizer)

        # Orchestrate with synchronization
        results = await orchestrator.orchestrate_orion(orion)
        # ----
        return results, synchronizer

    results, synchronizer = await main()
    assert results["status"] == "completed"
    assert synchronizer.get_statistics()["completed_modifications"] == 2


@pytest.mark.parametrize(
    ("synchronizer_class", "orchestrator_class"),
    [
        (galaxy.ConstellationModificationSynchronizer, galaxy.TaskConstellationOrchestrator),
        (orion.OrionModificationSynchronizer, orion.TaskOrionOrchestrator),
    ],
)
async def test_custom_timeout_and_monitoring(
    synchronizer_class: Any, orchestrator_class: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    dialect = GALAXY if synchronizer_class is galaxy.ConstellationModificationSynchronizer else ORION
    synchronizer = synchronizer_class(orchestrator_class(Devices()))
    # ----
    # Increase timeout for slow LLM responses
    synchronizer.set_modification_timeout(1200.0)  # 20 minutes
    # ----
    await synchronizer.on_event(dialect.ended("A"))
    # ----
    # Check pending modifications
    if synchronizer.has_pending_modifications():
        pending = synchronizer.get_pending_task_ids()
        print(f"Waiting for modifications: {pending}")

    # Get statistics
    stats = synchronizer.get_statistics()
    print(f"Total: {stats['total_modifications']}")
    print(f"Completed: {stats['completed_modifications']}")
    print(f"Timeouts: {stats['timeout_modifications']}")
    # ----
    await synchronizer.on_event(dialect.modified("plan", ["A"]))
    assert not synchronizer.has_pending_modifications()
    assert capsys.readouterr().out == "Waiting for modifications: ['A']\nTotal: 1\nCompleted: 0\nTimeouts: 0\n"


async def test_the_scheduling_loop_can_be_written_by_hand() -> None:
    """The loop that the documentation shows in pieces, driven by a program of its own over an idle constellation."""
    from asterism.compat.galaxy import TaskStatus

    device_manager, constellation = Devices(), GALAXY.plan("A", "B", "C", lines=["A>B", "A>C"])
    while not constellation.is_complete():
        ready_tasks = constellation.get_ready_tasks()
        for task in ready_tasks:
            task.target_device_id = "device"
            task.start_execution()
            result = await task.execute(device_manager)

            is_success = result.status == TaskStatus.COMPLETED.value

            newly_ready = constellation.mark_task_completed(task.task_id, success=is_success, result=result)
            assert [t.task_id for t in newly_ready] == (["B", "C"] if task.task_id == "A" else [])
    assert device_manager.started == ["A", "B", "C"]
    assert constellation.state is galaxy.ConstellationState.COMPLETED
