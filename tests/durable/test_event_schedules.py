"""Schedules by events: each event creates one plan, whatever dies, and no more plans work than the schedule allows."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from asterism.core.errors import TooLarge
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.core.schedule.schedule import InvalidSchedule, Schedule
from asterism.durable.plan_runner import PlanRunner
from asterism.fleet import scheduled_work
from asterism.fleet.fleet import Fleet
from asterism.fleet.scheduled_work import SchedulePass
from asterism.fleet.sent_events import remove_events, send_event, takers_of
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, LoopClock, Stage, task
from tests.durable.test_awaited_world import Dying

pytestmark = pytest.mark.virtual_time


def order() -> Constellation:
    plan = Constellation("order")
    plan.add(Task("paid", wait_for={"event": "payment/*"}))
    plan.add(task("ship"), "paid")
    return plan


async def added(stage: Stage, plan: Constellation | None = None, **options: Any) -> Schedule:
    options = {"on_event": "payment/*", "plan_text": "asterism: 1\n", **options}
    return await stage.fleet().schedules.add("orders", plan=plan or order(), **options)


async def coordinate(fleet: Fleet) -> None:
    decide = SchedulePass(fleet)
    while True:
        await decide.run_pass()
        await asyncio.sleep(1.0)


async def working(stage: Stage) -> PlanRunner:
    """Let a coordinator, a runner of plans and a device work."""
    await stage.device("desk", monitor_every=None)
    stage.spawn(coordinate(stage.fleet()))
    runner = PlanRunner(stage.fleet(), make=lambda fleet: stage.orchestrator(host="here", local=0))
    stage.spawn(runner.run())
    return runner


async def plans(stage: Stage) -> dict[str, Any]:
    """The values of the events with which plans went on, by plan; None for a plan that has not."""
    return {name: (await stage.load(name)).plan.node("paid").value for name in await names(stage)}


async def names(stage: Stage) -> list[str]:
    return sorted(register.key.removeprefix("plan/") for register in await stage.store.registers("plan/"))


async def history(stage: Stage) -> list[tuple[str, str]]:
    return [(entry.outcome, entry.why) for entry in await stage.fleet().schedules.history("orders")]


async def test_each_event_creates_a_plan_with_its_data_which_are_untrusted(stage: Stage) -> None:
    await send_event(stage.store, "payment/1", "before the schedule")
    schedule = await added(stage)
    assert (schedule.overlap, schedule.next, schedule.times) == ("queue", None, "on event payment/*")
    await working(stage)
    await send_event(stage.store, "payment/17", {"amount": 42}, key="a")
    await send_event(stage.store, "refund/17", {"amount": 1})
    await send_event(stage.store, "payment/17", {"amount": 42}, key="a")
    await send_event(stage.store, "payment/18", {"amount": 43}, key="a")
    await send_event(stage.store, "payment/17", {"amount": 44}, key="b")
    await stage.until(lambda: DONE["ship"] == 3)
    await asyncio.sleep(30)
    amounts = {"orders-event-2": 42, "orders-event-4": 43, "orders-event-5": 44}
    assert await plans(stage) == {name: {"amount": amount} for name, amount in amounts.items()}
    loaded = await stage.load("orders-event-2")
    assert (loaded.plan.tainted, loaded.plan.tick["tick.date"]) == ({"paid"}, "1970-01-12")
    [taker] = (await takers_of(stage.store, "payment/18"))[4]
    assert (taker.plan, taker.schedule, taker.task) == ("orders-event-4", "orders", "")
    assert await history(stage) == [
        ("created", "event 2 'payment/17'"),
        ("created", "event 4 'payment/18'"),
        ("created", "event 5 'payment/17'"),
    ]


async def test_an_event_that_a_plan_of_the_file_waits_for_continues_that_and_creates_another(stage: Stage) -> None:
    """An event is a fact for all: a plan that had begun gets it, and the schedule still creates its plan."""
    await added(stage)
    waiting = order()
    waiting.id = "by-hand"
    waiting.nodes["paid"].task = Task("paid", wait_for={"event": "payment/17"})
    running = stage.spawn(stage.orchestrator(host="there").run(waiting))
    await asyncio.sleep(10)
    await working(stage)
    await send_event(stage.store, "payment/17", 1)
    assert (await running)["paid"].value == 1
    await stage.until(lambda: DONE["ship"] == 2)
    assert await names(stage) == ["by-hand", "orders-event-1"]


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("number", range(1, 6))
async def test_a_coordinator_that_dies_at_any_commit_creates_each_plan_once(
    stage: Stage, number: int, after: bool
) -> None:
    await added(stage)
    for order_number in range(3):
        await send_event(stage.store, f"payment/{order_number}", order_number)
    line = Dying(stage, number, after=after)
    first = stage.spawn(coordinate(Fleet(line, by="ann", clock=LoopClock(), chance=random.Random(1))))
    await asyncio.wait([first, asyncio.ensure_future(line.died.wait())], timeout=20)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await working(stage)
    await stage.until(lambda: DONE["ship"] == 3)
    assert await plans(stage) == {f"orders-event-{number}": number - 1 for number in (1, 2, 3)}
    assert [outcome for outcome, _ in await history(stage)] == ["created"] * 3


async def test_two_coordinators_create_each_plan_once(stage: Stage) -> None:
    await added(stage)
    stage.spawn(coordinate(stage.fleet()))
    await working(stage)
    await asyncio.gather(*(send_event(stage.store, f"payment/{number}", number) for number in range(10)))
    await stage.until(lambda: DONE["ship"] == 10)
    await asyncio.sleep(30)
    assert len(await names(stage)) == 10
    assert [outcome for outcome, _ in await history(stage)] == ["created"] * 10


async def test_without_the_cursor_an_event_creates_a_plan_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ablation: the schedule forgets how far it has come. That the plan has the name of the event saves it."""
    await added(stage)
    monkeypatch.setattr(Schedule, "changed", lambda self, *, seen=0, **changes: _changed(self, **changes))
    await send_event(stage.store, "payment/1")
    await SchedulePass(stage.fleet()).run_pass()
    outcomes = {outcome for outcome, _ in await history(stage)}
    assert (outcomes, await names(stage)) == ({"created", "exists"}, ["orders-event-1"])


