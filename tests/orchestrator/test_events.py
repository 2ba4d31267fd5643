"""Events: subscription by type; observers that are slow, raise or fall behind."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Any

import pytest

from asterism import (
    Constellation,
    ConstellationEvent,
    DeviceEvent,
    EditEvent,
    Event,
    LocalDevice,
    Orchestrator,
    Task,
    TaskEvent,
    edits,
)
from asterism.orchestrator.events import EventBus
from asterism.testing.virtual_time import run
from tests.orchestrator.orchestrator_scenes import (
    Diary,
    Script,
    after,
    at,
    chain,
    failing,
    independent,
    orchestrate,
    until,
)

pytestmark = pytest.mark.virtual_time


def observed(plan: Constellation, *subscribe: Any, **options: Any) -> Any:
    """Run a plan in virtual time; ``subscribe`` are functions that get the orchestrator before it begins."""

    async def main() -> Any:
        made = Orchestrator(**{"devices": [LocalDevice("device")], **options})
        kept = [function(made) for function in subscribe]
        return await made.run(plan), *kept

    return run(main())


def test_a_plain_run_tells_its_story_in_events() -> None:
    plan = chain(Task("a", call=after(1, "value")), Task("b", call=failing(1)), id="p")
    _, diary = observed(plan, Diary)
    assert [(event.kind, getattr(event, "task_id", None)) for event in diary.events] == [
        ("constellation_started", None),
        ("task_started", "a"),
        ("task_completed", "a"),
        ("task_started", "b"),
        ("task_failed", "b"),
        ("constellation_partially_failed", None),
    ]
    assert {event.constellation for event in diary.events} == {"p"}
    completed = diary.of("task_completed")[0]
    assert (completed.value, completed.status, completed.device, completed.attempt) == (
        "value",
        "completed",
        "device",
        1,
    )
    assert str(diary.of("task_failed")[0].error) == "it broke"
    assert [event.at for event in diary.events] == sorted(event.at for event in diary.events)


def test_an_observer_may_ask_for_one_type_for_several_or_for_all() -> None:
    plan = chain(Task("a", call=after(1)), Task("b", call=after(1)))
    subscribe = [
        Diary,
        lambda made: Diary(made, TaskEvent),
        lambda made: Diary(made, EditEvent, ConstellationEvent),
        lambda made: Diary(made, DeviceEvent),
        lambda made: Diary(made, Event),
    ]
    _, everything, tasks, two, devices, base = observed(plan, *subscribe, editor=Script())
    assert {type(event) for event in tasks.events} == {TaskEvent}
    assert {type(event) for event in two.events} == {EditEvent, ConstellationEvent}
    assert devices.events == []
    assert base.events == everything.events
    assert len(everything.events) == len(tasks.events) + len(two.events)


def test_events_are_values_that_cannot_be_changed() -> None:
    _, diary = observed(independent(Task("a", call=after(1))), Diary)
    with pytest.raises(AttributeError):
        diary.events[0].kind = "other"


def test_an_edit_event_has_its_cycle() -> None:
    editor = Script({"a": [edits.AddTask(Task("b", call=after(1)))]}, seconds=1)
    _, diary = observed(independent(Task("a", call=after(1))), lambda made: Diary(made, EditEvent), editor=editor)
    assert [(event.kind, event.cycle, event.tasks, event.version) for event in diary.events] == [
        ("cycle_opened", 1, ("a",), 0),
        ("edit_applied", 1, ("a",), 1),
        ("cycle_closed", 1, ("a",), 1),
        ("cycle_opened", 2, ("b",), 1),
        ("cycle_closed", 2, ("b",), 1),
    ]


@pytest.mark.parametrize("way", ["pending by edit", "running by edit", "retrying by edit", "unreachable", "whole plan"])
async def test_every_task_that_ends_cancelled_has_its_event(way: str) -> None:
    plan = Constellation("p")
    plan.add(Task("slow", call=after(20)))
    plan.add(Task("fails", call=failing(1)))
    plan.add(Task("running", call=after(50)))
    plan.add(Task("retrying", call=failing(1), retries=1, backoff=100))
    plan.add(Task("pending", call=after(1)), after="slow")
    plan.add(Task("unreachable", call=after(1)), after="fails")
    made = Orchestrator([LocalDevice("device")])
    diary = Diary(made)
    running = asyncio.create_task(made.run(plan))
    await at(5)
    if way.endswith("by edit"):
        plan.edit([edits.CancelTask(way.split()[0])])
    elif way == "whole plan":
        await made.cancel("p")
    result = await running
    expected = sorted(task.id for task in result if task.status == "cancelled")
    assert expected
    assert sorted(diary.tasks("task_cancelled")) == expected


# -- iterators ---------------------------------------------------------------------------------------------------------


async def test_events_can_be_iterated_over() -> None:
    made = Orchestrator([LocalDevice("device")])
    seen = []
    async with made.events.listen(TaskEvent) as events:
        running = asyncio.create_task(made.run(chain(Task("a", call=after(1)), Task("b", call=after(1)))))
        async for event in events:
            seen.append(f"{event.kind} {event.task_id}")
            if event.kind == "task_completed" and event.task_id == "b":
                break
    await running
    assert seen == ["task_started a", "task_completed a", "task_started b", "task_completed b"]


async def test_an_unread_iterator_does_not_delay_the_run() -> None:
    async def main() -> float:
        made = Orchestrator([LocalDevice("device")])
        async with made.events.listen():
            await made.run(independent(Task("a", call=after(1))))
            return asyncio.get_running_loop().time()

    assert await main() == 1


async def test_an_iterator_that_falls_behind_loses_the_oldest_events() -> None:
    async def main() -> list[str]:
        made = Orchestrator([LocalDevice("device")])
        async with made.events.listen(TaskEvent, limit=2) as events:
            await made.run(chain(Task("a", call=after(1)), Task("b", call=after(1))))
            return [(await anext(events)).kind for _ in range(2)]

    assert await main() == ["task_started", "task_completed"]


# -- observers that misbehave ------------------------------------------------------------------------------------------


def test_a_slow_observer_delays_neither_the_plan_nor_the_others() -> None:
    heard: list[float] = []

    async def slow(event: Any) -> None:
        await asyncio.sleep(100)

    plan = chain(*(Task(f"t{n}", call=after(1)) for n in range(5)))
    result, *_ = observed(
        plan,
        lambda made: made.events.subscribe(slow),
        lambda made: made.events.subscribe(lambda event: heard.append(asyncio.get_running_loop().time()), TaskEvent),
    )
    assert result.summary.makespan == pytest.approx(5, abs=1e-4)
    assert heard == [0, 1, 1, 2, 2, 3, 3, 4, 4, 5]


def test_the_end_of_a_run_waits_a_second_for_observers_and_no_longer() -> None:
    async def main(seconds: float) -> tuple[float, int]:
        made = Orchestrator([LocalDevice("device")])
        heard = []

        async def slow(event: Any) -> None:
            await asyncio.sleep(seconds)
            heard.append(event)

        subscription = made.events.subscribe(slow)
        await made.run(independent(Task("a", call=after(1))))
        ended = asyncio.get_running_loop().time()
        subscription.close()
        return ended, len(heard)

    assert run(main(0.1)) == (pytest.approx(1.2, abs=0.01), 4)
    ended, heard = run(main(50))
    assert ended == pytest.approx(2)
    assert heard == 0


class Peculiar(BaseException):
    pass


@pytest.mark.parametrize(
    "error", [ValueError("no"), asyncio.CancelledError(), Peculiar()], ids=lambda e: type(e).__name__
)
@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
def test_an_observer_that_raises_is_logged_and_receives_the_next_event(
    error: BaseException, asynchronous: bool, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def crash(event: Any) -> None:
        heard.append(event.kind)
        raise error

    async def crash_later(event: Any) -> None:
        await asyncio.sleep(0)
        crash(event)

    with caplog.at_level(logging.ERROR, logger="asterism.events"):
        result, _, diary = observed(
            independent(Task("a", call=after(1))),
            lambda made: made.events.subscribe(crash_later if asynchronous else crash),
            Diary,
        )
    assert result.state == "completed"
    assert (
        heard == diary.kinds() == ["constellation_started", "task_started", "task_completed", "constellation_completed"]
    )
    assert sum("an observer raised" in record.message for record in caplog.records) == 4


def test_a_queue_that_is_full_drops_the_oldest_events_and_counts_them() -> None:
    heard: list[str] = []
    gate: list[asyncio.Event] = []

    async def main() -> int:
        gate.append(asyncio.Event())

        async def slow(event: Any) -> None:
            await gate[0].wait()
            heard.append(event.task_id)

        made = Orchestrator([LocalDevice("device")])
        subscription = made.events.subscribe(slow, TaskEvent, limit=3)
        running = asyncio.create_task(made.run(chain(*(Task(f"t{n}", call=after(1)) for n in range(5)))))
        await at(100)
        gate[0].set()
        await running
        return subscription.dropped

    # ten events: the observer has the first, the queue the last three
    assert run(main()) == 6
    assert heard == ["t0", "t3", "t4", "t4"]


@pytest.mark.parametrize("limit", [0, -1])
def test_a_queue_without_room_is_refused(limit: int) -> None:
    with pytest.raises(ValueError, match="limit"):
        Orchestrator().events.subscribe(print, limit=limit)


async def test_a_closed_subscription_hears_nothing_more() -> None:
    made = Orchestrator([LocalDevice("device")])
    diary = Diary(made)
    running = asyncio.create_task(made.run(chain(Task("a", call=after(1)), Task("b", call=after(1)))))
    await at(0.5)
    diary.subscription.close()
    diary.subscription.close()
    await running
    assert diary.kinds() == ["constellation_started", "task_started"]


async def test_an_observer_may_close_its_own_subscription_and_edit_the_plan() -> None:
    made = Orchestrator([LocalDevice("device")])
    plan = independent(Task("a", call=after(5)), id="p")
    heard = []

    def observer(event: Any) -> None:
        heard.append(event.kind)
        plan.add(Task("b", call=after(1, "b")))
        subscription.close()

    subscription = made.events.subscribe(observer, TaskEvent)
    result = await made.run(plan)
    assert heard == ["task_started"]
    assert result["b"].value == "b"


# -- pay for what is used ----------------------------------------------------------------------------------------------

KINDS = (TaskEvent, ConstellationEvent, DeviceEvent, EditEvent)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts the events that are made."""
    counts: Counter[str] = Counter()
    publish = EventBus.publish

    def count(self: EventBus, event: Event) -> None:
        counts[type(event).__name__] += 1
        publish(self, event)

    monkeypatch.setattr(EventBus, "publish", count)
    return counts


