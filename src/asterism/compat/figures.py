"""The figures of a plan, under the documented keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asterism.compat.vocabulary import TaskStatus
from asterism.core.metrics import parallelism

if TYPE_CHECKING:
    from asterism.compat.living import LivingPlan


def parallelism_metrics(living: LivingPlan) -> dict[str, Any]:
    """L, W and W/L: in seconds when every task has ended, in tasks before that."""
    plan = living.plan
    timed = living.is_complete() and len(plan) > 0
    shape = parallelism(plan, None if timed else dict.fromkeys(plan.nodes, 1.0))
    number = float if timed else int
    return {
        "critical_path_length": number(shape.critical_path),
        "total_work": number(shape.work),
        "parallelism_ratio": shape.ratio,
        "calculation_mode": "actual_time" if timed else "node_count" if len(plan) else "empty",
        "critical_path_tasks": list(shape.path),
    }


def statistics(living: LivingPlan) -> dict[str, Any]:
    plan = living.plan
    shape = parallelism(plan, dict.fromkeys(plan.nodes, 1.0))
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
        "execution_duration": (
            None if plan.started_at is None or plan.ended_at is None else plan.ended_at - plan.started_at
        ),
        "created_at": living.created_at.isoformat(),
        "updated_at": living.updated_at.isoformat(),
    }
