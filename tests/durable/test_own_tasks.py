"""Tasks that the process of a plan executes itself: facts of the journal, under the lease of that process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.edits import CancelTask, EditBatch
from asterism.core.plan.status import ConstellationState, TaskStatus
from asterism.core.run.session import SILENT_SHOWN
from asterism.core.run.work import Workflow
from asterism.durable import compaction, fleet_device, plan_actor, plan_summaries
from asterism.durable.journal_store import JournalRecord, ReloadRequired
from asterism.durable.journal_writer import JournalWriter
from asterism.durable.plan_process import PlanProcess
from asterism.durable.plan_summaries import ListedPlan, list_plans
from asterism.durable.stored_plans import explain_task, task_logs
from asterism.fleet import monitor, retention
from asterism.fleet.policy.device_policy import DevicePolicy, Rules
from asterism.orchestrator.execution import Execution
from asterism.store.protocol import Notice, PlanQuery, PutRegister, Query, Write
from tests.durable import durable_work
from tests.durable.durable_scenes import DONE, Line, Stage, behind, chain, left, task

pytestmark = pytest.mark.virtual_time


# -- the journal -------------------------------------------------------------------------------------------------------


async def begun_before_its_record(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a task begins although the commit of its start has not happened."""
    commit, go = stage.store.commit, asyncio.Event()

    async def slow(writes: Sequence[Write]) -> None:
        records = [write.value for write in writes if isinstance(write, PutRegister)]
        if any("Start" in str(record.steps) for record in records if isinstance(record, JournalRecord)):
            await go.wait()
        await commit(writes)

    monkeypatch.setattr(stage.store, "commit", slow)
    running = stage.spawn(stage.orchestrator().run(chain("a")))
    await asyncio.sleep(3.0)
    begun = bool(DONE)
    go.set()
    await running
    return begun


