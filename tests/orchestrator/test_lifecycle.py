"""The life of a run: refused plans, pause and resume, cancellation, reuse of an orchestrator."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, PlanError, Task, edits
from asterism.core.errors import AlreadyRunning, EditRejected
from asterism.testing.virtual_time import run
from tests.laboratory.plan_invariants import check_invariants
from tests.orchestrator.orchestrator_scenes import (
    Diary,
    Script,
    after,
    at,
    chain,
    failing,
    independent,
    orchestrate,
    span,
    stubborn,
    told,
    why_of,
)

pytestmark = pytest.mark.virtual_time


def start(plan: Constellation, **options: Any) -> tuple[Orchestrator, asyncio.Task[Any]]:
    options.setdefault("devices", [LocalDevice("device")])
    orchestrator = Orchestrator(**options)
    return orchestrator, asyncio.create_task(orchestrator.run(plan))


# -- beginnings --------------------------------------------------------------------------------------------------------


def test_an_empty_plan_completes_at_once_with_and_without_an_editor() -> None:
    editor = Script()
    for options in ({}, {"editor": editor}, {"external": True}):
        result = orchestrate(Constellation(), **options)
        assert result.state == "completed"
        assert result.summary.makespan == 0
        assert result.summary.parallelism.ratio == 0
        assert len(result) == 0
    assert editor.asked == []


def test_a_plan_cannot_be_run_again_after_its_end() -> None:
    plan = independent(Task("a", call=after(1)), id="p")
    orchestrate(plan)
    with pytest.raises(PlanError, match="plan 'p' is completed: it cannot run again"):
        orchestrate(plan)


async def test_two_orchestrators_cannot_run_one_plan_in_memory() -> None:
    plan = independent(Task("a", call=after(5)), id="p")
    _, running = start(plan)
    await at(1)
    for other in (Orchestrator([LocalDevice("d")]),):
        with pytest.raises(AlreadyRunning, match="plan 'p' is running already"):
            await other.run(plan)
    result = await running
    assert result.state == "completed"
    assert told(result, "a") == ["started", "completed"]


async def test_one_orchestrator_cannot_run_one_plan_twice_at_once() -> None:
    plan = independent(Task("a", call=after(5)), id="p")
    orchestrator, running = start(plan)
    await at(1)
    with pytest.raises(AlreadyRunning):
        await orchestrator.run(plan)
    assert (await running).state == "completed"


async def test_two_plans_of_one_id_cannot_run_on_one_orchestrator_at_once() -> None:
    orchestrator, running = start(independent(Task("a", call=after(5)), id="p"))
    await at(1)
    twin = independent(Task("a", call=after(5)), id="p")
    with pytest.raises(AlreadyRunning, match="another plan with the id 'p'"):
        await orchestrator.run(twin)
    await running
    assert (await orchestrator.run(twin)).state == "completed"


def test_run_refuses_other_types_than_a_plan() -> None:
    with pytest.raises(TypeError, match="run takes a Constellation"):
        run(Orchestrator().run({"tasks": []}))  # type: ignore[arg-type]


def test_a_condition_that_does_not_parse_is_refused_before_anything_starts() -> None:
    plan = independent(Task("a", call=after(1)), Task("b", call=after(1)), id="p")
    plan.connect("a", "b", when="result.ok &&")
    with pytest.raises(PlanError, match=r"'a' -> 'b': the condition 'result.ok &&' is not valid") as caught:
        orchestrate(plan)
    assert "plan 'p' cannot run" in str(caught.value)
    assert plan["a"].status == "pending"
    assert plan.owner is None


def test_every_condition_that_does_not_parse_is_named() -> None:
    plan = independent(Task("a"), Task("b"), Task("c"))
    plan.connect("a", "b", when="((")
    plan.connect("a", "c", when="))")
    with pytest.raises(PlanError, match=r"(?s)'a' -> 'b'.*'a' -> 'c'"):
        orchestrate(plan)


def test_a_condition_decides_over_the_result() -> None:
    plan = independent(Task("a", call=after(1, {"ok": True, "count": 3})))
    plan.add(Task("yes", call=after(1)), after={"a": {"when": "result.ok && result.count > 2"}})
    plan.add(Task("no", call=after(1)), after={"a": {"when": "result.count > 3"}})
    plan.add(Task("below", call=after(1)), after="no")
    result = orchestrate(plan)
    assert result["yes"].status == "completed"
    assert result["no"].status == "cancelled"
    assert result["below"].status == "cancelled"
    assert "does not hold for 'a'" in why_of(result, "no", "cancelled")
    assert result.state == "completed"  # a task that is not needed is no failure


@pytest.mark.parametrize("when", ["result.missing > 1", "result + 1 == 2", "unknown == result", "result", "1"])
def test_a_condition_that_raises_or_returns_no_boolean_is_false_with_a_reason(when: str) -> None:
    plan = independent(Task("a", call=after(1, {"ok": True})))
    plan.add(Task("b", call=after(1)), after={"a": {"when": when}})
    result = orchestrate(plan)
    assert result["b"].status == "cancelled"
    assert "the condition on 'a' could not be evaluated" in why_of(result, "b", "cancelled")
    assert result.state == "partially_failed"


def test_a_condition_over_a_result_that_is_not_json_is_false_with_a_reason() -> None:
    plan = independent(Task("a", call=after(1, object())))
    plan.add(Task("b", call=after(1)), after={"a": {"when": "result == 1"}})
    assert "not JSON" in why_of(orchestrate(plan), "b", "cancelled")


def test_conditions_of_ones_own_that_raise_do_not_hang_the_plan() -> None:
    class Mine:
        def check(self, text: str) -> str | None:
            return None

        def evaluate(self, text: str, status: Any, result: Any) -> bool | str:
            raise RuntimeError("the judge is ill")

    plan = independent(Task("a", call=after(1)))
    plan.add(Task("b", call=after(1)), after={"a": {"when": "anything"}})
    result = orchestrate(plan, conditions=Mine())
    assert result["a"].status == "completed"
    assert result["b"].status == "cancelled"
    assert "the judge is ill" in why_of(result, "b", "cancelled")


# -- failure -----------------------------------------------------------------------------------------------------------


def test_a_task_that_can_never_run_is_cancelled_with_its_reason() -> None:
    plan = chain(Task("a", call=failing(1)), Task("b", call=after(1)), Task("c", call=after(1)))
    plan.add(Task("cleanup", call=after(1)), after={"a": "failure"})
    plan.add(Task("always", call=after(1)), after={"a": "completion"})
    result = orchestrate(plan)
    assert result["b"].status == "cancelled"
    assert why_of(result, "b", "cancelled") == "unreachable: it needs 'a' to succeed, but 'a' failed"
    assert why_of(result, "c", "cancelled") == "unreachable: it needs 'b' to succeed, but 'b' was cancelled"
    assert result["cleanup"].status == "completed"
    assert result["always"].status == "completed"
    assert result.state == "partially_failed"


def test_a_task_for_the_case_of_failure_is_not_needed_when_there_is_none() -> None:
    plan = chain(Task("a", call=after(1)))
    plan.add(Task("cleanup", call=after(1)), after={"a": "failure"})
    result = orchestrate(plan)
    assert result["cleanup"].status == "cancelled"
    assert result.state == "completed"


# -- pause and resume --------------------------------------------------------------------------------------------------


async def test_while_paused_nothing_starts_and_running_tasks_continue() -> None:
    plan = chain(Task("a", call=after(2)), Task("b", call=after(2)), id="p")
    orchestrator, running = start(plan)
    diary = Diary(orchestrator)
    await at(1)
    orchestrator.pause("p")
    await at(50)
    assert plan["a"].status == "completed"
    assert plan["b"].status == "pending"
    orchestrator.resume("p")
    result = await running
    assert span(result, "b") == (50, 52)
    assert diary.kinds("constellation_paused", "constellation_resumed") == [
        "constellation_paused",
        "constellation_resumed",
    ]


async def test_pausing_holds_the_next_attempt_too() -> None:
    tries: list[float] = []

    async def work() -> None:
        tries.append(asyncio.get_running_loop().time())
        if len(tries) == 1:
            raise RuntimeError

    orchestrator, running = start(independent(Task("a", call=work, retries=1, backoff=5), id="p"))
    await at(1)
    orchestrator.pause("p")
    await at(50)
    orchestrator.resume("p")
    await running
    assert tries == [0, 50]


async def test_a_paused_plan_does_not_hold_another() -> None:
    async def main() -> Any:
        orchestrator, first = start(chain(Task("a", call=after(1)), Task("b", call=after(1)), id="p"))
        await at(0.5)
        orchestrator.pause("p")
        second = await orchestrator.run(independent(Task("a", call=after(1)), id="q"))
        orchestrator.resume("p")
        return second, await first

    second, first = await main()
    assert second.state == first.state == "completed"


async def test_cancel_ends_a_paused_plan() -> None:
    orchestrator, running = start(chain(Task("a", call=after(1)), Task("b", call=after(1)), id="p"))
    await at(0.5)
    orchestrator.pause("p")
    await at(10)
    await orchestrator.cancel("p")
    assert (await running).state == "cancelled"


@pytest.mark.parametrize(
    "action", [lambda runner: runner.pause("p"), lambda runner: runner.resume("p"), lambda runner: runner.why("a", "p")]
)
async def test_a_command_for_a_plan_that_does_not_run_is_refused(action: Any) -> None:
    orchestrator = Orchestrator([LocalDevice("d")])
    with pytest.raises(Exception, match="no plan 'p' is running here") as caught:
        action(orchestrator)
    assert "edit was rejected" not in str(caught.value)


async def test_a_command_without_a_plan_id_lists_the_running_plans() -> None:
    orchestrator, first = start(independent(Task("a", call=after(1)), id="p"))
    second = asyncio.create_task(orchestrator.run(independent(Task("a", call=after(1)), id="q")))
    await at(0.5)
    with pytest.raises(PlanError, match="name the plan; running here: p, q"):
        orchestrator.why("a")
    await asyncio.gather(first, second)


# -- cancelling --------------------------------------------------------------------------------------------------------


async def test_cancelling_asks_running_tasks_to_stop_and_starts_nothing_more() -> None:
    stopped: list[str] = []

    async def polite() -> None:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            await asyncio.sleep(2)  # cleans up
            stopped.append("polite")
            raise

    orchestrator, running = start(chain(Task("a", call=polite), Task("b", call=after(1)), id="p"))
    diary = Diary(orchestrator)
    await at(10)
    await orchestrator.cancel("p")
    result = await running
    assert stopped == ["polite"]
    assert result.state == "cancelled"
    assert [task.status for task in result] == ["cancelled", "cancelled"]
    assert span(result, "a") == (0, 12)
    assert diary.kinds("constellation_cancelling", "constellation_cancelled") == [
        "constellation_cancelling",
        "constellation_cancelled",
    ]
    check_invariants(result.plan)


async def test_cancelling_is_graceful_first_then_hard() -> None:
    orchestrator, running = start(independent(Task("a", call=stubborn(12)), id="p"), grace=4)
    await at(5)
    await orchestrator.cancel("p")
    ended = asyncio.get_running_loop().time()
    result = await running
    assert ended == pytest.approx(9)
    assert result.state == "cancelled"
    assert "did not stop when asked" in why_of(result, "a", "cancelled")


async def test_a_task_that_completes_although_asked_to_stop_has_completed() -> None:
    orchestrator, running = start(independent(Task("a", call=stubborn(6, "done")), id="p"), grace=4)
    await at(5)
    await orchestrator.cancel("p")
    result = await running
    assert result.state == "cancelled"
    assert result["a"].value == "done"


async def test_cancelling_twice_is_cancelling_once() -> None:
    orchestrator, running = start(independent(Task("a", call=after(100)), id="p"))
    await at(5)
    await asyncio.gather(orchestrator.cancel("p"), orchestrator.cancel("p"))
    assert (await running).state == "cancelled"


@pytest.mark.parametrize("seed", range(10))
async def test_tasks_that_wait_for_an_attempt_a_slot_a_device_or_a_review_are_cancelled_too(seed: int) -> None:
    plan = independent(
        Task("retrying", call=failing(1), retries=3, backoff=1000),
        Task("stranded", needs="gpu"),
        Task("running", call=after(1000)),
        Task("reviewed", call=after(1)),
        id="p",
    )
    plan.add(Task("held", call=after(1)), after="reviewed")
    orchestrator, running = start(plan, editor=Script(seconds=500))
    await at(20)
    assert [task.status for task in plan] == ["running", "pending", "running", "completed", "pending"]
    await orchestrator.cancel("p")
    result = await running
    assert [task.status for task in result] == ["cancelled", "cancelled", "cancelled", "completed", "cancelled"]
    assert result.summary.makespan == pytest.approx(20, abs=1e-4)
    check_invariants(result.plan)


def speculative_pair() -> Constellation:
    """``b`` starts provisionally below ``a``, whose end waits for its review behind that of ``x``."""
    plan = independent(Task("x", call=after(1)), Task("a", call=after(2)), id="p")
    plan.add(Task("b", call=stubborn(12, "late"), revocable=True), after="a")
    return plan


async def test_cancelling_ends_a_plan_whose_provisional_task_completes_instead_of_stopping() -> None:
    plan = speculative_pair()
    orchestrator, running = start(plan, editor=Script(seconds=1000), policy="speculative", max_cycles=1, grace=60)
    await at(10)
    assert plan["b"].provisional
    await orchestrator.cancel("p")
    result = await running
    assert result.state == "cancelled"
    check_invariants(result.plan)


async def test_cancelling_revokes_provisional_tasks() -> None:
    plan = speculative_pair()
    plan.edit([edits.UpdateTask("b", call=after(1))])
    plan.add(Task("c", call=after(50), revocable=True), after="b")
    orchestrator, running = start(plan, editor=Script(seconds=1000), policy="speculative", max_cycles=1)
    await at(10)
    assert plan["c"].provisional
    await orchestrator.cancel("p")
    result = await running
    assert [task.status for task in result] == ["completed", "completed", "cancelled", "cancelled"]
    assert result["b"].value is None
    check_invariants(result.plan)


@pytest.mark.parametrize("seed", range(5))
async def test_cancelling_the_awaiting_coroutine_stops_everything_and_passes_the_cancellation_on(seed: int) -> None:
    stopped: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            stopped.append("work")

    plan = chain(Task("a", call=work), Task("b", call=work), id="p")
    orchestrator, running = start(plan)
    await at(5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert stopped == ["work"]
    assert plan.state == "cancelled"
    assert [task.status for task in plan] == ["cancelled", "cancelled"]
    assert plan.owner is None
    assert asyncio.all_tasks() == {asyncio.current_task()}
    again = await orchestrator.run(independent(Task("a", call=after(1, "fine")), id="p"))
    assert again["a"].value == "fine"


async def test_a_timeout_around_run_works_as_expected() -> None:
    plan = independent(Task("a", call=after(100)))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(10):
            await Orchestrator([LocalDevice("d")]).run(plan)
    assert plan.state == "cancelled"
    assert asyncio.get_running_loop().time() == 10


async def test_cancelling_the_awaiting_coroutine_a_second_time_stops_the_waiting_not_the_cleaning_up() -> None:
    plan = independent(Task("a", call=stubborn(30)), id="p")
    _, running = start(plan, grace=10)
    await at(5)
    running.cancel()
    await at(6)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert plan.state == "cancelled"
    assert plan["a"].status == "cancelled"
    assert plan.owner is None
    await at(40)


async def test_cancelling_while_an_editor_thinks_stops_the_editor() -> None:
    cancelled: list[str] = []

    async def editor(view: Any, events: Any) -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append("editor")
            raise

    _, running = start(independent(Task("a", call=after(1)), id="p"), editor=editor)
    await at(5)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert cancelled == ["editor"]
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_a_task_may_cancel_its_own_plan() -> None:
    orchestrator = Orchestrator([LocalDevice("d")])

    async def work() -> None:
        await orchestrator.cancel("p")

    assert (await orchestrator.run(independent(Task("a", call=work), id="p"))).state == "cancelled"


async def test_cancelling_one_plan_does_not_affect_another() -> None:
    async def main() -> Any:
        orchestrator, first = start(
            independent(Task("a", call=after(100)), id="p"), devices=[LocalDevice("d", slots=1)]
        )
        second = asyncio.create_task(orchestrator.run(independent(Task("a", call=after(5)), id="q")))
        await at(10)
        await orchestrator.cancel("p")
        return await first, await second

    first, second = await main()
    assert (first.state, second.state) == ("cancelled", "completed")
    assert span(second, "a") == (10, 15)


# -- again -------------------------------------------------------------------------------------------------------------


def test_an_orchestrator_may_be_used_in_a_second_event_loop() -> None:
    orchestrator = Orchestrator([LocalDevice("d", slots=1)])
    for n in range(3):
        assert orchestrator.run_sync(independent(Task("a", call=after(0, n)), id="p"))["a"].value == n
        assert run(orchestrator.run(independent(Task("a", call=after(5, n)), id="p")))["a"].value == n


def test_an_orchestrator_with_a_slow_observer_may_be_used_in_a_second_event_loop() -> None:
    orchestrator = Orchestrator([LocalDevice("d")])
    heard: list[str] = []

    async def slow(event: Any) -> None:
        await asyncio.sleep(0.1)
        heard.append(event.kind)

    orchestrator.events.subscribe(slow)
    for _ in range(3):
        run(orchestrator.run(independent(Task("a", call=after(1)), id="p")))
    assert heard.count("constellation_completed") == 3


def test_an_orchestrator_is_not_used_in_two_event_loops_at_once() -> None:
    async def main() -> Any:
        orchestrator, running = start(independent(Task("a", call=after(1))))
        await at(0.5)

        def elsewhere() -> None:
            with pytest.raises(RuntimeError, match="another event loop"):
                asyncio.run(orchestrator.run(Constellation("other")))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
        return await running

    assert run(main()).state == "completed"


def test_a_slot_that_a_hanging_task_kept_is_free_again_in_a_second_event_loop() -> None:
    orchestrator = Orchestrator([LocalDevice("d", slots=1)], grace=1)

    async def first() -> None:
        running = asyncio.create_task(orchestrator.run(independent(Task("a", call=stubborn(100)), id="p")))
        await at(1)
        for _ in range(3):  # a third and fourth cancellation
            running.cancel()
            await asyncio.sleep(0.1)
        with pytest.raises(asyncio.CancelledError):
            await running

    run(first())
    assert run(orchestrator.run(independent(Task("b", call=after(1)), id="q"))).state == "completed"


# -- edits from anywhere -----------------------------------------------------------------------------------------------


async def test_a_running_plan_may_be_edited_from_anywhere() -> None:
    plan = independent(Task("a", call=after(5)), id="p")
    orchestrator, running = start(plan)
    await at(1)
    orchestrator.edit("p", edits.EditBatch((edits.AddTask(Task("b", call=after(1))),), author="someone"))
    await at(2)
    plan.add(Task("c", call=after(1)), after="b")
    result = await running
    assert span(result, "b") == (1, 2)
    assert span(result, "c") == (2, 3)
    assert result.plan.version == 2


async def test_an_edit_straight_on_the_plan_is_announced_like_any_other() -> None:
    plan = independent(Task("a", call=after(5)), id="p")
    orchestrator, running = start(plan)
    diary = Diary(orchestrator)
    await at(1)
    plan.edit([edits.AddTask(Task("b", call=after(1)))], author="someone")
    await running
    assert [(event.author, event.version) for event in diary.of("edit_applied")] == [("someone", 1)]


async def test_an_edit_may_cancel_a_running_task_and_one_that_waits_for_its_next_attempt() -> None:
    plan = independent(Task("a", call=after(50)), Task("b", call=failing(1), retries=9, backoff=100), id="p")
    _, running = start(plan)
    await at(5)
    plan.edit([edits.CancelTask("a", "no longer wanted"), edits.CancelTask("b")])
    result = await running
    assert [task.status for task in result] == ["cancelled", "cancelled"]
    assert why_of(result, "a", "cancelled") == "no longer wanted"
    assert result.summary.makespan == pytest.approx(5, abs=1e-4)


async def test_an_edit_of_a_started_or_ended_task_is_rejected_and_changes_nothing() -> None:
    plan = chain(Task("a", call=after(1)), Task("b", call=after(5)), Task("c"), id="p")
    _, running = start(plan)
    await at(3)
    with pytest.raises(EditRejected) as caught:
        plan.edit([
            edits.UpdateTask("a", timeout=1), edits.RemoveTask("b"), edits.RemoveTask("nobody"),
            edits.AddTask(Task("c")), edits.AddDependency("c", "c"), edits.AddDependency("c", "a"),
            edits.UpdateTask("c", timeout=3),
        ])  # fmt: skip
    assert [violation.edit for violation in caught.value.violations] == [0, 1, 2, 3, 4, 5]
    assert plan.version == 0
    assert plan["c"].task.timeout is None
    check_invariants(plan)
    await running


async def test_an_edit_after_the_end_is_rejected_as_ended() -> None:
    plan = independent(Task("a", call=after(1)), id="p")
    orchestrator, running = start(plan)
    await running
    batch = edits.EditBatch((edits.AddTask(Task("b")),))
    # an edit of the plan itself that adds a task reopens it: test_retry.py
    for late in (lambda: orchestrator.edit("p", batch), lambda: plan.edit([edits.UpdateTask("a", timeout=1)])):
        with pytest.raises(EditRejected) as caught:
            late()
        assert [violation.rule for violation in caught.value.violations] == ["ended"]


async def test_an_edit_that_explodes_halfway_leaves_nothing_of_its_batch_behind() -> None:
    plan = independent(Task("a", call=after(5)), id="p")
    plan.add(Task("b", call=after(1)), after="a")
    _, running = start(plan)
    await at(1)
    with pytest.raises(EditRejected):
        plan.edit([edits.AddTask(Task("c", call=after(1))), edits.UpdateTask("b", needs=[["unhashable"]])])
    check_invariants(plan)
    assert "c" not in plan
    assert "c" not in (await running).plan


async def test_a_copy_of_a_running_plan_is_refused_and_does_not_hang() -> None:
    plan = independent(Task("a", call=after(1)), id="p")
    running = asyncio.ensure_future(Orchestrator([LocalDevice("d")]).run(plan))
    await asyncio.sleep(0.5)
    with pytest.raises(PlanError, match="copy of a plan with running tasks"):
        await Orchestrator([LocalDevice("d")]).run(plan.copy())
    await running


async def test_dependents_of_a_task_that_could_not_be_removed_keep_waiting() -> None:
    async def editor(view: Any, events: Any) -> Any:
        if events[0].task_id != "a":
            return None
        copy = view.frozen()
        copy.edit([edits.RemoveTask("b", "bridge"), edits.AddTask(Task("b2", call=after(1)))])
        copy.edit([edits.AddDependency("b2", "c")])
        await asyncio.sleep(5)
        return copy

    plan = Constellation("p")
    plan.add(Task("a", call=after(1)))
    plan.add(Task("b", call=lambda: None, device="late"))
    plan.add(Task("c", call=after(1)), after="b")

    plan.nodes["b"].task = Task("b", call=after(10), device="late")
    orchestrator = Orchestrator([LocalDevice("d")], editor=editor)
    running = asyncio.ensure_future(orchestrator.run(plan))
    await asyncio.sleep(2)
    orchestrator.join(LocalDevice("late", run=None))
    result = await running
    assert result["c"].started_at >= result["b"].ended_at
