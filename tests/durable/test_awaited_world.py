"""Tasks of stored plans that wait for events and for other plans: before, during and after they begin to wait, with
crashes before and after every commit, and with two owners. In virtual time; some on SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import EditBatch, UpdateTask
from asterism.core.plan.task import Task
from asterism.durable import awaited_world
from asterism.durable.awaited_world import AwaitedWorld
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import insert_plan
from asterism.durable.plan_actor import ask_why, edit_plan
from asterism.fleet import sent_events
from asterism.fleet.fleet import Fleet
from asterism.fleet.sent_events import SentEvent, send_event, takers_of
from asterism.orchestrator.events import Subscription, TaskEvent
from asterism.store.protocol import PutRegister, Write
from asterism.store.store_errors import StoreUnavailable
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Line, Stage, behind, left, task
from tests.long_tests import rest_long

PAID = {"event": "payment/17"}

in_virtual_time = pytest.mark.virtual_time


def ordering(name: str = "nightly", wait: Any = PAID, source: str = "") -> Constellation:
    plan = Constellation(name)
    plan.source = source
    plan.add(Task("paid", wait_for=wait))
    plan.add(task("ship"), "paid")
    return plan


async def waits(stage: Stage, name: str = "nightly", task_id: str = "paid") -> None:
    """Wait until the store says that a task waits."""
    while True:
        with contextlib.suppress(Exception):
            if (await stage.load(name)).plan.node(task_id).awaits:
                return
        await asyncio.sleep(0.05)


# -- events ------------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_an_event_continues_the_task_that_waits_for_it(stage: Stage) -> None:
    running = stage.spawn(stage.orchestrator().run(ordering()))
    await waits(stage)
    why = await ask_why(stage.fleet(), "nightly", "paid")
    assert "it waits for event 'payment/17'" in str(why)
    sent = await send_event(stage.store, "payment/17", {"amount": 42}, by="shop")
    result = await running
    assert (result.state, result["paid"].value, DONE) == ("completed", {"amount": 42}, {"ship": 1})
    (taker,) = (await takers_of(stage.store, sent.name))[sent.number]
    assert (taker.plan, taker.task) == ("nightly", "paid")
    assert (await stage.load()).plan.tainted == {"paid"}


@in_virtual_time
async def test_an_event_that_was_sent_before_is_found(stage: Stage) -> None:
    await send_event(stage.store, "payment/16", 1)
    await send_event(stage.store, "payment/17", 2)
    result = await stage.orchestrator().run(ordering())
    assert result["paid"].value == 2


@in_virtual_time
async def test_an_event_between_the_look_and_the_watch_is_not_missed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    registers, reached = stage.store.registers, asyncio.Event()

    async def slow(prefix: str) -> Any:
        found = await registers(prefix)
        if prefix == sent_events.names_prefix("payment/17") and not reached.is_set():
            reached.set()
            await send_event(stage.store, "payment/17", 3)  # after the read, before its reader knows the outcome
        return found

    monkeypatch.setattr(stage.store, "registers", slow)
    await send_event(stage.store, "other")
    result = await stage.orchestrator().run(ordering())
    assert (result["paid"].value, reached.is_set()) == (3, True)


@in_virtual_time
@pytest.mark.long
async def test_without_the_number_read_first_that_event_is_missed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ablation: the number of the last event is read after the events of the name."""
    look, registers = AwaitedWorld._look_for_events, stage.store.registers

    async def slow(prefix: str) -> Any:
        found = await registers(prefix)
        if prefix == sent_events.names_prefix("payment/17") and not sent:
            sent.append(await send_event(stage.store, "payment/17", 3))
        return found

    async def look_first(self: AwaitedWorld) -> None:
        await look(self)
        self._seen = await sent_events.last_number(stage.store)

    sent: list[Any] = []
    await send_event(stage.store, "other")
    monkeypatch.setattr(stage.store, "registers", slow)
    monkeypatch.setattr(AwaitedWorld, "_look_for_events", look_first)
    running = stage.spawn(stage.orchestrator().run(ordering()))
    await asyncio.sleep(600)
    assert (len(sent), running.done()) == (1, False)


@in_virtual_time
async def test_an_event_is_sent_once_by_its_key(stage: Stage) -> None:
    first = await send_event(stage.store, "paid", 1, key="k")
    second = await send_event(stage.store, "paid", 2, key="k")
    other = await send_event(stage.store, "refunded", 3, key="k")
    assert (second.number, second.data, second.again, other.again) == (first.number, 1, True, False)
    racing = await asyncio.gather(*(send_event(stage.store, "raced", n, key="k") for n in range(5)))
    assert len({event.number for event in racing}) == 1


