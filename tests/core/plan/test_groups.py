"""Groups of tasks: when the list of a group is made again, the group is as it was before it was expanded."""

from __future__ import annotations

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, end
from tests.laboratory.plan_invariants import check_invariants

TEMPLATE = {"from": "list", "template": {"shell": "echo {item}"}}


def expanded_plan(*others: str) -> Constellation:
    """list -> each-0 -> each, the group; ``others`` depend on its element, too. All tasks are completed."""
    plan = Constellation("nightly")
    plan.add(Task("list"))
    plan.add(Task("each-0"), ["list"])
    plan.add(Task("each", foreach={**TEMPLATE, "of": ["each-0"]}), ["each-0"])
    for other in others:
        plan.add(Task(other), ["each-0"])
    begin(plan)
    for task in plan.topological():
        end(plan, task)
    plan.close(9.0)
    return plan


def test_a_group_whose_list_is_made_again_has_no_elements() -> None:
    plan = expanded_plan()
    assert set(plan.run_again(10.0, ["list"])) == {"list", "each"}
    assert [task.id for task in plan] == ["list", "each"]
    assert dict(plan.node("each").task.foreach or {}) == TEMPLATE
    check_invariants(plan)


def test_a_group_stays_as_it_is_if_its_list_does_or_another_task_needs_an_element() -> None:
    plan = expanded_plan()
    plan.run_again(10.0, ["each-0"])
    assert "each-0" in plan
    plan = expanded_plan("copy")
    plan.run_again(10.0, ["list"])
    assert "each-0" in plan
    check_invariants(plan)
