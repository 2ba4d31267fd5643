"""Large groups as one task: what stands behind them, what they wait for, and the counts of their statuses."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.group_elements import LARGE, folded_groups, status_of_group
from asterism.core.plan.task import Task
from tests.core.plan.tiny_plans import begin, end


def grouped_plan(elements: int = LARGE + 1, inner: Sequence[str] = ()) -> Constellation:
    """list -> load[0], load[1] … -> load, the group -> sum. ``inner`` are the elements of the group load[0]."""
    plan = Constellation("nightly")
    plan.add(Task("list"))
    for element in inner:
        plan.add(Task(element), ["list"])
    ids = [f"load[{number}]" for number in range(elements)]
    for element in ids:
        foreach = {"of": list(inner)} if inner and element == ids[0] else None
        plan.add(Task(element, foreach=foreach), ["list", *(inner if foreach else ())])
    plan.add(Task("load", foreach={"of": ids}), ids)
    plan.add(Task("sum"), ["load"])
    return plan


def shown(plan: Constellation, opened: Sequence[str] = ()) -> tuple[list[str], list[tuple[str, str]]]:
    folded = folded_groups(plan, opened)
    edges = [(edge.source, edge.target) for edge in folded.dependencies(plan)]
    return [node.id for node in folded.nodes(plan)], edges


def test_a_large_group_is_one_task_that_waits_for_what_its_elements_wait_for() -> None:
    assert shown(grouped_plan()) == (["list", "load", "sum"], [("list", "load"), ("load", "sum")])


@pytest.mark.parametrize(("elements", "opened"), [(LARGE, ()), (LARGE + 1, ("load",))])
def test_a_small_or_opened_group_is_shown_task_by_task(elements: int, opened: Sequence[str]) -> None:
    plan = grouped_plan(elements)
    tasks, edges = shown(plan, opened)
    assert tasks == [task.id for task in plan]
    assert edges == [(edge.source, edge.target) for edge in plan.dependencies]


def test_a_group_within_a_folded_one_is_behind_it_with_its_elements() -> None:
    plan = grouped_plan(inner=[f"part[{number}]" for number in range(LARGE + 1)])
    assert shown(plan)[0] == ["list", "load", "sum"]
    assert len(folded_groups(plan).behind["load"]) == 2 * (LARGE + 1)
    opened, _ = shown(plan, ["load"])
    assert "load[0]" in opened
    assert "part[0]" not in opened


def test_an_element_that_another_task_follows_is_shown_so_that_there_is_no_cycle() -> None:
    plan = grouped_plan()
    plan.add(Task("repair"), {"load[1]": "failure"})
    plan.add(Task("check"), ["load"])
    tasks, edges = shown(plan)
    assert tasks == ["list", "load[1]", "load", "sum", "repair", "check"]
    assert ("load[1]", "load") in edges


def test_an_element_that_is_gone_is_not_counted() -> None:
    plan = grouped_plan()
    plan.add(Task("more", foreach={"of": [f"load[{number}]" for number in range(1, LARGE)] + ["gone"] * 3}), ["load"])
    assert set(shown(plan)[0]) == {"list", "load", "sum", "more"}


def test_the_counts_of_a_group_tell_what_its_tasks_do() -> None:
    plan = grouped_plan()
    folded = folded_groups(plan)
    begin(plan)
    end(plan, "list")
    end(plan, "load[1]")
    counts = folded.counts("load", lambda node: node.shown_status)
    assert counts == {"completed": 1, "pending": LARGE}
    assert folded.counts("sum", str) == {}


@pytest.mark.parametrize(
    ("own", "counts", "status"),
    [
        ("waiting", {"queued": 3}, "running"),
        ("waiting", {"running": 1, "completed": 5}, "running"),
        ("waiting", {"pending": 3}, "waiting"),
        ("failed", {"running": 1}, "failed"),
    ],
)
def test_a_group_runs_while_its_elements_do(own: str, counts: dict[str, int], status: str) -> None:
    assert status_of_group(own, counts) == status
