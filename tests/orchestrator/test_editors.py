"""Edit cycles with an editor in this process: holds, calls of the editor, and every kind of answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from asterism import Constellation, EditBatch, EditEvent, LocalDevice, Orchestrator, Task, edits
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
)

pytestmark = pytest.mark.virtual_time

POLICIES = ["global", "scoped", "speculative"]


def edited(plan: Constellation, **options: Any) -> tuple[Any, Diary]:
    """Run a plan in virtual time and listen to its edit cycles."""
    options.setdefault("devices", [LocalDevice("device")])
    orchestrator = Orchestrator(**options)
    diary = Diary(orchestrator, EditEvent)
    result = run(orchestrator.run(plan))
    check_invariants(plan)
    return result, diary


# -- who may start when ------------------------------------------------------------------------------------------------


def two_branches(revocable: bool = False) -> Constellation:
    """a (1 s) then b; beside it c (1.5 s) then d. All reviews take 2 s."""
    plan = Constellation("p")
    plan.add(Task("a", call=after(1)))
    plan.add(Task("b", call=after(1), revocable=revocable), after="a")
    plan.add(Task("c", call=after(1.5)))
    plan.add(Task("d", call=after(1)), after="c")
    return plan


def test_without_an_editor_nothing_is_held() -> None:
    result = orchestrate(two_branches())
    assert span(result, "b") == (1, 2)
    assert span(result, "d") == (1.5, 2.5)
    assert result.cycles == ()


def test_scoped_holds_only_tasks_below_an_unreviewed_end() -> None:
    result = orchestrate(two_branches(), editor=Script(seconds=2), policy="scoped")
    assert span(result, "b") == (3, 4)
    assert span(result, "d") == (3.5, 4.5)


def test_scoped_lets_an_unrelated_branch_go_on() -> None:
    editor = Script(seconds=2)
    result = orchestrate(two_branches(), editor=editor, policy="scoped", edit_on=lambda task: task.id == "a")
    assert span(result, "b") == (3, 4)
    assert span(result, "d") == (1.5, 2.5)


def test_global_holds_everything() -> None:
    editor = Script(seconds=2)
    result = orchestrate(two_branches(), editor=editor, policy="global", edit_on=lambda task: task.id == "a")
    assert span(result, "b") == (3, 4)
    assert span(result, "d") == (3, 4)


def test_global_holds_an_independent_task_that_waits_for_a_slot() -> None:
    plan = independent(*(Task(f"t{n}", call=after(1)) for n in range(3)))
    result = orchestrate(plan, editor=Script(seconds=2), policy="global", devices=[LocalDevice("one", slots=1)])
    assert [span(result, f"t{n}")[0] for n in range(3)] == [0, 3, 6]


def test_speculative_starts_revocable_tasks_provisionally_and_lets_others_wait() -> None:
    result = orchestrate(two_branches(revocable=True), editor=Script(seconds=2), policy="speculative")
    assert span(result, "b") == (1, 2)
    assert span(result, "d") == (3.5, 4.5)
    assert told(result, "b") == ["started provisionally", "completed provisionally", "confirmed", "completed"]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(10))
def test_a_dependent_never_starts_before_the_review_above_it_is_over(policy: str, seed: int) -> None:
    reviewed: set[str] = set()
    early: list[str] = []

    def task(name: str, *needed: str) -> Task:
        async def work() -> None:
            early.extend(f"{name} before {source}" for source in needed if source not in reviewed)
            await asyncio.sleep(1)

        return Task(name, call=work)

    async def editor(view: Any, events: Any) -> None:
        await asyncio.sleep(0 if seed % 2 else 0.3)
        reviewed.update(event.task_id for event in events)

    plan = Constellation()
    for n in range(20):
        needed = [f"t{m}" for m in {n // 2, n // 3} if m < n] if n > 3 else []
        plan.add(task(f"t{n}", *needed), after=needed)
    result = orchestrate(plan, editor=editor, policy=policy, seed=seed)
    assert early == []
    assert result.state == "completed"


# -- which editor is called --------------------------------------------------------------------------------------------


def test_every_end_is_reviewed_by_default() -> None:
    editor = Script()
    plan = chain(Task("a", call=after(1)), Task("b", call=failing(1)), Task("c"))
    orchestrate(plan, editor=editor)
    assert editor.reviewed == [["a"], ["b"], []]  # the last is the stuck cycle
    assert [event.kind for events in editor.asked for event in events] == ["task_completed", "task_failed", "stuck"]


def test_edit_on_failure_reviews_failures_only() -> None:
    editor = Script(seconds=5)
    plan = Constellation()
    plan.add(Task("a", call=after(1)))
    plan.add(Task("b", call=failing(1)), after="a")
    plan.add(Task("c", call=after(1)), after={"b": "failure"})
    result = orchestrate(plan, editor=editor, edit_on="failure")
    assert editor.reviewed == [["b"]]
    assert span(result, "b") == (1, 2)
    assert span(result, "c") == (7, 8)


def test_edit_on_may_be_a_predicate_over_the_task() -> None:
    editor = Script()
    plan = chain(Task("a", call=after(1)), Task("b", call=after(1), priority="high"), Task("c", call=after(1)))
    orchestrate(plan, editor=editor, edit_on=lambda task: task.task.priority.name == "HIGH")
    assert editor.reviewed == [["b"]]


def test_a_predicate_sees_the_task_as_it_has_ended() -> None:
    seen: list[Any] = []

    def predicate(task: Any) -> bool:
        seen.append((task.id, str(task.status), task.value, str(task.error)))
        return False

    plan = chain(Task("a", call=after(1, "value")))
    plan.add(Task("b", call=failing(1)), after="a")
    orchestrate(plan, editor=Script(), edit_on=predicate)
    assert seen == [("a", "completed", "value", "None"), ("b", "failed", None, "it broke")]


def test_a_predicate_that_raises_does_not_hang_the_plan() -> None:
    def predicate(task: Any) -> bool:
        raise RuntimeError("no opinion")

    result = orchestrate(chain(Task("a", call=after(1)), Task("b", call=after(1))), editor=Script(), edit_on=predicate)
    assert result.state == "completed"


def test_ends_that_arrive_while_the_editors_think_join_the_next_cycle() -> None:
    editor = Script(seconds=10)
    plan = independent(*(Task(f"t{n}", call=after(1 + n)) for n in range(6)))
    result = orchestrate(plan, editor=editor, max_cycles=2)
    assert editor.reviewed == [["t0"], ["t1"], ["t2", "t3", "t4", "t5"]]
    assert [round(when) for when in editor.at] == [1, 2, 11]
    assert result.state == "completed"


def test_the_hold_of_an_end_that_waits_for_its_cycle_begins_with_the_end() -> None:
    plan = independent(Task("a", call=after(1)), Task("b", call=after(2)))
    plan.add(Task("c", call=after(1)), after="b")
    result = orchestrate(plan, editor=Script(seconds=10), max_cycles=1)
    assert span(result, "c") == (21, 22)


def test_cycles_overlap_up_to_the_limit() -> None:
    thinking = [0, 0]

    async def editor(view: Any, events: Any) -> None:
        thinking[0] += 1
        thinking[1] = max(thinking)
        await asyncio.sleep(10)
        thinking[0] -= 1

    for limit in (1, 3, 8):
        thinking[:] = [0, 0]
        plan = independent(*(Task(f"t{n}", call=after(1 + n / 10)) for n in range(8)))
        orchestrate(plan, editor=editor, max_cycles=limit)
        assert thinking == [0, limit]


def test_ends_of_one_instant_are_reviewed_in_one_cycle() -> None:
    editor = Script()
    orchestrate(independent(*(Task(f"t{n}", call=after(1)) for n in range(5))), editor=editor)
    assert sum(map(len, editor.reviewed)) == 5
    assert len(editor.reviewed) < 5


def test_an_edit_after_the_last_task_still_counts() -> None:
    editor = Script({"a": [edits.AddTask(Task("b", call=after(1, "b")))]}, seconds=3)
    result = orchestrate(independent(Task("a", call=after(1))), editor=editor)
    assert span(result, "b") == (4, 5)
    assert result.state == "completed"


def test_a_cancelled_task_is_not_reviewed() -> None:
    editor = Script({"a": [edits.CancelTask("b")]})
    plan = independent(Task("a", call=after(1)), Task("b", call=after(10)))
    orchestrate(plan, editor=editor)
    assert editor.reviewed == [["a"]]


# -- stuck -------------------------------------------------------------------------------------------------------------


def test_when_no_task_can_start_the_editor_is_called_once_more() -> None:
    editor = Script({"stuck": [edits.AddTask(Task("a2", call=after(1))), edits.RemoveDependency("a", "b"),
                               edits.AddDependency("a2", "b")]})  # fmt: skip
    plan = chain(Task("a", call=failing(1)), Task("b", call=after(1)))
    result, diary = edited(plan, editor=editor)
    assert result["b"].status == "completed"
    assert diary.kinds("stuck") == ["stuck"]


def test_the_stuck_cycle_does_not_repeat_without_progress() -> None:
    # an accepted edit after which no task can start is no progress
    editor = Script({"stuck": lambda view, events: [edits.UpdateTask("b", timeout=1.0 + len(editor.asked))]})
    plan = chain(Task("a", call=failing(1)), Task("b", call=after(1)))
    result, diary = edited(plan, editor=editor)
    assert diary.kinds("stuck") == ["stuck"]
    assert result["b"].status == "cancelled"


def test_the_stuck_cycle_comes_again_after_progress() -> None:
    count = [0]

    def more(view: Any, events: Any) -> Any:
        count[0] += 1
        return [edits.AddTask(Task(f"try{count[0]}", call=failing(1)))] if count[0] <= 3 else None

    plan = chain(Task("a", call=failing(1)), Task("b", call=after(1)))
    _, diary = edited(plan, editor=Script({"stuck": more}))
    assert diary.kinds("stuck") == ["stuck"] * 4


def test_a_plan_that_is_complete_is_not_stuck() -> None:
    _, diary = edited(independent(Task("a", call=after(1))), editor=Script())
    assert "stuck" not in diary.kinds()


# -- provisional -------------------------------------------------------------------------------------------------------


def provisional_chain(*names: str) -> Constellation:
    plan = Constellation("p")
    plan.add(Task("root", call=after(1, "root")))
    before = "root"
    for name in names:
        plan.add(Task(name, call=after(1, name), revocable=True), after=before)
        before = name
    return plan


async def test_an_edit_revokes_a_provisional_task_and_those_below_it_and_they_start_again() -> None:
    editor = Script({"root": [edits.UpdateTask("b", priority="high")]}, seconds=2.5)
    orchestrator = Orchestrator([LocalDevice("device")], editor=editor, policy="speculative")
    diary = Diary(orchestrator)
    result = await orchestrator.run(provisional_chain("b", "c", "d"))
    assert result.state == "completed"
    # b 1-2 and c 2-3 had ended provisionally, d ran since 3; at 3.5 all three are revoked and b starts again
    assert span(result, "b") == (3.5, 4.5)
    assert span(result, "c") == (4.5, 5.5)
    assert told(result, "c")[:3] == ["started provisionally", "completed provisionally", "revoked"]
    assert told(result, "d")[:2] == ["started provisionally", "revoked"]
    assert diary.tasks("task_completed") == ["root", "b", "c", "d"]


async def test_every_revocation_is_announced_also_that_of_a_task_that_had_ended() -> None:
    editor = Script({"root": [edits.UpdateTask("b", priority="high")]}, seconds=2.5)
    orchestrator = Orchestrator([LocalDevice("device")], editor=editor, policy="speculative")
    diary = Diary(orchestrator)
    await orchestrator.run(provisional_chain("b", "c", "d"))
    assert sorted(diary.tasks("task_revoked")) == ["b", "c", "d"]


async def test_a_revoked_task_that_was_removed_does_not_start_again_and_its_result_is_dropped() -> None:
    ran: list[str] = []

    async def work() -> str:
        await asyncio.sleep(0.5)
        ran.append("b")
        return "never seen"

    plan = Constellation("p")
    plan.add(Task("root", call=after(1)))
    plan.add(Task("b", call=work, revocable=True), after="root")
    seen: list[Any] = []
    editor = Script({"root": [edits.RemoveTask("b")]}, seconds=2)
    orchestrator = Orchestrator([LocalDevice("device")], editor=editor, policy="speculative")
    diary = Diary(orchestrator)
    running = asyncio.create_task(orchestrator.run(plan))
    await at(2)
    seen.append((plan["b"].status, plan["b"].value, plan["b"].provisional))
    result = await running
    assert seen == [("running", None, True)]
    assert ran == ["b"]
    assert "b" not in result.plan
    assert "b" not in result.values
    assert diary.tasks("task_completed") == ["root"]


def test_a_revoked_execution_is_stopped_and_its_result_refused() -> None:
    plan = Constellation("p")
    plan.add(Task("root", call=after(1)))
    plan.add(Task("b", call=stubborn(3, "old"), revocable=True), after="root")
    editor = Script({"root": [edits.UpdateTask("b", call=after(10, "new"))]}, seconds=1)
    result = orchestrate(plan, editor=editor, policy="speculative")
    assert result["b"].value == "new"
    assert span(result, "b") == (4, 14)  # it waits until the old execution has stopped
    assert "late result refused" in told(result, "b")


async def test_confirmation_is_the_moment_of_the_event() -> None:

    # root ends at 1 and is reviewed until 6; b (1-2) is reviewed until 7, c (2-3) until 8
    orchestrator = Orchestrator([LocalDevice("device")], editor=Script(seconds=5), policy="speculative")
    heard: list[tuple[str, str, float]] = []
    orchestrator.events.subscribe(
        lambda event: heard.append((event.kind, getattr(event, "task_id", ""), asyncio.get_running_loop().time()))
    )
    await orchestrator.run(provisional_chain("b", "c"))
    assert [
        (kind, task, round(when, 3))
        for kind, task, when in [event for event in heard if event[0] in ("task_completed", "task_confirmed")]
    ] == [
        ("task_completed", "root", 1.0),
        ("task_completed", "b", 6.0),
        ("task_completed", "c", 7.0),
    ]


async def test_a_provisional_task_that_still_runs_is_confirmed_while_it_runs() -> None:
    plan = Constellation("p")
    plan.add(Task("root", call=after(1)))
    plan.add(Task("b", call=after(10), revocable=True), after="root")
    orchestrator = Orchestrator([LocalDevice("device")], editor=Script(seconds=2), policy="speculative")
    diary = Diary(orchestrator)
    await orchestrator.run(plan)
    assert diary.tasks("task_confirmed") == ["b"]
    assert diary.tasks("task_completed") == ["root", "b"]
    assert [event.provisional for event in diary.of("task_started")] == [False, True]


def test_a_dependent_that_is_not_revocable_waits_for_the_confirmation() -> None:
    plan = provisional_chain("b")
    plan.add(Task("firm", call=after(1)), after="b")
    result = orchestrate(plan, editor=Script(seconds=5), policy="speculative")
    # root is reviewed until 6, which confirms b; b itself (ended at 2) is reviewed until 7
    assert span(result, "firm") == (7, 8)


def test_the_review_of_a_revoked_end_is_void_and_the_new_end_is_reviewed() -> None:
    editor = Script({"root": [edits.UpdateTask("b", call=after(1, "second"))]}, seconds=3)
    result = orchestrate(provisional_chain("b"), editor=editor, policy="speculative")
    assert result["b"].value == "second"
    values = [event.value for events in editor.asked for event in events if event.task_id == "b"]
    assert values == ["b", "second"]


def test_the_editor_is_not_called_about_ends_revoked_before_their_cycle_opened() -> None:
    editor = Script({"root": [edits.UpdateTask("b", call=after(1, "second"))]}, seconds=3)
    result = orchestrate(provisional_chain("b"), editor=editor, policy="speculative", max_cycles=1)
    assert result["b"].value == "second"
    assert [] not in editor.asked
    assert editor.reviewed == [["root"], ["b"]]


async def test_an_edit_takes_back_the_leave_to_start_from_a_task_that_waits_for_its_next_attempt() -> None:
    """A provisional attempt failed; before the next one an edit says the task is not revocable after all."""
    started: list[float] = []

    async def work() -> None:
        started.append(asyncio.get_running_loop().time())
        if len(started) == 1:
            raise RuntimeError("first")

    plan = Constellation("p")
    plan.add(Task("root", call=after(1)))
    plan.add(Task("b", call=work, revocable=True, retries=1, backoff=2), after="root")
    orchestrator = Orchestrator([LocalDevice("device")], editor=Script(seconds=50), policy="speculative")
    running = asyncio.create_task(orchestrator.run(plan))
    await at(1.5)
    plan.edit([edits.UpdateTask("b", revocable=False)])
    check_invariants(plan)
    await at(40)
    check_invariants(plan)
    assert plan["b"].status == "pending"
    await running
    assert started == [1, 51]


async def test_a_provisional_failure_counts_only_when_confirmed() -> None:
    plan = Constellation("p")
    plan.add(Task("root", call=after(1)))
    plan.add(Task("b", call=failing(1), revocable=True), after="root")
    plan.add(Task("mend", call=after(1), revocable=True), after={"b": "failure"})
    orchestrator = Orchestrator([LocalDevice("device")], editor=Script(seconds=5), policy="speculative")
    diary = Diary(orchestrator)
    running = asyncio.create_task(orchestrator.run(plan))
    await at(4)
    assert (plan["b"].status, plan["b"].error) == ("running", None)
    result = await running
    assert result["b"].status == "failed"
    assert result["mend"].status == "completed"
    assert span(result, "mend") == (2, 3)
    assert diary.tasks("task_failed") == ["b"]


# -- timeouts ----------------------------------------------------------------------------------------------------------


def test_a_cycle_past_its_timeout_closes_with_a_warning_and_the_plan_continues(caplog: Any) -> None:
    result, diary = edited(
        chain(Task("a", call=after(1)), Task("b", call=after(1))), editor=Script(seconds=1000), edit_timeout=10
    )
    assert span(result, "b") == (11, 12)
    assert diary.kinds("edit_timeout") == ["edit_timeout"] * 2
    assert [cycle.outcome for cycle in result.cycles] == ["timeout", "timeout"]
    assert any("is closed without an answer" in record.message for record in caplog.records)


def test_a_late_answer_that_still_fits_is_accepted() -> None:
    editor = Script({"a": [edits.UpdateTask("c", call=after(1, "edited"))]}, seconds=15)
    plan = chain(Task("a", call=after(1)), Task("b", call=after(100)), Task("c", call=after(1)))
    result, diary = edited(plan, editor=editor, edit_timeout=10)
    assert result["c"].value == "edited"
    assert diary.kinds("edit_timeout", "edit_applied")[:2] == ["edit_timeout", "edit_applied"]


def test_a_late_answer_about_a_started_task_is_rejected_without_another_call() -> None:
    editor = Script({"a": [edits.RemoveTask("b")]}, seconds=15)
    plan = chain(Task("a", call=after(1)), Task("b", call=after(100, "b")))
    result, diary = edited(plan, editor=editor, edit_timeout=10)
    assert result["b"].value == "b"
    (rejected,) = diary.of("edit_rejected")
    assert [violation.rule for violation in rejected.violations] == ["immutable"]
    assert len(editor.asked) == 2  # for the end of a, and for that of b


async def test_a_late_answer_about_a_changed_task_is_rejected_as_stale() -> None:
    editor = Script({"a": [edits.UpdateTask("c", timeout=7)]}, seconds=15)
    plan = chain(Task("a", call=after(1)), Task("b", call=after(100)), Task("c", call=after(1)))
    orchestrator = Orchestrator([LocalDevice("device")], editor=editor, edit_timeout=10)
    diary = Diary(orchestrator)
    running = asyncio.create_task(orchestrator.run(plan))
    await at(13)
    plan.edit([edits.UpdateTask("c", timeout=9)])
    result = await running
    assert result["c"].task.timeout == 9
    (rejected,) = diary.of("edit_rejected")
    assert [violation.rule for violation in rejected.violations] == ["stale"]


def test_a_late_answer_that_is_rejected_counts_as_a_rejected_edit() -> None:
    editor = Script({"a": [edits.RemoveTask("b")]}, seconds=15)
    plan = chain(Task("a", call=after(1)), Task("b", call=after(100)))
    result, _ = edited(plan, editor=editor, edit_timeout=10)
    assert result.summary.edits_rejected == 1


def test_an_answer_after_the_end_is_rejected_as_ended() -> None:
    async def editor(view: Any, events: Any) -> Any:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            return [edits.AddTask(Task("too-late", call=after(1)))]

    result, diary = edited(independent(Task("a", call=after(1))), editor=editor, edit_timeout=10)
    assert "too-late" not in result.plan
    assert [v.rule for event in diary.of("edit_rejected") for v in event.violations] == ["ended"]


async def test_an_editor_that_hangs_for_ever_and_ignores_its_cancellation_does_not_keep_the_run() -> None:
    async def editor(view: Any, events: Any) -> Any:
        await stubborn(50)()

    orchestrator = Orchestrator([LocalDevice("device")], editor=editor, edit_timeout=10, grace=2)
    result = await orchestrator.run(independent(Task("a", call=after(1))))
    ended = asyncio.get_running_loop().time()
    await at(100)
    assert result.state == "completed"
    assert ended == pytest.approx(13, abs=0.1)


# -- rejected answers --------------------------------------------------------------------------------------------------


def test_a_rejected_edit_is_handed_back_with_its_violations_and_may_be_mended() -> None:
    async def editor(view: Any, events: Any) -> Any:
        if events[0].task_id != "a":
            return None
        if events[-1].kind != "edit_rejected":
            return [edits.RemoveTask("b"), edits.RemoveTask("nobody")]
        assert [violation.rule for violation in events[-1].violations] == ["unknown_task", "dependents"] or [
            violation.rule for violation in events[-1].violations
        ] == ["dependents", "unknown_task"]
        assert events[0].kind == "task_completed"
        return [edits.RemoveTask("b", dependents="bridge")]

    plan = chain(Task("a", call=after(1)), Task("b", call=after(1)), Task("c", call=after(1)))
    result, diary = edited(plan, editor=editor)
    assert "b" not in result.plan
    assert result["c"].status == "completed"
    assert diary.kinds("edit_rejected", "edit_applied") == ["edit_rejected", "edit_applied"]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_an_edit_that_is_rejected_again_and_again_is_given_up_with_an_event(limit: int) -> None:
    editor = Script({"a": [edits.RemoveTask("nobody")]}, seconds=1)
    result, diary = edited(
        chain(Task("a", call=after(1)), Task("b", call=after(1))), editor=editor, max_rejections=limit
    )
    assert editor.reviewed == [["a"]] * (limit + 1) + [["b"]]
    assert diary.kinds("edit_rejected", "edit_abandoned") == ["edit_rejected"] * (limit + 1) + ["edit_abandoned"]
    assert result.cycles[0].outcome == "abandoned"
    assert result.state == "completed"
    assert result.summary.edits_rejected == limit + 1


def test_an_edit_of_a_task_that_has_started_is_rejected_and_the_editor_called_again() -> None:
    def answer(view: Any, events: Any) -> Any:
        if events[-1].kind == "edit_rejected":
            return [edits.CancelTask("elsewhere")]
        return [edits.RemoveTask("elsewhere")]

    editor = Script({"a": answer}, seconds=2)
    plan = independent(Task("a", call=after(1)), Task("first", call=after(2)))
    plan.add(Task("elsewhere", call=after(50)), after="first")
    result, _ = edited(plan, editor=editor, policy="scoped", edit_on=lambda task: task.id == "a")
    assert result["elsewhere"].status == "cancelled"
    assert editor.reviewed == [["a"], ["a"]]


# -- bad editors -------------------------------------------------------------------------------------------------------


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class Shifty:
    """Looks like a mapping of edits and breaks when it is read."""

    def __iter__(self) -> Any:
        raise RuntimeError("changed my mind")


def breaking() -> Any:
    yield edits.AddTask(Task("half", call=after(0)))
    raise RuntimeError("changed my mind")


NONSENSE: dict[str, Any] = {
    "text": "please add a task",
    "bytes": b"edits",
    "number": 42,
    "float": float("nan"),
    "true": True,
    "object": object(),
    "class": edits.AddTask,
    "empty dict": {},
    "other dict": {"actions": []},
    "list of text": ["add", "task"],
    "list of numbers": [1, 2, 3],
    "list of none": [None],
    "nested list": [[edits.RemoveTask("b")]],
    "mixed list": [edits.AddTask(Task("half", call=after(0))), "junk"],
    "task instead of edit": [Task("half")],
    "unknown op": [{"op": "explode"}],
    "no op": [{"task_id": "b"}],
    "op that cannot be hashed": [{"op": []}],
    "op without its fields": [{"op": "remove_task"}],
    "op with a field too many": [{"op": "remove_task", "task_id": "b", "why": "x"}],
    "changes that are no mapping": [{"op": "update_task", "task_id": "b", "changes": 5}],
    "change of an unknown field": [{"op": "update_task", "task_id": "b", "changes": {"colour": "red"}}],
    "change to what cannot be hashed": [{"op": "update_task", "task_id": "b", "changes": {"needs": [[1]]}}],
    "half valid then a change that explodes": [
        {"op": "add_task", "task": {"id": "half"}},
        {"op": "update_task", "task_id": "b", "changes": {"needs": [[1]]}},
    ],
    "change of nothing": [{"op": "update_task", "task_id": "b", "changes": {}}],
    "task that is text": [{"op": "add_task", "task": "half"}],
    "task without id": [{"op": "add_task", "task": {"name": "half"}}],
    "task with an id that is no text": [{"op": "add_task", "task": {"id": 5}}],
    "task with impossible terms": [{"op": "add_task", "task": {"id": "half", "retries": -1, "timeout": "soon"}}],
    "task with a strange priority": [{"op": "add_task", "task": {"id": "half", "priority": ["high"]}}],
    "batch with edits that are text": {"edits": "add_task"},
    "batch with edits that are null": {"edits": None},
    "batch with a version that is text": {"edits": [{"op": "remove_task", "task_id": "b"}], "base_version": "one"},
    "batch with a version that is a list": {"edits": [{"op": "remove_task", "task_id": "b"}], "base_version": [1]},
    "batch with triggers that are a number": {"edits": [], "triggers": 7},
    "batch object of nothing": EditBatch(5),  # type: ignore[arg-type]
    "batch object of text": EditBatch("abc"),  # type: ignore[arg-type]
    "batch object with a strange version": EditBatch((edits.RemoveTask("b"),), base_version="x"),  # type: ignore[arg-type]
    "edit of a name that is no text": [edits.RemoveTask(["b"])],  # type: ignore[arg-type]
    "add of what is no task": [edits.AddTask("half")],  # type: ignore[arg-type]
    "dependency of unknown tasks": [edits.AddDependency("x", "y")],
    "dependency on itself": [edits.AddDependency("b", "b")],
    "dependency with a strange outcome": [edits.AddDependency("a", "c", on="luck")],
    "dependency with a condition that does not parse": [edits.AddDependency("a", "c", when="((")],
    "dependency with a condition that is no text": [edits.AddDependency("a", "c", when=5)],  # type: ignore[arg-type]
    "cycle": [edits.AddDependency("c", "b")],
    "duplicate": [edits.AddTask(Task("b"))],
    "unprintable": Unprintable(),
    "list of the unprintable": [Unprintable()],
    "iterable that breaks": Shifty(),
    "generator that breaks": breaking,
    "function": lambda: None,
    "exception": ValueError("returned, not raised"),
}


@pytest.mark.parametrize("answer", NONSENSE.values(), ids=NONSENSE.keys())
def test_malformed_answers_are_rejected_a_bounded_number_of_times(answer: Any) -> None:
    asked: list[Any] = []

    async def editor(view: Any, events: Any) -> Any:
        if events[0].task_id != "a":
            return None
        asked.append(events)
        return answer() if answer is breaking else answer

    plan = chain(Task("a", call=after(1)), Task("b", call=after(1)), Task("c", call=after(1)))
    before = list(plan.dependencies)
    result, diary = edited(plan, editor=editor, max_rejections=2, edit_timeout=1000)
    assert result.state == "completed"
    assert [task.id for task in plan] == ["a", "b", "c"]
    assert list(plan.dependencies) == before
    assert plan.version == 0
    assert len(asked) == 3
    assert len(diary.of("edit_rejected")) == 3
    assert span(result, "b") == (1, 2)


class Peculiar(BaseException):
    pass


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("no idea"),
        asyncio.CancelledError(),
        StopIteration(),
        TimeoutError(),
        SystemExit(1),
        GeneratorExit(),
        Peculiar(),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("synchronous", [False, True], ids=["async", "sync"])
def test_an_editor_that_raises_closes_its_cycle_and_the_plan_continues(error: BaseException, synchronous: bool) -> None:
    async def later(view: Any, events: Any) -> Any:
        await asyncio.sleep(1)
        raise error

    def at_once(view: Any, events: Any) -> Any:
        raise error

    plan = chain(Task("a", call=after(1)), Task("b", call=after(1)))
    result, diary = edited(plan, editor=at_once if synchronous else later)
    assert result.state == "completed"
    assert diary.kinds("editor_failed") == ["editor_failed"] * 2
    assert {cycle.outcome for cycle in result.cycles} == {"editor_failed"}
    assert result.summary.makespan < 10


def test_an_editor_that_cancels_itself_closes_its_cycle() -> None:
    async def editor(view: Any, events: Any) -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(10)

    result, diary = edited(chain(Task("a", call=after(1)), Task("b", call=after(1))), editor=editor)
    assert result.summary.makespan == pytest.approx(2, abs=1e-3)
    assert diary.kinds("editor_failed") == ["editor_failed"] * 2


async def test_an_editor_that_is_cancelled_from_outside_closes_its_cycle() -> None:
    thinking: list[asyncio.Task[Any]] = []

    async def editor(view: Any, events: Any) -> None:
        thinking.append(asyncio.current_task())  # type: ignore[arg-type]
        await asyncio.sleep(100)

    orchestrator = Orchestrator([LocalDevice("device")], editor=editor)
    plan = chain(Task("a", call=after(1)), Task("b", call=after(1)))
    running = asyncio.create_task(orchestrator.run(plan))
    await at(5)
    thinking[0].cancel()
    await at(10)
    thinking[1].cancel()
    assert span((await running), "b") == (5, 6)


def test_an_editor_that_is_no_editor_fails_like_any_other() -> None:
    result, diary = edited(independent(Task("a", call=after(1))), editor=42)
    assert result.state == "completed"
    assert diary.kinds("editor_failed") == ["editor_failed"]


def test_an_editor_that_changes_the_view_or_a_copy_of_it_changes_nothing() -> None:
    async def editor(view: Any, events: Any) -> None:
        copy = view.frozen()
        copy.add(Task("mine"))
        with pytest.raises((AttributeError, TypeError)):
            view["b"].status = "completed"

    plan = chain(Task("a", call=after(1)), Task("b", call=after(1)))
    result, diary = edited(plan, editor=editor)
    assert [task.id for task in result] == ["a", "b"]
    assert "editor_failed" not in diary.kinds()


# -- forms of editors and answers --------------------------------------------------------------------------------------


def add_extra(view: Any, events: Any) -> Any:
    return None if "extra" in view else [edits.AddTask(Task("extra", call=after(1, "extra")))]


class WithEdit:
    async def edit(self, view: Any, events: Any) -> Any:
        return add_extra(view, events)


class WithSyncEdit:
    def edit(self, view: Any, events: Any) -> Any:
        return add_extra(view, events)


class CallableObject:
    async def __call__(self, view: Any, events: Any) -> Any:
        return add_extra(view, events)


async def async_function(view: Any, events: Any) -> Any:
    return add_extra(view, events)


@pytest.mark.parametrize(
    "editor",
    [WithEdit(), WithSyncEdit(), CallableObject(), async_function, add_extra],
    ids=["edit", "sync edit", "callable object", "async function", "function"],
)
def test_an_editor_is_any_function_or_object_with_edit(editor: Any) -> None:
    result, _ = edited(independent(Task("a", call=after(1))), editor=editor)
    assert result["extra"].value == "extra"


REMOVE_B = [edits.RemoveTask("b", dependents="bridge")]
ANSWERS: dict[str, Any] = {
    "one edit": REMOVE_B[0],
    "list": REMOVE_B,
    "tuple": tuple(REMOVE_B),
    "iterator": lambda view, events: iter(REMOVE_B),
    "batch": EditBatch(tuple(REMOVE_B)),
    "batch with its version": lambda view, events: EditBatch(tuple(REMOVE_B), base_version=view.base_version),
    "json of edits": [edit.to_json() for edit in REMOVE_B],
    "json of a batch": EditBatch(tuple(REMOVE_B), author="me", reason="because").to_json(),
    "mixed": [REMOVE_B[0].to_json(), edits.UpdateTask("c", timeout=5)],
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS.keys())
def test_an_answer_has_many_forms(answer: Any) -> None:
    plan = chain(Task("a", call=after(1)), Task("b", call=after(1)), Task("c", call=after(1)))
    result, diary = edited(plan, editor=Script({"a": answer}))
    assert "edit_rejected" not in diary.kinds()
    assert [task.id for task in result] == ["a", "c"]
    assert [d.source for d in result["c"].dependencies] == ["a"]


@pytest.mark.parametrize("answer", [None, [], (), EditBatch(()), {"edits": []}], ids=str)
def test_an_empty_answer_changes_nothing_and_is_no_version(answer: Any) -> None:
    plan = chain(Task("a", call=after(1)), Task("b", call=after(1)))
    result, diary = edited(plan, editor=Script({"a": answer}))
    assert result.plan.version == 0
    assert result.cycles[0].outcome == "empty"
    assert diary.kinds() == ["cycle_opened", "cycle_closed"] * 2


def test_an_editor_may_answer_with_a_whole_plan() -> None:
    def rewrite(view: Any, events: Any) -> Any:
        plan = view.frozen()
        plan.add(Task("review", call=after(1, "reviewed")), after="a")
        plan.edit([edits.RemoveDependency("a", "b"), edits.AddDependency("review", "b")])
        plan.edit([edits.RemoveTask("c")])
        return plan

    plan = chain(Task("a", call=after(1)), Task("b", call=after(1)))
    plan.add(Task("c", call=after(1)), after="b")
    result, diary = edited(plan, editor=Script({"a": rewrite}, seconds=1))
    assert "edit_rejected" not in diary.kinds()
    assert sorted(task.id for task in result) == ["a", "b", "review"]
    assert span(result, "review") == (2, 3)
    assert span(result, "b") == (4, 5)  # after the review of the review
    assert result.plan.version == 1


def test_progress_wins_over_a_whole_plan_made_from_an_older_copy() -> None:
    async def editor(view: Any, events: Any) -> Any:
        if events[0].task_id != "a":
            return None
        copy = view.frozen()
        await asyncio.sleep(5)  # meanwhile c has started and ended
        copy.edit([edits.RemoveTask("c"), edits.UpdateTask("b", call=after(1, "changed"))])
        return copy

    plan = independent(Task("a", call=after(1)), Task("first", call=after(2)))
    plan.add(Task("b", call=after(1, "b")), after="a")
    plan.add(Task("c", call=after(1, "c")), after="first")
    result, _ = edited(plan, editor=editor, edit_on=lambda task: task.id == "a")
    assert result["c"].value == "c"
    assert result["b"].value == "changed"


def test_a_copy_cannot_forge_a_status() -> None:
    def forge(view: Any, events: Any) -> Any:
        copy = view.frozen()
        node = copy.node("b")
        node.status, node.value = copy.node("a").status, "forged"
        return copy

    plan = chain(Task("a", call=after(1)), Task("b", call=after(1, "real")))
    result, _ = edited(plan, editor=Script({"a": forge}))
    assert result["b"].value == "real"


def test_another_plan_as_an_answer_replaces_only_tasks_that_have_not_started() -> None:
    other = independent(Task("x", call=after(1, "x")), id="other")
    plan = chain(Task("a", call=after(1)), Task("b", call=after(1)), Task("c", call=after(1)))
    result, _ = edited(plan, editor=Script({"a": other}))
    assert sorted(task.id for task in result) == ["a", "x"]
    assert result["a"].status == "completed"
    assert result["x"].value == "x"


def test_an_edit_event_has_author_reason_and_edits() -> None:
    batch = EditBatch(tuple(REMOVE_B), author="Ada", reason="b is superfluous")
    plan = chain(Task("a", call=after(1)), Task("b", call=after(1)), Task("c", call=after(1)))
    result, diary = edited(plan, editor=Script({"a": batch}))
    (applied,) = diary.of("edit_applied")
    assert (applied.author, applied.version, applied.tasks) == ("Ada", 1, ("a",))
    assert applied.edits == ("remove task 'b', bridged",)
    assert any("version 1 by Ada: b is superfluous" in entry.why for entry in result.story("b"))


async def test_an_edit_based_on_a_changed_task_is_stale_and_any_other_is_rebased() -> None:
    plan = independent(Task("a", call=after(1)), Task("z", call=after(50)))
    plan.add(Task("b", call=after(1)), after="z")
    plan.add(Task("c", call=after(1)), after="z")
    editor = Script({"a": [edits.UpdateTask("b", timeout=7)]}, seconds=5)
    orchestrator = Orchestrator([LocalDevice("device")], editor=editor, max_rejections=0)
    diary = Diary(orchestrator)
    running = asyncio.create_task(orchestrator.run(plan))
    await at(3)
    plan.edit([edits.UpdateTask("c", timeout=9)])  # another task: no matter
    await at(10)
    assert plan["b"].task.timeout == 7
    result = await running
    assert "edit_rejected" not in diary.kinds()
    assert result.plan.version == 2
