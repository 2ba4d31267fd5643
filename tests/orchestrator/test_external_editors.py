"""Editors outside the process: cycles are listed, claimed under a lease, and answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from asterism import Constellation, LocalDevice, Orchestrator, Task, edits
from asterism.core.errors import EditRejected
from asterism.core.plan.assignment_lock import CycleClaimed, CycleGone
from tests.laboratory.plan_invariants import check_invariants
from tests.orchestrator.orchestrator_scenes import Diary, after, at, chain, independent, span

pytestmark = pytest.mark.virtual_time

Scene = Callable[[Orchestrator], Coroutine[Any, Any, None]]


def outside(plan: Constellation | None = None, **options: Any) -> tuple[Orchestrator, Diary, asyncio.Task[Any]]:
    """Run a -> b, each of a second, while the test plays the editor."""
    plan = plan or chain(Task("a", call=after(1)), Task("b", call=after(1, "b")), id="p")
    orchestrator = Orchestrator([LocalDevice("device")], external=True, **{"claim_timeout": 30, **options})

    async def verified() -> Any:
        result = await orchestrator.run(plan)
        check_invariants(plan)
        return result

    return orchestrator, Diary(orchestrator), asyncio.create_task(verified())


async def test_a_cycle_can_be_listed_claimed_and_answered() -> None:
    orchestrator, diary, running = outside()
    await at(0.5)
    assert orchestrator.cycles() == []
    await at(5)
    (cycle,) = orchestrator.cycles()
    assert (cycle.id, cycle.tasks, cycle.claimed_by) == (1, ("a",), None)
    assert [event.kind for event in orchestrator.events_of(cycle.id)] == ["task_completed"]
    assert orchestrator.claim(cycle.id, "Ada") is cycle
    applied = orchestrator.answer(cycle.id, "Ada", [edits.UpdateTask("b", call=after(1, "edited"))])
    assert applied.version == 1
    assert orchestrator.cycles() == []
    result = await running
    assert result["b"].value == "edited"
    assert span(result, "b") == (5, 6)
    assert diary.of("edit_applied")[0].author == "Ada"


async def test_an_answer_may_be_json() -> None:
    orchestrator, _, running = outside()
    await at(5)
    orchestrator.claim(1, "Ada")
    orchestrator.answer(1, "Ada", {"edits": [{"op": "update_task", "task_id": "b", "changes": {"timeout": 9}}]})
    result = await running
    assert result["b"].task.timeout == 9


async def test_an_unclaimed_cycle_closes_after_the_claim_timeout() -> None:
    _, diary, running = outside()
    result = await running
    assert span(result, "b") == (31, 32)
    assert [cycle.outcome for cycle in result.cycles] == ["unclaimed", "unclaimed"]
    assert diary.kinds("edit_timeout") == ["edit_timeout"] * 2


async def test_editors_outside_take_part_only_when_enabled() -> None:
    orchestrator = Orchestrator([LocalDevice("device")])
    result = await orchestrator.run(chain(Task("a", call=after(1)), Task("b", call=after(1))))
    assert result.cycles == ()
    assert span(result, "b") == (1, 2)


async def test_a_claimed_cycle_cannot_be_claimed_or_answered_by_another() -> None:
    orchestrator, _, running = outside()
    await at(5)
    orchestrator.claim(1, "Ada", lease=60)
    with pytest.raises(CycleClaimed, match="claimed by 'Ada' for another 60 s"):
        orchestrator.claim(1, "Bob")
    with pytest.raises(CycleClaimed, match="is claimed by 'Ada', not by 'Bob'"):
        orchestrator.answer(1, "Bob", None)
    orchestrator.answer(1, "Ada", None)
    await running


async def test_an_answer_without_a_claim_is_refused_with_advice() -> None:
    orchestrator, _, running = outside()
    await at(5)
    with pytest.raises(CycleClaimed, match="claim it first") as caught:
        orchestrator.answer(1, "Ada", None)
    assert "by None" not in str(caught.value)
    await running


async def test_a_claim_is_a_lease_that_can_be_renewed() -> None:
    orchestrator, _, running = outside()
    await at(5)
    orchestrator.claim(1, "Ada", lease=20)
    await at(20)
    orchestrator.claim(1, "Ada", lease=20)
    await at(39)
    orchestrator.answer(1, "Ada", None)
    result = await running
    assert span(result, "b") == (39, 40)


async def test_a_lease_that_runs_out_makes_the_cycle_free_again() -> None:
    orchestrator, _, running = outside()
    await at(5)
    orchestrator.claim(1, "Ada", lease=20)
    await at(26)
    orchestrator.claim(1, "Bob", lease=20)
    with pytest.raises(CycleClaimed):
        orchestrator.answer(1, "Ada", None)
    orchestrator.answer(1, "Bob", None)
    result = await running
    assert span(result, "b") == (26, 27)


async def test_an_expired_lease_without_a_new_claim_closes_the_cycle() -> None:
    orchestrator, _, running = outside()
    await at(5)
    orchestrator.claim(1, "Ada", lease=20)
    result = await running
    assert span(result, "b") == (55, 56)  # 5 + 20, then the claim timeout of 30


async def test_a_lease_never_outlives_the_timeout_of_the_edit() -> None:
    orchestrator, _, running = outside(edit_timeout=100)
    await at(5)
    orchestrator.claim(1, "Ada", lease=1_000_000)
    result = await running
    assert span(result, "b") == (101, 102)
    assert result.cycles[0].outcome == "timeout"


async def test_a_rejected_answer_leaves_the_cycle_open_for_another_try() -> None:
    orchestrator, diary, running = outside()
    await at(5)
    orchestrator.claim(1, "Ada")
    with pytest.raises(EditRejected, match="there is no task 'nobody'"):
        orchestrator.answer(1, "Ada", [edits.RemoveTask("nobody")])
    assert [cycle.id for cycle in orchestrator.cycles()] == [1]
    orchestrator.answer(1, "Ada", [edits.UpdateTask("b", timeout=5)])
    result = await running
    assert result["b"].task.timeout == 5
    assert diary.kinds("edit_rejected", "edit_applied") == ["edit_rejected", "edit_applied"]


@pytest.mark.parametrize("answer", ["text", 5, [{"op": []}], {"edits": [], "triggers": 5}, [1]], ids=str)
async def test_nonsense_from_outside_is_rejected(answer: Any) -> None:
    orchestrator, _, running = outside()
    await at(5)
    orchestrator.claim(1, "Ada")
    with pytest.raises(EditRejected):
        orchestrator.answer(1, "Ada", answer)
    orchestrator.answer(1, "Ada", None)
    await running


async def test_too_many_rejected_answers_close_the_cycle() -> None:
    orchestrator, diary, running = outside(max_rejections=2)
    await at(5)
    orchestrator.claim(1, "Ada")
    for _ in range(3):
        with pytest.raises(EditRejected):
            orchestrator.answer(1, "Ada", "nonsense")
    assert orchestrator.cycles() == []
    result = await running
    assert result.cycles[0].outcome == "abandoned"
    assert diary.kinds("edit_abandoned") == ["edit_abandoned"]
    assert span(result, "b") == (5, 6)


async def test_a_late_answer_is_checked_like_any_other_edit() -> None:
    plan = chain(Task("a", call=after(1)), Task("b", call=after(50, "b")), Task("c", call=after(1, "c")), id="p")
    orchestrator, _, running = outside(plan)
    await at(40)  # the cycle closed at 31 and b runs
    with pytest.raises(EditRejected) as caught:
        orchestrator.answer(1, "Ada", [edits.RemoveTask("b")])
    assert {violation.rule for violation in caught.value.violations} == {"immutable"}
    orchestrator.answer(1, "Ada", [edits.UpdateTask("c", call=after(1, "edited"))])
    result = await running
    assert result["c"].value == "edited"


async def test_an_answer_to_a_cycle_that_never_was_is_refused() -> None:
    orchestrator, _, running = outside()
    await at(5)
    for call in (lambda: orchestrator.claim(99, "Ada"), lambda: orchestrator.answer(99, "Ada", None)):
        with pytest.raises(CycleGone, match="cycle 99 is not open"):
            call()
    await running


async def test_an_answer_after_the_end_is_rejected_as_ended() -> None:
    orchestrator = Orchestrator([LocalDevice("device")], external=True, claim_timeout=5)
    await orchestrator.run(independent(Task("a", call=after(1)), id="p"))
    with pytest.raises(EditRejected) as caught:
        orchestrator.answer(1, "Ada", [edits.AddTask(Task("late"))], plan_id="p")
    assert [violation.rule for violation in caught.value.violations] == ["ended"]


async def test_the_stuck_cycle_can_be_answered_from_outside() -> None:
    plan = independent(Task("a", call=after(1)), id="p")
    plan.add(Task("b", call=after(1)), after={"a": "failure"})
    orchestrator, _, running = outside(plan)
    await at(5)
    orchestrator.claim(1, "Ada")
    orchestrator.answer(1, "Ada", None)
    await at(6)
    (cycle,) = orchestrator.cycles()
    assert cycle.stuck
    assert [event.kind for event in orchestrator.events_of(cycle.id)] == ["stuck"]
    orchestrator.claim(cycle.id, "Ada")
    orchestrator.answer(cycle.id, "Ada", [edits.UpdateDependency("a", "b", on="completion")])
    result = await running
    assert result["b"].status == "completed"


async def test_several_cycles_are_answered_in_any_order() -> None:
    plan = independent(Task("a", call=after(1)), Task("b", call=after(2)), Task("c", call=after(3)), id="p")
    orchestrator, _, running = outside(plan)
    await at(5)
    assert [cycle.tasks for cycle in orchestrator.cycles()] == [("a",), ("b",), ("c",)]
    for cycle_id in (3, 1, 2):
        orchestrator.claim(cycle_id, "Ada")
        orchestrator.answer(cycle_id, "Ada", None)
    result = await running
    assert result.summary.makespan == pytest.approx(5, abs=1e-3)


async def test_an_editor_inside_cannot_be_robbed_of_its_cycle() -> None:
    async def editor(view: Any, events: Any) -> None:
        await asyncio.sleep(10)

    orchestrator = Orchestrator([LocalDevice("device")], editor=editor)
    running = asyncio.create_task(orchestrator.run(independent(Task("a", call=after(1)))))
    await at(5)
    with pytest.raises(CycleClaimed):
        orchestrator.claim(1, "Ada")
    await running


async def test_the_cycle_of_an_editor_in_this_process_cannot_be_claimed() -> None:
    async def editor(view: Any, events: Any) -> None:
        await asyncio.sleep(5)

    orchestrator = Orchestrator([LocalDevice("d")], editor=editor)
    running = asyncio.ensure_future(orchestrator.run(independent(Task("a", call=after(1)), id="p")))
    await asyncio.sleep(2)
    with pytest.raises(CycleClaimed, match="belongs to 'editor', the editor of this process"):
        orchestrator.claim(1, "somebody")
    await running


async def test_an_editor_that_hangs_is_pushed_aside_by_a_person() -> None:
    cancelled = []

    async def hangs(view: Any, events: Any) -> Any:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            return [edits.CancelTask("b")]  # it does not count any more

    plan = chain(Task("a", call=after(1)), Task("b", call=after(1)), id="p")
    runner = Orchestrator([LocalDevice("here")], editor=hangs, edit_on=lambda task: task.id == "a")
    running = asyncio.ensure_future(runner.run(plan))
    await at(5)
    (cycle,) = runner.cycles()
    closed = runner.release_cycle(cycle.id, "ann", "it hangs")
    assert closed.outcome == "released"
    with pytest.raises(CycleGone):
        runner.release_cycle(cycle.id, "ann")
    result = await running
    assert (result.state, sorted(result.values), cancelled) == ("completed", ["a", "b"], [True])
    assert ("cycle released", "cycle 1, by ann: it hangs") in [(entry.what, entry.why) for entry in plan.story()]
