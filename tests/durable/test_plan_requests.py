"""Requests to the process that runs a plan: each is applied once or not at all, and answered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from asterism.core.errors import EditRejected, PlanError
from asterism.core.plan.edits import AddDependency, AddTask, CancelTask, EditBatch, RemoveTask, UpdateTask
from asterism.durable import ownership, plan_actor
from asterism.durable.commands import EditAnswer, EditPlan, ExplainTask
from asterism.durable.journal_store import insert_plan, read_head, record_number
from asterism.durable.plan_actor import (
    AnswerLost,
    NotAnswered,
    ask_why,
    edit_plan,
    mailbox_prefix,
    pause_plan,
    undo_edit,
)
from asterism.fleet.fleet import Fleet
from asterism.gateway.enrolment import invite
from asterism.store.protocol import PutRegister, Write
from asterism.store.store_errors import StoreUnavailable
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Stage, chain, left, task

pytestmark = pytest.mark.virtual_time


def adding(*names: str, author: str = "bob") -> EditBatch:
    return EditBatch(tuple(AddTask(task(name)) for name in names), author)


async def running(stage: Stage, *names: str, **options: Any) -> asyncio.Task[Any]:
    """A plan whose first task waits at its gate."""
    job = stage.spawn(stage.orchestrator(**options).run(chain(*(names or ("a", "b")), call="wait")))
    await durable_work.gate("a begun").wait()
    return job


async def requests(stage: Stage) -> list[Any]:
    return [register.value for register in await stage.store.registers(mailbox_prefix("nightly"))]


def edits_by(plan: Any, author: str) -> int:
    return sum(entry.what == "edited" and f" by {author}" in entry.why for entry in plan.story(None))


def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Owners answer no requests."""

    monkeypatch.setattr(ownership, "answer_messages", lambda plan, messages: {})


# -- answers -----------------------------------------------------------------------------------------------------------


async def test_the_owner_applies_an_edit_within_a_second_and_is_named(stage: Stage) -> None:
    job = await running(stage)
    before = stage.now()
    answer = await edit_plan(stage.fleet(), "nightly", adding("c"))
    assert stage.now() - before < 1.0
    assert (answer.by, answer.applied.version) == ("nightly@here", 1)
    assert answer.applied.inverse is not None
    assert answer.applied.inverse.edits == (RemoveTask("c"),)
    assert edits_by((await stage.load()).plan, "bob") == 1  # durable on return
    assert await requests(stage) == []
    await stage.until(lambda: "c" in DONE)
    for name in "ab":
        durable_work.gate(name).set()
    assert set((await job).values) == {"a", "b", "c"}


# -- of the process itself ---------------------------------------------------------------------------------------------


async def _owner(stage: Stage, **options: Any) -> Fleet:
    """The fleet of a process that runs a plan, whose first task waits at its gate."""
    orchestrator = stage.orchestrator(**options)
    stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    return orchestrator.fleet.named("bob")


