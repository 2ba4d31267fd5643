"""Durable orchestrator: tasks are runs of the fleet, and a plan survives the process that runs it."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from asterism.core.errors import AlreadyRunning, EditRejected, NotJson
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import AddDependency, AddTask, EditBatch, RemoveTask, UpdateTask
from asterism.core.plan.journal import lock_to_json
from asterism.core.plan.task import Task
from asterism.core.run.work import Workflow
from asterism.durable import durable_orchestrator, ownership, plan_actor
from asterism.durable.journal_store import (
    ConstellationExists,
    OwnershipLost,
    UnknownConstellation,
    insert_plan,
    read_head,
)
from asterism.execution.function_modules import load_object
from asterism.fleet.fleet import Fleet
from asterism.orchestrator.devices import LocalDevice
from asterism.orchestrator.orchestrator import Orchestrator
from asterism.store.protocol import Query
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Line, Stage, behind, chain, left, task


@pytest.mark.virtual_time
async def test_dependents_receive_the_results_of_tasks_that_are_no_runs(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("first"))
    plan.add(task("second"))
    plan.add(Task("both", call="tests.durable.durable_work:join"), ["first", "second"])
    plan.add(Task("all", call="tests.durable.durable_work:everything"), ["first", "both"])
    plan.add(Task("nothing"), "all")
    plan.add(
        Task(
            "picked",
            call="tests.durable.durable_work:work",
            inputs={"name": {"from": "both", "select": "result[1]"}},
        ),
        "both",
    )
    result = await stage.orchestrator().run(plan)
    assert result.state == "completed"
    assert result["both"].value == ["first done", "second done"]
    assert result["all"].value == ["both", "first"]
    assert result["picked"].value == "second done done"
    assert await stage.store.find(Query()) == []
    times = (await stage.load()).plan.node("both").attempt_times
    assert times is not None
    assert times.created == times.begun <= (times.ended or 0.0)


@pytest.mark.virtual_time
async def test_a_function_gets_the_same_arguments_as_without_a_store(stage: Stage) -> None:
    def plan() -> Constellation:
        made = Constellation("nightly")
        made.add(task("first"))
        for name in ("everything", "whatever"):
            for inputs in ({}, {"n": 3}):
                made.add(
                    Task(f"{name}-{len(inputs)}", call=f"tests.durable.durable_work:{name}", inputs=inputs), "first"
                )
                made.add(Task(f"alone-{name}-{len(inputs)}", call=f"tests.durable.durable_work:{name}", inputs=inputs))
        return made

    kept = await stage.orchestrator().run(plan())
    other = await Orchestrator([LocalDevice("here")]).run(plan())
    assert kept.values == other.values
    assert kept.values["everything-1"] == ["first"]


async def test_a_result_is_found_if_an_input_has_the_name_of_its_task() -> None:
    """By a function with a parameter for the results, and by the variables of a command."""

    def plan() -> Constellation:
        made = Constellation("nightly")
        for name in ("first", "$results"):
            made.add(Task(name, call="tests.durable.durable_work:like_a_secret"))
        inputs = {"first": {"from": "first", "select": "result.secret"}, "n": 3}
        made.add(
            Task("called", call="tests.durable.durable_work:input_and_results", inputs=inputs), ["first", "$results"]
        )
        made.add(Task("bare", call="tests.durable.durable_work:everything"), "$results")
        variables = {"secret": {"from": "first"}, "LIST": {"from": "$results"}}
        made.add(Task("told", shell='echo "[$secret, $LIST]"', inputs=inputs, env=variables), ["first", "$results"])
        return made

    async with await Fleet.open("memory:") as fleet:
        kept = await durable_orchestrator.DurableOrchestrator(fleet, local=1).run(plan())
    other = await Orchestrator([LocalDevice("here")]).run(plan())
    assert kept.values == other.values
    data = {"secret": "MY_TOKEN"}
    assert kept.values["called"] == ["MY_TOKEN", {"first": data, "$results": data}]
    assert kept.values["told"] == [data, data]


@pytest.mark.virtual_time
async def test_a_result_that_looks_like_a_secret_reference_is_data(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the author of the result could read the environment of the device."""
    monkeypatch.setenv("MY_TOKEN", "hush")
    data = {"secret": "MY_TOKEN"}
    plan = Constellation("nightly")
    plan.add(Task("given", call="tests.durable.durable_work:like_a_secret"))
    plan.add(Task("by-name", call="tests.durable.durable_work:echo"), "given")
    plan.add(Task("by-input", call="tests.durable.durable_work:echo", inputs={"given": {"from": "given"}}), "given")
    selected = {"from": "given", "select": "{'secret': result.secret}"}
    plan.add(Task("selected", call="tests.durable.durable_work:echo", inputs={"given": selected}), "given")
    plan.add(Task("named", call="tests.durable.durable_work:echo", inputs={"given": data}))
    result = await stage.orchestrator().run(plan)
    assert result.state == "completed"
    values = {name: node.value for name, node in result.plan.nodes.items()}
    assert [values[name] for name in ("by-name", "by-input", "selected")] == [[data]] * 3
    assert values["named"] == ["hush"]  # a secret reference in the plan is one


