"""Layouts of plans on the server: stable from version to version, and bounded in number."""

from __future__ import annotations

from asterism import Constellation, Task, edits
from asterism.server import plan_layouts
from asterism.server.plan_layouts import PlanLayouts


def chain(name: str, count: int) -> Constellation:
    plan = Constellation(name)
    for number in range(count):
        plan.add(Task(f"t{number}", shell="true"), after=f"t{number - 1}" if number else None)
    return plan


async def test_an_edit_leaves_every_other_task_where_it_was() -> None:
    layouts, plan = PlanLayouts(), chain("release", 5)
    before = await layouts.layout("release", plan)
    plan.edit([edits.AddTask(Task("new", shell="true")), edits.AddDependency("t1", "new")])
    after = await layouts.layout("release", plan)
    assert after["version"] == before["version"] + 1
    assert {task: after["nodes"][task] for task in before["nodes"]} == before["nodes"]


async def test_an_earlier_version_is_laid_out_near_the_known_one() -> None:
    layouts, plan = PlanLayouts(), chain("release", 5)
    past = plan.copy()
    plan.edit([edits.AddTask(Task("new", shell="true")), edits.AddDependency("t1", "new")])
    now = await layouts.layout("release", plan)
    before = await layouts.layout("release", past)
    assert before["nodes"] == {task: place for task, place in now["nodes"].items() if task != "new"}


async def test_a_plan_that_replaced_another_of_its_name_has_its_own_layout() -> None:
    layouts = PlanLayouts()
    await layouts.layout("release", chain("release", 5))
    again = await layouts.layout("release", chain("release", 3))
    assert set(again["nodes"]) == {"t0", "t1", "t2"}


async def test_a_large_plan_is_laid_out_in_a_thread() -> None:
    plan = chain("release", plan_layouts.SMALL + 1)
    found = await PlanLayouts().layout("release", plan)
    assert len(found["nodes"]) == plan_layouts.SMALL + 1
    assert found["width"] == plan_layouts.COLUMN * (plan_layouts.SMALL + 1)


async def test_few_plans_and_versions_are_remembered() -> None:
    layouts = PlanLayouts()
    for number in range(plan_layouts.MOST_PLANS + 5):
        await layouts.layout(f"plan-{number}", chain("one", 2))
    assert len(layouts._plans) == len(layouts._locks) == plan_layouts.MOST_PLANS
    plan = chain("one", 2)
    for number in range(plan_layouts.MOST_VERSIONS + 5):
        plan.edit([edits.AddTask(Task(f"new-{number}", shell="true"))])
        await layouts.layout("one", plan)
    assert len(layouts._plans["one"]) == plan_layouts.MOST_VERSIONS
