"""Backfills of schedules: a plan for each tick, in order or several at once, whatever is killed or cancelled."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections import Counter
from typing import Any

import pytest

from asterism.api.local.schedule_handlers import NO_RUNNER, list_schedules, show_backfill
from asterism.api.operation import NoFields
from asterism.api.schedule_operations import OneSchedule
from asterism.api.system import LocalSystem
from asterism.cli.run.schedule_views import followed_backfill
from asterism.core.plan.constellation import Constellation
from asterism.core.schedule.schedule import InvalidSchedule
from asterism.core.schedule.tick_values import InvalidTick
from asterism.durable import plan_runner
from asterism.durable.journal_store import read_heads
from asterism.durable.plan_runner import PlanRunner
from asterism.durable.runner_registers import announce_runner
from asterism.durable.stored_plans import explain_task
from asterism.fleet import scheduled_work, schedules
from asterism.fleet.scheduled_work import SchedulePass, backfill_key, plan_name
from asterism.fleet.schedules import BackfillRuns, UnknownBackfill, UnknownSchedule
from asterism.store.memory import MemoryStore
from asterism.store.protocol import PutRegister
from tests.durable import durable_work
from tests.durable.durable_scenes import Stage, chain
from tests.durable.durable_work import DONE

pytestmark = pytest.mark.virtual_time


async def added(stage: Stage, plan: Constellation | None = None, **options: Any) -> None:
    options = {"cron": "0 * * * *", **options}
    await stage.fleet().schedules.add("nightly", plan=plan or chain("a"), **options)


def runner(stage: Stage) -> PlanRunner:
    return PlanRunner(stage.fleet(), make=lambda fleet: stage.orchestrator(local=0))


async def coordinate(stage: Stage) -> None:
    schedules = SchedulePass(stage.fleet())
    while True:
        await schedules.run_pass()
        await asyncio.sleep(1.0)


async def working(stage: Stage) -> None:
    """A coordinator, a runner and a device."""
    await stage.device("desk", monitor_every=None)
    stage.spawn(coordinate(stage))
    stage.spawn(runner(stage).run())


async def ended(stage: Stage) -> Any:
    for _ in range(3000):
        latest = await stage.fleet().schedules.read_backfill("nightly")
        if latest.ended_at is not None:
            return latest
        await asyncio.sleep(1.0)
    raise AssertionError(f"it never ended: {latest}")


async def states(stage: Stage) -> dict[str, str]:
    return {head.name.removeprefix("nightly-19700112T"): head.state for head in await read_heads(stage.store)}


async def test_each_tick_has_a_plan_in_its_order(stage: Stage) -> None:
    await added(stage)
    await working(stage)
    begun = await stage.fleet().schedules.start_backfill("nightly", "1970-01-12T03:00", "1970-01-12T05:30")
    assert (begun.total, begun.first, begun.last) == (3, 961_200, 968_400)
    last = await ended(stage)
    assert (last.succeeded, last.failed, last.skipped) == (3, 0, 0)
    assert await states(stage) == dict.fromkeys(["030000Z", "040000Z", "050000Z"], "completed")
    heads = sorted(await read_heads(stage.store), key=lambda head: head.name)
    assert [head.ended_at for head in heads] == sorted(head.ended_at or 0.0 for head in heads)
    assert (await stage.load(heads[1].name)).plan.tick["tick.previous"] == "1970-01-12T03:00:00+00:00"
    [notice] = [notice for _, notice in await stage.store.notices() if notice.kind == "schedule"]
    text = "schedule nightly: the backfill of 3 ticks has ended: 3 succeeded, 0 failed, 0 skipped"
    assert notice.message == text


@pytest.mark.parametrize(("looks", "most"), [(plan_runner.LOOKS_AFTER_END, 24.0), (0, 120.0)])
async def test_the_next_plan_of_a_backfill_starts_soon(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, looks: int, most: float
) -> None:
    """The coordinator is another process, which cannot wake the runner. Without looks after an end, each plan waits for
    the next look."""
    monkeypatch.setattr(plan_runner, "LOOKS_AFTER_END", looks)
    await added(stage)
    await working(stage)
    begun = stage.now()
    await stage.fleet().schedules.start_backfill("nightly", "1970-01-12T00:00", "1970-01-12T11:00")
    assert (await ended(stage)).succeeded == 12
    took = stage.now() - begun
    assert most / 3 < took < most


async def test_who_follows_is_told_that_no_process_runs_the_plans(stage: Stage) -> None:
    await added(stage)
    stage.spawn(coordinate(stage))
    await stage.device("desk", monitor_every=2.0)
    await stage.fleet().schedules.start_backfill("nightly", "1970-01-12T03:00", "1970-01-12T04:00")
    system = LocalSystem(stage.fleet())
    assert (await show_backfill(system, OneSchedule("nightly"))).advice == [NO_RUNNER]
    assert (await list_schedules(system, NoFields())).advice == [NO_RUNNER]
    await announce_runner(stage.store, "a monitor")
    assert (await show_backfill(system, OneSchedule("nightly"))).advice == []


async def test_what_succeeded_is_skipped_and_what_failed_is_run_again(stage: Stage) -> None:
    await added(stage, chain("a", call="fail"))
    await working(stage)
    fleet = stage.fleet()
    await fleet.schedules.start_backfill("nightly", "1970-01-12T04:00", "1970-01-12T05:00")
    first = await ended(stage)
    assert (first.failed, first.failures) == (2, ("nightly-19700112T040000Z", "nightly-19700112T050000Z"))
    await fleet.schedules.add("nightly", plan=chain("a"), cron="0 * * * *", replace=True)
    await fleet.schedules.start_backfill("nightly", "1970-01-12T02:00", "1970-01-12T03:00")
    assert (await ended(stage)).succeeded == 2
    again = await fleet.schedules.start_backfill("nightly", "1970-01-12T02:00", "1970-01-12T04:00", parallel=5)
    assert again.total == 3
    last = await ended(stage)
    assert (last.skipped, last.failed, last.succeeded) == (2, 1, 0)
    epochs = {node.epoch for node in (await stage.load("nightly-19700112T040000Z")).plan.nodes.values()}
    assert epochs == {2}  # it was run again


async def test_a_backfill_of_what_is_missing_leaves_failed_plans_alone(stage: Stage) -> None:
    await added(stage, chain("a", call="fail"))
    await working(stage)
    fleet = stage.fleet()
    await fleet.schedules.start_backfill("nightly", "1970-01-12T04:00", "1970-01-12T05:00")
    assert (await ended(stage)).failed == 2
    await fleet.schedules.add("nightly", plan=chain("a"), cron="0 * * * *", replace=True)
    await fleet.schedules.start_backfill("nightly", "1970-01-12T03:00", "1970-01-12T05:00", only_missing=True)
    last = await ended(stage)
    assert (last.succeeded, last.failed, last.skipped) == (1, 0, 2)
    assert await states(stage) == {"030000Z": "completed", "040000Z": "failed", "050000Z": "failed"}


@pytest.mark.parametrize("value", [7, {"schedule": "daily"}])
async def test_a_damaged_backfill_does_not_stop_the_others(stage: Stage, value: Any) -> None:
    await added(stage)
    await stage.store.commit([PutRegister(backfill_key("daily"), value, None)])
    await working(stage)
    await stage.fleet().schedules.start_backfill("nightly", "1970-01-12T03:00", "1970-01-12T04:30")
    assert (await ended(stage)).succeeded == 2


async def test_several_run_at_once(stage: Stage) -> None:
    await added(stage, chain("a", call="wait"))
    await working(stage)
    await stage.fleet().schedules.start_backfill("nightly", "1970-01-12T01:00", "1970-01-12T06:00", parallel=3)
    await asyncio.sleep(30.0)
    assert len((await stage.fleet().schedules.read_backfill("nightly")).open) == 3
    durable_work.gate("a").set()
    assert (await ended(stage)).succeeded == 6


async def test_a_backfill_is_cancelled_with_its_open_plans(stage: Stage) -> None:
    await added(stage, chain("a", call="wait"))
    await working(stage)
    fleet = stage.fleet()
    await fleet.schedules.start_backfill("nightly", "1970-01-12T01:00", "1970-01-12T06:00", parallel=2)
    await asyncio.sleep(30.0)
    assert (await fleet.schedules.cancel_backfill("nightly", "wrong day")).cancelled == "by ann: wrong day"
    last = await ended(stage)
    assert (last.failed, last.succeeded) == (2, 0)
    assert set((await states(stage)).values()) == {"cancelled"}
    assert (await fleet.schedules.cancel_backfill("nightly")) == last


async def test_a_tick_that_the_schedule_has_created_is_not_created_again(stage: Stage) -> None:
    await added(stage, cron="50 13 * * *")
    job = stage.spawn(coordinate(stage))
    await asyncio.sleep(300.0)
    job.cancel()
    assert list(await states(stage)) == ["135000Z"]
    await working(stage)
    await stage.fleet().schedules.start_backfill("nightly", "1970-01-12", None)
    assert (await ended(stage)).succeeded == 1
    assert DONE == {"a": 1}


async def test_the_backfill_of_a_removed_schedule_ends(stage: Stage) -> None:
    await added(stage, chain("a", call="wait"))
    await working(stage)
    await stage.fleet().schedules.start_backfill("nightly", "1970-01-12T01:00", "1970-01-12T06:00")
    await asyncio.sleep(30.0)
    await stage.fleet().schedules.remove("nightly")
    await asyncio.sleep(30.0)
    register = await stage.store.register(backfill_key("nightly"))
    assert register is not None
    assert register.value["cancelled"] == "the schedule was removed"
    assert register.value["ended_at"] is not None


async def test_what_cannot_begin(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = stage.fleet()
    with pytest.raises(UnknownSchedule):
        await fleet.schedules.start_backfill("nightly", "1970-01-12", None)
    await added(stage)
    with pytest.raises(UnknownBackfill, match="schedule 'nightly' has had no backfill"):
        await fleet.schedules.read_backfill("nightly")
    with pytest.raises(InvalidTick, match="'5x' is not a valid tick"):
        await fleet.schedules.start_backfill("nightly", "5x", None)
    with pytest.raises(InvalidSchedule, match="has no tick from 1970-01-13 to now"):
        await fleet.schedules.start_backfill("nightly", "1970-01-13", None)
    with monkeypatch.context() as patch:
        patch.setattr(schedules, "MOST_TICKS", 12)
        with pytest.raises(InvalidSchedule, match="a backfill has at most 12 ticks; choose a shorter time"):
            await fleet.schedules.start_backfill("nightly", "1970-01-12", None)
    await fleet.schedules.start_backfill("nightly", "1970-01-12", None)
    with pytest.raises(
        BackfillRuns, match="has not ended; cancel it with: asterism schedule backfill nightly --cancel"
    ):
        await fleet.schedules.start_backfill("nightly", "1970-01-12", None)


# -- ticks that wait for the tick before -------------------------------------------------------------------------------


async def test_a_tick_waits_until_the_one_before_has_succeeded(stage: Stage) -> None:
    await added(stage, chain("a", call="fail"), after_previous="success")
    await working(stage)
    fleet = stage.fleet()
    await fleet.schedules.start_backfill("nightly", "1970-01-12T01:00", "1970-01-12T03:00", parallel=3)
    await asyncio.sleep(60.0)
    assert await states(stage) == {"010000Z": "failed", "020000Z": "created", "030000Z": "created"}
    answer = await explain_task(fleet, "nightly-19700112T020000Z", "a")
    before = "nightly-19700112T010000Z"
    assert [(reason.kind, reason.text) for reason in answer.reasons] == [
        ("previous", f"the plan waits until that of the tick before, {before}, has succeeded")
    ]
    await fleet.schedules.cancel_backfill("nightly")
    assert (await ended(stage)).failed == 3


async def test_without_that_a_tick_goes_on_after_a_failure(stage: Stage) -> None:
    await added(stage, chain("a", call="fail"))
    await working(stage)
    await stage.fleet().schedules.start_backfill("nightly", "1970-01-12T01:00", "1970-01-12T03:00", parallel=3)
    assert (await ended(stage)).failed == 3
    assert set((await states(stage)).values()) == {"failed"}


# -- late plans --------------------------------------------------------------------------------------------------------


async def test_a_late_plan_is_told_once(stage: Stage) -> None:
    await added(stage, cron="50 13 * * *", late_after=600.0)
    stage.spawn(coordinate(stage))
    await asyncio.sleep(790.0)
    assert [notice for _, notice in await stage.store.notices()] == []
    await asyncio.sleep(2000.0)
    [(_, notice)] = await stage.store.notices()
    plan = "nightly-19700112T135000Z"
    assert notice.message == f"schedule nightly: plan {plan} is late: it has not ended 10m after its tick"
    assert (await stage.fleet().schedules.get("nightly")).late == (plan,)


async def test_a_plan_that_ended_in_time_is_not_late(stage: Stage) -> None:
    await added(stage, cron="50 13 * * *", late_after=600.0)
    await working(stage)
    await asyncio.sleep(3000.0)
    assert [notice for _, notice in await stage.store.notices()] == []


# -- safeguards --------------------------------------------------------------------------------------------------------


async def together(stage: Stage) -> Counter[str]:
    """Two coordinators carry a backfill on at the same time, over slow lines. How many plans each tick has."""
    await added(stage)
    await stage.fleet().schedules.start_backfill("nightly", "1970-01-12T01:00", "1970-01-12T04:00", parallel=10)
    for _ in range(5):
        await asyncio.gather(*(SchedulePass(stage.fleet()).run_pass() for _ in range(2)))
    return Counter(head.name.partition("#")[0] for head in await read_heads(stage.store))


def slow_commits(patch: pytest.MonkeyPatch, *, revisions: bool = True) -> None:
    """Commits take a second. Without ``revisions``, a backfill is written whatever its revision is by then."""
    commit = MemoryStore.commit

    async def slow(self: Any, writes: Any) -> None:
        await asyncio.sleep(1.0)
        current = []
        for write in writes:
            if not revisions and isinstance(write, PutRegister) and write.key.startswith(scheduled_work.BACKFILLS):
                register = await self.register(write.key)
                write = PutRegister(write.key, write.value, register and register.revision)
            current.append(write)
        await commit(self, current)

    patch.setattr(MemoryStore, "commit", slow)


def without_names(patch: pytest.MonkeyPatch) -> None:
    number = itertools.count()
    patch.setattr(scheduled_work, "plan_name", lambda *names: f"{plan_name(*names)}#{next(number)}")


async def test_two_coordinators_create_each_tick_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_commits(monkeypatch)
    counts = await together(stage)
    assert (len(counts), set(counts.values())) == (4, {1})


async def test_the_revision_alone_keeps_them_apart(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_commits(monkeypatch)
    without_names(monkeypatch)
    assert set((await together(stage)).values()) == {1}


async def test_the_name_alone_keeps_them_apart(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_commits(monkeypatch, revisions=False)
    assert set((await together(stage)).values()) == {1}


async def test_without_both_a_tick_is_created_twice(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_commits(monkeypatch, revisions=False)
    without_names(monkeypatch)
    assert 2 in (await together(stage)).values()


async def test_who_follows_a_backfill_reads_how_far_it_is_and_how_long_it_takes(
    stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    await added(stage, chain("a", call="wait"))
    await working(stage)
    fleet = stage.fleet()
    await fleet.schedules.start_backfill("nightly", "1970-01-12T03:00", "1970-01-12T06:00")
    system = LocalSystem(fleet)
    following = stage.spawn(followed_backfill(system, await system.show_backfill("nightly"), fleet.clock))
    await durable_work.gate("a begun").wait()
    await asyncio.sleep(100)
    durable_work.gate("a").set()
    last = await following
    lines = capsys.readouterr().err.splitlines()
    assert (last.succeeded, last.ended_at is not None) == (4, True)
    assert lines[0] == "Backfill of nightly: 0 of 4 ticks done: 1 open"
    assert len(lines) <= 4, "a line only if it has come further, and not more often than each 5 s"
    assert re.fullmatch(r"Backfill of nightly: [1-3] of 4 ticks done: .* succeeded, .*about .* left", lines[1])
