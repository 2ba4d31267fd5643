"""Turns of the plans of one file: what a further plan does while others have not ended, however it is started."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from asterism.core.errors import PlanOverlaps
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.journal import SCHEMA
from asterism.durable import durable_orchestrator, plan_actor, plan_turns
from asterism.durable.journal_store import OwnershipLost, head_key, read_head, read_heads
from asterism.durable.ownership import FleetMembership
from asterism.durable.plan_actor import retry_plan
from asterism.durable.plan_runner import PlanRunner
from asterism.durable.plan_submissions import submit_plan
from asterism.durable.plan_turns import AWAITED, plan_ahead, take_turn
from asterism.durable.runner_registers import announce_runner, submit_again
from asterism.durable.stored_plans import explain_task
from asterism.execution.plan_tick import with_tick
from asterism.fleet.retention import remove_plan
from asterism.fleet.scheduled_work import SchedulePass
from asterism.store.protocol import Notice, PutRegister
from tests.durable.durable_scenes import DONE, Line, Stage, behind, task
from tests.durable.durable_work import gate

pytestmark = pytest.mark.virtual_time


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within an hour of virtual time the processes of a stage look thousands of times."""
    monkeypatch.setattr(plan_turns, "TURN_TIMEOUT", 400.0)


def plan(name: str, overlap: str = "queue", parallel: int = 1, call: str = "work") -> Constellation:
    made = Constellation(name)
    made.source, made.overlap = "film", (overlap, parallel)
    made.add(task(name, call))
    return made


async def states(stage: Stage) -> dict[str, str]:
    return {head.name: head.state for head in await read_heads(stage.store)}


async def until(stage: Stage, **wanted: str) -> None:
    for _ in range(2000):
        found = await states(stage)
        if {name: found.get(name) for name in wanted} == wanted:
            return
        await asyncio.sleep(0.5)
    raise AssertionError(f"it never came to {wanted}: {found}")


def run(stage: Stage, made: Constellation) -> asyncio.Task[Any]:
    """Run a plan in a process of its own."""
    return stage.spawn(stage.orchestrator(host=made.id).run(made))


def runner(stage: Stage) -> PlanRunner:
    return PlanRunner(stage.fleet(), make=lambda fleet: stage.orchestrator(local=0))


async def test_plans_of_one_file_run_one_after_the_other_in_their_order(stage: Stage) -> None:
    first = run(stage, plan("a", call="wait"))
    await gate("a begun").wait()
    run(stage, plan("b"))
    await until(stage, b="created")
    run(stage, plan("c"))
    await asyncio.sleep(30.0)
    assert (DONE["b"], DONE["c"]) == (0, 0)
    assert (await plan_ahead(stage.store, "b"), await plan_ahead(stage.store, "c")) == ("a", "a")
    told = await explain_task(stage.fleet(), "b", "b")
    assert [reason.text for reason in told.reasons] == ["the plan waits for its turn: plan a has not ended"]
    await plan_actor.cancel_plan(stage.fleet(), "a")
    await until(stage, a="cancelled", b="completed", c="completed")
    order = {head.name: head.ended_at for head in await read_heads(stage.store)}
    assert order["a"] < order["b"] < order["c"]  # type: ignore[operator]
    await first


async def test_other_files_and_plans_without_overlap_do_not_wait(stage: Stage) -> None:
    run(stage, plan("a", call="wait"))
    await gate("a begun").wait()
    other, free = plan("b"), plan("c")
    other.source, free.overlap = "album", None
    run(stage, other)
    run(stage, free)
    await until(stage, b="completed", c="completed")


async def test_plans_with_another_key_do_not_wait_and_a_key_counts_over_files(stage: Stage) -> None:
    def keyed(name: str, key: str, call: str = "work") -> Constellation:
        made = plan(name, call=call)
        made.overlap, made.source = ("queue", 1, key), name
        return made

    run(stage, keyed("a", "main", "wait"))
    await gate("a begun").wait()
    run(stage, keyed("b", "other"))
    run(stage, keyed("c", "main"))
    await until(stage, b="completed", c="created")
    assert await plan_ahead(stage.store, "c") == "a"
    await plan_actor.cancel_plan(stage.fleet(), "a")
    await until(stage, c="completed")