def eventful() -> Constellation:
    plan = chain(Task("a", call=failing(1), retries=1), Task("b", call=after(1)), id="p")
    plan.add(Task("c", call=after(1), needs="gpu"))
    plan.add(Task("d", call=after(20)))
    return plan


async def test_no_event_is_made_without_subscribers(made: Counter[str]) -> None:
    orchestrator = Orchestrator([LocalDevice("device")], no_device_timeout=5)
    running = asyncio.create_task(orchestrator.run(eventful()))
    await at(0.5)
    orchestrator.pause("p")
    orchestrator.resume("p")
    orchestrator.join(LocalDevice("other"))
    orchestrator.leave("other")
    orchestrator.edit("p", edits.EditBatch((edits.AddTask(Task("e", call=after(1))),)))
    await at(10)
    await orchestrator.cancel("p")
    await running
    assert not made


async def test_an_event_of_a_type_without_subscriber_is_not_made(made: Counter[str]) -> None:
    orchestrator = Orchestrator([LocalDevice("device")], no_device_timeout=5)
    orchestrator.events.subscribe(lambda event: None, DeviceEvent)
    await orchestrator.run(eventful())
    assert set(made) == {"DeviceEvent"}


async def test_a_closed_subscription_receives_nothing(made: Counter[str]) -> None:
    orchestrator = Orchestrator([LocalDevice("device")])
    orchestrator.events.subscribe(lambda event: None).close()
    await orchestrator.run(independent(Task("a", call=after(1))))
    assert not made


