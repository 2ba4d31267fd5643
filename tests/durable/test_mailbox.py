"""The mailbox of a plan: a command is applied once whatever dies when, and many processes all get their turn."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from asterism.core.errors import EditRejected, PlanError
from asterism.core.plan.edits import AddTask, EditBatch, RemoveTask
from asterism.durable import plan_actor
from asterism.durable.commands import CancelPlan, EditPlan, PausePlan, ResumePlan
from asterism.durable.durable_orchestrator import DurableOrchestrator
from asterism.durable.journal_store import insert_plan, read_head
from asterism.durable.plan_actor import edit_plan, mailbox_prefix, open_plan, pause_plan, unpause_plan
from asterism.durable.stored_plans import read_plan
from asterism.fleet.fleet import Fleet
from asterism.store.protocol import PutRegister, Write
from asterism.store.store_errors import StoreUnavailable
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Line, LoopClock, Stage, agent, chain, task

pytestmark = pytest.mark.virtual_time


def adding(name: str, author: str = "bob") -> EditBatch:
    return EditBatch((AddTask(task(name)),), author)


async def messages(stage: Stage) -> list[Any]:
    return await stage.store.registers(mailbox_prefix("nightly"))


async def send(stage: Stage, id: str, command: Any) -> None:
    """A message of a process that has died."""
    value = {"do": command.to_json(), "at": stage.store.clock()}
    await stage.store.commit([PutRegister(f"{mailbox_prefix('nightly')}{id}", value, None)])


def fleet_behind(line: Line, seed: int) -> Fleet:
    return Fleet(line, by="ann", clock=LoopClock(), chance=random.Random(seed))


class Dying(Line):
    """The line of a process that is killed at its commit of a number, before or after the store has it."""

    def __init__(self, stage: Stage, number: int, *, after: bool) -> None:
        super().__init__(stage)
        self._left, self._after = number, after

    async def commit(self, writes: Sequence[Write]) -> None:
        self._left -= 1
        if self.cut or (self._left < 0 and not self._after):
            self.cut = True
            raise StoreUnavailable("the process was killed")
        await self._store.commit(writes)
        if self._left < 0:
            self.cut = True
            raise StoreUnavailable("the process was killed")


def edits_of(plan: Any, author: str) -> int:
    return sum(entry.what == "edited" and f" by {author}" in entry.why for entry in plan.story(None))


# -- deaths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(8))
async def test_an_owner_is_killed_at_a_commit_between_message_and_answer(
    stage: Stage, number: int, after: bool
) -> None:
    line = Dying(stage, number, after=after)
    owner = DurableOrchestrator(
        fleet_behind(line, 1), local=2, host="there", make_agent=lambda *a, **t: agent(*a, host="there", **t)
    )
    await insert_plan(stage.store, chain("a", "b", call="wait"))
    running = stage.spawn(owner.run_stored("nightly"))
    asking = [stage.spawn(edit_plan(stage.fleet(), "nightly", adding(f"t{n}", f"p{n}"))) for n in range(3)]
    stage.spawn(stage.orchestrator(host="elsewhere").standby("nightly"))
    await asyncio.wait(asking)
    running.cancel()
    plan = (await stage.load()).plan
    for n, outcome in enumerate(asking):
        assert outcome.result().applied.version > 0
        assert edits_of(plan, f"p{n}") == 1
    assert await messages(stage) == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(3))
async def test_a_momentary_owner_is_killed_at_a_commit(stage: Stage, number: int, after: bool) -> None:
    """It applies the message of another process, too: that is done once, by it or by the next one."""
    await insert_plan(stage.store, chain("a"))
    await send(stage, "0", EditPlan(adding("first", "carol")))
    fleet = fleet_behind(Dying(stage, number, after=after), 2)
    for name in ("x", "y", "z"):
        await asyncio.gather(edit_plan(fleet, "nightly", adding(name, name)), return_exceptions=True)
    await edit_plan(stage.fleet(), "nightly", adding("last", "dave"))
    plan = (await stage.load()).plan
    assert (edits_of(plan, "carol"), edits_of(plan, "dave")) == (1, 1)
    assert [edits_of(plan, name) for name in "xyz"] == [int(n < number + after) for n in range(3)]


async def test_messages_are_applied_in_their_order_by_who_opens_the_plan_for_a_moment(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a"))
    await send(stage, "1", EditPlan(adding("b")))
    await send(stage, "2", EditPlan(EditBatch((RemoveTask("b"),), "bob")))
    await send(stage, "3", EditPlan(EditBatch((RemoveTask("b"),), "bob")))
    before, number = (await stage.load()).head.epoch, (await stage.load()).number
    assert (await edit_plan(stage.fleet(), "nightly", adding("c"))).applied.version == 3
    stored = await stage.load()
    assert list(stored.plan.nodes) == ["a", "c"]
    assert (stored.head.epoch, stored.number) == (before + 1, number + 1), "all of it is one commit"
    answers = [message.value["answer"] for message in await messages(stage)]
    assert [next(iter(answer)) for answer in answers] == ["done", "done", "failure"]


async def test_a_message_that_no_version_knows_does_not_stop_the_others(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a"))
    await stage.store.commit([PutRegister(f"{mailbox_prefix('nightly')}1", {"kind": "dance"}, None)])
    assert (await edit_plan(stage.fleet(), "nightly", adding("b"))).applied.version == 1


# -- withdrawn ---------------------------------------------------------------------------------------------------------


async def test_a_message_that_is_withdrawn_before_the_commit_of_a_moment_is_not_applied(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await insert_plan(stage.store, chain("a"))
    await send(stage, "1", EditPlan(adding("withdrawn")))
    commit = stage.store.commit

    async def late(writes: Sequence[Write]) -> None:
        monkeypatch.setattr(stage.store, "commit", commit)
        [message] = await messages(stage)
        await commit([PutRegister(message.key, None, message.revision)])
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", late)
    assert (await edit_plan(stage.fleet(), "nightly", adding("b"))).applied.version == 1
    assert list((await stage.load()).plan.nodes) == ["a", "b"]


# -- several processes -------------------------------------------------------------------------------------------------


PROCESSES, EDITS = 20, 4


async def _most_others(stage: Stage) -> int:
    """How many edits of others are applied at most while one of 20 processes waits for its own."""
    await insert_plan(stage.store, chain("a"))
    chance, most = random.Random(7), 0

    async def client(number: int) -> None:
        nonlocal most
        line = Line(stage, delay=0.001 + 0.02 * chance.random())  # some are much faster than others
        fleet = fleet_behind(line, number)
        for turn in range(EDITS):
            before = (await read_head(stage.store, "nightly"))[0].epoch
            await edit_plan(fleet, "nightly", adding(f"t{number}-{turn}"))
            most = max(most, (await read_head(stage.store, "nightly"))[0].epoch - before)

    await asyncio.gather(*(client(number) for number in range(PROCESSES)))
    assert (await stage.load()).plan.version == PROCESSES * EDITS
    return most


async def test_processes_that_change_a_plan_at_rest_get_their_turns(stage: Stage) -> None:
    assert await _most_others(stage) <= 25
    assert await messages(stage) == []


async def test_without_messages_the_slow_ones_of_them_wait_for_all_others(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ablation."""
    monkeypatch.setattr(plan_actor, "CONFLICTS_ALONE", 1_000_000)
    assert await _most_others(stage) > 25