@pytest.mark.parametrize(("key", "waits"), [("of {tick}", False), ("of {tick.zone}", True)])
async def test_the_key_of_a_scheduled_plan_may_name_its_tick(stage: Stage, key: str, waits: bool) -> None:
    made = plan("film", call="wait")
    made.overlap = ("queue", 1, key)
    await stage.device("desk", slots=5, monitor_every=None)
    stage.spawn(runner(stage).run())
    await stage.fleet().schedules.add("film", plan=made, every=60, overlap="allow")
    for _ in range(2):
        await asyncio.sleep(61.0)
        await SchedulePass(stage.fleet()).run_pass()
    first, second = [str(entry.what) for entry in await stage.fleet().schedules.history("film")]
    await until(stage, **{first: "executing", **({} if waits else {second: "executing"})})
    assert await plan_ahead(stage.store, second) == (first if waits else None)


async def test_so_many_plans_run_at_once(stage: Stage) -> None:
    for name in "abc":
        run(stage, plan(name, parallel=2, call="wait"))
        await until(stage, **{name: "executing" if name != "c" else "created"})
    await asyncio.sleep(30.0)
    assert not gate("c begun").is_set()
    await plan_actor.cancel_plan(stage.fleet(), "b")
    await gate("c begun").wait()


async def test_a_plan_that_is_skipped_is_not_stored(stage: Stage) -> None:
    run(stage, plan("a", "skip", call="wait"))
    await gate("a begun").wait()
    with pytest.raises(PlanOverlaps, match="plan 'a' has not ended"):
        await stage.orchestrator(host="b").run(plan("b", "skip"))
    with pytest.raises(PlanOverlaps, match="plan 'a' has not ended"):
        await submit_plan(stage.fleet(), plan("c", "skip"))
    assert list(await states(stage)) == ["a"]


async def test_a_newer_plan_replaces_the_older_ones(stage: Stage) -> None:
    await stage.device("desk", monitor_every=None)
    stage.spawn(runner(stage).run())
    for name in "abc":
        await submit_plan(stage.fleet(), plan(name, "replace", call="wait" if name == "a" else "work"))
        if name == "a":
            await gate("a begun").wait()
    await until(stage, a="cancelled", b="cancelled", c="completed")
    assert DONE["b"] == 0
    assert "replaced by plan" in str((await read_head(stage.store, "b"))[0].cancel_reason)


async def test_what_nobody_runs_is_ended_and_replaced(stage: Stage) -> None:
    stopped = run(stage, plan("a", "replace", call="wait"))
    await gate("a begun").wait()
    stopped.cancel()
    await asyncio.sleep(60.0)
    await stage.device("desk", monitor_every=None)
    stage.spawn(runner(stage).run())
    run(stage, plan("b", "replace"))
    await until(stage, a="cancelled", b="completed")


async def test_a_schedule_and_a_person_share_the_turns(stage: Stage) -> None:
    await stage.device("desk", monitor_every=None)
    by_hand = run(stage, plan("film", "skip", call="wait"))
    await gate("film begun").wait()
    await stage.fleet().schedules.add("film", plan=plan("film", "skip"), every=60, plan_text="asterism: 1\n")
    await asyncio.sleep(61.0)
    await SchedulePass(stage.fleet()).run_pass()
    [entry] = await stage.fleet().schedules.history("film")
    assert (entry.outcome, entry.what) == ("skipped", None)
    assert "plan 'film' has not ended" in entry.why
    await plan_actor.cancel_plan(stage.fleet(), "film")
    await by_hand
    await asyncio.sleep(60.0)
    await SchedulePass(stage.fleet()).run_pass()
    assert [entry.outcome for entry in await stage.fleet().schedules.history("film")] == ["skipped", "created"]


