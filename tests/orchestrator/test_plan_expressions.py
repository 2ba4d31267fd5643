"""Costly conditions and selections of a plan: refused when added, bounded when evaluated."""

from __future__ import annotations

from typing import Any

import pytest

from asterism import Constellation, EditBatch, LocalDevice, Orchestrator, PlanError, Task, edits
from asterism.base import expressions
from asterism.core.errors import EditRejected
from asterism.testing.virtual_time import run
from tests.base.cel.cel_bombs import CONSTANT, over
from tests.orchestrator.orchestrator_scenes import after, chain

BOMBS = over("result")


def plan_with(when: str) -> Constellation:
    plan = Constellation("plan")
    plan.add(Task("a", call=lambda: "x"))
    plan.add(Task("b", call=lambda: "y"), after={"a": {"when": when}})
    plan.add(Task("c", call=lambda: "z"), after="a")
    return plan


def orchestrator(**options: object) -> Orchestrator:
    return Orchestrator([LocalDevice("here")], **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("bomb", CONSTANT.values(), ids=CONSTANT)
def test_a_plan_with_a_condition_that_always_costs_too_much_is_refused(bomb: str) -> None:
    with pytest.raises(PlanError, match=r"is not valid: .* steps"):
        orchestrator().run_sync(plan_with(bomb))


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_condition_that_costs_too_much_is_false_and_the_plan_continues(bomb: str) -> None:
    result = orchestrator().run_sync(plan_with(bomb))
    assert str(result.state) == "partially_failed"
    assert {task.id: str(task.status) for task in result} == {"a": "completed", "b": "cancelled", "c": "completed"}
    assert "could not be evaluated" in result.story("b")[-1].why
    assert "steps" in result.story("b")[-1].why


@pytest.mark.parametrize("bomb", CONSTANT.values(), ids=CONSTANT)
def test_an_edit_with_a_condition_that_always_costs_too_much_is_rejected(bomb: str) -> None:
    answers = [EditBatch([edits.AddDependency("a", "d", when=bomb)])]
    plan = plan_with("true")
    plan.add(Task("d", call=lambda: "w"), after="c")
    plan.evaluate, plan.check_condition = expressions.evaluate, expressions.check
    with pytest.raises(EditRejected, match="steps") as rejection:
        plan.apply(answers[0], 0.0)
    assert [violation.rule for violation in rejection.value.violations] == ["condition"]

    result = orchestrator(editor=lambda view, events: answers.pop() if answers else None).run_sync(plan)
    assert answers == []
    assert str(result.state) == "completed"
    assert plan.version == 0


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_costly_condition_on_an_ended_task_is_bounded(bomb: str) -> None:
    added = [edits.AddTask(Task("e", call=lambda: "v")), edits.AddDependency("a", "e", when=bomb)]
    answers = [EditBatch(added)]
    result = orchestrator(editor=lambda view, events: answers.pop() if answers else None).run_sync(plan_with("true"))
    assert "steps" in result.story("e")[-1].why
    assert str(result["c"].status) == "completed"


@pytest.mark.parametrize("bomb", [*CONSTANT.values(), *BOMBS.values()])
def test_a_selection_that_costs_too_much_fails_its_task_alone(bomb: str) -> None:
    plan = plan_with("true")
    plan.add(Task("d", call=lambda part: part, inputs={"part": {"from": "a", "select": bomb}}), after="a")
    result = orchestrator().run_sync(plan)
    assert {task.id: str(task.status) for task in result} == {**dict.fromkeys("abc", "completed"), "d": "failed"}
    assert "steps" in str(result["d"].error)


def test_a_condition_that_makes_the_parser_panic_is_a_violation_like_any_other() -> None:
    async def editor(view: Any, events: Any) -> Any:
        return [edits.AddTask(Task("n")), edits.AddDependency("a", "n", when="a" * 70_000 + "+")]

    plan = chain(Task("a", call=after(1)), Task("b", call=after(1)), id="p")
    result = run(Orchestrator([LocalDevice("d")], editor=editor).run(plan))
    assert result.state == "completed"
    assert result.summary.makespan < 10
    assert {cycle.outcome for cycle in result.cycles} == {"abandoned"}
