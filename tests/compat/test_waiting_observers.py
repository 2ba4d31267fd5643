"""Observers that wait for a later event inside their handler: they receive it, and the plan does not stall."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.compat import event_bus as buses
from asterism.compat.galaxy import Event, EventBus, EventType, IEventObserver
from tests.compat.compat_scenes import DIALECTS, ENDS, Devices, Dialect, Session, at

pytestmark = pytest.mark.parametrize("dialect", DIALECTS, ids=repr)


class Batching(IEventObserver):
    """Answers when as many ends as it wants have come, all with one event; until then its handlers wait."""

    def __init__(self, session: Session, size: int) -> None:
        self.session, self.size = session, size
        self.batch: list[str] = []
        self.full = asyncio.Event()

    async def on_event(self, event: Any) -> None:
        if event.event_type not in ENDS:
            return
        self.batch.append(event.task_id)
        if len(self.batch) < self.size:
            await self.full.wait()
            return
        self.full.set()
        done, self.batch = self.batch, []
        self.full = asyncio.Event()
        await self.session.bus.publish_event(self.session.dialect.modified("plan", done))


@pytest.mark.virtual_time
async def test_an_agent_that_waits_for_a_second_end_does_not_stall_the_plan(dialect: Dialect) -> None:
    """Before the fix the second end was queued behind the handler of the first, and C waited 600 seconds."""
    session = Session(dialect, Devices())
    session.bus.subscribe(Batching(session, 2))
    plan = dialect.plan("A", "B", "C", "D", lines=["A>C", "B>D"])
    await session.orchestrate(plan)
    assert session.devices.at("C") == 1.0 + buses.HANDLER_TIMEOUT
    assert session.synchronizer.get_statistics()["timeout_modifications"] == 0


@pytest.mark.virtual_time
async def test_the_ablation_without_overlap_the_plan_waits_for_the_timeout(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(buses, "HANDLER_TIMEOUT", 1e9)
    session = Session(dialect, Devices())
    session.bus.subscribe(Batching(session, 2))
    await session.orchestrate(dialect.plan("A", "B", "C", "D", lines=["A>C", "B>D"]))
    assert session.devices.at("C") == 601.0


@pytest.mark.virtual_time
async def test_an_agent_that_has_answered_may_wait_for_the_next_end(dialect: Dialect) -> None:
    """It answers A, and waits inside the same handler until B has ended, which it has to answer, too."""
    session = Session(dialect, Devices())

    class Following(IEventObserver):
        def __init__(self) -> None:
            self.ended = {"A": asyncio.Event(), "B": asyncio.Event()}

        async def on_event(self, event: Any) -> None:
            if event.event_type in ENDS:
                self.ended[event.task_id].set()
                await session.bus.publish_event(dialect.modified("plan", [event.task_id]))
                await self.ended["B"].wait()

    session.bus.subscribe(Following())
    await session.orchestrate(dialect.plan("A", "B", lines=["A>B"]))
    assert asyncio.get_running_loop().time() < 10.0
    assert session.synchronizer.get_statistics()["timeout_modifications"] == 0


@pytest.mark.virtual_time
async def test_an_observer_that_waits_for_the_end_of_the_plan_misses_nothing(dialect: Dialect) -> None:
    session = Session(dialect, Devices())
    session.agent()
    heard: list[EventType] = []

    class Patient(IEventObserver):
        def __init__(self) -> None:
            self.over = asyncio.Event()

        async def on_event(self, event: Event) -> None:
            heard.append(event.event_type)
            if event.event_type is dialect.event_type("completed"):
                self.over.set()
            await self.over.wait()

    session.bus.subscribe(Patient())
    await session.orchestrate(dialect.plan("A", "B", lines=["A>B"]))
    await at(100.0)
    assert heard == [event.event_type for event in session.diary.events], "in the order in which they were published"
    assert len(heard) == 8


@pytest.mark.virtual_time
async def test_a_quick_handler_is_never_overlapped(dialect: Dialect) -> None:
    """One at a time, in order, while each takes less than the patience."""
    inside: list[int] = []
    most: list[int] = []

    class Careful(IEventObserver):
        async def on_event(self, event: Event) -> None:
            inside.append(1)
            most.append(len(inside))
            await asyncio.sleep(buses.HANDLER_TIMEOUT - 0.5)
            inside.pop()

    bus = EventBus()
    bus.subscribe(Careful())
    for _ in range(10):
        await bus.publish_event(Event(EventType.TASK_STARTED, "test", 0.0, {}))
    await bus.drain(1000.0)
    assert most == [1] * 10


@pytest.mark.virtual_time
async def test_an_observer_unsubscribed_while_busy_gets_no_more_events(dialect: Dialect) -> None:
    class Busy(IEventObserver):
        heard = 0

        async def on_event(self, event: Event) -> None:
            self.heard += 1
            await asyncio.sleep(100.0)

    bus, busy = EventBus(), Busy()
    bus.subscribe(busy)
    for _ in range(3):
        await bus.publish_event(Event(EventType.TASK_STARTED, "test", 0.0, {}))
    bus.unsubscribe(busy)
    await at(200.0)
    assert busy.heard == 1


@pytest.mark.virtual_time
async def test_a_handler_cancelled_from_inside_loses_only_its_own_event(
    dialect: Dialect, complaints: list[str]
) -> None:
    class Cancelled(IEventObserver):
        heard = 0

        async def on_event(self, event: Event) -> None:
            self.heard += 1
            if self.heard == 1:
                await asyncio.sleep(1.0)
                raise asyncio.CancelledError

    bus, cancelled = EventBus(), Cancelled()
    bus.subscribe(cancelled)
    for _ in range(3):
        await bus.publish_event(Event(EventType.TASK_STARTED, "test", 0.0, {}))
    await at(20.0)
    assert cancelled.heard == 3
    assert "it receives the next event" in complaints.pop()
