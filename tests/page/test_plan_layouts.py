"""Layouts of plans on the server: stable from version to version, and bounded in number."""

from __future__ import annotations

import pytest

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
    layout = await PlanLayouts().layout("release", plan)
    assert len(layout["nodes"]) == plan_layouts.SMALL + 1
    assert layout["width"] == plan_layouts.COLUMN * (plan_layouts.SMALL + 1)


async def test_remembered_layouts_have_so_many_tasks_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_layouts, "LEAST", 10)
    monkeypatch.setattr(plan_layouts, "MOST_REMEMBERED", 10 * plan_layouts.LEAST)
    layouts = PlanLayouts()
    for number in range(20):
        await layouts.layout(f"plan-{number}", chain("one", 2))
    assert [name for name, _ in layouts._known] == [f"plan-{number}" for number in range(10, 20)]
    assert not layouts._locks
    plan = chain("one", 5 * plan_layouts.LEAST)
    for number in range(3):
        plan.edit([edits.AddTask(Task(f"new-{number}", shell="true"))])
        await layouts.layout("one", plan)
    assert list(layouts._known) == [("one", 3)], "one that is larger than half of all is alone"
    await layouts.layout("large", chain("large", 20 * plan_layouts.LEAST))
    assert list(layouts._known) == [("large", 0)], "the newest is remembered, however large it is"
    assert layouts._size == 20 * plan_layouts.LEAST
