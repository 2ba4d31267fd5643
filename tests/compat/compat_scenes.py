"""Shared by the tests of compat: a scripted device manager, agents that listen on the bus, and the two dialects, so
that one test can run with both."""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import Callable, Iterable
from typing import Any

from asterism.compat import galaxy, orion
from asterism.compat.galaxy import Event, EventBus, EventType, ExecutionResult, IEventObserver, TaskStar, TaskStarLine
from asterism.testing.virtual_time import run
from tests.laboratory.plan_invariants import check_invariants

ENDS = (EventType.TASK_COMPLETED, EventType.TASK_FAILED)

SEEDS = range(20)
"""Seeds of the event loop for tests of races."""


class Dialect:
    """One of the two sets of names."""

    def __init__(self, noun: str, module: Any) -> None:
        self.noun, self.module = noun, module
        capital = noun.capitalize()
        self.plan_class = getattr(module, f"Task{capital}")
        self.orchestrator_class = getattr(module, f"Task{capital}Orchestrator")
        self.synchronizer_class = getattr(module, f"{capital}ModificationSynchronizer")
        self.event_class = getattr(module, f"{capital}Event")

    def __repr__(self) -> str:
        return self.noun

    def event_type(self, what: str) -> EventType:
        return EventType[f"{self.noun}_{what}".upper()]

    def plan(self, *tasks: str | TaskStar, lines: Iterable[Any] = (), id: str = "plan") -> Any:
        """A plan of tasks (names suffice) and lines (``"A>B"`` suffices)."""
        plan = self.plan_class(id)
        for task in tasks:
            plan.add_task(TaskStar(task, description=f"do {task}") if isinstance(task, str) else task)
        for line in lines:
            if isinstance(line, str):
                source, _, target = line.partition(">")
                line = TaskStarLine(source, target)
            plan.add_dependency(line)
        return plan

    def modified(self, plan_id: str, tasks: Any, new: Any = None) -> Any:
        """The answer of an agent."""
        data = {"on_task_id": tasks} | ({} if new is None else {f"new_{self.noun}": new})
        return self.event_class(self.event_type("modified"), "agent", time.time(), data, plan_id, "executing")

    def ended(self, task_id: str, plan_id: str = "plan") -> Any:
        """An event of an orchestrator, made by hand."""
        data = {f"{self.noun}_id": plan_id}
        return self.module.TaskEvent(EventType.TASK_COMPLETED, "test", time.time(), data, task_id, "completed")


GALAXY = Dialect("constellation", galaxy)
ORION = Dialect("orion", orion)
DIALECTS = (GALAXY, ORION)


class Devices:
    """A device manager. A task takes a second, or as many as ``seconds`` says, and returns what ``answers`` says: a
    value, an ExecutionResult, an exception to raise, or several of these, one per attempt."""

    def __init__(
        self,
        *ids: str,
        seconds: dict[str, float] | None = None,
        answers: dict[str, Any] | None = None,
        profiles: dict[str, Any] | None = None,
    ) -> None:
        self.profiles = profiles if profiles is not None else {device: {} for device in ids or ("device",)}
        self.connected = list(self.profiles)
        self.seconds, self.answers = seconds or {}, answers or {}
        self.calls: list[dict[str, Any]] = []
        self.running: set[str] = set()

    @property
    def started(self) -> list[str]:
        return [call["task_id"] for call in self.calls]

    def at(self, task_id: str) -> float:
        """When a task was started, in seconds of the loop."""
        return float(next(call["at"] for call in self.calls if call["task_id"] == task_id))

    def get_connected_devices(self) -> list[str]:
        return list(self.connected)

    def get_all_devices(self, connected: bool = False) -> dict[str, Any]:
        return {
            device: profile for device, profile in self.profiles.items() if not connected or device in self.connected
        }

    async def assign_task_to_device(self, *, task_id: str, **about: Any) -> ExecutionResult:
        self.calls.append({"task_id": task_id, "at": asyncio.get_running_loop().time(), **about})
        assert task_id not in self.running, f"{task_id} is running already"
        self.running.add(task_id)
        try:
            await asyncio.sleep(self.seconds.get(task_id, 1.0))
        finally:
            self.running.discard(task_id)
        answer = self.answers.get(task_id)
        if isinstance(answer, list):
            answer = answer.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer if isinstance(answer, ExecutionResult) else ExecutionResult(task_id, "completed", answer)


Change = Callable[[Any, Any], Any]
"""(the agent's copy, the event) -> None, or another plan to publish instead."""


class Agent(IEventObserver):
    """Receives an end, edits its own copy, waits ``seconds``, and publishes the copy."""

    def __init__(self, dialect: Dialect, bus: EventBus, change: Change | None = None, seconds: float = 0.0) -> None:
        self.dialect, self.bus, self.change, self.seconds = dialect, bus, change, seconds
        self.heard: list[str] = []
        self.copies: dict[str, Any] = {}

    async def on_event(self, event: Event) -> None:
        if event.event_type not in ENDS:
            return
        task_id = event.task_id  # type: ignore[attr-defined]
        self.heard.append(task_id)
        live = event.data[self.dialect.noun]
        mine = self.copy_of(live)
        if self.change is not None:
            mine = self.change(mine, event) or mine
        self.copies[task_id] = mine
        await asyncio.sleep(self.seconds)
        await self.bus.publish_event(self.dialect.modified(live.plan_id, [task_id], mine))

    def copy_of(self, live: Any) -> Any:
        return copy.deepcopy(live)


class Diary(IEventObserver):
    """Stores all events it receives."""

    def __init__(self, bus: EventBus) -> None:
        self.events: list[Any] = []
        bus.subscribe(self)

    async def on_event(self, event: Event) -> None:
        self.events.append(event)

    def tasks(self, event_type: EventType) -> list[str]:
        return [event.task_id for event in self.events if event.event_type is event_type]

    def of(self, event_type: EventType) -> list[Any]:
        return [event for event in self.events if event.event_type is event_type]


class Session:
    """An orchestrator with its synchronizer on a bus, and perhaps an agent."""

    def __init__(self, dialect: Dialect, devices: Devices, bus: EventBus | None = None) -> None:
        self.dialect, self.devices = dialect, devices
        self.bus = EventBus() if bus is None else bus
        self.orchestrator = dialect.orchestrator_class(devices, event_bus=self.bus)
        self.synchronizer = dialect.synchronizer_class(self.orchestrator)
        self.orchestrator.set_modification_synchronizer(self.synchronizer)
        self.bus.subscribe(self.synchronizer)
        self.diary = Diary(self.bus)

    def agent(self, change: Change | None = None, seconds: float = 0.0) -> Agent:
        agent = Agent(self.dialect, self.bus, change, seconds)
        self.bus.subscribe(agent)
        return agent

    async def orchestrate(self, plan: Any, *more: Any) -> dict[str, Any]:
        try:
            outcome: dict[str, Any] = await getattr(self.orchestrator, f"orchestrate_{self.dialect.noun}")(plan, *more)
        finally:
            check_invariants(plan.plan)
        return outcome

    def run(self, plan: Any, *more: Any, seed: int | None = None) -> dict[str, Any]:
        """To the end, in virtual time, with every invariant of the core checked."""
        return run(self.orchestrate(plan, *more), seed=seed)


async def at(seconds: float) -> None:
    """Wait until so many seconds of virtual time have passed since the loop began."""
    await asyncio.sleep(seconds - asyncio.get_running_loop().time())