async def test_an_idle_subscription_costs_no_task() -> None:
    made = Orchestrator([LocalDevice("device")])
    diary = Diary(made)
    await made.run(independent(Task("a", call=after(1))))
    await until(lambda: len(asyncio.all_tasks()) == 1)
    assert len(diary.events) == 4


async def test_events_of_several_plans_name_their_plan() -> None:
    made = Orchestrator([LocalDevice("device")])
    diary = Diary(made, TaskEvent)
    await asyncio.gather(*(made.run(independent(Task("a", call=after(1)), id=name)) for name in ("p", "q")))
    assert sorted((event.constellation, event.kind) for event in diary.events) == [
        ("p", "task_completed"),
        ("p", "task_started"),
        ("q", "task_completed"),
        ("q", "task_started"),
    ]


def test_a_run_without_subscribers_and_editors_records_the_story() -> None:
    result = orchestrate(chain(Task("a", call=after(1)), Task("b", call=after(1))))
    assert [entry.what for entry in result.story()] == [
        "began", "started", "completed", "started", "completed", "completed",
    ]  # fmt: skip


def test_a_slow_observer_does_not_keep_the_program_from_ending() -> None:
    async def slow(event: Any) -> None:
        await asyncio.sleep(3600)

    orchestrator = Orchestrator([LocalDevice("d")])
    orchestrator.events.subscribe(slow)
    began = time.monotonic()
    result = orchestrator.run_sync(independent(*(Task(str(n), call=after(0)) for n in range(20)), id="p"))
    assert result.state == "completed"
    assert time.monotonic() - began < 1800  # one event alone would take twice that