async def test_a_process_that_runs_the_plan_edits_it_without_a_register(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, commit, keys = await _owner(stage), stage.store.commit, list[str]()

    async def watched(writes: Sequence[Write]) -> None:
        keys.extend(write.key for write in writes if isinstance(write, PutRegister))
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", watched)
    answer = await edit_plan(fleet, "nightly", adding("c"))
    assert (answer.by, answer.applied.version, (await stage.load()).plan.version) == ("nightly@here", 1, 1)
    assert [key.partition("/")[0] for key in keys] == ["journal"]
    with pytest.raises(EditRejected, match="b"):
        await edit_plan(fleet, "nightly", adding("b"))
    assert (await ask_why(fleet, "nightly", "b")) is not None
    await asyncio.sleep(1.0)
    assert await stage.store.registers("rejected/nightly/")


async def test_an_edit_of_its_own_plan_that_is_not_durable_in_time_has_an_unknown_outcome(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet, commit = await _owner(stage), stage.store.commit

    async def unavailable(writes: Sequence[Write]) -> None:
        raise StoreUnavailable("it is gone")

    monkeypatch.setattr(stage.store, "commit", unavailable)
    with pytest.raises(AnswerLost, match=r"was not written within 3\.0 s"):
        await edit_plan(fleet, "nightly", adding("c"), timeout=3.0)
    monkeypatch.setattr(stage.store, "commit", commit)
    await asyncio.sleep(60.0)
    assert (await stage.load()).plan.version == 1  # late, and once


async def test_a_process_that_is_about_to_leave_the_plan_asks_through_the_store(stage: Stage) -> None:
    fleet = await _owner(stage)
    for name in "ab":
        durable_work.gate(name).set()
    await stage.until(lambda: not fleet.running_plans)
    assert (await edit_plan(fleet, "nightly", adding("c"))).reopened


async def test_a_running_plan_rejects_an_edit_for_the_same_reasons_as_one_at_rest(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a", "b", call="wait"))
    bad = EditBatch((AddTask(task("b")), RemoveTask("x"), AddDependency("b", "a")), "bob", base_version=0)
    with pytest.raises(EditRejected) as at_rest:
        await edit_plan(stage.fleet(), "nightly", bad)
    stage.spawn(stage.orchestrator().run_stored("nightly"))
    await stage.until(lambda: durable_work.gate("a begun").is_set())
    with pytest.raises(EditRejected) as live:
        await edit_plan(stage.fleet(), "nightly", bad)
    assert [violation.rule for violation in at_rest.value.violations] == ["duplicate_task", "unknown_task", "cycle"]
    assert [violation.rule for violation in live.value.violations] == [
        "duplicate_task",
        "unknown_task",
        "immutable",
    ]  # a runs
    assert await requests(stage) == []
    assert (await stage.load()).plan.version == 0


async def test_a_dry_run_checks_a_running_plan_and_changes_nothing(stage: Stage) -> None:
    await running(stage)
    assert (await edit_plan(stage.fleet(), "nightly", adding("c"), dry_run=True)).applied.version == 1
    stops = await edit_plan(stage.fleet(), "nightly", EditBatch((CancelTask("a"),)), dry_run=True)
    assert ([task for task, _ in stops.applied.stopped], stops.reopened) == (["a"], False)
    with pytest.raises(EditRejected):
        await edit_plan(stage.fleet(), "nightly", EditBatch((RemoveTask("a"),)), dry_run=True)
    assert (await stage.load()).plan.version == 0


async def test_edits_of_many_processes_are_all_applied(stage: Stage) -> None:
    await running(stage)
    answers = await asyncio.gather(
        *(edit_plan(stage.fleet(), "nightly", adding(f"t{number}", author=f"p{number}")) for number in range(8))
    )
    assert sorted(answer.applied.version for answer in answers) == list(range(1, 9))
    plan = (await stage.load()).plan
    assert [edits_by(plan, f"p{number}") for number in range(8)] == [1] * 8


LONE_EDITS = 30


async def _edit_one_after_the_other(stage: Stage) -> float:
    """How long a lone editor, who thinks for a moment before each edit, waits for answers."""
    job, waited = await running(stage), 0.0
    for number in range(LONE_EDITS):
        await asyncio.sleep(0.01)
        began = stage.now()
        batch = EditBatch((UpdateTask("b", timeout=60.0 + number),), "bob")
        await edit_plan(stage.fleet(), "nightly", batch)
        waited += stage.now() - began
    for name in "ab":
        durable_work.gate(name).set()
    await job
    return waited


async def test_a_lone_editor_is_answered_at_once(stage: Stage) -> None:
    assert await _edit_one_after_the_other(stage) < LONE_EDITS * ownership.MAILBOX_PAUSE / 10


async def test_with_a_pause_after_each_vain_look_a_lone_editor_would_wait(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ablation."""
    monkeypatch.setattr(ownership, "FREE_LOOKS", 0)
    assert await _edit_one_after_the_other(stage) > LONE_EDITS * ownership.MAILBOX_PAUSE / 2


async def _looks_in_vain(stage: Stage, monkeypatch: pytest.MonkeyPatch, seconds: float) -> int:
    """How often an owner looks for requests while the store wakes it every millisecond, and there is none."""
    looks, answer = 0, ownership.answer_messages

    def counted(*arguments: Any) -> Any:
        nonlocal looks
        looks += 1
        return answer(*arguments)

    job = await running(stage)
    monkeypatch.setattr(ownership, "answer_messages", counted)
    key, revision = f"{mailbox_prefix('nightly')}0", None
    for number in range(int(seconds * 1000)):
        await stage.store.commit([PutRegister(key, {"answer": number}, revision)])
        revision = 1 if revision is None else revision + 1
        await asyncio.sleep(0.001)
    for name in "ab":
        durable_work.gate(name).set()
    await job
    return looks


async def test_vain_looks_for_requests_are_bounded(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = 2.0
    most = seconds / ownership.MAILBOX_PAUSE + ownership.FREE_LOOKS + 5
    assert await _looks_in_vain(stage, monkeypatch, seconds) <= most


async def test_without_a_pause_vain_looks_would_follow_every_wake(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ablation."""
    monkeypatch.setattr(ownership, "FREE_LOOKS", 1_000_000)
    assert await _looks_in_vain(stage, monkeypatch, 0.5) > 100


async def test_a_plan_without_a_process_is_edited_by_the_asking_process(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a"))
    assert (await edit_plan(stage.fleet(), "nightly", adding("c"))).by is None


async def test_an_edit_of_a_plan_that_is_being_cancelled_is_refused(stage: Stage) -> None:
    job = stage.spawn(stage.orchestrator(grace=50.0).run(chain("a", call="stubborn")))
    await durable_work.gate("a begun").wait()
    await plan_actor.cancel_plan(stage.fleet(), "nightly", "not tonight")
    with pytest.raises(PlanError, match="is being cancelled by ann: not tonight: it cannot be edited"):
        await edit_plan(stage.fleet(), "nightly", adding("c"))
    durable_work.gate("a").set()
    await job


async def test_a_request_that_this_version_does_not_know_is_answered(stage: Stage) -> None:
    await running(stage)
    key = f"{mailbox_prefix('nightly')}1"
    await stage.store.commit([PutRegister(key, {"do": {"command": "Dance"}, "at": stage.store.clock()}, None)])
    await asyncio.sleep(2.0)
    (request,) = await requests(stage)
    assert "it does not know the command 'Dance': its version differs" in request["answer"]["failure"]["message"]


# -- ends, deaths and silence ------------------------------------------------------------------------------------------


async def test_an_edit_of_a_plan_that_ended_a_moment_ago_is_rejected(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf(monkeypatch)
    job = await running(stage, "a")
    asking = stage.spawn(edit_plan(stage.fleet(), "nightly", EditBatch((CancelTask("a"),), "bob")))
    await asyncio.sleep(1.0)
    durable_work.gate("a").set()
    await job
    with pytest.raises(EditRejected, match=r"has ended \(completed\)"):
        await asking
    assert await requests(stage) == []


async def test_tasks_that_are_added_to_a_plan_that_ended_a_moment_ago_reopen_it(stage: Stage) -> None:
    """The owner does not touch a plan that has ended: the asking process reopens it when the owner has left it."""
    job = await running(stage, "a")
    durable_work.gate("a").set()
    asking = stage.spawn(edit_plan(stage.fleet(), "nightly", adding("c")))
    await job
    answer = await asking
    plan = (await stage.load()).plan
    assert edits_by(plan, "bob") == 1
    assert answer.by is None or str(plan["c"].status) == "completed"
    if answer.by is None:
        assert set((await stage.orchestrator().run_stored("nightly")).values) == {"a", "c"}


async def test_an_owner_that_does_not_answer_leaves_nothing_behind(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        deaf(patch)
        await running(stage)
        before = stage.now()
        with pytest.raises(NotAnswered, match=r"'nightly@here' runs plan 'nightly', but did not answer within 10"):
            await edit_plan(stage.fleet(), "nightly", adding("c"))
        assert 10.0 <= stage.now() - before < 12.0
    await asyncio.sleep(10.0)
    assert await requests(stage) == []
    assert "c" not in (await stage.load()).plan


async def test_the_asking_process_edits_the_plan_if_its_owner_is_dead(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf(monkeypatch)
    first = stage.orchestrator(local=0)
    dead = asyncio.ensure_future(first.run(chain("a", "b", call="wait")))
    await asyncio.sleep(3.0)
    asking = stage.spawn(edit_plan(stage.fleet(), "nightly", adding("c")))
    await asyncio.sleep(1.0)
    monkeypatch.setattr(ownership.FleetMembership, "__aexit__", _without_farewell)
    dead.cancel()
    answer = await asking
    assert (answer.by, answer.applied.version) == (None, 1)
    assert await requests(stage) == []
    assert edits_by((await stage.load()).plan, "bob") == 1


async def _without_farewell(self: ownership.FleetMembership, *error: object) -> None:
    """As if the process had been killed: no session ends."""
    self.left.cancel()
    await asyncio.gather(self.left, return_exceptions=True)


async def test_the_next_owner_applies_what_the_dead_one_did_not(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        deaf(patch)
        job = await running(stage, host="there")
        asking = stage.spawn(edit_plan(stage.fleet(), "nightly", adding("c")))
        stage.spawn(stage.orchestrator(host="elsewhere").standby("nightly"))
        await asyncio.sleep(1.0)
        job.cancel()
        await asyncio.sleep(0.1)
    answer = await asking
    assert answer.by in ("nightly@elsewhere", None)
    assert edits_by((await stage.load()).plan, "bob") == 1


async def test_a_request_whose_process_died_is_applied_once(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed without a chance to withdraw it: the request stays."""
    value = {"do": EditPlan(adding("c")).to_json(), "at": stage.store.clock()}
    await insert_plan(stage.store, chain("a", "b", call="wait"))
    await stage.store.commit([PutRegister(f"{mailbox_prefix('nightly')}1", value, None)])
    await left(stage.orchestrator().run_stored("nightly"), lambda: "c" in DONE, stage)
    stage.spawn(stage.orchestrator().run_stored("nightly"))
    await asyncio.sleep(10.0)
    assert edits_by((await stage.load()).plan, "bob") == 1
    (request,) = await requests(stage)
    assert request["answer"]["done"]["version"] == 1
    await asyncio.sleep(ownership.ANSWER_KEPT)
    assert await requests(stage) == []


@pytest.mark.parametrize("jump", [0.0, 2 * ownership.ANSWER_KEPT])
async def test_an_answer_waits_for_its_process_whatever_the_clock_of_the_store_does(stage: Stage, jump: float) -> None:
    """Once, an owner removed an answer at once when the clock of the store had jumped, and it was taken for refused."""
    await running(stage)
    asked_at = stage.store.clock() - jump
    value = {"do": EditPlan(adding("c")).to_json(), "at": asked_at}
    await stage.store.commit([PutRegister(f"{mailbox_prefix('nightly')}1", value, None)])
    await asyncio.sleep(ownership.ANSWER_KEPT - 60.0)
    (request,) = await requests(stage)
    assert request["answer"]["done"]["version"] == 1
    await asyncio.sleep(120.0)
    assert await requests(stage) == []


async def test_a_process_that_waits_too_long_learns_that_the_outcome_is_unknown(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf(monkeypatch)
    await running(stage)
    asking = asyncio.ensure_future(edit_plan(stage.fleet(), "nightly", adding("c")))
    await asyncio.sleep(1.0)
    (request,) = await stage.store.registers(mailbox_prefix("nightly"))
    await stage.store.commit([PutRegister(request.key, None, request.revision)])
    with pytest.raises(AnswerLost, match="Look whether it was applied: asterism plan story nightly"):
        await asking


async def test_a_process_that_is_stopped_withdraws_its_request(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf(monkeypatch)
    await running(stage)
    asking = asyncio.ensure_future(edit_plan(stage.fleet(), "nightly", adding("c")))
    await asyncio.sleep(1.0)
    assert len(await requests(stage)) == 1
    asking.cancel()
    await asyncio.wait([asking])
    assert await requests(stage) == []


def withdrawing_late(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The request of the first edit is withdrawn when its owner has applied it and is about to commit that."""
    commit, withdrawn = stage.store.commit, []

    async def late(writes: Sequence[Write]) -> None:
        for write in (candidate for candidate in writes if isinstance(candidate, PutRegister)):
            answers = write.key.startswith("mailbox/") and write.value is not None
            if answers and write.expected is not None and not withdrawn:
                withdrawn.append(write.key)
                await commit([PutRegister(write.key, None, write.expected)])
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", late)
    return withdrawn


async def test_a_request_that_is_withdrawn_before_the_commit_is_not_applied(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    orchestrator = stage.orchestrator()
    job = stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    withdrawn = withdrawing_late(stage, monkeypatch)
    with pytest.raises(PlanError, match="is no longer in the store"):
        await edit_plan(stage.fleet(), "nightly", adding("c"))
    await asyncio.sleep(3.0)
    assert len(withdrawn) == 1
    assert "c" not in (await stage.load()).plan
    answer = await edit_plan(stage.fleet(), "nightly", adding("d"))  # the owner has reloaded the plan, and goes on
    assert (answer.by, answer.applied.version) == ("nightly@here", 1)
    for name in "ab":
        durable_work.gate(name).set()
    assert set((await job).values) == {"a", "b", "d"}
    assert (await stage.load()).head.epoch == 2


# -- pause, why, undo --------------------------------------------------------------------------------------------------


async def test_a_pause_is_answered_by_the_owner(stage: Stage) -> None:
    job = await running(stage)
    before = stage.now()
    answer = await pause_plan(stage.fleet(), "nightly", "lunch")
    assert stage.now() - before < 1.0
    assert (answer.reason, answer.already, answer.by) == ("by ann: lunch", False, "nightly@here")
    again = await pause_plan(stage.fleet(), "nightly", "tea")
    assert (again.reason, again.already, again.by) == ("by ann: lunch", True, "nightly@here")
    for name in "ab":
        durable_work.gate(name).set()
    await asyncio.sleep(5.0)
    assert "b" not in DONE
    assert await plan_actor.unpause_plan(stage.fleet(), "nightly")
    await job
    assert "b" in DONE


async def test_a_pause_that_nobody_obeys_yet_is_kept(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a"))
    answer = await pause_plan(stage.fleet(), "nightly")
    assert (answer.owner, answer.by) == (None, None)
    assert (await read_head(stage.store, "nightly"))[0].paused == "by ann"


async def test_the_owner_explains_what_only_it_knows(stage: Stage) -> None:
    orchestrator = stage.orchestrator(concurrency=1)
    plan = chain("a", call="wait")
    plan.add(task("z"))
    stage.spawn(orchestrator.run(plan))
    await durable_work.gate("a begun").wait()
    explanation = await ask_why(stage.fleet(), "nightly", "z")
    assert explanation is not None
    assert [holder.kind for holder in explanation.holders] == ["concurrency"]
    orchestrator.pause("nightly")
    explanation = await ask_why(stage.fleet(), "nightly", "z")
    assert explanation is not None
    assert [holder.kind for holder in explanation.holders] == ["pause"]
    assert await ask_why(stage.fleet(), "nightly", "no-such-task") is None
    assert await requests(stage) == []


async def test_no_explanation_of_an_owner_that_is_silent(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf(monkeypatch)
    await running(stage)
    before = stage.now()
    assert await ask_why(stage.fleet(), "nightly", "b") is None
    assert stage.now() - before <= plan_actor.WHY_TIMEOUT + 1.0


@pytest.mark.parametrize("live", [False, True])
async def test_edits_are_undone_newest_first(stage: Stage, live: bool) -> None:
    fleet = stage.fleet()
    if live:
        await running(stage)
    else:
        await insert_plan(stage.store, chain("a", "b", call="wait"))
    for name in "cd":
        await edit_plan(fleet, "nightly", EditBatch((AddTask(task(name)), AddDependency("a", name)), "bob"))
    first = await undo_edit(fleet, "nightly", "a mistake")
    assert first.by == ("nightly@here" if live else None)
    assert first.applied.batch.undoes == 2
    assert set((await stage.load()).plan.nodes) == {"a", "b", "c"}
    await undo_edit(fleet, "nightly")
    stored = await stage.load()
    assert (set(stored.plan.nodes), stored.plan.version) == ({"a", "b"}, 4)
    reasons = [entry.why for entry in stored.plan.story(None) if entry.what == "edited"]
    assert "version 3 by ann: undo version 2: a mistake" in reasons[2]
    with pytest.raises(EditRejected, match="there is no edit that can be undone"):
        await undo_edit(fleet, "nightly")


async def test_a_cancelled_task_cannot_be_undone(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a", "b"))
    await edit_plan(stage.fleet(), "nightly", EditBatch((CancelTask("b"),), "bob"))
    with pytest.raises(EditRejected, match="version 1 cannot be undone: it cancelled a task"):
        await undo_edit(stage.fleet(), "nightly")


async def test_a_task_that_has_started_is_not_undone(stage: Stage) -> None:
    await running(stage)
    await edit_plan(stage.fleet(), "nightly", adding("c"))
    await stage.until(lambda: "c" in DONE)
    with pytest.raises(EditRejected, match="task 'c' is completed"):
        await undo_edit(stage.fleet(), "nightly")


async def test_requests_are_removed_with_their_plan(stage: Stage) -> None:
    await stage.orchestrator().run(chain("a"))
    await stage.store.commit(
        [PutRegister(f"{mailbox_prefix('nightly')}1", {"do": ExplainTask("a").to_json(), "at": 0.0}, None)]
    )
    await asyncio.sleep(10_000.0)
    await stage.fleet().prune(1000.0)
    await stage.fleet().prune(1000.0)
    assert await stage.store.registers("plan/") == []
    assert await requests(stage) == []


# -- together ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("here", [True, False], ids=["of its own process", "of other processes"])
async def test_edits_that_come_together_are_one_commit_and_each_has_its_answer(stage: Stage, here: bool) -> None:
    orchestrator = stage.orchestrator()
    stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    await stage.until(lambda: orchestrator.fleet.running_plans["nightly"].running is not None)
    before = (await stage.load()).number
    fleets = [orchestrator.fleet if here else stage.fleet() for _ in range(8)]
    batches = [*(adding(f"c{number}") for number in range(7)), EditBatch((RemoveTask("unknown"),), "bob")]
    edits = [edit_plan(fleet, "nightly", batch) for fleet, batch in zip(fleets, batches, strict=True)]
    *answers, refused = await asyncio.gather(*edits, return_exceptions=True)
    assert isinstance(refused, EditRejected)
    versions = sorted(answer.applied.version for answer in answers if isinstance(answer, EditAnswer))
    assert versions == list(range(1, 8))
    records = await stage.store.registers("journal/nightly/")
    kinds = [[step["step"] for step in record.value["steps"]] for record in records if record_number(record) > before]
    assert [steps.count("edit") for steps in kinds if "edit" in steps] == [7]


# -- devices -----------------------------------------------------------------------------------------------------------


def adding_for(device: str) -> EditBatch:
    return EditBatch((AddTask(task("c", device=device)),), "bob")


@pytest.mark.parametrize("runs", [True, False], ids=["running", "at rest"])
async def test_an_edit_that_names_a_device_which_nobody_knows_is_rejected(stage: Stage, runs: bool) -> None:
    await stage.device("attic")
    if runs:
        await running(stage)
    else:
        await insert_plan(stage.store, chain("a", "b"))
    person = stage.fleet()
    for dry_run in (True, False):
        with pytest.raises(EditRejected, match=r"no device 'atic' has joined.*the devices are: .*attic"):
            await edit_plan(person, "nightly", adding_for("atic"), dry_run=dry_run)
    await edit_plan(person, "nightly", adding_for("attic"))
    await invite(stage.store, name="lab-*")
    await edit_plan(person, "nightly", EditBatch((UpdateTask("b", device="lab-7"),), "bob"))


@pytest.mark.parametrize("directly", [True, False])
async def test_an_edit_of_its_own_plan_during_a_reload_is_made_after_it(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, directly: bool
) -> None:
    """Another process withdraws its request while the owner commits the answer together with an edit of its own.
    Nothing of that commit has happened, and the plan is loaded again."""
    orchestrator = stage.orchestrator()
    stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    key, commit, answer = f"{mailbox_prefix('nightly')}0001", stage.store.commit, ownership.answer_messages
    edits = list[asyncio.Task[Any]]()

    async def withdrawing(writes: Sequence[Write]) -> Any:
        await asyncio.sleep(0.02)
        register = await stage.store.register(key)
        if register is not None and any(isinstance(write, PutRegister) and write.key == key for write in writes):
            await commit([PutRegister(key, None, register.revision)])
        return await commit(writes)

    def with_our_edit(*arguments: Any) -> Any:
        answered = answer(*arguments)
        if answered and not edits:
            edit: Any = partial(edit_plan, orchestrator.fleet) if directly else orchestrator.edit
            edits.append(asyncio.ensure_future(edit("nightly", adding("c"))))
        return answered

    monkeypatch.setattr(stage.store, "commit", withdrawing)
    monkeypatch.setattr(ownership, "answer_messages", with_our_edit)
    request = {"do": EditPlan(adding("other", author="carol")).to_json(), "at": 0}
    await commit([PutRegister(key, request, None)])
    await stage.until(lambda: edits)
    await edits[0]
    stored = await stage.load()
    assert (stored.plan.version, "c" in stored.plan, "other" in stored.plan) == (1, True, False)


async def test_an_edit_of_its_own_plan_while_it_is_being_cancelled_is_refused(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    orchestrator = stage.orchestrator()
    stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    roster = orchestrator.fleet.running_plans["nightly"].running.execution.roster
    learn = roster.learn_devices

    async def meanwhile_cancelled() -> None:
        await learn()
        stage.spawn(orchestrator.cancel("nightly"))
        await asyncio.sleep(0)

    monkeypatch.setattr(roster, "learn_devices", meanwhile_cancelled)
    with pytest.raises((PlanError, EditRejected), match="cancel"):
        await edit_plan(orchestrator.fleet, "nightly", EditBatch((UpdateTask("b", device="kitchen"),), "bob"))
    assert (await stage.load()).plan["b"].device is None


async def test_the_devices_are_read_for_an_edit_that_names_one(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    orchestrator = stage.orchestrator()
    stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    sessions, reads = stage.store.sessions, 0

    async def counted(**options: Any) -> Any:
        nonlocal reads
        reads += options.get("ended", False)
        return await sessions(**options)

    monkeypatch.setattr(stage.store, "sessions", counted)
    await edit_plan(orchestrator.fleet, "nightly", adding("c"))
    assert reads == 0
    with pytest.raises(EditRejected, match="no device 'kitchen' has joined"):
        await edit_plan(orchestrator.fleet, "nightly", EditBatch((UpdateTask("b", device="kitchen"),), "bob"))
    assert reads == 1


async def test_an_edit_that_cannot_be_written_as_json_is_refused_and_the_plan_goes_on(stage: Stage) -> None:
    orchestrator = stage.orchestrator()
    stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    too_long = EditBatch((UpdateTask("b", inputs={"n": 10**4300}),), "bob")
    with pytest.raises(EditRejected, match="a number with more than 4,300 digits"):
        await edit_plan(orchestrator.fleet, "nightly", too_long)
    await edit_plan(orchestrator.fleet, "nightly", adding("c"))
    stored = await stage.load()
    assert (stored.plan.version, "c" in stored.plan, "n" in stored.plan["b"].task.inputs) == (1, True, False)