async def test_a_start_is_committed_before_the_work_begins(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not await begun_before_its_record(stage, monkeypatch)


async def test_ablation_without_the_commit_work_begins_that_nobody_knows_of(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = JournalWriter.commit

    async def at_once(self: JournalWriter, *writes: Write) -> None:
        if writes or not any(node.device is not None for node in self.plan.nodes.values()):
            await commit(self, *writes)

    monkeypatch.setattr(JournalWriter, "commit", at_once)
    assert await begun_before_its_record(stage, monkeypatch)


async def test_a_reload_neither_interrupts_nor_repeats_work(stage: Stage) -> None:
    orchestrator = stage.orchestrator()
    running = stage.spawn(orchestrator.run(chain("a", "b", call="in_order")))
    await durable_work.gate("a begun").wait()
    await reloaded(orchestrator)
    await asyncio.sleep(5.0)
    for name in ("b", "a"):
        durable_work.gate(name).set()
    result = await running
    assert result.state is ConstellationState.COMPLETED
    assert durable_work.BEGUN == ["a", "b"]
    assert sum(entry.what == "taken up" for entry in result.plan.story()) == 2
    assert result["a"].losses == 0


async def reloaded(orchestrator: Any) -> None:
    """Let a commit be refused, so that the plan is read again."""
    [owner] = orchestrator.fleet.running_plans.values()
    append = JournalWriter._append
    with pytest.MonkeyPatch.context() as patch:

        async def refused(journal: JournalWriter, *about: Any) -> None:
            raise ReloadRequired("another process has changed it")

        patch.setattr(JournalWriter, "_append", refused)
        with pytest.raises(ReloadRequired):
            await owner.running.journal.commit()
    assert JournalWriter._append is append


async def end_whose_commit_is_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    append, refused = JournalWriter._append, list[str]()

    async def picky(journal: JournalWriter, steps: Any, *about: Any) -> None:
        if "Finish" in str(steps) and not refused:
            refused.append(str(steps))
            raise ReloadRequired("another process has changed it")
        await append(journal, steps, *about)

    monkeypatch.setattr(JournalWriter, "_append", picky)
    assert (await stage.orchestrator().run(chain("a", "b"))).state is ConstellationState.COMPLETED
    assert refused


async def test_an_end_whose_commit_is_refused_is_not_lost(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    await end_whose_commit_is_refused(stage, monkeypatch)
    assert DONE == {"a": 1, "b": 1}


async def test_ablation_without_the_execution_before_the_work_is_done_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Execution, "_adopt", lambda self, node, before: False)
    await end_whose_commit_is_refused(stage, monkeypatch)
    assert DONE["a"] == 2


async def test_a_task_that_is_cancelled_as_it_completes_was_executed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its teardown runs, although the plan takes no note of its result."""
    plan = chain("create", "load")
    plan.add(task("drop"), teardown="create")
    orchestrator, execute = stage.orchestrator(), PlanProcess._execute

    async def then_cancelled(self: PlanProcess, work: Any, runs: Any) -> Any:
        value = await execute(self, work, runs)
        if work.task.id == "create":
            [owner] = orchestrator.fleet.running_plans.values()
            execution = owner.running.execution
            execution._cancel_task(execution.plan.node("create"), "by ann")
        return value

    monkeypatch.setattr(PlanProcess, "_execute", then_cancelled)
    await orchestrator.run(plan)
    assert DONE == {"create": 1, "drop": 1}


async def test_no_end_of_a_large_refused_commit_is_lost(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    append, refused = JournalWriter._append, list[int]()

    async def picky(journal: JournalWriter, steps: Any, *about: Any) -> None:
        if str(steps).count("Finish") > 50 and not refused:
            refused.append(len(steps))
            raise ReloadRequired("another process has changed it")
        await append(journal, steps, *about)

    monkeypatch.setattr(JournalWriter, "_append", picky)
    plan = Constellation("nightly")
    for number in range(200):
        plan.add(task(f"t{number}"))
    await behind(stage, Line(stage, 0.01), local=200).run(plan)
    assert refused
    assert set(DONE.values()) == {1}


async def test_the_log_of_a_refused_end_is_written(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    append, refused = JournalWriter._append, list[str]()

    async def picky(journal: JournalWriter, steps: Any, *about: Any) -> None:
        if "Finish" in str(steps) and not refused:
            refused.append(str(steps))
            raise ReloadRequired("another process has changed it")
        await append(journal, steps, *about)

    monkeypatch.setattr(JournalWriter, "_append", picky)
    await stage.orchestrator().run(chain("a", call="printing"))
    [log] = await task_logs(stage.fleet(), "nightly", "a")
    assert (log.text, DONE) == ("a says hello\n", {"a": 1})


async def test_a_task_that_is_cancelled_leaves_no_run(stage: Stage) -> None:
    orchestrator = stage.orchestrator()
    plan = Constellation("nightly")
    plan.add(task("a", "wait"))
    plan.add(task("b", "wait"))
    running = asyncio.ensure_future(orchestrator.run(plan))
    await durable_work.gate("a begun").wait()
    await orchestrator.edit("nightly", EditBatch((CancelTask("a"),), "ann"))
    durable_work.gate("b").set()
    result = await running
    assert result["a"].status == "cancelled"
    assert "a" not in DONE
    assert await stage.store.find(Query()) == []


# -- a process that dies, freezes or leaves ----------------------------------------------------------------------------


async def test_the_next_owner_starts_what_the_process_before_has_begun(stage: Stage) -> None:
    line = Line(stage)
    stage.spawn(behind(stage, line).run(chain("a", call="wait")))
    await durable_work.gate("a begun").wait()
    line.cut = True
    second = stage.spawn(stage.orchestrator(host="there").standby("nightly"))
    await asyncio.sleep(200.0)
    durable_work.gate("a").set()
    result = await second
    assert DONE == {"a": 1}
    assert (result["a"].device, result["a"].attempts, result["a"].losses) == ("nightly@there", 2, 1)
    [entry] = [entry for entry in result.story("a") if entry.what == "attempt failed"]
    assert entry.why.endswith("nightly@here was gone before it ended")


async def test_who_leaves_while_an_earlier_process_may_work_records_no_end(stage: Stage) -> None:
    plan, line = Constellation("nightly"), Line(stage)
    plan.add(task("a", "wait", heartbeat_timeout=600.0))
    stage.spawn(behind(stage, line).run(plan))
    await durable_work.gate("a begun").wait()
    line.cut = True
    await asyncio.sleep(100.0)
    second = stage.spawn(behind(stage, Line(stage, delay=0.01), "there").standby("nightly"))
    await asyncio.sleep(100.0)
    assert (await stage.load()).head.device == "nightly@there"
    second.cancel()
    await asyncio.wait([second])
    assert (await stage.load()).plan.node("a").status is TaskStatus.RUNNING


async def at_work_together(stage: Stage) -> bool:
    """Whether a process that is cut off still works when the next owner begins the same task."""
    line = Line(stage)
    stage.spawn(behind(stage, line).run(chain("a", call="noted")))
    await durable_work.gate("a begun").wait()
    line.cut = True
    stage.spawn(stage.orchestrator(host="there").standby("nightly"))
    await stage.until(lambda: durable_work.BEGUN.count("a") == 2)
    together = durable_work.BEGUN == ["a", "a"]
    durable_work.gate("a").set()
    await asyncio.sleep(60.0)
    return together


async def test_a_process_that_is_cut_off_stops_before_the_next_owner_begins(stage: Stage) -> None:
    assert not await at_work_together(stage)


async def test_ablation_without_its_lease_two_processes_execute_one_task(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: PlanProcess) -> None:
        self._watch = None

    monkeypatch.setattr(PlanProcess, "_enforce_lease", never)
    assert await at_work_together(stage)


async def test_a_task_is_stopped_before_the_session_of_its_process_is_forgotten(stage: Stage) -> None:
    plan, line = Constellation("nightly"), Line(stage)
    plan.add(task("a", "noted", heartbeat_timeout=7200.0))
    stage.spawn(behind(stage, line).run(plan))
    await durable_work.gate("a begun").wait()
    line.cut = True
    stage.spawn(stage.orchestrator(host="there").standby("nightly"))
    await asyncio.sleep(SILENT_SHOWN + 300.0)
    assert durable_work.BEGUN == ["a", "a is over", "a"]


async def test_a_long_task_is_executed_once(stage: Stage) -> None:
    running = stage.spawn(stage.orchestrator().run(chain("a", call="noted")))
    await durable_work.gate("a begun").wait()
    await asyncio.sleep(7200.0)
    durable_work.gate("a").set()
    await running
    assert durable_work.BEGUN == ["a", "a is over"]


async def begun_by_two(stage: Stage) -> bool:
    """Let a standby take a plan over while its owner lives, since the clock of the store jumps. Returns whether it
    begins what the owner executes."""
    clock = stage.store.clock
    first = stage.spawn(stage.orchestrator().run(chain("a", call="noted")))
    await durable_work.gate("a begun").wait()
    stage.store.clock = lambda: clock() + 3600.0  # type: ignore[method-assign]
    second = stage.spawn(stage.orchestrator(host="there").standby("nightly"))
    await stage.until(lambda: durable_work.BEGUN.count("a") == 2)
    assert (await stage.load()).head.device == "nightly@there"
    together = durable_work.BEGUN == ["a", "a"]
    durable_work.gate("a").set()
    await asyncio.wait([first, second])
    return together


async def test_a_jump_of_the_clock_of_the_store_gives_no_task_to_two_processes(stage: Stage) -> None:
    assert not await begun_by_two(stage)


async def test_ablation_without_a_look_at_the_sessions_two_processes_execute_one_task(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def at_once(*about: Any) -> None: ...

    monkeypatch.setattr(fleet_device, "sessions_over", at_once)
    assert await begun_by_two(stage)


async def test_a_set_up_of_a_process_that_is_gone_is_torn_down(stage: Stage) -> None:
    """Its plan is cancelled before it is taken up: the journal says that the set-up had begun."""
    plan = Constellation("nightly")
    plan.add(task("create", "wait"))
    plan.add(task("use"), "create")
    plan.add(task("drop"), teardown="create")
    line = Line(stage)
    stage.spawn(behind(stage, line, "there").run(plan))
    await durable_work.gate("create begun").wait()
    line.cut = True
    await asyncio.sleep(200.0)
    await plan_actor.cancel_plan(stage.fleet(), "nightly", "not tonight")
    await behind(stage, Line(stage, 0.002)).run_stored("nightly")
    assert DONE == {"drop": 1}


async def test_a_takeover_that_compacts_the_journal_loses_no_end(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "LONG_JOURNAL", 1)
    monkeypatch.setattr(compaction, "STEPS_PER_TASK", 0)
    plan = chain("a", "b")
    plan.add(task("c", "wait"), "b")
    first, second = Line(stage), Line(stage)
    stage.spawn(behind(stage, first).run(plan))
    await durable_work.gate("c begun").wait()
    first.cut = True
    await asyncio.sleep(200.0)
    stage.spawn(behind(stage, second, "second").run_stored("nightly"))
    await asyncio.sleep(0.5)
    second.cut = True
    await asyncio.sleep(200.0)
    durable_work.gate("c").set()
    result = await stage.orchestrator(host="there").run_stored("nightly")
    assert DONE == {"a": 1, "b": 1, "c": 1}
    assert result["a"].value == "a done"


async def test_a_process_that_has_lost_its_plan_writes_nothing_of_it(stage: Stage) -> None:
    """It is cut off while it writes an end; the plan is completed elsewhere, removed, and another one has its name."""
    line = Line(stage)
    stage.spawn(behind(stage, line, "there").run(chain("a", call="wait")))
    await durable_work.gate("a begun").wait()
    line.cut = True
    durable_work.gate("a").set()
    await stage.orchestrator().standby("nightly")
    await retention.remove_plan(stage.store, "nightly", Notice(stage.store.clock(), "removed", "by ann", None, None))
    line.cut = False
    await asyncio.sleep(400.0)
    assert await stage.store.registers("journal/nightly/") == []
    result = await stage.orchestrator().run(chain("a", call="who_am_i"))
    assert result["a"].value == "another function"


async def test_work_of_a_plan_that_was_cancelled_meanwhile_is_given_to_nobody(stage: Stage) -> None:
    line = Line(stage)
    stage.spawn(behind(stage, line, "there").run(chain("a", call="wait")))
    await durable_work.gate("a begun").wait()
    line.cut = True
    await asyncio.sleep(91.0)
    await plan_actor.cancel_plan(stage.fleet(), "nightly", "not tonight")
    await behind(stage, Line(stage, 0.002)).run_stored("nightly")
    await stage.device("kitchen")
    durable_work.gate("a begun").clear()
    line.cut = False
    await asyncio.sleep(400.0)
    assert not durable_work.gate("a begun").is_set()


@pytest.mark.long
async def test_a_plan_goes_on_though_the_session_of_a_dead_process_is_forgotten(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "SILENT_SHOWN", 300.0)
    line = Line(stage)
    stage.spawn(behind(stage, line).run(chain("a", call="wait")))
    await stage.device("kitchen")
    await durable_work.gate("a begun").wait()
    line.cut = True
    await asyncio.sleep(700.0)
    await stage.fleet().prune(60.0)
    assert [session.device for session in await stage.store.sessions(ended=True)] == ["kitchen"]
    durable_work.gate("a").set()
    result = await stage.orchestrator(host="there").run_stored("nightly")
    assert result["a"].losses == 1


async def test_a_death_of_the_process_is_never_the_failure_of_a_task(stage: Stage) -> None:
    plan = chain("a", call="wait")
    for number in range(8):  # more than the losses of a device that a task survives
        run = stage.orchestrator().run(plan) if not number else stage.orchestrator().run_stored("nightly")
        await left(run, durable_work.gate("a begun").is_set, stage)
        durable_work.gate("a begun").clear()
    durable_work.gate("a").set()
    result = await stage.orchestrator().run_stored("nightly")
    assert (result.state, DONE) == (ConstellationState.COMPLETED, {"a": 1})
    assert result["a"].attempts - result["a"].losses == 1


# -- lists -------------------------------------------------------------------------------------------------------------


async def counted_after_a_death(stage: Stage) -> dict[str, int]:
    plan = chain("a", "b")
    plan.add(task("c", "wait"), "b")
    line = Line(stage)
    stage.spawn(behind(stage, line).run(plan))
    await durable_work.gate("c begun").wait()
    line.cut = True
    await asyncio.sleep(200.0)
    [listed] = await list_plans(stage.store, PlanQuery())
    assert isinstance(listed, ListedPlan)
    return listed.counts


async def test_a_list_reads_the_journal_that_went_on_after_the_summary(stage: Stage) -> None:
    assert await counted_after_a_death(stage) == {"completed": 2, "queued": 1}
    [row] = await stage.store.plans(PlanQuery())
    assert row.summary is not None
    assert row.summary["counts"] == {"completed": 2, "running": 1}  # it is right from now on


async def test_a_list_by_state_finds_a_plan_whose_process_died_as_it_began(stage: Stage) -> None:
    await counted_after_a_death(stage)
    [resting] = await list_plans(stage.store, PlanQuery(states=frozenset({"at_rest"})))
    assert isinstance(resting, ListedPlan)
    assert await list_plans(stage.store, PlanQuery(states=frozenset({"created", "ready", "executing"}))) == []


async def test_ablation_without_a_look_at_the_journal_a_list_is_old(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*about: Any) -> bool:
        return False

    monkeypatch.setattr(plan_summaries, "_is_old", never)
    assert (await counted_after_a_death(stage)).get("completed", 0) < 2


# -- logs --------------------------------------------------------------------------------------------------------------


async def test_a_log_is_written_while_the_task_executes_and_with_its_end(stage: Stage) -> None:
    running = stage.spawn(stage.orchestrator().run(chain("a", call="talking")))
    await durable_work.gate("a begun").wait()
    await asyncio.sleep(3.0)
    [log] = await task_logs(stage.fleet(), "nightly", "a")
    assert log.text == "a begins\n"
    durable_work.gate("a").set()
    await running
    [log] = await task_logs(stage.fleet(), "nightly", "a")
    assert (log.attempt, log.text) == (1, "a begins\na ends\n")


async def test_the_logs_of_all_attempts_are_kept_and_removed_with_the_plan(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("a", "talks_and_fails", retries=1, backoff=0.0))
    await stage.orchestrator().run(plan)
    logs = await task_logs(stage.fleet(), "nightly", "a")
    assert [(log.attempt, log.text.splitlines()[0]) for log in logs] == [(1, "a fails"), (2, "a fails")]
    await asyncio.sleep(10_000.0)
    await stage.fleet().prune(1000.0)
    assert not [register.key for register in await stage.store.registers("log")]


# -- which device ------------------------------------------------------------------------------------------------------


def wide(number: int, call: str = "wait") -> Constellation:
    plan = Constellation("nightly")
    for index in range(number):
        plan.add(task(f"t{index}", call))
    return plan


async def test_what_has_no_slot_here_goes_to_another_device_that_could_take_it(stage: Stage) -> None:
    await stage.device("kitchen", slots=2)
    stage.spawn(stage.orchestrator(local=1).run(wide(6)))
    await asyncio.sleep(5.0)
    devices = [node.device for node in (await stage.load()).plan.nodes.values() if node.device is not None]
    assert sorted(devices) == ["kitchen", "kitchen", "nightly@here"]
    assert len(await stage.store.find(Query())) == 2


async def test_what_only_this_process_can_do_waits_for_a_slot_here(stage: Stage) -> None:
    await stage.device("kitchen", slots=2)
    plan = Constellation("nightly")
    for index in range(3):
        plan.add(task(f"t{index}", "wait", needs={"gpu"}))
    running = stage.spawn(stage.orchestrator(local=1, can=["gpu"]).run(plan))
    await asyncio.sleep(5.0)
    assert [node.device for node in (await stage.load()).plan.nodes.values()] == ["nightly@here", None, None]
    for index in range(3):
        durable_work.gate(f"t{index}").set()
    assert (await running).state is ConstellationState.COMPLETED
    assert await stage.store.find(Query()) == []


async def test_a_device_that_joins_gets_what_waits_for_a_slot(stage: Stage) -> None:
    stage.spawn(stage.orchestrator(local=1).run(wide(3)))
    await asyncio.sleep(5.0)
    await stage.device("kitchen", slots=2)
    await asyncio.sleep(5.0)
    assert len(await stage.store.find(Query(device="kitchen"))) == 2


async def test_what_the_device_policy_of_this_process_forbids_becomes_a_run(stage: Stage) -> None:
    await stage.device("kitchen")
    policy = DevicePolicy(Rules(callables=("tests.durable.durable_work:other",)))
    result = await stage.orchestrator(device_policy=policy).run(chain("a"))
    assert (result["a"].device, DONE) == ("kitchen", {"a": 1})


async def test_tasks_and_claimed_runs_share_the_slots_of_the_process(stage: Stage) -> None:
    stage.spawn(stage.orchestrator(local=2).run(chain("a", call="wait")))
    await durable_work.gate("a begun").wait()
    for name in ("x", "y"):
        await stage.fleet().create(Workflow("other", call="tests.durable.durable_work:wait"), {"name": name})
    await asyncio.sleep(5.0)
    runs = await stage.store.find(Query(workflow="other"))
    assert sorted(run.device or "" for run in runs) == ["", "nightly@here"]


async def test_people_are_told_of_a_failure_once_as_of_a_failed_run(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("a", "fail", retries=1, backoff=0.1))
    plan.add(task("b"), after="a")
    await stage.orchestrator().run(plan)
    ((_, notice),) = await stage.store.notices()
    assert (notice.kind, notice.device, notice.run) == ("failed", "nightly@here", None)
    assert notice.message.startswith("task 'a' of plan 'nightly' failed: ")


async def test_why_tells_that_the_slots_are_taken_and_when_the_next_attempt_begins(stage: Stage) -> None:
    plan = Constellation("nightly")
    plan.add(task("again", "fail", retries=1, backoff=100.0, priority="high"))
    plan.add(task("a", "wait"))
    plan.add(task("late"))
    stage.spawn(stage.orchestrator(local=1).run(plan))
    await durable_work.gate("a begun").wait()
    await asyncio.sleep(5.0)
    late, again = [await explain_task(stage.fleet(), "nightly", name) for name in ("late", "again")]
    assert [reason.text for reason in late.reasons] == ["every device that can run it is busy: nightly@here (1)"]
    assert "its next attempt begins in 1 min 35 s" in again.reasons[-1].text  # as on a device: 60 is no limit