@in_virtual_time
async def test_all_tasks_of_all_plans_that_wait_get_the_event(stage: Stage) -> None:
    plan = ordering("a", source="order")
    plan.add(Task("also", wait_for=PAID))
    jobs = [stage.spawn(stage.orchestrator(host="a").run(plan))]
    jobs.append(stage.spawn(stage.orchestrator(host="b").run(ordering("b", source="order"))))
    await waits(stage, "a", "also")
    await waits(stage, "b")
    event = await send_event(stage.store, "payment/17", 5)
    results = await asyncio.gather(*jobs)
    assert [result["paid"].value for result in results] == [5, 5]
    assert results[0]["also"].value == 5
    assert sorted(taker.plan for taker in (await takers_of(stage.store, event.name))[event.number]) == ["a", "b"]


@in_virtual_time
async def test_the_event_of_yesterday_does_not_continue_the_plan_of_today(stage: Stage) -> None:
    await send_event(stage.store, "loaded", "yesterday")
    wait = {"event": "loaded", "timeout": 60}
    assert (await stage.orchestrator().run(ordering("day-1", wait, "day")))["paid"].value == "yesterday"
    await asyncio.sleep(1)
    again = await stage.orchestrator().run(ordering("day-2", wait, "day"))
    assert "event 'loaded' did not arrive within 1m" in again["paid"].reason
    other = await stage.orchestrator().run(ordering("report", wait, "report"))
    assert other["paid"].value == "yesterday"  # a plan of another file


@in_virtual_time
async def test_of_two_later_plans_of_one_file_one_gets_the_event(stage: Stage) -> None:
    await send_event(stage.store, "loaded", 1)
    await asyncio.sleep(1)
    wait = {"event": "loaded", "timeout": 60}
    results = await asyncio.gather(
        stage.orchestrator(host="a").run(ordering("a", wait, "day")),
        stage.orchestrator(host="b").run(ordering("b", wait, "day")),
    )
    assert sorted(str(result.state) for result in results) == ["completed", "failed"]


