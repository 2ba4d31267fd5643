"""The ticks of a schedule with their plans or runs: gaps, other times, changes of the clock, and pages."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from asterism.api.local.schedule_handlers import list_ticks
from asterism.api.schedule_operations import ListTicks
from asterism.api.system import LocalSystem
from asterism.core.run.work import Workflow
from asterism.fleet.scheduled_work import SchedulePass
from tests.durable import durable_work
from tests.durable.durable_scenes import Stage, chain
from tests.durable.test_backfills import added, ended, working

pytestmark = pytest.mark.virtual_time


async def listed(stage: Stage, first: str, last: str, **options: int) -> list[tuple[str, str]]:
    """The local times and states of the ticks; the clock of the stage begins on 1970-01-12 at 13:46:40 UTC."""
    page = await list_ticks(LocalSystem(stage.fleet()), ListTicks("nightly", first, last, **options))
    return [(tick.local, tick.state) for tick in page.items]


async def test_each_tick_has_the_state_of_its_plan_and_gaps_are_there(stage: Stage) -> None:
    await added(stage, chain("a"), overlap="queue")
    await stage.fleet().schedules.start_backfill("nightly", "1970-01-12T08:00", "1970-01-12T10:00")
    await working(stage)
    await ended(stage)
    assert await listed(stage, "1970-01-12T07:30", "1970-01-12T15:00") == [
        ("1970-01-12T08:00:00+00:00", "succeeded"),
        ("1970-01-12T09:00:00+00:00", "succeeded"),
        ("1970-01-12T10:00:00+00:00", "succeeded"),
        ("1970-01-12T11:00:00+00:00", "none"),
        ("1970-01-12T12:00:00+00:00", "none"),
        ("1970-01-12T13:00:00+00:00", "none"),
        ("1970-01-12T14:00:00+00:00", "due"),
        ("1970-01-12T15:00:00+00:00", "due"),
    ]
    await asyncio.sleep(4500)  # until after 15:00
    assert await listed(stage, "1970-01-12T14:00", "1970-01-12T15:00") == [
        ("1970-01-12T14:00:00+00:00", "succeeded"),
        ("1970-01-12T15:00:00+00:00", "succeeded"),
    ]


async def test_missed_ticks_are_due_as_long_as_they_will_be_caught_up(stage: Stage) -> None:
    await added(stage, chain("a"), catch_up="all")
    day = "1970-01-12T14:00", "1970-01-12T16:00"
    await asyncio.sleep(3 * 3600)
    assert [state for _, state in await listed(stage, *day)] == ["due", "due", "due"]
    await added(stage, chain("a"), catch_up="last", replace=True)
    await asyncio.sleep(3 * 3600)
    assert [state for _, state in await listed(stage, "1970-01-12T17:00", "1970-01-12T19:00")] == [
        "missed",
        "missed",
        "due",
    ]
    await stage.fleet().schedules.pause("nightly")
    assert [state for _, state in await listed(stage, "1970-01-12T17:00", "1970-01-12T19:00")] == ["missed"] * 3


async def test_ticks_beyond_those_that_are_caught_up_are_marked_as_missed(stage: Stage) -> None:
    await added(stage, chain("a"), cron=None, every=60, catch_up="all")
    await asyncio.sleep(3 * 3600)
    for _ in range(6):
        await SchedulePass(stage.fleet()).run_pass()
    shown = await listed(stage, "1970-01-12T13:47", "1970-01-12T16:47")
    assert Counter(state for _, state in shown) == {"missed": 80, "waiting": 100}
    assert [state for _, state in shown] == ["missed"] * 80 + ["waiting"] * 100


async def test_plans_of_a_backfill_with_other_times_are_ticks_too(stage: Stage) -> None:
    await added(stage)
    begun = {"every": 1800, "parallel": 5}
    await stage.fleet().schedules.start_backfill("nightly", "1970-01-12T08:30", "1970-01-12T09:30", **begun)
    await working(stage)
    await ended(stage)
    shown = await listed(stage, "1970-01-12T08:00", "1970-01-12T10:00")
    assert [state for _, state in shown] == ["none", "succeeded", "succeeded", "succeeded", "none"]


async def test_pages_continue_and_no_tick_is_lost_or_twice(stage: Stage) -> None:
    await added(stage)
    await stage.fleet().schedules.start_backfill(
        "nightly", "1970-01-12T03:30", "1970-01-12T06:30", every=1800, parallel=9
    )
    await working(stage)
    await ended(stage)
    system, range_ = LocalSystem(stage.fleet()), ("1970-01-12T02:00", "1970-01-12T08:00")
    whole = (await list_ticks(system, ListTicks("nightly", *range_))).items
    pages, after = [], None
    while True:
        page = await list_ticks(system, ListTicks("nightly", *range_, after=after, limit=3))
        pages += page.items
        if page.next is None:
            break
        assert len(page.items) == 3
        after = int(page.next)
    assert pages == whole
    assert len(whole) == 7 + 4
    assert Counter(tick.state for tick in whole) == {"succeeded": 7, "none": 4}


@pytest.mark.parametrize(("day", "hours"), [("2026-03-29", 23), ("2026-10-25", 25)])
async def test_a_day_on_which_the_clocks_change_has_its_ticks_once(stage: Stage, day: str, hours: int) -> None:
    await added(stage, timezone="Europe/Berlin")
    ticks = [local for local, _ in await listed(stage, day, day)]
    assert len(ticks) == len(set(ticks)) == hours
    assert (ticks[0][:16], ticks[-1][:16]) == (f"{day}T00:00", f"{day}T23:00")
    at_two = [local[11:] for local in ticks if local.startswith(f"{day}T02")]
    assert at_two == ([] if hours == 23 else ["02:00:00+02:00", "02:00:00+01:00"])


@pytest.mark.parametrize(("day", "local"), [("2026-03-29", "03:00:00+02:00"), ("2026-10-25", "02:30:00+02:00")])
async def test_a_time_that_exists_twice_or_never_is_one_tick(stage: Stage, day: str, local: str) -> None:
    await added(stage, cron="30 2 * * *", timezone="Europe/Berlin")
    assert await listed(stage, day, day) == [(f"{day}T{local}", "due")]


@pytest.mark.parametrize(("day", "hours"), [("1981-03-29", 23), ("1981-09-27", 25)])
async def test_a_backfill_until_a_day_on_which_the_clocks_change_ends_with_it(
    stage: Stage, day: str, hours: int
) -> None:
    await added(stage, timezone="Europe/Berlin")
    stage.store.clock = lambda: 400_000_000.0  # in 1982
    assert (await stage.fleet().schedules.start_backfill("nightly", day, day)).total == hours


async def test_ticks_of_a_workflow_have_their_runs(stage: Stage) -> None:
    fleet = stage.fleet()
    await fleet.workflows.add(Workflow("report", call="tests.durable.durable_work:work"))
    await fleet.schedules.add("nightly", workflow="report", input={"name": "a"}, cron="0 * * * *", overlap="allow")
    await stage.device("desk", monitor_every=None)
    schedules = SchedulePass(fleet)
    await asyncio.sleep(900)  # of virtual time
    await schedules.run_pass()
    await stage.until(lambda: durable_work.DONE)
    page = await list_ticks(LocalSystem(fleet), ListTicks("nightly", "1970-01-12T13:00", "1970-01-12T15:00"))
    assert [tick.state for tick in page.items] == ["none", "succeeded", "due"]
    assert page.items[1].work == (await fleet.schedules.history("nightly"))[-1].what