@pytest.mark.parametrize("overlap", ["skip", "replace"])
async def test_a_backfill_skips_and_replaces_nothing(stage: Stage, overlap: str) -> None:
    """Its plans wait for each other, whatever the file says."""
    fleet = stage.fleet()
    await fleet.schedules.add("film", plan=plan("film", overlap), cron="0 * * * *", plan_text="asterism: 1\n")
    stage.spawn(runner(stage).run())
    await stage.device("desk")
    await fleet.schedules.start_backfill("film", "1970-01-12T03:00", "1970-01-12T07:00", parallel=3)
    for _ in range(600):
        backfill = await fleet.schedules.read_backfill("film")
        if backfill.ended_at is not None:
            break
        await asyncio.sleep(1.0)
    assert (backfill.succeeded, backfill.skipped, backfill.failed) == (5, 0, 0)


async def test_a_process_that_dies_while_its_plan_waits_lets_others_pass(stage: Stage) -> None:
    first = run(stage, plan("a", call="wait"))
    await gate("a begun").wait()
    waits = run(stage, plan("b"))
    await until(stage, b="created")
    waits.cancel()
    await asyncio.sleep(60.0)
    run(stage, plan("c"))
    await plan_actor.cancel_plan(stage.fleet(), "a")
    await until(stage, a="cancelled", c="completed", b="created")
    await first
    await stage.orchestrator(host="b").run_stored("b")
    assert DONE["b"] == 1


async def left_to_itself(stage: Stage, file: str = "film") -> None:
    """Plan a of this file has begun, and its process has gone."""
    made = plan("a", call="wait")
    made.source = file
    left = run(stage, made)
    await gate("a begun").wait()
    left.cancel()
    await asyncio.sleep(60.0)


async def test_a_plan_that_was_left_keeps_its_turn_until_it_is_resumed(stage: Stage) -> None:
    await left_to_itself(stage)
    run(stage, plan("b"))
    await asyncio.sleep(60.0)
    assert DONE["b"] == 0
    await plan_actor.cancel_plan(stage.fleet(), "a")
    await stage.orchestrator(host="a").run_stored("a")
    await until(stage, b="completed")


@pytest.mark.parametrize("overlap", ["queue", "skip"])
async def test_a_plan_that_nobody_resumes_loses_its_turn_after_the_timeout(stage: Stage, overlap: str) -> None:
    await left_to_itself(stage)
    with contextlib.suppress(PlanOverlaps):
        run(stage, plan("b"))
        await stage.orchestrator(host="c").run(plan("c", "skip"))
    await asyncio.sleep(plan_turns.TURN_TIMEOUT - 200.0)
    assert DONE["b"] == 0
    await until(stage, b="completed")
    assert (await stage.orchestrator(host="d").run(plan("d", overlap))).state == "completed"
    gate("a").set()
    assert (await stage.orchestrator(host="a").run_stored("a")).state == "completed"


async def test_a_plan_that_is_resumed_late_waits_for_its_turn_again(stage: Stage) -> None:
    await left_to_itself(stage)
    await asyncio.sleep(plan_turns.TURN_TIMEOUT)
    run(stage, plan("b", call="wait"))
    await gate("b begun").wait()
    again = stage.spawn(stage.orchestrator(host="a").run_stored("a"))
    gate("a").set()
    await asyncio.sleep(60.0)
    assert (await plan_ahead(stage.store, "a"), again.done()) == ("b", False)
    gate("b").set()
    assert (await again).state == "completed"


@pytest.mark.parametrize("ablated", [False, True])
async def test_of_a_plan_that_is_resumed_and_one_that_takes_its_turn_one_runs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, ablated: bool
) -> None:
    """Plan b is about to take the turn of a, which is resumed. The ablation: a does not write that it goes on."""
    await left_to_itself(stage)
    await asyncio.sleep(plan_turns.TURN_TIMEOUT)
    await submit_plan(stage.fleet(), plan("b"))
    commit, turns = stage.store.commit, dict[str, str | None]()

    async def late(writes: Any) -> Any:
        monkeypatch.setattr(stage.store, "commit", unwritten if ablated else commit)
        async with FleetMembership(stage.orchestrator(host="a")._agent("a")):
            turns["a"] = await take_turn(stage.fleet(), "a")
        monkeypatch.setattr(stage.store, "commit", commit)
        return await commit(writes)

    async def unwritten(writes: Any) -> Any:
        if not any(getattr(write, "key", "").startswith(plan_turns.TURNS) for write in writes):
            await commit(writes)

    monkeypatch.setattr(stage.store, "commit", late)
    turns["b"] = await take_turn(stage.fleet(), "b")
    assert turns == {"a": None, "b": None if ablated else "a"}


