"""Programs written from the origin's public pages, with only the import lines changed."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import time
from pathlib import Path
from typing import Any

import pytest

from asterism.compat.galaxy import (
    CommandExecutionError,
    ConstellationEditor,
    ConstellationEvent,
    ConstellationManager,
    ConstellationModificationSynchronizer,
    ConstellationProgressObserver,
    Event,
    EventType,
    IEventObserver,
    SessionMetricsObserver,
    TaskConstellation,
    TaskConstellationOrchestrator,
    TaskEvent,
    TaskStar,
    TaskStarLine,
    TaskStatus,
    get_event_bus,
)
from asterism.testing.virtual_time import run
from tests.compat.compat_scenes import Devices

pytestmark = pytest.mark.virtual_time


def test_a_task_from_its_making_to_its_result() -> None:
    task = TaskStar(description="Run the script", target_device_id="linux_1", timeout=60.0, retry_count=2)
    assert task.name == f"task_{task.task_id[:8]}"
    assert task.validate(), task.get_validation_errors()
    attempts = 0
    while attempts < 3:
        attempts += 1
        task.start_execution()
        try:
            if attempts < 3:
                raise RuntimeError("not yet")
            task.complete_with_success({"exit_code": 0})
            break
        except RuntimeError as error:
            task.complete_with_failure(error)
            assert task.should_retry()
            task.retry()
    assert (task.status, task.result, task._current_retry) == (TaskStatus.COMPLETED, {"exit_code": 0}, 2)
    with pytest.raises(ValueError, match="completed"):
        task.start_execution()


def test_a_request_as_a_device_gets_it() -> None:
    task = TaskStar(description="Build the image", tips=["use docker build", "tag it"])
    assert task.to_request_string().splitlines() == [
        "Task Description: Build the image",
        "Tips for Completion:",
        " - use docker build",
        " - tag it",
    ]


def test_routing_by_the_size_of_the_data() -> None:
    """Two conditional lines, one true and one false; and a recovery that runs only after a failure."""
    devices = Devices(answers={"analyze": {"row_count": 2_000_000}, "gpu": RuntimeError("out of memory")})
    constellation = TaskConstellation(name="routing")
    for task_id in ("analyze", "gpu", "cpu", "recover"):
        constellation.add_task(TaskStar(task_id, description=task_id))
    for target, holds in (("gpu", lambda n: n > 1_000_000), ("cpu", lambda n: n <= 1_000_000)):
        constellation.add_dependency(
            TaskStarLine.create_conditional(
                "analyze", target, f"for {target}", lambda result, holds=holds: holds(result.get("row_count", 0))
            )
        )
    constellation.add_dependency(
        TaskStarLine.create_conditional("gpu", "recover", "after a failure", lambda result: result is None)
    )
    outcome = run(TaskConstellationOrchestrator(devices).orchestrate_constellation(constellation))
    assert devices.started == ["analyze", "gpu", "recover"]
    assert outcome["status"] == "partially_failed"


def test_driving_a_plan_by_hand() -> None:
    constellation = TaskConstellation(name="by_hand")
    for task_id in ("fetch", "preprocess", "train"):
        constellation.add_task(TaskStar(task_id, description=task_id))
    constellation.add_dependency(TaskStarLine.create_success_only("fetch", "preprocess"))
    constellation.add_dependency(TaskStarLine.create_success_only("preprocess", "train"))
    assert constellation.validate_dag() == (True, [])
    constellation.start_execution()
    while not constellation.is_complete():
        for task in constellation.get_ready_tasks():
            constellation.start_task(task.task_id)
            constellation.mark_task_completed(task.task_id, success=True, result={"rows": 10_000})
    constellation.complete_execution()
    assert constellation.state.value == "completed"
    seconds, path = constellation.get_critical_path_length_with_time()
    assert path == ["fetch", "preprocess", "train"]
    assert constellation.get_total_work() == pytest.approx(seconds)
    restored = TaskConstellation.from_json(json_data=constellation.to_json())
    assert restored.state.value == "completed"


def test_an_editor_builds_what_an_orchestrator_runs(tmp_path: Path) -> None:
    editor = ConstellationEditor(enable_history=True)
    editor.create_and_add_task("fetch_data", "Download", target_device_id="one", timeout=300.0)
    editor.create_and_add_task("train_model", "Train", priority="HIGH", retry_count=2)
    editor.create_and_add_task("evaluate", "Evaluate")
    editor.create_and_add_dependency("fetch_data", "train_model", "SUCCESS_ONLY")
    editor.create_and_add_dependency("train_model", "evaluate", "UNCONDITIONAL")
    with pytest.raises(CommandExecutionError, match="cycle"):
        editor.create_and_add_dependency("evaluate", "fetch_data", "UNCONDITIONAL")
    is_valid, errors = editor.validate_constellation()
    assert is_valid, errors
    statistics = editor.get_statistics()
    assert (statistics["total_tasks"], statistics["longest_path_length"]) == (3, 3)
    path = editor.save_constellation(str(tmp_path / "pipeline.json"))
    loaded = ConstellationEditor().load_constellation(path)
    devices = Devices("one", "two")
    outcome = run(TaskConstellationOrchestrator(devices).orchestrate_constellation(loaded))
    assert outcome["status"] == "completed"
    assert devices.started == ["fetch_data", "train_model", "evaluate"]


class QueueingAgent:
    """The documented agent: its observer queues ends for it, and it answers them in a loop of its own, many at once."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[Any] = asyncio.Queue()
        self.batches: list[list[str]] = []

    async def add_task_completion_event(self, event: TaskEvent) -> None:
        await self.queue.put(event)

    async def add_constellation_completion_event(self, event: Event) -> None:
        await self.queue.put(None)

    async def work(self) -> None:
        while (first := await self.queue.get()) is not None:
            await asyncio.sleep(0.5)
            events = [first]
            while not self.queue.empty():
                following = self.queue.get_nowait()
                if following is None:
                    return
                events.append(following)
            await self.edit(events)

    async def edit(self, events: list[TaskEvent]) -> None:
        before = events[-1].data["constellation"]
        after = copy.deepcopy(before)
        for event in events:
            if event.event_type is EventType.TASK_FAILED:
                diagnosis = f"diagnose_{event.task_id}"
                after.add_task(TaskStar(diagnosis, description=f"look into {event.error}"))
                after.add_dependency(TaskStarLine.create_unconditional(event.task_id, diagnosis))
        task_ids = [event.task_id for event in events]
        self.batches.append(task_ids)
        await get_event_bus().publish_event(
            ConstellationEvent(
                event_type=EventType.CONSTELLATION_MODIFIED,
                source_id="agent",
                timestamp=time.time(),
                data={
                    "on_task_id": task_ids,
                    "old_constellation": before,
                    "new_constellation": after,
                    "modification_type": "Edited by the agent",
                },
                constellation_id=after.constellation_id,
                constellation_state=after.state.value,
            )
        )