@pytest.mark.virtual_time
async def test_tasks_of_one_kind_have_runs_of_one_kind_and_no_workflow(stage: Stage) -> None:
    plan = Constellation("nightly")
    for number in range(20):
        plan.add(task(f"t{number}"))
    plan.add(Task("other", call="tests.durable.durable_work:work", inputs={"name": "x"}, retries=1))
    await stage.device("kitchen")
    await stage.orchestrator(local=0).run(plan)
    assert len({run.kind for run in await stage.store.find(Query())}) == 2
    assert await stage.store.registers("workflow") == []


@pytest.mark.virtual_time
async def test_an_execution_knows_its_run_and_epoch(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(Task("who", call="tests.durable.durable_work:who"))
    await stage.device("kitchen")
    result = await stage.orchestrator(local=0).run(plan)
    [run] = await stage.store.find(Query())
    assert result["who"].value == [run.id, 1]
    where = f"run {run.id}, epoch 1, on kitchen, waited 0.000 s, ran 0.000 s"
    assert where in [entry.why for entry in result.story("who")]


@pytest.mark.virtual_time
async def test_an_execution_that_is_no_run_knows_what_it_is(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("first"))
    plan.add(Task("who", call="tests.durable.durable_work:who"), "first")
    result = await stage.orchestrator().run(plan)
    assert result["who"].value == ["plan:nightly/who/2", 2]
    assert result["who"].device == "nightly@here"


@pytest.mark.virtual_time
@pytest.mark.parametrize("local", [0, 4])
async def test_failed_work_is_retried_and_its_failure_counts_all_attempts(stage: Stage, local: int) -> None:
    plan = Constellation("nightly")
    plan.add(task("printing", "fail", retries=2, backoff=0.1))
    plan.add(task("after"), "printing")
    plan.add(task("sorry"), {"printing": "failure"})
    await stage.device("kitchen")
    result = await stage.orchestrator(local=local).run(plan)
    assert result.state == "partially_failed"
    assert str(result["printing"].error) == "ValueError: printing is out of paper"
    assert DONE == {"printing": 3, "sorry": 1}
    for run in await stage.store.find(Query(key="plan:nightly/printing/1")):
        assert (run.epoch, run.failures) == (3, 3)
    assert (result["printing"].attempts, result["sorry"].attempts) == (3, 1)
    assert (await stage.load()).plan.node("printing").attempts == 3


@pytest.mark.virtual_time
async def test_a_timeout_counts_from_the_start_of_the_work(stage: Stage) -> None:
    plan = Constellation("nightly")
    for number in range(3):
        plan.add(task(f"t{number}", "slow", timeout=10.0))
    result = await stage.orchestrator(local=1).run(plan)
    assert result.state == "completed"


async def run_beside(stage: Stage, plan: Constellation, **options: Any) -> str | None:
    """The device of a run that is no task of a plan, when the plan has ended."""
    await stage.fleet().workflows.add(Workflow("w", call="tests.durable.durable_work:work"))
    other = await stage.fleet().create("w", {"name": "other"})
    assert (await stage.orchestrator(local=2, **options).run(plan)).state == "completed"
    return (await stage.fleet().run(other.id)).device


@pytest.mark.virtual_time
@pytest.mark.parametrize("name", ["nightly", 'a "b" \\n ä 🙂'])
async def test_an_orchestrator_may_execute_only_tasks_of_its_plan(stage: Stage, name: str) -> None:
    plan = Constellation(name)
    plan.add(task("a"))
    plan.add(task("b", "slow"), "a")
    assert await run_beside(stage, plan, only_own_tasks=True) is None


@pytest.mark.virtual_time
async def test_without_the_option_an_orchestrator_executes_any_run(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("a"))
    plan.add(task("b", "slow"), "a")
    assert await run_beside(stage, plan) == "nightly@here"


@pytest.mark.virtual_time
async def test_tasks_run_on_devices_of_the_fleet_including_late_ones(stage: Stage) -> None:
    await stage.device("kitchen", slots=1)
    plan = Constellation("nightly")
    plan.add(task("cooking"))
    plan.add(Task("washing", call="tests.durable.durable_work:work", inputs={"name": "w"}, needs={"soap"}), "cooking")
    running = stage.spawn(stage.orchestrator(local=0).run(plan))
    await stage.until(lambda: DONE["cooking"])
    await asyncio.sleep(5.0)
    assert not running.done()
    await stage.device("bath", can={"soap"})
    result = await running
    told = [entry.why for entry in result.story() if entry.what == "run ended"]
    assert [words.rpartition(" on ")[2].partition(",")[0] for words in told] == ["kitchen", "bath"]
    assert [result[name].device for name in ("cooking", "washing")] == ["kitchen", "bath"]


# -- leaving and going on ----------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_stopped_plan_resumes_without_repeating_ended_tasks(stage: Stage) -> None:
    plan = chain("a", "b")
    plan.add(task("c", "wait"), "b")
    plan.add(task("d"), "c")
    first = stage.orchestrator()
    await left(first.run(plan), lambda: DONE["b"], stage)
    assert not (await stage.load()).head.ended
    durable_work.gate("c").set()
    result = await stage.orchestrator(host="there").run_stored("nightly")
    assert result.state == "completed"
    assert DONE == {"a": 1, "b": 1, "c": 1, "d": 1}
    assert [entry.why for entry in result.story() if entry.what == "taken up"] == [
        "by nightly@here, epoch 1",
        "by nightly@there, epoch 2",
    ]


@pytest.mark.virtual_time
async def test_the_next_owner_waits_for_a_run_that_is_still_running(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    first = stage.orchestrator(local=0)
    await left(first.run(chain("a", call="wait")), lambda: len(kitchen.worker), stage)
    again = stage.spawn(stage.orchestrator(local=0).run_stored("nightly"))
    await asyncio.sleep(10.0)
    assert len(kitchen.worker) == 1
    durable_work.gate("a").set()
    assert (await again).state == "completed"
    assert DONE == {"a": 1}
    assert len(await stage.store.find(Query())) == 1


@pytest.mark.virtual_time
async def test_a_plan_resumes_when_all_earlier_devices_are_gone(stage: Stage) -> None:
    """Their runs go to the devices that are there; a task for an absent device waits for it, and fails."""
    kitchen = await stage.device("kitchen")
    plan = chain("a", "b", call="wait")
    plan.add(task("theirs", device="kitchen"), "a")
    first = stage.orchestrator(local=0, no_device_timeout=50.0)
    await left(first.run(plan), durable_work.gate("a begun").is_set, stage)
    kitchen.drain(hand_back=True)
    await stage.until(lambda: not len(kitchen.worker))
    durable_work.reset()
    await stage.device("attic")
    for name in ("a", "b"):
        durable_work.gate(name).set()
    result = await stage.orchestrator(local=0).run_stored("nightly")
    assert result.state == "partially_failed"
    assert DONE == {"a": 1, "b": 1}
    assert {name: result.plan.nodes[name].device for name in ("a", "b")} == {"a": "attic", "b": "attic"}
    assert "no device could take it for 50 s" in str(result.plan.nodes["theirs"].error)


@pytest.mark.virtual_time
async def test_runs_keep_the_terms_that_are_stored_with_the_plan(stage: Stage) -> None:
    await stage.device("kitchen")
    first = stage.orchestrator(local=0, no_device_timeout=7200.0, strategy="round_robin", max_losses=9)
    await left(first.run(chain("a", "b", call="wait")), durable_work.gate("a begun").is_set, stage)
    again = stage.spawn(stage.orchestrator(local=0).run_stored("nightly"))
    for name in ("a", "b"):
        durable_work.gate(name).set()
    assert (await again).state == "completed"
    works = [run.work for run in await stage.store.find(Query())]
    assert [(work.no_device_timeout, work.strategy, work.losses) for work in works] == [(7200.0, "round_robin", 9)] * 2


@pytest.mark.virtual_time
async def test_an_open_cycle_is_reopened_and_its_editor_called_again(stage: Stage) -> None:
    asked: list[list[str]] = []
    thinking = asyncio.Event()

    async def editor(view: Any, events: Any) -> Any:
        asked.append([event.task_id for event in events])
        if len(asked) == 1:
            await thinking.wait()
        return [AddTask(task("more"))] if len(asked) == 2 else None

    first = stage.orchestrator(editor=editor)
    await left(first.run(chain("a", "b")), lambda: asked, stage)
    result = await stage.orchestrator(editor=editor).run_stored("nightly")
    assert asked[:2] == [["a"], ["a"]]
    assert DONE == {"a": 1, "b": 1, "more": 1}
    assert result.plan.version == 1


@pytest.mark.virtual_time
async def test_the_stored_plan_equals_the_plan_in_memory(stage: Stage) -> None:
    orchestrator = stage.orchestrator()
    await orchestrator.run(chain("a", "b", "c"))
    kept, live = await stage.load(), orchestrator.stored
    assert live is not None
    assert (kept.plan.to_json(), lock_to_json(kept.lock)) == (live.plan.to_json(), lock_to_json(live.lock))
    assert (kept.head.state, kept.head.owner) == ("completed", None)
    assert kept.head.ended_at == kept.plan.ended_at


@pytest.mark.virtual_time
async def test_a_cancelled_plan_ends_with_its_runs(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    orchestrator = stage.orchestrator(local=0)
    running = stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await stage.until(lambda: len(kitchen.worker))
    await orchestrator.cancel("nightly")
    assert (await running).state == "cancelled"
    [run] = await stage.store.find(Query())
    assert run.cancelled
    assert (await stage.load()).head.state == "cancelled"


@pytest.mark.virtual_time
async def test_a_revoked_task_is_stopped_on_its_device(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")

    async def editor(view: Any, events: Any) -> Any:
        if [getattr(event, "task_id", None) for event in events] != ["a"]:
            return None
        await stage.until(lambda: len(kitchen.worker))
        return [RemoveTask("b"), AddTask(task("instead"))]

    plan = chain("a")
    plan.add(task("b", "wait", revocable=True), "a")
    result = await stage.orchestrator(local=0, editor=editor, policy="speculative").run(plan)
    assert result.state == "completed"
    assert "b" not in result.plan
    assert "revoked" in [entry.what for entry in result.story("b")]
    [run] = await stage.store.find(Query(key="plan:nightly/b/2"))
    assert (run.status, run.cancelled) == ("failed", True)
    assert DONE == {"a": 1, "instead": 1}


@pytest.mark.virtual_time
async def test_the_result_of_a_revoked_execution_is_refused(stage: Stage) -> None:
    await stage.device("kitchen")

    async def editor(view: Any, events: Any) -> Any:
        if [getattr(event, "task_id", None) for event in events] != ["a"]:
            return None
        await durable_work.gate("b 1 begun").wait()
        return [UpdateTask("b", description="another one")]

    plan = chain("a")
    plan.add(task("b", "numbered", revocable=True), "a")
    plan.add(task("c", "wait"), "b")
    running = stage.spawn(stage.orchestrator(local=0, editor=editor, policy="speculative").run(plan))
    await durable_work.gate("b 2 begun").wait()
    durable_work.gate("b 1").set()  # the one that was revoked is done first
    [revoked] = await stage.store.find(Query(key="plan:nightly/b/2"))
    assert (await stage.fleet().wait(revoked.id)).output == 1
    await asyncio.sleep(10.0)
    assert (await stage.load()).plan.nodes["b"].status == "running"
    durable_work.gate("b 2").set()
    durable_work.gate("c").set()
    result = await running
    assert result.plan.nodes["b"].value == 2
    assert "revoked" in [entry.what for entry in result.story("b")]


# -- one owner ---------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"no_device_timeout": float("inf")}, "no_device_timeout"),
        ({"max_losses": -1}, "losses"),
        ({"strategy": "luck"}, "luck"),
    ],
)
async def test_invalid_options_are_refused_before_anything_is_stored(
    stage: Stage, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValueError, match=words):
        stage.orchestrator(**options)


@pytest.mark.virtual_time
async def test_two_orchestrators_cannot_run_one_plan(stage: Stage) -> None:
    running = stage.spawn(stage.orchestrator().run(chain("a", call="wait")))
    await asyncio.sleep(3.0)
    with pytest.raises(AlreadyRunning, match=r"is run by 'nightly@here', .* asterism plan standby nightly"):
        await stage.orchestrator(host="there").run_stored("nightly")
    durable_work.gate("a").set()
    await running


@pytest.mark.virtual_time
async def test_a_standby_takes_over_when_the_owner_is_gone(stage: Stage) -> None:
    running = stage.spawn(stage.orchestrator().run(chain("a", "b", call="wait")))
    waiting = stage.spawn(stage.orchestrator(host="there").standby("nightly"))
    await asyncio.sleep(30.0)
    assert not waiting.done()
    running.cancel()
    await asyncio.sleep(5.0)
    durable_work.gate("a").set()
    durable_work.gate("b").set()
    assert (await waiting).state == "completed"
    assert (await stage.load()).head.epoch == 2


@pytest.mark.virtual_time
async def test_a_standby_returns_when_the_plan_has_ended(stage: Stage) -> None:
    running = stage.spawn(stage.orchestrator().run(chain("a", call="wait")))
    await asyncio.sleep(1.0)
    waiting = stage.spawn(stage.orchestrator(host="there").standby("nightly"))
    await asyncio.sleep(5.0)
    durable_work.gate("a").set()
    await running
    assert (await waiting).state == "completed"


@pytest.mark.virtual_time
async def test_an_owner_stops_when_another_process_has_written_the_journal(stage: Stage) -> None:
    running = stage.spawn(stage.orchestrator().run(chain("a", "b", call="wait")))
    await asyncio.sleep(3.0)
    kept = await stage.load()
    other = kept.head.changed(epoch=9, owner="somebody else")
    await stage.store.commit(kept.next_record(other, [], "somebody else's"))
    durable_work.gate("a").set()
    with pytest.raises(OwnershipLost, match="another process continues plan 'nightly'"):
        await running
    again = await stage.load()
    assert again.number == kept.number + 1


# -- bad input ---------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_an_unknown_name_is_refused(stage: Stage) -> None:
    with pytest.raises(UnknownConstellation, match="there is no plan 'nobody'"):
        await stage.orchestrator().run_stored("nobody")


@pytest.mark.virtual_time
async def test_a_plan_name_is_unique(stage: Stage) -> None:
    await stage.orchestrator().run(chain("a"))
    with pytest.raises(ConstellationExists, match="resume it, or give this one another name"):
        await stage.orchestrator().run(chain("a"))


@pytest.mark.virtual_time
async def test_an_ended_plan_does_not_run_again(stage: Stage) -> None:
    await stage.orchestrator().run(chain("a"))
    result = await stage.orchestrator(host="there").run_stored("nightly")
    assert (result.state, result["a"].value) == ("completed", "a done")
    assert DONE == {"a": 1}


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: None, "no import path"),
        (durable_work.outer(), "no import path"),
        (random.Random(1).random, "no import path"),
        (durable_work.ORIGINAL, "is not the function"),
    ],
    ids=["a lambda", "an inner function", "a method", "a shadowed function"],
)
async def test_a_function_that_cannot_be_imported_is_refused(stage: Stage, call: Any, words: str) -> None:
    plan = Constellation("nightly")
    plan.add(Task("a", call=call))
    with pytest.raises(NotJson, match=words):
        await stage.orchestrator().run(plan)
    assert await stage.store.registers("plan/") == []