@in_virtual_time
async def test_without_one_register_for_later_plans_both_get_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ablation: each later plan writes a register of its own."""

    def own(event: SentEvent, file: str, taker: Any, *, later: bool) -> PutRegister:
        return sent_events.taking(event, file, taker, later=False)

    monkeypatch.setattr(awaited_world, "taking", own)
    await send_event(stage.store, "loaded", 1)
    await asyncio.sleep(1)
    wait = {"event": "loaded", "timeout": 60}
    results = await asyncio.gather(
        stage.orchestrator(host="a").run(ordering("a", wait, "day")),
        stage.orchestrator(host="b").run(ordering("b", wait, "day")),
    )
    assert [str(result.state) for result in results] == ["completed", "completed"]


@in_virtual_time
async def test_a_timeout_counts_from_the_first_owner(stage: Stage) -> None:
    plan = ordering(wait={**PAID, "timeout": 1000})
    began = stage.now()
    await left(stage.orchestrator().run(plan), lambda: stage.now() > began + 600, stage)
    result = await stage.orchestrator(host="there").run_stored("nightly")
    assert "did not arrive within 1000s" in result["paid"].reason
    assert stage.now() - began == pytest.approx(1000, abs=5)


@in_virtual_time
@pytest.mark.parametrize("in_time", [True, False])
async def test_an_event_in_time_counts_though_nobody_runs_the_plan_until_the_timeout(
    stage: Stage, in_time: bool
) -> None:
    began = stage.now()
    running = stage.orchestrator().run(ordering(wait={**PAID, "timeout": 100}))
    await left(running, lambda: stage.now() > began + 60, stage)
    await asyncio.sleep(0 if in_time else 100)
    await send_event(stage.store, "payment/17", 4)
    await asyncio.sleep(100)
    result = await stage.orchestrator(host="there").run_stored("nightly")
    if in_time:
        assert result["paid"].value == 4
    else:
        assert "did not arrive within 100s" in result["paid"].reason


@in_virtual_time
@pytest.mark.parametrize("in_time", [True, False])
async def test_a_task_of_another_plan_in_time_counts_though_nobody_runs_the_plan(stage: Stage, in_time: bool) -> None:
    began = stage.now()
    running = stage.orchestrator().run(ordering(wait={"plan": "load", "task": "a", "timeout": 100}))
    await left(running, lambda: stage.now() > began + 60, stage)
    await asyncio.sleep(0 if in_time else 100)
    plan = Constellation("load")
    plan.add(task("a"))
    await stage.orchestrator().run(plan)
    await asyncio.sleep(100)
    result = await stage.orchestrator(host="there").run_stored("nightly")
    if in_time:
        assert result["paid"].value == "a done"
    else:
        assert "did not complete within 100s" in result["paid"].reason


@in_virtual_time
async def test_a_timeout_waits_for_the_store_to_answer(stage: Stage) -> None:
    """An event of the last moment may be in a store that does not answer then."""
    line = Line(stage)
    running = stage.spawn(behind(stage, line).run(ordering(wait={**PAID, "timeout": 100})))
    await waits(stage)
    await asyncio.sleep(97)
    line.cut = True
    await send_event(stage.store, "payment/17", 4)
    await asyncio.sleep(10)
    line.cut = False
    assert (await running)["paid"].value == 4


@in_virtual_time
async def test_many_events_of_one_name_are_read_at_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(200):
        await send_event(stage.store, "payment/17", number)
    reads, registers = list[str](), stage.store.registers

    async def counted(prefix: str) -> Any:
        reads.append(prefix)
        return await registers(prefix)

    monkeypatch.setattr(stage.store, "registers", counted)
    assert (await stage.orchestrator().run(ordering()))["paid"].value == 0
    assert len([prefix for prefix in reads if prefix.startswith("event")]) <= 4


@in_virtual_time
async def test_a_damaged_event_does_not_stop_the_others(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    await send_event(stage.store, "payment/17", 1)
    [register] = await stage.store.registers(sent_events.names_prefix("payment/17"))
    await stage.store.commit([PutRegister(register.key, {"damaged": 1}, register.revision)])
    running = stage.spawn(stage.orchestrator().run(ordering()))
    await waits(stage)
    await send_event(stage.store, "payment/17", 2)
    assert (await running)["paid"].value == 2
    assert "register event/payment%2F17/000000000001 cannot be read" in caplog.text


@in_virtual_time
async def test_a_bug_in_one_look_does_not_end_them(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    events_of, broken = awaited_world.events_of, [ZeroDivisionError()]

    async def sometimes(*arguments: Any) -> Any:
        if broken:
            raise broken.pop()
        return await events_of(*arguments)

    monkeypatch.setattr(awaited_world, "events_of", sometimes)
    await send_event(stage.store, "payment/17", 2)
    assert (await stage.orchestrator().run(ordering()))["paid"].value == 2
    assert "plan nightly cannot look for what its tasks wait for: a bug in Asterism" in caplog.text


@in_virtual_time
async def test_an_event_that_comes_while_nobody_runs_the_plan_is_found_by_the_next_owner(stage: Stage) -> None:
    began = stage.now()
    await left(stage.orchestrator().run(ordering()), lambda: stage.now() > began + 60, stage)
    at_rest = (await stage.load()).plan.node("paid")
    assert at_rest.awaits
    await send_event(stage.store, "payment/17", 4)
    result = await stage.orchestrator(host="there").run_stored("nightly")
    assert (result["paid"].value, [e.what for e in result.plan.story("paid")]) == (4, ["waits", "started", "completed"])


@in_virtual_time
async def test_an_edit_lets_a_stored_task_wait_for_another_event(stage: Stage) -> None:
    running = stage.spawn(stage.orchestrator().run(ordering()))
    await waits(stage)
    await edit_plan(stage.fleet(), "nightly", EditBatch((UpdateTask("paid", wait_for={"event": "payment/18"}),)))
    await send_event(stage.store, "payment/17", 17)
    await send_event(stage.store, "payment/18", 18)
    assert (await running)["paid"].value == 18


@in_virtual_time
async def test_old_events_are_removed_with_their_keys_and_takers(stage: Stage) -> None:
    await send_event(stage.store, "payment/17", 1, key="k")
    await stage.orchestrator().run(ordering())
    await asyncio.sleep(100)
    await send_event(stage.store, "payment/18")
    assert await sent_events.remove_events(stage.store, stage.store.clock() - 50) == 1
    prefixes = (sent_events.EVENTS, sent_events.LOG, sent_events.KEYS, sent_events.TAKEN)
    assert [len(await stage.store.registers(prefix)) for prefix in prefixes] == [1, 1, 0, 0]
    assert [event.name for event in await sent_events.latest_events(stage.store, None, 10)] == ["payment/18"]
    assert not (await send_event(stage.store, "payment/17", 2, key="k")).again


@in_virtual_time
@pytest.mark.parametrize("number", [1, 1000])
@pytest.mark.long
async def test_the_cost_of_waiting_does_not_depend_on_the_number_of_tasks(
    stage: Stage, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Constellation("nightly")
    for index in range(number):
        plan.add(Task(f"t{index}", wait_for={"event": f"e{index % 10}", "timeout": 36_000}))
    running = stage.spawn(stage.orchestrator().run(plan))
    await waits(stage, task_id=f"t{number - 1}")
    await asyncio.sleep(60)
    reads, register = list[str](), stage.store.register

    async def counted(key: str) -> Any:
        reads.append(key)
        return await register(key)

    monkeypatch.setattr(stage.store, "register", counted)
    await asyncio.sleep(600)
    assert 100 <= reads.count("events") <= 130  # one small read each 5 s, for all tasks
    for index in range(10):
        await send_event(stage.store, f"e{index}", index)
    result = await running
    assert [result[f"t{index}"].value for index in range(number)] == [index % 10 for index in range(number)]


# -- crashes -----------------------------------------------------------------------------------------------------------


class Dying(Line):
    """A store whose line is cut for good at a commit: just before it, or just after."""

    def __init__(self, stage: Stage, number: int, *, after: bool) -> None:
        super().__init__(stage)
        self._left, self._after, self.died = number, after, asyncio.Event()

    async def commit(self, writes: Sequence[Write]) -> None:
        if self.cut:
            raise StoreUnavailable("the line is cut")
        self._left -= 1
        if self._left == 0 and not self._after:
            self._die()
        await self._store.commit(writes)
        if self._left == 0:
            self._die()

    def _die(self) -> None:
        self.cut = True
        self.died.set()
        raise StoreUnavailable("the line is cut")


@in_virtual_time
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize("number", rest_long([3, 6, 1, 2, 4, 5, 7, 8], 2))
async def test_a_process_that_dies_at_any_commit_loses_no_event(
    stage: Stage, number: int, early: bool, after: bool
) -> None:
    await insert_plan(stage.store, ordering())
    if early:
        await send_event(stage.store, "payment/17", 7)
    line = Dying(stage, number, after=after)
    first = stage.spawn(behind(stage, line).run_stored("nightly"))
    if not early:
        await asyncio.sleep(20)
        await send_event(stage.store, "payment/17", 7)
    await asyncio.wait([first, asyncio.ensure_future(line.died.wait())], timeout=120)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    result = await stage.orchestrator(host="there").standby("nightly")
    assert (result.state, result["paid"].value) == ("completed", 7)
    assert len((await takers_of(stage.store, "payment/17"))[1]) == 1
    assert [entry.what for entry in result.plan.story("paid")].count("completed") == 1
    assert DONE["ship"] in (1, 2)  # at least once, as every task


@in_virtual_time
async def test_an_owner_that_was_overtaken_takes_no_event(stage: Stage) -> None:
    line = Line(stage)
    first = stage.spawn(behind(stage, line).run(ordering()))
    await waits(stage)
    line.cut = True
    await send_event(stage.store, "payment/17", 9)
    result = await stage.orchestrator(host="there").standby("nightly")
    line.cut = False
    await asyncio.gather(first, return_exceptions=True)
    assert (result["paid"].value, DONE["ship"]) == (9, 1)
    assert len((await takers_of(stage.store, "payment/17"))[1]) == 1


# -- other plans -------------------------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_task_waits_for_a_task_of_another_plan(stage: Stage) -> None:
    wait = {"plan": "load", "task": "a"}
    running = stage.spawn(stage.orchestrator().run(ordering(wait=wait)))
    await waits(stage)
    await asyncio.sleep(60)  # there is no such plan yet
    plan = Constellation("load")
    plan.add(task("a"))
    plan.add(task("b", "wait"), "a")
    other = stage.spawn(stage.orchestrator(host="there").run(plan))
    result = await running  # the other plan still runs
    assert (result["paid"].value, other.done()) == ("a done", False)
    assert not (await stage.load()).plan.tainted
    durable_work.gate("b").set()
    await other


@in_virtual_time
async def test_many_awaited_plans_are_read_in_turns(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awaited_world, "PLANS_PER_LOOK", 10)
    plan = Constellation("nightly")
    for index in range(60):
        plan.add(Task(f"t{index}", wait_for={"plan": f"p{index}", "task": "a", "timeout": 100}))
    began = stage.now()
    running = stage.spawn(stage.orchestrator().run(plan))
    await waits(stage, task_id="t59")
    reads, register = list[str](), stage.store.register

    async def counted(key: str) -> Any:
        reads.append(key)
        return await register(key)

    monkeypatch.setattr(stage.store, "register", counted)
    await asyncio.sleep(30)
    of_plans = Counter(key for key in reads if key.startswith("plan/p"))
    assert len(of_plans) == 60
    assert sum(of_plans.values()) <= 170  # ten each 2 s
    other = Constellation("p59")
    other.add(task("a"))
    await stage.orchestrator(host="there").run(other)
    await asyncio.sleep(15)
    assert (await stage.load()).plan.node("t59").value == "a done"
    result = await running
    assert "did not complete within 100s" in result["t7"].reason
    assert stage.now() - began == pytest.approx(100, abs=5)


@in_virtual_time
async def test_the_taint_of_the_other_plan_comes_along(stage: Stage) -> None:
    plan = Constellation("load")
    plan.add(task("issues", untrusted=True))
    plan.add(task("a"), "issues")
    await stage.orchestrator().run(plan)
    await stage.orchestrator().run(ordering(wait={"plan": "load", "task": "a"}))
    loaded = await stage.load()
    assert loaded.plan.tainted == {"paid"}
    assert "brings untrusted data" in [entry.what for entry in loaded.plan.story("paid")]


@in_virtual_time
async def test_an_error_of_the_other_plan_brings_its_taint(stage: Stage) -> None:
    plan = Constellation("load")
    plan.add(task("issues", untrusted=True))
    plan.add(task("a", "broken"), "issues")
    await stage.orchestrator().run(plan)
    await stage.orchestrator().run(ordering(wait={"plan": "load", "task": "a"}))
    assert (await stage.load()).plan.tainted == {"paid"}


@in_virtual_time
async def test_a_plan_that_ends_without_the_task_fails_the_wait(stage: Stage) -> None:
    plan = Constellation("load")
    plan.add(task("a", "broken"))
    await stage.orchestrator().run(plan)
    result = await stage.orchestrator().run(ordering(wait={"plan": "load", "task": "a"}))
    assert result["paid"].reason.startswith(
        "WaitFailed: task 'a' of plan 'load' did not complete: plan 'load' is failed"
    )
    result = await stage.orchestrator().run(ordering("two", wait={"plan": "load", "task": "z"}))
    assert result["paid"].reason.endswith("plan 'load' is failed, and it has no such task")


@in_virtual_time
async def test_a_task_cannot_wait_for_its_own_plan(stage: Stage) -> None:
    result = await stage.orchestrator().run(ordering(wait={"plan": "nightly", "task": "ship"}))
    assert "is in this plan: name it in 'after' instead" in result["paid"].reason


@in_virtual_time
async def test_a_task_waits_for_the_plan_of_the_same_tick(stage: Stage) -> None:
    plan = Constellation("load-20261118T020000Z")
    plan.add(task("a"))
    await stage.orchestrator().run(plan)
    wait = {"plan": "load", "task": "a", "tick": "2026-11-18T03:00:00+01:00"}
    assert (await stage.orchestrator().run(ordering(wait=wait)))["paid"].value == "a done"


# -- real stores -------------------------------------------------------------------------------------------------------


async def waited_in_a_store(url: str) -> None:
    """An event that was sent through another connection wakes the owner of the plan; a second owner finds the next."""
    durable_work.reset()
    plan = ordering()
    plan.add(Task("again", wait_for={"event": "second"}), "ship")
    async with await Fleet.open(url) as fleet, await Fleet.open(url) as other:
        orchestrator = DurableOrchestrator(fleet, local=2)
        async with orchestrator.events.listen(TaskEvent) as events:
            running = asyncio.create_task(orchestrator.run(plan))
            await begun(events, "paid")
            await send_event(other.store, "payment/17", {"amount": 1}, key="k")
            await send_event(other.store, "payment/17", {"amount": 2}, key="k")
            await begun(events, "again")
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
    async with await Fleet.open(url) as fleet:
        await send_event(fleet.store, "second", 2)
        result = await DurableOrchestrator(fleet, local=2).run_stored("nightly")
        assert (result["paid"].value, result["again"].value, DONE["ship"]) == ({"amount": 1}, 2, 1)
        assert await fleet.store.check() == []


async def begun(events: Subscription, task_id: str) -> None:
    """Wait until the store has it that a task waits."""
    async for event in events:
        if event.kind == "task_waiting" and isinstance(event, TaskEvent) and event.task_id == task_id:
            return


async def test_waits_on_sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    await waited_in_a_store(f"sqlite:///{tmp_path}/fleet.db")


async def test_waits_on_postgresql(postgres_url: str) -> None:
    await waited_in_a_store(postgres_url)
