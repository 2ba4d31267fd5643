"""A plan as plain text, in the four documented modes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asterism.compat.living_plan import LivingPlan
    from asterism.compat.task_star import TaskStar


def text(living: LivingPlan, mode: str) -> str:
    """Raises ValueError for a mode that is not documented."""
    if mode not in _MODES:
        raise ValueError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
    return "\n".join([_headline(living), *_MODES[mode](living)])


def _headline(living: LivingPlan) -> str:
    return f"{living.name} ({living.state.value}): {living.task_count} tasks, {living.dependency_count} dependencies"


def _overview(living: LivingPlan) -> Iterator[str]:
    counts = living.get_statistics()["task_status_counts"]
    yield "  " + (", ".join(f"{count} {status}" for status, count in counts.items()) or "no task")


def _topology(living: LivingPlan) -> Iterator[str]:
    for task_id in living.get_topological_order():
        after = [
            f"{line.from_task_id} ({line.dependency_type.value})" for line in living.get_task_dependencies(task_id)
        ]
        yield f"  {task_id}" + (f" <- {', '.join(after)}" if after else "")


def _details(living: LivingPlan) -> Iterator[str]:
    for task in _in_order(living):
        device = task.target_device_id or "any device"
        yield f"  {task.task_id}: {task.name}, {task.status.value}, priority {task.priority.name}, {device}"
        if task.description:
            yield f"    {task.description}"
        if task.error is not None:
            yield f"    error: {task.error}"


def _execution(living: LivingPlan) -> Iterator[str]:
    for task in _in_order(living):
        took = task.execution_duration
        yield f"  {task.task_id}: {task.status.value}" + ("" if took is None else f" after {took:.2f} s")


def _in_order(living: LivingPlan) -> Iterator[TaskStar]:
    tasks = living.tasks
    return (tasks[task_id] for task_id in living.get_topological_order())


_MODES: dict[str, Callable[[LivingPlan], Iterator[str]]] = {
    "overview": _overview,
    "topology": _topology,
    "details": _details,
    "execution": _execution,
}