@pytest.mark.virtual_time
async def test_an_edit_that_cannot_be_stored_is_rejected(stage: Stage) -> None:
    orchestrator = stage.orchestrator()
    running = stage.spawn(orchestrator.run(chain("a", call="wait")))
    await asyncio.sleep(3.0)
    with pytest.raises(EditRejected, match="the plan is kept in a store"):
        await orchestrator.edit("nightly", EditBatch((AddTask(Task("b", call=lambda: None)),)))
    await orchestrator.edit("nightly", EditBatch((AddTask(task("b")), AddDependency("a", "b"))))
    assert "b" in (await stage.load()).plan
    durable_work.gate("a").set()
    assert (await running)["b"].value == "b done"


# -- pausing and the store ---------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_the_owner_follows_pause_requests_in_the_store(stage: Stage) -> None:
    running = stage.spawn(stage.orchestrator().run(chain("a", "b", call="wait")))
    await asyncio.sleep(3.0)
    await plan_actor.pause_plan(stage.fleet(), "nightly", "let me see")
    await asyncio.sleep(2 * ownership.MAILBOX_INTERVAL)
    durable_work.gate("a").set()
    durable_work.gate("b").set()
    await asyncio.sleep(30.0)
    assert DONE == {"a": 1}
    assert (await read_head(stage.store, "nightly"))[0].paused == "by ann: let me see"
    assert await plan_actor.unpause_plan(stage.fleet(), "nightly")
    assert (await running).state == "completed"
    assert not await plan_actor.unpause_plan(stage.fleet(), "nightly")