_changed = Schedule.changed


# -- how many at once --------------------------------------------------------------------------------------------------


def gated() -> Constellation:
    plan = order()
    plan.add(task("gate", "wait"), "paid")
    return plan


async def test_two_plans_work_at_once_and_the_others_wait(stage: Stage) -> None:
    await added(stage, gated(), parallel=2)
    runner = await working(stage)
    for number in range(1, 6):
        await send_event(stage.store, f"payment/{number}", number)
    await asyncio.sleep(60)
    assert len(await names(stage)) == 5
    assert sorted(name for name, job in runner.running.items() if not job.done()) == [
        "orders-event-1",
        "orders-event-2",
    ]
    durable_work.gate("gate").set()
    await stage.until(lambda: DONE["gate"] == 5)


async def test_what_finds_no_room_is_skipped(stage: Stage) -> None:
    await added(stage, gated(), parallel=2, overlap="skip")
    await working(stage)
    for number in range(1, 4):
        await send_event(stage.store, f"payment/{number}", number)
    await asyncio.sleep(60)
    assert await names(stage) == ["orders-event-1", "orders-event-2"]
    assert (await history(stage))[-1] == ("skipped", "event 3 'payment/3': orders-event-2 has not ended")
    durable_work.gate("gate").set()


async def test_a_newer_plan_replaces_the_oldest(stage: Stage) -> None:
    await added(stage, gated(), parallel=2, overlap="replace")
    await working(stage)
    for number in range(1, 4):
        await send_event(stage.store, f"payment/{number}", number)
        await asyncio.sleep(60)
    states = {name: str((await stage.load(name)).plan.state) for name in await names(stage)}
    assert states == {"orders-event-1": "cancelled", "orders-event-2": "executing", "orders-event-3": "executing"}
    durable_work.gate("gate").set()


async def test_an_event_that_finds_no_room_in_the_queue_is_not_lost(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduled_work, "MOST_OPEN", 2)
    await added(stage)
    await working(stage)
    for number in range(1, 6):
        await send_event(stage.store, f"payment/{number}", number)
    await stage.until(lambda: DONE["ship"] == 5)
    assert [outcome for outcome, _ in await history(stage)] == ["created"] * 5


# -- pauses, changes, retention ----------------------------------------------------------------------------------------


async def test_events_of_a_pause_create_nothing(stage: Stage) -> None:
    await added(stage)
    await working(stage)
    fleet = stage.fleet()
    await fleet.schedules.pause("orders")
    await send_event(stage.store, "payment/1")
    await asyncio.sleep(30)
    await fleet.schedules.resume("orders")
    await send_event(stage.store, "payment/2")
    await stage.until(lambda: DONE["ship"] == 1)
    assert await names(stage) == ["orders-event-2"]


async def test_a_changed_schedule_loses_no_event_and_one_by_another_name_begins_anew(stage: Stage) -> None:
    await added(stage)
    await send_event(stage.store, "payment/1")
    await send_event(stage.store, "refund/2")
    await added(stage, parallel=2, replace=True)
    await SchedulePass(stage.fleet()).run_pass()
    assert await names(stage) == ["orders-event-1"]
    await send_event(stage.store, "refund/3")
    await added(stage, on_event="refund/*", replace=True)
    await SchedulePass(stage.fleet()).run_pass()
    assert await names(stage) == ["orders-event-1"]


async def test_events_that_are_no_longer_kept_are_passed_over(stage: Stage) -> None:
    await added(stage)
    await send_event(stage.store, "payment/1")
    await asyncio.sleep(10)
    await send_event(stage.store, "payment/2")
    await remove_events(stage.store, stage.store.clock() - 5)
    await SchedulePass(stage.fleet()).run_pass()
    assert await names(stage) == ["orders-event-2"]


async def test_a_plan_that_cannot_be_made_is_recorded_and_the_next_event_goes_on(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await added(stage, Constellation("order"))
    for number in (1, 2):
        await send_event(stage.store, f"payment/{number}")
    create = scheduled_work.ScheduledWork._create_plan

    async def hindered(self: Any, new: Any) -> Any:
        if new.event.number == 1:
            raise TooLarge("it cannot be made")
        return await create(self, new)

    monkeypatch.setattr(scheduled_work.ScheduledWork, "_create_plan", hindered)
    await SchedulePass(stage.fleet()).run_pass()
    assert [outcome for outcome, _ in await history(stage)] == ["failed", "created"]


async def test_what_needs_ticks_is_refused(stage: Stage) -> None:
    await added(stage)
    fleet = stage.fleet()
    with pytest.raises(InvalidSchedule, match=r"creates a plan for each event 'payment/\*'\. Send one with"):
        await fleet.schedules.run("orders")
    with pytest.raises(InvalidSchedule, match="creates plans for events; a backfill creates those of ticks"):
        await fleet.schedules.start_backfill("orders", "1970-01-01", None)
    assert await fleet.schedules.next_times("orders") == []
