"""Schedules of plans: a tick stores a plan, a plan runner runs it, and another one takes over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism.base.openmetrics import render
from asterism.core.errors import NotJson, TooLarge
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from asterism.core.schedule.schedule import Schedule
from asterism.durable.journal_store import read_heads
from asterism.durable.plan_metrics import plan_families
from asterism.durable.plan_runner import PlanRunner
from asterism.durable.stored_plans import explain_task
from asterism.fleet import schedules as schedules_module
from asterism.fleet.scheduled_work import SchedulePass
from asterism.fleet.schedules import ScheduleExists
from asterism.fleet.selection_metrics import fleet_families
from asterism.store.protocol import PutRegister
from asterism.store.store_errors import StoreUnavailable
from tests.durable.durable_scenes import Stage, chain
from tests.durable.durable_work import DONE

pytestmark = pytest.mark.virtual_time


async def added(stage: Stage, plan: Constellation | None = None, **options: Any) -> Schedule:
    options = {"every": 60, "plan_text": "asterism: 1\n", **options}
    return await stage.fleet().schedules.add("nightly", plan=plan or chain("a", "b"), **options)


def runner(stage: Stage, host: str = "here") -> PlanRunner:
    return PlanRunner(stage.fleet(), make=lambda fleet: stage.orchestrator(host=host, local=0))


async def coordinate(stage: Stage) -> None:
    """Decide about ticks, as the coordinator does."""
    decide = SchedulePass(stage.fleet())
    while True:
        await decide.run_pass()
        await asyncio.sleep(5.0)


async def states(stage: Stage) -> dict[str, str]:
    return {head.name: head.state for head in await read_heads(stage.store)}


async def outcomes(stage: Stage) -> list[str]:
    return [entry.outcome for entry in await stage.fleet().schedules.history("nightly")]


async def until_ended(stage: Stage, number: int) -> dict[str, str]:
    """Wait until so many plans are completed."""
    plan_states = {}
    for _ in range(3000):
        plan_states = await states(stage)
        if list(plan_states.values()).count("completed") >= number:
            return plan_states
        await asyncio.sleep(1.0)
    raise AssertionError(f"they never ended: {plan_states}")


async def test_a_tick_stores_a_plan_that_a_runner_runs(stage: Stage) -> None:
    await stage.device("desk", monitor_every=None)
    schedule = await added(stage)
    assert (schedule.plan, schedule.target) == ("nightly", "plan nightly")
    assert await stage.fleet().schedules.plan_text("nightly") == "asterism: 1\n"
    stage.spawn(coordinate(stage))
    stage.spawn(runner(stage).run())
    assert await until_ended(stage, 2) == dict.fromkeys(
        ["nightly-19700112T134740Z", "nightly-19700112T134840Z"], "completed"
    )
    assert DONE == {"a": 2, "b": 2}
    assert await outcomes(stage) == ["created", "created"]


async def test_a_plan_without_a_runner_waits_and_the_next_tick_is_skipped(stage: Stage) -> None:
    await added(stage)
    stage.spawn(coordinate(stage))
    await asyncio.sleep(130.0)
    assert list((await states(stage)).values()) == ["created"]
    assert await outcomes(stage) == ["created", "skipped"]


async def test_queued_plans_run_one_after_the_other(stage: Stage) -> None:
    await added(stage, overlap="queue")
    job = stage.spawn(coordinate(stage))
    await asyncio.sleep(130.0)
    job.cancel()
    assert list((await states(stage)).values()) == ["created", "created"]
    held = await explain_task(stage.fleet(), "nightly-19700112T134840Z", "a")
    assert [reason.text for reason in held.reasons] == [
        "the plan waits for its turn: plan nightly-19700112T134740Z has not ended"
    ]
    first = runner(stage)
    await first.look()
    assert list(first.running) == ["nightly-19700112T134740Z"]
    await stage.device("desk", monitor_every=None)
    stage.spawn(first.run())
    await until_ended(stage, 2)


async def test_plans_that_may_overlap_run_at_once(stage: Stage) -> None:
    await added(stage, overlap="allow")
    job = stage.spawn(coordinate(stage))
    await asyncio.sleep(130.0)
    job.cancel()
    both = runner(stage)
    await both.look()
    assert len(both.running) == 2
    await stage.device("desk", monitor_every=None)
    stage.spawn(both.run())
    await until_ended(stage, 2)


async def test_a_tick_replaces_the_earlier_plan(stage: Stage) -> None:
    await added(stage, overlap="replace")
    job = stage.spawn(coordinate(stage))
    await asyncio.sleep(130.0)
    job.cancel()
    await stage.device("desk", monitor_every=None)
    stage.spawn(runner(stage).run())
    plan_states = await until_ended(stage, 1)
    assert plan_states == {"nightly-19700112T134740Z": "cancelled", "nightly-19700112T134840Z": "completed"}
    assert DONE == {"a": 1, "b": 1}


async def test_another_runner_takes_over_when_the_owner_is_gone(stage: Stage) -> None:
    await added(stage)
    ticking = stage.spawn(coordinate(stage))
    first = stage.spawn(runner(stage, "first").run())
    await asyncio.sleep(75.0)
    ticking.cancel()
    [head] = await read_heads(stage.store)
    assert head.device == "nightly-19700112T134740Z@first"
    stage.spawn(runner(stage, "second").run())
    await asyncio.sleep(30.0)
    first.cancel()
    await stage.device("desk", monitor_every=None)
    await until_ended(stage, 1)
    assert DONE == {"a": 1, "b": 1}


async def test_the_plans_of_a_removed_schedule_go_on(stage: Stage) -> None:
    await added(stage)
    ticking = stage.spawn(coordinate(stage))
    await asyncio.sleep(70.0)
    ticking.cancel()
    await stage.fleet().schedules.remove("nightly")
    await stage.device("desk", monitor_every=None)
    stage.spawn(runner(stage).run())
    await until_ended(stage, 1)


async def test_queued_plans_of_a_removed_schedule_go_on_if_it_is_added_again(stage: Stage) -> None:
    await added(stage, overlap="queue")
    ticking = stage.spawn(coordinate(stage))
    await asyncio.sleep(130.0)
    ticking.cancel()
    fleet = stage.fleet()
    await fleet.schedules.remove("nightly")
    assert await stage.store.register("schedule-plan/nightly") is None
    await fleet.workflows.add(_work())
    with pytest.raises(ScheduleExists, match="its plan 'nightly-19700112T134740Z' has not ended"):
        await fleet.schedules.add("nightly", workflow="w", every=60)
    again = await added(stage, overlap="queue", every=86_400)
    assert (len(again.open), again.made) == (2, 0)
    await stage.device("desk", monitor_every=None)
    stage.spawn(runner(stage).run())
    await until_ended(stage, 2)
    await fleet.schedules.remove("nightly")
    assert (await fleet.schedules.add("nightly", workflow="w", every=60)).open == ()


async def test_a_plan_that_comes_again_is_recognised(stage: Stage) -> None:
    before = await added(stage)
    job = stage.spawn(coordinate(stage))
    await asyncio.sleep(65.0)
    job.cancel()
    register = await stage.store.register("schedule/nightly")
    assert register is not None
    await stage.store.commit([PutRegister("schedule/nightly", before.to_json(), register.revision)])  # as of a backup
    await SchedulePass(stage.fleet()).run_pass()
    assert await outcomes(stage) == ["created", "exists"]
    assert len(await states(stage)) == 1


async def test_the_plans_of_a_schedule_are_one_label_value_of_metrics(stage: Stage) -> None:
    await stage.device("desk", monitor_every=None)
    await added(stage)
    stage.spawn(coordinate(stage))
    stage.spawn(runner(stage).run())
    await until_ended(stage, 2)
    families = [*await fleet_families(stage.fleet()), *await plan_families(stage.store, 3600.0)]
    text = render(families)
    assert 'asterism_window_run_ends{workflow="plan:nightly",device="desk",outcome="completed"} 4' in text
    assert 'asterism_plan_edits{plan="nightly",answer="accepted"} 0' in text
    assert "-1970" not in text


async def test_a_person_asks_for_a_plan(stage: Stage) -> None:
    await added(stage)
    entry = await stage.fleet().schedules.run("nightly")
    assert entry.outcome == "created"
    assert list(await states(stage)) == [entry.what]


async def test_a_runner_survives_an_outage_and_records_that_cannot_be_read(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.store.commit([PutRegister("schedule/later", {"schema": 9, "name": "later"}, None)])
    await added(stage)
    registers, outages = stage.store.registers, 3

    async def unreachable(prefix: str) -> Any:
        nonlocal outages
        outages -= 1
        if outages > 0:
            raise StoreUnavailable("out of reach")
        return await registers(prefix)

    running = runner(stage)
    monkeypatch.setattr(stage.store, "registers", unreachable)
    job = stage.spawn(running.run())
    await asyncio.sleep(60.0)
    assert not job.done()
    assert outages <= 0


async def test_what_cannot_be_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    local = Constellation("local")
    local.add(Task("a", call=lambda: None))
    with pytest.raises(NotJson):
        await added(stage, local)
    await stage.fleet().workflows.add(_work())
    await stage.fleet().schedules.add("nightly", workflow="w", every=60)
    with pytest.raises(ScheduleExists, match="creates workflow w: remove it before you add this one"):
        await added(stage, replace=True)
    monkeypatch.setattr(schedules_module, "LARGEST_PLAN", 10)
    with pytest.raises(TooLarge, match="the plan of schedule 'nightly' has"):
        await added(stage)


def _work() -> Any:
    from asterism.core.run.work import Workflow

    return Workflow("w", argv=("true",))


async def test_a_device_with_the_name_of_the_process_of_a_plan_is_reported_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await added(stage)
    job = stage.spawn(coordinate(stage))
    await asyncio.sleep(70.0)
    job.cancel()
    [name] = await states(stage)
    await stage.device(f"{name}@here", monitor_every=None)
    stage.spawn(runner(stage).run())
    await asyncio.sleep(60.0)
    assert list((await states(stage)).values()) == ["created"]
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warning.startswith(f"plan {name} cannot be run, and no process runs it: ")
    assert f"{name}@here" in warning


async def test_each_plan_learns_its_tick(stage: Stage) -> None:
    await stage.device("desk", monitor_every=None)
    plan = Constellation("nightly")
    between = "{tick.date} from {tick.previous} to {tick.end}"
    plan.add(Task("function", call="tests.durable.durable_work:tick_of", inputs={"between": between}))
    await added(stage, plan, cron="0 15 * * *", every=None, timezone="Europe/Berlin")
    stage.spawn(coordinate(stage))
    stage.spawn(runner(stage).run())
    [name] = await until_ended(stage, 1)
    nodes = (await stage.load(name)).plan
    assert nodes.tick["tick"] == "1970-01-12T15:00:00+01:00"
    between = "1970-01-12 from 1970-01-11T15:00:00+01:00 to 1970-01-13T15:00:00+01:00"
    assert nodes["function"].value == ["1970-01-12T15:00:00+01:00", "1970-01-12", {"between": between}]


async def test_a_plan_on_request_has_the_last_tick(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(Task("word", argv=["echo", "{tick}"]))
    await added(stage, plan, every=3600)
    entry = await stage.fleet().schedules.run("nightly")
    assert (await stage.load(str(entry.what))).plan["word"].task.argv == ("echo", "1970-01-12T13:46:40+00:00")