@pytest.mark.virtual_time
async def test_a_local_pause_holds_until_the_request_in_the_store_changes(stage: Stage) -> None:
    orchestrator = stage.orchestrator()
    running = stage.spawn(orchestrator.run(chain("a", "b", call="wait")))
    await durable_work.gate("a begun").wait()
    orchestrator.pause("nightly")
    durable_work.gate("a").set()
    durable_work.gate("b").set()
    await asyncio.sleep(30.0)
    assert DONE == {"a": 1}
    await plan_actor.pause_plan(stage.fleet(), "nightly")
    await asyncio.sleep(2 * ownership.MAILBOX_INTERVAL)
    await plan_actor.unpause_plan(stage.fleet(), "nightly")
    assert (await running).state == "completed"


@pytest.mark.virtual_time
async def test_a_plan_paused_while_stopped_starts_nothing(stage: Stage) -> None:
    await insert_plan(stage.store, chain("a"))
    await plan_actor.pause_plan(stage.fleet(), "nightly")
    running = stage.spawn(stage.orchestrator().run_stored("nightly"))
    await asyncio.sleep(20.0)
    assert await stage.store.find(Query()) == []
    await plan_actor.unpause_plan(stage.fleet(), "nightly")
    assert (await running).state == "completed"


@pytest.mark.virtual_time
async def test_a_task_without_a_capable_device_fails_in_time(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(Task("a", call="tests.durable.durable_work:work", inputs={"name": "a"}, needs={"wings"}))
    result = await stage.orchestrator(no_device_timeout=30.0).run(plan)
    assert result.state == "failed"
    assert "wings" in str(result["a"].error)


@pytest.mark.virtual_time
async def test_retention_removes_a_plan_and_its_runs_only_after_its_end(
    stage: Stage,
) -> None:
    await stage.device("kitchen")
    first = stage.orchestrator(local=0)
    plan = chain("a")
    plan.add(task("b", "wait"), "a")
    await left(first.run(plan), lambda: DONE["a"], stage)
    await asyncio.sleep(10_000.0)
    assert await stage.fleet().prune(1000.0) == 0
    durable_work.gate("b").set()
    await stage.orchestrator(local=0).run_stored("nightly")
    await asyncio.sleep(10_000.0)
    assert await stage.fleet().prune(1000.0) == 2
    left_over = {register.key.partition("/")[0] for register in await stage.store.registers("")}
    assert not left_over & {"plan", "journal", "paused"}


@pytest.mark.virtual_time
async def test_retention_removes_a_plan_after_its_last_run(stage: Stage) -> None:
    kitchen = await stage.device("kitchen")
    orchestrator = stage.orchestrator(local=0)
    running = stage.spawn(orchestrator.run(chain("a", call="stubborn")))
    await durable_work.gate("a begun").wait()
    await orchestrator.cancel("nightly")
    assert (await running).state == "cancelled"
    await asyncio.sleep(10.0)
    await stage.fleet().prune(1.0)
    with pytest.raises(ConstellationExists):
        await stage.orchestrator(local=0).run(chain("a"))
    durable_work.gate("a").set()
    await stage.until(lambda: not len(kitchen.worker))
    await asyncio.sleep(10.0)
    await stage.fleet().prune(1.0)
    assert (await stage.orchestrator(local=0).run(chain("a"))).state == "completed"


@pytest.mark.virtual_time
async def test_a_task_says_after_how_long_without_a_heartbeat_it_is_executed_elsewhere(stage: Stage) -> None:
    await stage.device("kitchen", can={"gpu"})
    plan = Constellation("nightly")
    plan.add(task("a", "wait", needs={"gpu"}, heartbeat_timeout=6.0))
    running = stage.spawn(stage.orchestrator(local=0).run(plan))
    await durable_work.gate("a begun").wait()
    [run] = await stage.store.find(Query())
    assert (run.device, run.timeout, run.work.heartbeat) == ("kitchen", 6.0, 2.0)
    durable_work.gate("a").set()
    assert (await running).state == "completed"


@pytest.mark.virtual_time
async def test_a_plan_of_decorated_functions_is_stored_and_continued(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from asterism import Constellation\nplan = Constellation('nightly')\n"
    text += "@plan.task\nasync def work() -> int:\n    return 7\n"
    (tmp_path / "decorated_work.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    plan = load_object("decorated_work:plan")
    result = await stage.orchestrator().run(plan)
    assert result["work"].value == 7
    again = await stage.orchestrator().retry("nightly", from_tasks=["work"])
    assert (again["work"].value, again["work"].attempts) == (7, 2)


@pytest.mark.virtual_time
@pytest.mark.parametrize(("timeout", "begun"), [(None, 1), (12.0, 2)])
async def test_own_work_of_a_process_outlasts_its_plan_in_an_outage(
    stage: Stage, timeout: float | None, begun: int
) -> None:
    """Another process may take the plan over after 15 s. The work that the process does has a timeout of its own."""
    await stage.device("hub", slots=0)
    line = Line(stage)
    plan = Constellation("nightly")
    plan.add(task("a", "in_order", heartbeat_timeout=timeout))
    running = stage.spawn(behind(stage, line, "there").run(plan))
    await durable_work.gate("a begun").wait()
    await asyncio.sleep(10.0)
    line.cut = True
    await asyncio.sleep(25.0)
    line.cut = False
    await asyncio.sleep(60.0)
    assert len(durable_work.BEGUN) == begun
    durable_work.gate("a").set()
    result = await running
    assert (result.state, result["a"].losses) == ("completed", begun - 1)


@pytest.mark.virtual_time
async def test_own_work_of_a_process_that_died_goes_to_the_next_one_on_its_machine_at_once(stage: Stage) -> None:
    line = Line(stage)
    first = stage.spawn(behind(stage, line).run(chain("a", call="in_order")))
    await durable_work.gate("a begun").wait()
    await asyncio.sleep(5.0)
    line.cut = True
    first.cancel()
    died = stage.now()
    next_one = stage.spawn(stage.orchestrator().run_stored("nightly"))
    await stage.until(lambda: len(durable_work.BEGUN) == 2)
    assert stage.now() - died < 5.0
    durable_work.gate("a").set()
    assert (await next_one).state == "completed"