async def test_two_momentary_owners_have_epochs_of_their_own(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a"))
    await asyncio.gather(*(edit_plan(stage.fleet(), "nightly", adding(name)) for name in "xy"))
    stored = await stage.load()
    assert (stored.head.epoch, stored.plan.version) == (2, 2)


# -- repetitions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runs", [True, False], ids=["running", "at rest"])
async def test_a_command_with_the_same_id_is_done_once(stage: Stage, runs: bool) -> None:
    await insert_plan(stage.store, chain("a", call="wait"))
    if runs:
        stage.spawn(stage.orchestrator().run_stored("nightly"))
        await durable_work.gate("a begun").wait()
    fleet = stage.fleet()
    for _ in range(3):
        async with open_plan(fleet, "nightly") as plan:
            assert (await plan.do(EditPlan(adding("b")), id="once")).applied.version == 1
            with pytest.raises(EditRejected, match="'b' already exists"):
                await plan.do(EditPlan(adding("b")), id="twice")
    assert (await stage.load()).plan.version == 1


# -- facts of the head -------------------------------------------------------------------------------------------------


async def test_a_pause_outlives_its_owners(stage: Stage) -> None:
    running = asyncio.ensure_future(stage.orchestrator(host="there").run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    await pause_plan(stage.fleet(), "nightly", "lunch")
    running.cancel()
    await asyncio.wait([running])
    assert (await read_plan(stage.fleet(), "nightly")).paused == "by ann: lunch"
    stage.spawn(stage.orchestrator(host="elsewhere").standby("nightly"))
    for name in "ab":
        durable_work.gate(name).set()
    await asyncio.sleep(60.0)
    assert "b" not in DONE
    assert await unpause_plan(stage.fleet(), "nightly")
    await stage.until(lambda: "b" in DONE)


async def test_a_pause_ends_while_its_owner_is_thought_dead(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a", "b", call="wait"))
    running = stage.spawn(stage.orchestrator().run_stored("nightly"))
    await durable_work.gate("a begun").wait()
    await pause_plan(stage.fleet(), "nightly")
    stored = await stage.load()
    head = stored.head.changed(paused=None, epoch=stored.head.epoch + 1)  # of somebody who owns it for a moment
    await stage.store.commit(stored.next_record(head, [], "moment"))
    durable_work.gate("a").set()
    durable_work.gate("b").set()
    assert (await asyncio.wait_for(running, 60)).state == "completed"


async def test_who_resumes_a_plan_ends_a_pause_of_its_process_too(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a", "b", call="wait"))
    orchestrator = stage.orchestrator()
    running = stage.spawn(orchestrator.run_stored("nightly"))
    await durable_work.gate("a begun").wait()
    orchestrator.pause("nightly")
    durable_work.gate("a").set()
    durable_work.gate("b").set()
    await asyncio.wait([running], timeout=60)
    assert await unpause_plan(stage.fleet(), "nightly")
    assert (await asyncio.wait_for(running, 60)).state == "completed"


async def test_a_pause_and_its_end_in_one_moment_leave_nothing(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a"))
    await send(stage, "1", PausePlan("by bob"))
    await send(stage, "2", ResumePlan())
    assert not await unpause_plan(stage.fleet(), "nightly")
    assert (await stage.orchestrator().run_stored("nightly")).state == "completed"


async def test_a_plan_with_work_that_nobody_has_open_is_never_executing(stage: Stage) -> None:
    running = asyncio.ensure_future(stage.orchestrator().run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    assert (await read_plan(stage.fleet(), "nightly")).state_name == "executing"
    running.cancel()
    await asyncio.wait([running])
    for command in (EditPlan(adding("c")), PausePlan("by bob"), ResumePlan()):
        async with open_plan(stage.fleet(), "nightly") as plan:
            await plan.do(command)
        assert (await read_plan(stage.fleet(), "nightly")).state_name == "at_rest"
    async with open_plan(stage.fleet(), "nightly") as plan:
        await plan.do(CancelPlan("by bob"))
        assert (await read_plan(stage.fleet(), "nightly")).state_name == "cancelling"
        with pytest.raises(PlanError, match="is being cancelled by bob: it cannot be edited"):
            await plan.do(EditPlan(adding("d")))
