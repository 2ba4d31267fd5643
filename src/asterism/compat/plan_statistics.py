"""The figures of a plan, under the documented keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asterism.compat.vocabulary import TaskStatus
from asterism.core.plan.parallelism import Parallelism, parallelism

if TYPE_CHECKING:
    from asterism.compat.living_plan import LivingPlan


def _in_tasks(living: LivingPlan) -> Parallelism:
    """The shape, where every task counts as one."""
    return parallelism(living.plan, dict.fromkeys(living.plan.nodes, 1.0))


def longest_path(living: LivingPlan) -> tuple[int, list[str]]:
    path = list(_in_tasks(living).path)
    return len(path), path


def critical_path(living: LivingPlan) -> tuple[float, list[str]]:
    if not living.is_complete():
        return 0.0, []
    shape = parallelism(living.plan)
    return shape.critical_path, list(shape.path)


def max_width(living: LivingPlan) -> int:
    return _in_tasks(living).width


def total_work(living: LivingPlan) -> float:
    return sum(node.worked for node in living.plan.nodes.values() if node.ended_at is not None)


def reaches(living: LivingPlan, start: str, goal: str) -> bool:
    """Whether a chain of dependencies leads from one task to another, or they are the same."""
    seen, stack = set[str](), [start]
    while stack:
        task_id = stack.pop()
        if task_id == goal:
            return True
        if task_id not in seen and task_id in living.plan.nodes:
            seen.add(task_id)
            stack.extend(living.plan.nodes[task_id].children)
    return False


def parallelism_metrics(living: LivingPlan) -> dict[str, Any]:
    """L, W and W/L: in seconds when every task has ended, in tasks before that."""
    plan = living.plan
    timed = living.is_complete() and len(plan) > 0
    shape = parallelism(plan) if timed else _in_tasks(living)
    number = float if timed else int
    return {
        "critical_path_length": number(shape.critical_path),
        "total_work": number(shape.work),
        "parallelism_ratio": shape.ratio,
        "calculation_mode": "actual_time" if timed else "node_count" if len(plan) else "empty",
        "critical_path_tasks": list(shape.path),
        "max_width": shape.width,
    }


def statistics(living: LivingPlan) -> dict[str, Any]:
    plan = living.plan
    shape = _in_tasks(living)
    metrics = parallelism_metrics(living)
    return {
        living.naming.id_key: plan.id,
        "name": living.name,
        "state": living.state.value,
        "total_tasks": len(plan),
        "total_dependencies": sum(len(node.parents) for node in plan.nodes.values()),
        "task_status_counts": {TaskStatus(status).value: count for status, count in plan.counts.items() if count},
        "longest_path_length": len(shape.path),
        "longest_path_tasks": list(shape.path),
        "max_width": shape.width,
        "critical_path_length": metrics["critical_path_length"],
        "total_work": metrics["total_work"],
        "parallelism_ratio": metrics["parallelism_ratio"],
        "parallelism_calculation_mode": metrics["calculation_mode"],
        "critical_path_tasks": metrics["critical_path_tasks"],
        "execution_duration": living.execution_duration,
        "created_at": living.created_at.isoformat(),
        "updated_at": living.updated_at.isoformat(),
    }
