"""Shared by the tests of the orchestrator: plans in virtual time, scripted editors, times from the start."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from asterism import Constellation, Event, LocalDevice, Orchestrator, Result, Task
from asterism.testing.virtual_time import run
from tests.laboratory.plan_invariants import check_invariants

Outcome = TypeVar("Outcome")


def after(seconds: float, value: Any = None) -> Callable[[], Coroutine[Any, Any, Any]]:
    """A function that takes this many seconds and returns their number."""

    async def work() -> Any:
        await asyncio.sleep(seconds)
        return value

    return work


def failing(seconds: float = 0.0, error: BaseException | None = None) -> Callable[[], Coroutine[Any, Any, Any]]:
    """A function that takes this many seconds and fails."""

    async def work() -> Any:
        await asyncio.sleep(seconds)
        raise error if error is not None else RuntimeError("it broke")

    return work


def stubborn(seconds: float, value: Any = None) -> Callable[[], Coroutine[Any, Any, Any]]:
    """A function that takes this many seconds and ignores cancellation."""

    async def work() -> Any:
        end = asyncio.get_running_loop().time() + seconds
        while (left := end - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        return value

    return work


def chain(*tasks: Task, id: str = "plan") -> Constellation:
    """Each task after the one before it."""
    plan = Constellation(id)
    before: str | None = None
    for task in tasks:
        plan.add(task, after=before)
        before = task.id
    return plan


def independent(*tasks: Task, id: str = "plan") -> Constellation:
    plan = Constellation(id)
    for task in tasks:
        plan.add(task)
    return plan


def orchestrate(plan: Constellation, *, seed: int | None = None, **options: Any) -> Result:
    """Run a plan in virtual time, on one device without a limit if no other is named, and check every invariant."""
    options.setdefault("devices", [LocalDevice("device")])
    result = run(Orchestrator(**options).run(plan), seed=seed)
    check_invariants(plan)
    return result


def span(result: Result | Constellation, task_id: str) -> tuple[float, float]:
    """When a task began and ended, in seconds since the plan began."""
    plan = result.plan if isinstance(result, Result) else result
    task, began = plan[task_id], plan.started_at
    assert began is not None
    assert task.started_at is not None
    assert task.ended_at is not None
    return round(task.started_at - began, 4), round(task.ended_at - began, 4)


def told(result: Result | Constellation, task_id: str) -> list[str]:
    """The story of a task, as words."""
    return [entry.what for entry in result.story(task_id)]


def why_of(result: Result | Constellation, task_id: str, what: str) -> str:
    """The reason of one kind of step in a story."""
    return [entry.why for entry in result.story(task_id) if entry.what == what][-1]


class Diary:
    """An observer that records all events."""

    def __init__(self, orchestrator: Orchestrator, *kinds: type[Event]) -> None:
        self.events: list[Any] = []
        self.subscription = orchestrator.events.subscribe(self.events.append, *kinds)

    def kinds(self, *wanted: str) -> list[str]:
        return [event.kind for event in self.events if not wanted or event.kind in wanted]

    def of(self, kind: str) -> list[Any]:
        return [event for event in self.events if event.kind == kind]

    def tasks(self, kind: str) -> list[str]:
        return [event.task_id for event in self.of(kind)]


class Script:
    """An editor that takes ``seconds`` and answers from a table: ``answers`` maps the id of a task that has ended, or
    the kind of an event, to an answer (or to a function of view and events that makes one)."""

    def __init__(self, answers: dict[str, Any] | None = None, seconds: float = 0.0) -> None:
        self.answers, self.seconds = answers or {}, seconds
        self.asked: list[list[Any]] = []
        self.at: list[float] = []

    async def edit(self, view: Any, events: Iterable[Any]) -> Any:
        events = list(events)
        self.asked.append(events)
        self.at.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.seconds)
        for event in events:
            for name in (event.kind, getattr(event, "task_id", None)):
                if name in self.answers:
                    answer = self.answers[name]
                    return answer(view, events) if callable(answer) else answer
        return None

    @property
    def reviewed(self) -> list[list[str]]:
        """The tasks of each call."""
        return [[event.task_id for event in events if hasattr(event, "task_id")] for events in self.asked]


async def until(condition: Callable[[], Any], turns: int = 1000) -> None:
    """Run the loop until a condition holds, without any time passing."""
    for _ in range(turns):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came true")


async def deadline(awaitable: Awaitable[Outcome], seconds: float = 300.0) -> Outcome:
    """For tests in real time: the condition holds soon, or the test fails."""
    async with asyncio.timeout(seconds):
        return await awaitable


async def at(seconds: float) -> None:
    """Wait until so many seconds of virtual time have passed since the loop began."""
    await asyncio.sleep(seconds - asyncio.get_running_loop().time())
