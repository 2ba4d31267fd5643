"""The bus: a queue per observer, and the prompt observer that is called at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.compat import event_bus as events
from asterism.compat.galaxy import Event, EventBus, EventType, IEventObserver, get_event_bus
from asterism.testing.virtual_time import SimLoop
from tests.compat.compat_scenes import GALAXY, Devices, Diary, Session, at, run

pytestmark = pytest.mark.virtual_time


def event(kind: EventType = EventType.TASK_STARTED, **data: Any) -> Event:
    return Event(kind, "test", 0.0, data)


class Slow(IEventObserver):
    def __init__(self, seconds: float) -> None:
        self.seconds, self.seen = seconds, list[Any]()

    async def on_event(self, event: Event) -> None:
        await asyncio.sleep(self.seconds)
        self.seen.append(event.data.get("n"))


async def test_observers_get_the_types_they_subscribed_to() -> None:
    bus = EventBus()
    everything, some = Diary(bus), Diary(EventBus())
    bus.subscribe(some, {EventType.TASK_FAILED})
    bus.subscribe(some, [EventType.TASK_STARTED])
    for kind in (EventType.TASK_STARTED, EventType.TASK_COMPLETED, EventType.TASK_FAILED):
        await bus.publish_event(event(kind))
    assert len(everything.events) == 3
    assert [e.event_type for e in some.events] == [EventType.TASK_STARTED, EventType.TASK_FAILED]
    bus.subscribe(some)
    await bus.publish_event(event(EventType.TASK_COMPLETED))
    assert len(some.events) == 3
    bus.unsubscribe(some)
    bus.unsubscribe(some)
    await bus.publish_event(event())
    assert len(some.events) == 3
    assert len(everything.events) == 5


async def test_publishing_does_not_wait_and_keeps_the_order() -> None:
    bus, slow = EventBus(), Slow(4.0)
    quick = Diary(bus)
    bus.subscribe(slow)
    for n in range(5):
        await bus.publish_event(event(n=n))
    assert asyncio.get_running_loop().time() == 0.0
    assert len(quick.events) == 5, "an observer that waits for nothing has seen it when publishing returns"
    await at(10.0)
    assert slow.seen == [0, 1]
    await bus.drain(1.0)
    assert asyncio.get_running_loop().time() == 11.0
    await bus.drain(100.0)
    assert slow.seen == [0, 1, 2, 3, 4]
    await bus.drain(100.0)
    assert asyncio.get_running_loop().time() == 20.0


async def test_an_observer_that_fails_misses_nothing(complaints: list[str]) -> None:
    class Fragile(Slow):
        async def on_event(self, event: Event) -> None:
            await super().on_event(event)
            raise RuntimeError("oh")

    bus, fragile = EventBus(), Fragile(0.0)
    bus.subscribe(fragile)
    other = Diary(bus)
    for n in range(3):
        await bus.publish_event(event(n=n))
    await bus.drain(1.0)
    assert fragile.seen == [0, 1, 2]
    assert len(other.events) == 3
    assert len(complaints) == 3
    complaints.clear()


async def test_a_prompt_observer_is_called_at_once_and_its_errors_are_caught(complaints: list[str]) -> None:
    class Prompt(events.PromptObserver):
        seen = 0

        def notice(self, event: Event) -> None:
            self.seen += 1
            raise RuntimeError("oh")

    bus, prompt = EventBus(), Prompt()
    bus.subscribe(prompt)
    diary = Diary(bus)
    bus.deliver(event())
    assert prompt.seen == 1
    await bus.drain(1.0)
    assert len(diary.events) == 1
    assert "oh" in complaints[0]
    complaints.clear()


async def test_an_observer_may_be_a_plain_function_of_its_events() -> None:
    class Plain:
        seen = 0

        def on_event(self, event: Event) -> None:
            self.seen += 1

    bus, plain = EventBus(), Plain()
    bus.subscribe(plain)  # type: ignore[arg-type]
    await bus.publish_event(event())
    assert plain.seen == 1


async def test_an_observer_that_never_catches_up_loses_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "QUEUE_LIMIT", 3)
    bus, slow = EventBus(), Slow(1.0)
    bus.subscribe(slow)
    for n in range(10):
        await bus.publish_event(event(n=n))
    await bus.drain(100.0)
    assert slow.seen == [0, 7, 8, 9]
    assert next(iter(bus._inboxes.values())).dropped == 6


def test_the_bus_of_the_process_outlives_event_loops() -> None:
    """The first loop ends while an observer is busy, and one of them is simply abandoned."""
    bus, slow = get_event_bus(), Slow(10.0)
    bus.subscribe(slow)
    run(bus.publish_event(event(n=1)))
    abandoned = SimLoop()
    abandoned.run_until_complete(bus.publish_event(event(n=2)))

    async def main() -> None:
        await bus.publish_event(event(n=3))
        await bus.drain(100.0)

    run(main())
    assert slow.seen == [3]
    for task in asyncio.all_tasks(abandoned):
        task.cancel()
        abandoned.run_until_complete(asyncio.gather(task, return_exceptions=True))
    abandoned.close()


def test_a_synchronizer_outlives_event_loops() -> None:
    session = Session(GALAXY, Devices())
    loop = SimLoop()
    loop.run_until_complete(session.synchronizer.on_event(GALAXY.ended("A")))
    loop.close()
    assert session.synchronizer.has_pending_modifications()
    assert run(session.synchronizer.wait_for_pending_modifications()) is True
    session.agent()
    assert session.run(GALAXY.plan("A"))["status"] == "completed"


def test_an_observer_may_run_a_plan_of_its_own() -> None:
    """The run does not wait for the observer that is waiting for it."""
    session = Session(GALAXY, Devices())
    session.agent()
    times: list[float] = []

    class Nested(IEventObserver):
        async def on_event(self, event: Event) -> None:
            if event.event_type is EventType.TASK_STARTED and event.data["constellation_id"] == "outer":
                await session.orchestrate(GALAXY.plan("inside", id="inner"))
                times.append(asyncio.get_running_loop().time())

    session.bus.subscribe(Nested())
    session.run(GALAXY.plan("outside", id="outer"))
    assert times == [1.0]