async def test_a_whole_session(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Progress and metrics observers, synchronizer and agent on the bus of the process; then the figures as JSON."""
    devices = Devices("windows_main", "android_phone", answers={"b": RuntimeError("screen locked")})
    orchestrator = TaskConstellationOrchestrator(device_manager=devices, enable_logging=True)
    synchronizer = ConstellationModificationSynchronizer(orchestrator, logger=logging.getLogger("mine"))
    synchronizer.set_modification_timeout(1200.0)
    orchestrator.set_modification_synchronizer(synchronizer)
    agent, metrics = QueueingAgent(), SessionMetricsObserver(session_id="session", logger=logging.getLogger("mine"))
    event_bus = get_event_bus()
    observers: list[Any] = [ConstellationProgressObserver(agent=agent), metrics, synchronizer]
    for observer in observers:
        event_bus.subscribe(observer)

    constellation = TaskConstellation(name="collect")
    for task_id in ("a", "b", "c"):
        constellation.add_task(TaskStar(task_id, description=f"do {task_id}"))
    constellation.add_dependency(TaskStarLine.create_success_only("a", "c"))

    async def main() -> Any:
        thinking = asyncio.ensure_future(agent.work())
        outcome = await orchestrator.orchestrate_constellation(
            constellation, assignment_strategy="load_balance", metadata={"user_id": "u1"}
        )
        await thinking
        for observer in observers:
            event_bus.unsubscribe(observer)
        return outcome

    outcome = await main()
    assert outcome["status"] == "partially_failed"
    assert agent.batches[0] == ["a", "b"], "one answer for both"
    assert sorted(devices.started) == ["a", "b", "c", "diagnose_b"]
    figures = metrics.get_metrics()
    assert figures["task_statistics"]["failed_tasks"] == 1
    assert figures["modification_statistics"]["modification_types_breakdown"] == {"Edited by the agent": 2}
    out = tmp_path / "metrics.json"
    out.write_text(json.dumps(figures["task_statistics"], indent=2), encoding="utf-8")
    statistics = synchronizer.get_statistics()
    assert statistics["total_modifications"] == statistics["completed_modifications"] == 4


def test_an_observer_that_measures_from_the_event() -> None:
    times: list[float] = []

    class Measuring(IEventObserver):
        async def on_event(self, event: Event) -> None:
            if event.event_type == EventType.TASK_COMPLETED:
                result = event.data["result"]
                times.append((result.end_time - result.start_time).total_seconds())
            elif event.event_type == EventType.CONSTELLATION_COMPLETED:
                times.append(event.data["execution_duration"])

    event_bus, constellation = get_event_bus(), TaskConstellation()
    constellation.add_task(TaskStar("a", description="do a"))
    event_bus.subscribe(Measuring(), {EventType.TASK_COMPLETED, EventType.CONSTELLATION_COMPLETED})
    run(TaskConstellationOrchestrator(Devices()).execute_constellation(constellation))
    assert len(times) == 2
    assert times[1] == 1.0


async def test_the_orchestrator_uses_the_assignments_of_the_manager() -> None:
    devices = Devices(profiles={"pc": {"device_type": "windows"}, "phone": {"device_type": "android"}})
    manager, constellation = ConstellationManager(devices, enable_logging=True), TaskConstellation()
    constellation.add_task(TaskStar("mail", description="write", device_type="windows"))
    constellation.add_task(TaskStar("photo", description="take", device_type="android"))
    assignments = await manager.assign_devices_automatically(constellation, strategy="capability_match")
    assert assignments == {"mail": "pc", "photo": "phone"}
    assert manager.validate_constellation_assignments(constellation) == (True, [])
    await TaskConstellationOrchestrator(devices).orchestrate_constellation(constellation)
    assert {call["task_id"]: call["device_id"] for call in devices.calls} == {"mail": "pc", "photo": "phone"}


def test_the_documented_patterns_one_after_the_other_on_one_plan() -> None:
    """Basic, with an observer, with a synchronizer: each time with a task more."""
    devices, event_bus, seen = Devices(), get_event_bus(), list[str]()

    class Tracker(IEventObserver):
        async def on_event(self, event: Event) -> None:
            if isinstance(event, TaskEvent) and event.event_type == EventType.TASK_COMPLETED:
                seen.append(event.task_id)

    class Approving(IEventObserver):
        async def on_event(self, event: Event) -> None:
            if isinstance(event, TaskEvent) and event.event_type == EventType.TASK_COMPLETED:
                data = {"on_task_id": [event.task_id]}
                await event_bus.publish_event(
                    ConstellationEvent(EventType.CONSTELLATION_MODIFIED, "agent", time.time(), data, "", "executing")
                )

    constellation = TaskConstellation(name="grows")
    constellation.add_task(TaskStar("one", description="1"))
    orchestrator = TaskConstellationOrchestrator(devices)
    run(orchestrator.orchestrate_constellation(constellation, assignment_strategy="round_robin"))
    event_bus.subscribe(Tracker())
    constellation.add_task(TaskStar("two", description="2"))
    run(orchestrator.orchestrate_constellation(constellation))
    synchronizer = ConstellationModificationSynchronizer(orchestrator)
    orchestrator.set_modification_synchronizer(synchronizer)
    event_bus.subscribe(synchronizer)
    event_bus.subscribe(Approving())
    constellation.add_task(TaskStar("three", description="3"))
    constellation.add_dependency(TaskStarLine.create_unconditional("two", "three"))
    outcome = run(orchestrator.orchestrate_constellation(constellation))
    assert outcome["status"] == "completed"
    assert devices.started == ["one", "two", "three"]
    assert seen == ["two", "three"]
