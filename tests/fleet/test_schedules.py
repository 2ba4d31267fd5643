"""Schedules of workflows: what the coordinator creates at each tick, in virtual time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest

from asterism.core.errors import AsterismError, NotJson, TooLarge
from asterism.core.run.run import Run
from asterism.core.schedule.schedule import InvalidSchedule, Schedule
from asterism.core.schedule.tick_values import TICK_INPUT
from asterism.core.schedule.ticks import TickEntry
from asterism.execution.placeholders import UnknownPlaceholder
from asterism.fleet.monitor import Monitor
from asterism.fleet.schedules import ScheduleExists, UnknownSchedule
from asterism.fleet.workflows import UnknownWorkflow
from asterism.store.protocol import PutRegister, Query
from tests.fleet.fleet_scenes import WORK, Line, Stage

pytestmark = pytest.mark.virtual_time

MINUTE, HOUR = 60.0, 3600.0


async def added(stage: Stage, name: str = "nightly", **options: Any) -> Schedule:
    await stage.person.workflows.add(WORK)
    options = {"workflow": "work", **({"every": 60} if "cron" not in options else {}), **options}
    return await stage.person.schedules.add(name, **options)


async def watch(monitor: Monitor, seconds: float, every: float = 5.0) -> None:
    end = asyncio.get_running_loop().time() + seconds
    while asyncio.get_running_loop().time() < end:
        await monitor.run_pass()
        await asyncio.sleep(every)


async def runs_of(stage: Stage) -> list[Run]:
    return await stage.store.find(Query())


async def outcomes(stage: Stage, name: str = "nightly") -> list[str]:
    return [entry.outcome for entry in await stage.person.schedules.history(name)]


# -- ticks -----------------------------------------------------------------------------------------------------------


async def test_a_tick_creates_a_run_that_a_device_executes(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", monitor_every=5.0)
    schedule = await added(stage, input={"n": 1}, priority=3)
    assert schedule.next == schedule.start + 60
    await stage.until(lambda: kitchen.hands.busy)
    [run] = await runs_of(stage)
    assert 60.0 <= stage.store.clock() - schedule.start <= 61.0  # the next pass is not a whole interval later
    assert (run.workflow, run.input["n"], run.priority, run.created_by) == ("work", 1, 3, "ann")
    assert (run.key, run.label) == ("schedule:nightly/19700112T134740Z", "nightly 19700112T134740Z")
    kitchen.hands.finish(run)
    await stage.end_of(run)
    entry = TickEntry(run.created_at, schedule.next, "created", run.id)
    assert await stage.person.schedules.history("nightly") == [entry]
    now = await stage.person.schedules.get("nightly")
    assert (now.made, now.open, now.next) == (1, (run.id,), schedule.start + 120)


async def test_a_run_learns_its_tick_in_its_input(stage: Stage) -> None:
    await stage.device("kitchen", monitor_every=5.0)
    values = {"day": "{tick.date}", "span": ["{tick.previous}", "{tick}"], "text": "{{tick}}", "key": {"secret": "K"}}
    await added(stage, input=values, cron="0 * * * *", timezone="Europe/Berlin")
    await asyncio.sleep(900)  # of virtual time
    [run] = await runs_of(stage)
    at, before = "1970-01-12T15:00:00+01:00", "1970-01-12T14:00:00+01:00"
    tick = {"tick": at, "tick.date": "1970-01-12", "tick.previous": before, "tick.end": "1970-01-12T16:00:00+01:00"}
    tick["tick.zone"] = "Europe/Berlin"
    filled = {"day": "1970-01-12", "span": [before, at], "text": "{tick}", "key": {"secret": "K"}}
    assert run.input == {**filled, TICK_INPUT: tick}


async def test_a_run_on_request_has_the_last_tick_and_an_input_tick_is_no_placeholder(stage: Stage) -> None:
    await added(stage, input={"tick": "of the clock", "word": "{tick}"})
    await asyncio.sleep(90)
    await stage.person.schedules.run("nightly")
    [run] = await runs_of(stage)
    assert (run.input["tick"], run.input["word"]) == ("of the clock", "{tick}")
    assert run.input[TICK_INPUT]["tick"] == "1970-01-12T13:47:40+00:00"


async def test_an_input_with_an_unknown_part_of_a_tick_is_refused_at_once(stage: Stage) -> None:
    with pytest.raises(UnknownPlaceholder, match=r"\{tick.day\} has no value"):
        await added(stage, input={"day": "{tick.day}"})


async def test_the_latest_version_of_the_workflow_is_used(stage: Stage) -> None:
    await added(stage)
    changed = await stage.person.workflows.add(WORK.__class__("work", call="work:other"))
    await watch(stage.monitor(), 65.0)
    [run] = await runs_of(stage)
    assert (run.version, changed.version) == (2, 2)


async def test_cron_in_a_time_zone(stage: Stage) -> None:
    schedule = await added(stage, cron="0 3 * * *", timezone="Europe/Berlin")
    assert schedule.next == 1_000_000 - 1_000_000 % 86_400 + 86_400 + 2 * 3600  # 03:00 in Berlin is 02:00 UTC
    assert await stage.person.schedules.next_times("nightly", 2) == [schedule.next, schedule.next + 86_400]


async def test_a_paused_schedule_creates_nothing_and_does_not_catch_up(stage: Stage) -> None:
    schedules = stage.person.schedules
    await added(stage)
    monitor = stage.monitor()
    paused = await schedules.pause("nightly", "holiday")
    assert paused.paused == "by ann: holiday"
    assert await schedules.pause("nightly") == paused
    assert await schedules.next_times("nightly") == []
    await watch(monitor, 600.0, every=30.0)
    assert await runs_of(stage) == []
    await asyncio.sleep(130.0)
    resumed = await schedules.resume("nightly")
    assert (resumed.paused, resumed.after) == (None, int(stage.store.clock()))
    assert await schedules.resume("nightly") == resumed
    await watch(monitor, 130.0)
    assert len(await runs_of(stage)) == 1
    assert set(await outcomes(stage)) <= {"created", "skipped"}


async def test_jitter_delays_each_tick_by_another_time(stage: Stage) -> None:
    schedule = await added(stage, jitter=40.0, overlap="allow")
    await watch(stage.monitor(), 660.0, every=3.0)
    delays = [run.created_at - (schedule.start + 60 * n) for n, run in enumerate(await runs_of(stage), 1)]
    assert len(delays) >= 9
    assert all(0.0 <= delay <= 43.0 for delay in delays)
    assert len({round(delay) for delay in delays}) > 5


# -- missed ticks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "runs", "expected"),
    [("none", 0, ["missed"]), ("last", 1, ["missed", "created"]), ("all", 12, ["created"] * 12)],
)
async def test_catch_up_after_an_absence(stage: Stage, catch_up: str, runs: int, expected: list[str]) -> None:
    await added(stage, every=300, catch_up=catch_up, overlap="allow")
    await asyncio.sleep(HOUR + 100.0)
    await stage.monitor().run_pass()
    assert len(await runs_of(stage)) == runs
    assert await outcomes(stage) == expected
    missed = [entry.number for entry in await stage.person.schedules.history("nightly") if entry.outcome == "missed"]
    assert missed == ([12 - runs] if runs < 12 else [])
    notices = [notice.message for notice in await stage.notices("schedule")]
    dropped = [f"schedule nightly: {12 - runs} missed ticks were not created"]
    assert notices == (dropped if catch_up != "all" else [])


async def test_catching_up_queues_and_drops_no_tick(stage: Stage) -> None:
    assert (await added(stage, every=300, catch_up="all")).overlap == "queue"
    await asyncio.sleep(HOUR + 100.0)
    await watch(stage.monitor(), 30.0)
    assert (await outcomes(stage), len(await runs_of(stage))) == (["created"] * 12, 12)


@pytest.mark.parametrize(("overlap", "which"), [("skip", "the first"), ("replace", "the last")])
async def test_an_overlap_that_would_drop_missed_ticks_is_refused(stage: Stage, overlap: str, which: str) -> None:
    with pytest.raises(InvalidSchedule, match=f"{overlap} would drop the missed ticks but {which}: use queue, or"):
        await added(stage, catch_up="all", overlap=overlap)


async def test_a_tick_that_finds_no_room_in_the_queue_is_a_notice(stage: Stage) -> None:
    await added(stage, every=10, catch_up="all")
    await asyncio.sleep(HOUR)
    monitor = stage.monitor()
    await watch(monitor, 5.0, every=0.5)
    assert len(await runs_of(stage)) == 100
    await asyncio.sleep(10.0)
    await monitor.run_pass()
    missed, *_, skipped = await stage.person.schedules.history("nightly")
    assert (missed.outcome, missed.why, skipped.outcome) == ("missed", "and older ones", "skipped")
    assert [notice.message.partition(": ")[2] for notice in await stage.notices("schedule")] == [
        "1 or more missed ticks were not created",
        "tick 19700112T144650Z was skipped: 100 earlier ones have not ended, and more may not wait",
    ]


async def test_catching_up_is_spread_over_passes(stage: Stage) -> None:
    await added(stage, every=10, catch_up="all", overlap="allow")
    await asyncio.sleep(5 * HOUR)
    monitor = stage.monitor()
    await monitor.run_pass()
    assert len(await runs_of(stage)) == 20
    assert monitor.due_in == 0.5
    for _ in range(4):
        await monitor.run_pass()
    assert len(await runs_of(stage)) == 100
    assert (await stage.person.schedules.get("nightly")).made == 100


# -- overlap ---------------------------------------------------------------------------------------------------------


async def test_skip(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=3)
    await added(stage)
    monitor = stage.monitor()
    await watch(monitor, 130.0)
    [run] = await runs_of(stage)
    assert await outcomes(stage) == ["created", "skipped"]
    assert (await stage.person.schedules.history("nightly"))[1].why == f"{run.id} has not ended"
    kitchen.hands.finish(run)
    await watch(monitor, 60.0)
    assert await outcomes(stage) == ["created", "skipped", "created"]


async def test_queue(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=3)
    await added(stage, overlap="queue")
    await watch(stage.monitor(), 190.0)
    first, second, third = await runs_of(stage)
    assert kitchen.hands.busy == {first.id}
    kitchen.hands.finish(first)
    await stage.at_work(kitchen, second)
    kitchen.hands.finish(second)
    await stage.at_work(kitchen, third)
    kitchen.hands.finish(third)


async def test_replace(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=3)
    kitchen.hands.stopping = 2.0
    await added(stage, overlap="replace", every=20)
    watching = asyncio.create_task(watch(stage.monitor(), 5000.0))
    await stage.until(lambda: len(kitchen.hands.begun) == 2)
    watching.cancel()
    first, second = await runs_of(stage)
    [(stopped, _, when)] = kitchen.hands.stopped
    assert stopped == first.id
    assert kitchen.hands.begun[1][2] >= when  # the new run begins when the old one has stopped
    assert (await stage.read(first)).cancelled
    assert (await stage.person.schedules.get("nightly")).replaced == ()
    kitchen.hands.finish(second)


async def test_a_coordinator_that_dies_before_it_cancels_leaves_it_to_the_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    kitchen = await stage.device("kitchen", slots=3)
    await added(stage, overlap="replace")
    line = Line(stage.store)
    dying = stage.monitor("dying", line)
    await watch(dying, 65.0)
    [first] = await runs_of(stage)
    await stage.at_work(kitchen, first)
    monkeypatch.setattr("asterism.fleet.fleet.Fleet.cancel", _dies)
    with pytest.raises(asyncio.CancelledError):
        await watch(dying, 65.0)
    monkeypatch.undo()
    _, second = await runs_of(stage)
    assert (await stage.person.schedules.get("nightly")).replaced == (first.id,)
    assert kitchen.hands.busy == {first.id}  # the new one waits in the series
    await stage.monitor("next").run_pass()
    await stage.at_work(kitchen, second)
    kitchen.hands.finish(second)


async def _dies(fleet: object, run_id: str) -> None:
    raise asyncio.CancelledError


async def test_allow(stage: Stage) -> None:
    kitchen = await stage.device("kitchen", slots=3)
    await added(stage, overlap="allow")
    await watch(stage.monitor(), 190.0)
    assert len(kitchen.hands.busy) == 3
    for run in list(kitchen.hands.busy):
        kitchen.hands.finish(run)


# -- people ----------------------------------------------------------------------------------------------------------


async def test_a_name_is_used_once_unless_it_is_replaced(stage: Stage) -> None:
    schedules = stage.person.schedules
    await added(stage)
    with pytest.raises(ScheduleExists, match=r"there is a schedule 'nightly' already \(every 1m\)"):
        await added(stage)
    await watch(stage.monitor(), 65.0)
    old = await schedules.get("nightly")
    new = await added(stage, every=90, replace=True)
    assert (new.every, new.made, new.open) == (90, 1, old.open)
    assert await outcomes(stage) == ["created"]


async def test_a_removed_schedule_can_be_added_again(stage: Stage) -> None:
    schedules = stage.person.schedules
    await added(stage)
    await watch(stage.monitor(), 65.0)
    assert (await schedules.remove("nightly")).name == "nightly"
    assert await schedules.all() == []
    for call in (schedules.get, schedules.remove, schedules.pause, schedules.run, schedules.history):
        with pytest.raises(UnknownSchedule, match="there is no schedule 'nightly'; list them with"):
            await call("nightly")
    await watch(stage.monitor(), 600.0, every=30.0)
    assert len(await runs_of(stage)) == 1
    again = await added(stage)
    assert (again.made, await outcomes(stage)) == (0, [])
    assert [schedule.name for schedule in await schedules.all()] == ["nightly"]


async def test_a_run_on_request_leaves_the_times_alone(stage: Stage) -> None:
    schedules = stage.person.schedules
    before = await added(stage)
    first = await schedules.run("nightly")
    assert (first.outcome, first.tick, first.why) == ("created", None, "by ann")
    assert (await schedules.run("nightly")).outcome == "skipped"
    after = await schedules.get("nightly")
    assert (after.next, after.made) == (before.next, 1)
    [run] = await runs_of(stage)
    assert (run.id, run.key) == (first.what, None)


async def test_a_run_on_request_replaces(stage: Stage) -> None:
    await added(stage, overlap="replace")
    first, second = [await stage.person.schedules.run("nightly") for _ in range(2)]
    assert first.what is not None
    assert (await stage.person.run(first.what)).cancelled
    assert second.what is not None
    kitchen = await stage.device("kitchen")
    await stage.at_work(kitchen, await stage.person.run(second.what))


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"cron": "0 0 30 2 *"}, InvalidSchedule, "schedule 'nightly': the cron expression '0 0 30 2 *' never fires"),
        ({"cron": "0 0 * *"}, InvalidSchedule, "has 4 fields"),
        ({"cron": "0 0 * * *", "timezone": "Mars/Base"}, InvalidSchedule, "there is no time zone 'Mars/Base'"),
        ({"every": 0}, InvalidSchedule, "every must be a whole number of seconds"),
        ({"workflow": "nothing"}, UnknownWorkflow, "there is no workflow 'nothing'"),
        ({"input": {"x": "a" * 70_000}}, TooLarge, "a schedule keeps 65,536 at most: put it into a file"),
        ({"input": {"x": object()}}, NotJson, "the input of schedule 'nightly'"),
        ({"input": [1]}, NotJson, "must be an object of named values"),
        ({"overlap": "wait"}, InvalidSchedule, "overlap must be one of"),
    ],
)
async def test_what_cannot_be_added(stage: Stage, options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words.replace("(", r"\(").replace("*", r"\*")):
        await added(stage, **options)
    assert await stage.person.schedules.all() == []


async def test_keys_of_schedules_are_reserved(stage: Stage) -> None:
    await stage.person.workflows.add(WORK)
    with pytest.raises(AsterismError, match="keys that begin with 'schedule:' are reserved for schedules"):
        await stage.person.create("work", key="schedule:nightly/20261116T030000Z")


# -- trouble ---------------------------------------------------------------------------------------------------------


async def test_a_tick_that_cannot_be_created_is_recorded_and_the_next_one_comes(stage: Stage) -> None:
    await added(stage, input={"text": "x" * 100})
    await stage.person.configure(most=50)
    monitor = stage.monitor()
    await watch(monitor, 65.0)
    assert await outcomes(stage) == ["failed"]
    [notice] = await stage.notices("schedule")
    assert notice.message.startswith("schedule nightly: nothing was created: the input of schedule 'nightly' has")
    await stage.person.configure(most=1_000_000)
    await watch(monitor, 65.0)
    assert await outcomes(stage) == ["failed", "created"]


async def test_a_schedule_that_cannot_be_read_does_not_stop_the_others(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await stage.store.commit([PutRegister("schedule/a-later-one", {"name": "a-later-one", "color": "red"}, None)])
    await added(stage)
    with caplog.at_level(logging.WARNING, "asterism.schedule"):
        await watch(stage.monitor(), 65.0)
    assert len(await runs_of(stage)) == 1
    line = caplog.records[0].getMessage()
    assert [schedule.name for schedule in await stage.person.schedules.all()] == ["nightly"]
    assert "cannot decide about schedule a-later-one" in line
    assert "color" in line


async def test_a_fleet_without_schedules_reads_twice_in_a_pass_and_writes_nothing(stage: Stage) -> None:
    line = Line(stage.store)
    monitor = stage.monitor("hub", line)
    await monitor.run_pass()
    line.asked = Counter()
    await monitor.run_pass()
    assert line.asked["registers"] == 2  # schedules, and holds of limits
    assert line.asked["commit"] == 0


async def test_a_pass_without_a_due_tick_reads_twice_and_writes_nothing(stage: Stage) -> None:
    for number in range(10):
        await added(stage, f"s{number}")
    line = Line(stage.store)
    monitor = stage.monitor("hub", line)
    await monitor.run_pass()
    line.asked = Counter()
    await monitor.run_pass()
    assert line.asked["registers"] == 2  # schedules, and holds of limits
    assert line.asked["commit"] == 0