async def test_a_plan_that_cannot_be_read_loses_its_turn_too(stage: Stage) -> None:
    await left_to_itself(stage)
    head = await stage.store.register(head_key("a"))
    assert head is not None
    await stage.store.commit([PutRegister(head.key, {**head.value, "schema": 99}, head.revision)])
    newer = run(stage, plan("b", "replace"))
    await asyncio.sleep(plan_turns.TURN_TIMEOUT - 200.0)
    assert DONE["b"] == 0
    assert (await newer).state == "completed"


@pytest.mark.parametrize("ablated", [False, True])
async def test_a_process_that_was_cut_off_too_long_loses_its_plan_with_its_turn(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, ablated: bool
) -> None:
    """The ablation: nothing is written to the journal of plan a when b takes its turn."""
    if ablated:

        async def unfenced(fleet: Any, name: str) -> list[Any]:
            return []

        monkeypatch.setattr(plan_turns, "_fence", unfenced)
    line, made = Line(stage), plan("a", call="wait")
    made.add(task("next", "wait"), "a")
    cut_off = stage.spawn(behind(stage, line, host="a").run(made))
    await gate("a begun").wait()
    line.cut = True
    await asyncio.sleep(plan_turns.TURN_TIMEOUT + 100.0)
    run(stage, plan("b", call="wait"))
    await gate("b begun").wait()
    line.cut = False
    gate("a").set()
    await asyncio.sleep(200.0)
    assert gate("next begun").is_set() is ablated
    if not ablated:
        with pytest.raises(OwnershipLost):
            await cut_off


