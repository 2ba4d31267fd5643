"""The tick of a plan: puts its values in place of ``{tick}``, ``{tick.date}``, … in the tasks of a plan.

A schedule keeps a plan without a tick, whose texts still have these placeholders, and creates a copy for each tick.
Whatever else a plan file says has its values by then, so a parameter or an element of a list may use the tick, too; a
result of a task may not. In a task with an input ``tick`` the name means that input. A shell line has no placeholders,
it uses the variables ``$ASTERISM_TICK``, ``$ASTERISM_TICK_DATE``, …, which every command of the plan gets.
"""

from __future__ import annotations

from collections.abc import Iterator

from asterism.base.expressions import TICK, names_used, with_constants
from asterism.core.json_values import JsonObject
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import Node
from asterism.core.plan.task import Task
from asterism.core.record import replace
from asterism.core.schedule.tick_values import TICK_PATHS, VARIABLES, TickValues, tick_on_request
from asterism.execution.foreach_expansion import template_of
from asterism.execution.placeholders import fill_task, fill_text, fill_value
from asterism.execution.task_inputs import refers_to_variable


def with_tick(plan: Constellation, tick: TickValues | str) -> Constellation:
    """A copy of a plan that has not started, with the values of a tick, or for a day or time such as ``2026-11-17``.
    Raises InvalidTick, and UnknownPlaceholder for ``{tick.end}`` of a tick that no other follows."""
    if isinstance(tick, str):
        tick = tick_on_request(tick)
    ticked = Constellation(plan.id)
    ticked.source, ticked.author, ticked.tags, ticked.tick = plan.source, plan.author, plan.tags, tick
    if plan.overlap is not None:
        policy, parallel, *key = plan.overlap
        ticked.overlap = (policy, parallel, fill_text(str(key[0]), tick)) if key else plan.overlap
    for node in plan.nodes.values():
        ticked.insert(Node(_filled(node.task, tick), ticked.order.fresh()))  # ``add`` would imply dependencies
    for dependency in plan.dependencies:
        when = None if dependency.when is None else with_constants(dependency.when, tick)
        ticked.link(dependency if when == dependency.when else replace(dependency, when=when))
    return ticked


def tasks_with_tick(plan: Constellation) -> Iterator[str]:
    """The tasks that need a tick, by id."""
    stand_in = {**dict.fromkeys(TICK_PATHS, ""), **tick_on_request("1970-01-02"), "tick.zone": ""}
    for node in plan.nodes.values():
        conditions = [dependency.when for dependency in node.parents.values() if dependency.when is not None]
        if (
            _filled(node.task, stand_in) != node.task
            or any(names_used(condition, (TICK,)) for condition in conditions)
            or any(refers_to_variable(_shell_line(node.task), name) for name in VARIABLES.values())
        ):
            yield node.id


def _shell_line(task: Task) -> str:
    return (template_of(task) or task).shell or ""


def _filled(task: Task, tick: TickValues) -> Task:
    if TICK in task.inputs:
        return task
    filled, template = fill_task(task, tick), template_of(task)
    if template is None:
        return filled
    assert task.foreach is not None
    fields = _filled(template, tick).to_json()
    del fields["id"]
    changes: JsonObject = {"template": fields}
    if "select" in task.foreach:
        changes["select"] = with_constants(task.foreach["select"], tick)
    if "params" in task.foreach:
        changes["params"] = fill_value(task.foreach["params"], tick)
    return replace(filled, foreach={**task.foreach, **changes})