async def test_a_plan_whose_process_was_killed_before_its_turn_is_not_waited_for_for_ever(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = asyncio.Event()

    async def never(*_: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(durable_orchestrator, "take_turn", never)
        killed = run(stage, plan("a", "skip"))
        await asked.wait()
        killed.cancel()
        await asyncio.sleep(30.0)
    with pytest.raises(PlanOverlaps):
        await stage.orchestrator(host="b").run(plan("b", "skip"))
    await asyncio.sleep(plan_turns.TURN_TIMEOUT)
    assert (await stage.orchestrator(host="c").run(plan("c", "skip"))).state == "completed"


async def test_a_replaced_plan_whose_process_has_just_died_is_ended(stage: Stage) -> None:
    """Its last heartbeat is recent when it is to be cancelled, so it still counts as alive."""
    line = Line(stage)
    killed = stage.spawn(behind(stage, line, host="a").run(plan("a", "replace", call="wait")))
    await gate("a begun").wait()
    line.cut = True
    killed.cancel()
    await asyncio.sleep(3.0)
    await stage.device("desk", monitor_every=None)
    stage.spawn(runner(stage).run())
    await submit_plan(stage.fleet(), plan("b", "replace"))
    await until(stage, a="cancelled", b="completed")


async def test_a_plan_that_is_submitted_but_cannot_be_read_loses_its_turn(stage: Stage) -> None:
    await left_to_itself(stage)
    await submit_again(stage.fleet(), "a")
    head = await stage.store.register(head_key("a"))
    assert head is not None
    await stage.store.commit([PutRegister(head.key, {**head.value, "schema": 99}, head.revision)])
    stage.spawn(runner(stage).run())
    assert (await run(stage, plan("b"))).state == "completed"


async def test_newer_plans_do_not_go_ahead_of_one_that_waits_again(stage: Stage) -> None:
    await left_to_itself(stage)
    await asyncio.sleep(plan_turns.TURN_TIMEOUT)
    run(stage, plan("b", call="wait"))
    await gate("b begun").wait()
    gate("a").set()
    again = stage.spawn(stage.orchestrator(host="a").run_stored("a"))
    await asyncio.sleep(10.0)
    run(stage, plan("c", call="wait"))
    await asyncio.sleep(10.0)
    gate("b").set()
    await again
    assert not gate("c begun").is_set() or DONE["a"] == 1
    assert await plan_ahead(stage.store, "c") is None


async def test_plan_runners_do_not_write_for_a_plan_that_runs(stage: Stage) -> None:
    await submit_plan(stage.fleet(), plan("a", call="wait"))
    for number in range(2):
        made = PlanRunner(stage.fleet(), make=lambda fleet, host=str(number): stage.orchestrator(local=1, host=host))
        stage.spawn(made.run())
    await gate("a begun").wait()
    await asyncio.sleep(30.0)
    before = await stage.store.register(f"{plan_turns.TURNS}film")
    await asyncio.sleep(100.0)
    assert await stage.store.register(f"{plan_turns.TURNS}film") == before


async def test_a_plan_that_waits_can_be_cancelled(stage: Stage) -> None:
    run(stage, plan("a", call="wait"))
    await gate("a begun").wait()
    waits = run(stage, plan("b"))
    await until(stage, b="created")
    await plan_actor.cancel_plan(stage.fleet(), "b")
    assert (await waits).state == "cancelled"


async def test_a_retried_plan_waits_again(stage: Stage) -> None:
    await stage.orchestrator().run(plan("a"))
    run(stage, plan("b", call="wait"))
    await gate("b begun").wait()
    await retry_plan(stage.fleet(), "a", from_tasks=("a",))
    again = stage.spawn(stage.orchestrator(host="a").run_stored("a"))
    await asyncio.sleep(30.0)
    assert DONE["a"] == 1
    await plan_actor.cancel_plan(stage.fleet(), "b")
    await again
    assert DONE["a"] == 2


async def test_a_plan_that_is_reopened_while_another_takes_its_turn_waits(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await stage.orchestrator().run(plan("a"))
    await submit_plan(stage.fleet(), plan("b"))
    commit, fleet = stage.store.commit, stage.fleet()

    async def late(writes: Any) -> Any:
        monkeypatch.setattr(stage.store, "commit", commit)
        await retry_plan(stage.fleet(), "a", from_tasks=("a",))
        return await commit(writes)

    monkeypatch.setattr(stage.store, "commit", late)
    assert [await take_turn(fleet, name) for name in "ba"] == [None, "b"]


async def test_of_two_that_look_at_once_one_gets_the_turn(stage: Stage) -> None:
    await submit_plan(stage.fleet(), plan("a"))
    await submit_plan(stage.fleet(), plan("b"))
    first, second = await asyncio.gather(take_turn(stage.fleet(), "a"), take_turn(stage.fleet(), "b"))
    assert [first, second].count(None) == 1


async def test_ablation_without_the_revision_both_get_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    read = plan_turns._read
    stale = await read(stage.store, "film")

    async def at_first(store: Any, file: str) -> Any:
        return stale._replace(revision=(await read(store, file)).revision)

    await submit_plan(stage.fleet(), plan("a"))
    await submit_plan(stage.fleet(), plan("b"))
    monkeypatch.setattr(plan_turns, "_read", at_first)
    assert [await take_turn(stage.fleet(), name) for name in "ab"] == [None, None]


async def test_of_two_that_start_at_once_one_is_skipped(stage: Stage) -> None:
    starts = [submit_plan(stage.fleet(), plan(name, "skip")) for name in "ab"]
    outcomes = await asyncio.gather(*starts, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes].count(PlanOverlaps) == 1
    assert len(await states(stage)) == 1


async def test_no_more_plans_wait_than_a_register_should_name(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_turns, "MOST_WAITING", 2)
    for name in "ab":
        await submit_plan(stage.fleet(), plan(name))
    with pytest.raises(PlanOverlaps, match="2 plans wait"):
        await submit_plan(stage.fleet(), plan("c"))


def test_a_copy_for_a_tick_and_a_record_have_it() -> None:
    made = plan("a", "replace", 3)
    assert with_tick(made, "2026-11-17").overlap == ("replace", 3)
    assert Constellation.from_json(made.to_json()).overlap == ("replace", 3)


async def test_a_new_plan_with_the_name_of_a_removed_one_has_one_turn(stage: Stage) -> None:
    await stage.orchestrator().run(plan("a", parallel=2))
    assert await remove_plan(stage.store, "a", Notice(stage.store.clock(), "plan", "removed")) is not None
    run(stage, plan("a", parallel=2, call="wait"))
    await gate("a begun").wait()
    run(stage, plan("b", parallel=2))
    await until(stage, b="completed")


async def waits_for_the_tick_behind_it(stage: Stage) -> None:
    """Plan b waits for the success of c, which is retried and so behind it."""
    await stage.device("desk", monitor_every=None)
    stage.spawn(runner(stage).run())
    await submit_plan(stage.fleet(), plan("a", call="wait"))
    await gate("a begun").wait()
    await submit_plan(stage.fleet(), plan("b"), options={AWAITED: "c"})
    await submit_plan(stage.fleet(), plan("c"))
    await plan_actor.cancel_plan(stage.fleet(), "a")
    await until(stage, a="cancelled")


async def test_a_plan_that_waits_for_one_behind_it_lets_it_pass(stage: Stage) -> None:
    await waits_for_the_tick_behind_it(stage)
    await until(stage, b="completed", c="completed")


async def test_ablation_without_looking_at_what_else_they_wait_for_none_runs(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: Any) -> None:
        return None

    monkeypatch.setattr(plan_turns, "awaited_plan", nothing)
    await waits_for_the_tick_behind_it(stage)
    await asyncio.sleep(600.0)
    assert await states(stage) == {"a": "cancelled", "b": "created", "c": "created"}


async def test_what_is_replaced_ends_also_if_no_process_runs_plans(stage: Stage) -> None:
    stopped = run(stage, plan("a", "replace", call="wait"))
    await gate("a begun").wait()
    stopped.cancel()
    await asyncio.sleep(60.0)
    run(stage, plan("b", "replace"))
    await until(stage, a="cancelled", b="completed")


async def test_plans_that_wait_do_not_read_each_other_again_and_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, register, reads = stage.fleet(), stage.store.register, 0
    names = [f"p{number:02}" for number in range(50)]
    for name in names:
        await submit_plan(fleet, plan(name))
    await announce_runner(stage.store, "runner")

    async def counted(key: str) -> Any:
        nonlocal reads
        reads += 1
        return await register(key)

    monkeypatch.setattr(stage.store, "register", counted)
    for name in names:
        await take_turn(fleet, name)
    assert reads < 10 * len(names)


async def test_a_plan_that_cannot_be_read_holds_up_no_other(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """Its head is that of a later version, as while servers are updated one after the other."""
    await stage.device("desk", monitor_every=None)
    for name, file in (("a", "album"), ("b", "film"), ("c", "film")):
        made = plan(name)
        made.source = file
        await submit_plan(stage.fleet(), made)
    for name in "ab":
        head = await stage.store.register(head_key(name))
        assert head is not None
        await stage.store.commit([PutRegister(head.key, {**head.value, "schema": 99}, head.revision)])
    stage.spawn(runner(stage).run())
    await until(stage, c="completed")
    assert "plan a cannot be run" in caplog.text
    for name in "ab":  # the check of the store reads them again
        head = await stage.store.register(head_key(name))
        assert head is not None
        await stage.store.commit([PutRegister(head.key, {**head.value, "schema": SCHEMA}, head.revision)])
    await until(stage, a="completed", b="completed")


async def test_a_plan_that_is_retried_replaces_no_newer_one(stage: Stage) -> None:
    await stage.orchestrator().run(plan("a", "replace"))
    newer = run(stage, plan("b", "replace", call="wait"))
    await gate("b begun").wait()
    await retry_plan(stage.fleet(), "a", from_tasks=("a",))
    again = stage.spawn(stage.orchestrator(host="a").run_stored("a"))
    await asyncio.sleep(30.0)
    assert (DONE["a"], (await states(stage))["b"]) == (1, "executing")
    gate("b").set()
    assert (await newer).state == "completed"
    await again
    assert DONE["a"] == 2
