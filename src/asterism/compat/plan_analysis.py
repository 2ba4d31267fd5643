"""Read-only analysis of a documented plan: checks, paths, statistics, plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, cast

from asterism.compat.vocabulary import TaskStatus
from asterism.core.json_values import JsonObject
from asterism.core.plan.node import descendants
from asterism.core.plan.parallelism import Parallelism, parallelism

if TYPE_CHECKING:
    from asterism.compat.documented_plan import DocumentedPlan
    from asterism.compat.task_star import TaskStar
    from asterism.compat.task_star_line import Conditions
    from asterism.core.plan.constellation import Constellation


class Analysis:
    """The read-only methods of a DocumentedPlan."""

    plan: Constellation
    conditions: Conditions

    @property
    def _documented(self) -> DocumentedPlan:
        return cast("DocumentedPlan", self)

    def validate_dag(self) -> tuple[bool, list[str]]:
        """Whether it can run, and the problems. Cycles and unknown tasks need no check: adding them is refused."""
        errors = [
            f"the condition {d.when!r} on {d.source!r} -> {d.target!r}: {problem}"
            for d in self.plan.dependencies
            if d.when is not None and (problem := self.conditions.check(d.when)) is not None
        ]
        return not errors, errors

    def has_cycle(self) -> bool:
        """Always False: a dependency that would close a cycle is refused when it is added."""
        return False

    def get_topological_order(self) -> list[str]:
        return self.plan.topological()

    # -- paths and parallelism -----------------------------------------------------------------------------------------

    def get_longest_path(self) -> tuple[int, list[str]]:
        """The number of tasks on the longest chain, and the chain."""
        path = list(_in_tasks(self.plan).path)
        return len(path), path

    def get_critical_path_length_with_time(self) -> tuple[float, list[str]]:
        """The seconds of the longest chain, and the chain; 0 seconds before every task has ended."""
        if not self._documented.is_complete():
            return 0.0, []
        shape = parallelism(self.plan.nodes)
        return shape.critical_path, list(shape.path)

    def get_max_width(self) -> int:
        """The most tasks that could run at once."""
        return _in_tasks(self.plan).width

    def get_total_work(self) -> float:
        """The sum of the tasks' durations in seconds."""
        return sum(node.worked for node in self.plan.nodes.values() if node.ended_at is not None)

    def get_parallelism_metrics(self) -> JsonObject:
        """L, W and W/L: in seconds when every task has ended, in tasks before that."""
        timed = self._documented.is_complete() and len(self.plan) > 0
        shape = parallelism(self.plan.nodes) if timed else _in_tasks(self.plan)
        number = float if timed else int
        return {
            "critical_path_length": number(shape.critical_path),
            "total_work": number(shape.work),
            "parallelism_ratio": shape.ratio,
            "calculation_mode": "actual_time" if timed else "node_count" if len(self.plan) else "empty",
            "critical_path_tasks": list(shape.path),
            "max_width": shape.width,
        }

    def get_statistics(self) -> JsonObject:
        documented, plan = self._documented, self.plan
        shape = _in_tasks(plan)
        metrics = self.get_parallelism_metrics()
        return {
            documented.naming.id_key: plan.id,
            "name": documented.name,
            "state": documented.state.value,
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
            "execution_duration": documented.execution_duration,
            "created_at": documented.created_at.isoformat(),
            "updated_at": documented.updated_at.isoformat(),
        }

    # -- plain text ----------------------------------------------------------------------------------------------------

    def display_dag(self, mode: str = "overview") -> None:
        """Print it: ``overview``, ``topology``, ``details`` or ``execution``. Raises ValueError for another mode."""
        if mode not in _MODES:
            raise ValueError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
        print("\n".join([_headline(self._documented), *_MODES[mode](self._documented)]))

    # -- private names that the documents show -------------------------------------------------------------------------

    def _are_dependencies_satisfied(self, task_id: str) -> bool:
        node = self.plan.nodes.get(task_id)
        return node is not None and not node.open

    def _would_create_cycle(self, from_task_id: str, to_task_id: str) -> bool:
        return _reaches(self.plan, to_task_id, from_task_id)


def _in_tasks(plan: Constellation) -> Parallelism:
    """The parallelism, with every task counted as one."""
    return parallelism(plan.nodes, dict.fromkeys(plan.nodes, 1.0))


def _reaches(plan: Constellation, start: str, goal: str) -> bool:
    """Whether ``goal`` depends on ``start``, directly or indirectly, or is the same task."""
    if start == goal or start not in plan.nodes:
        return start == goal
    return plan.nodes.get(goal) in descendants(plan.nodes[start])


def _headline(documented: DocumentedPlan) -> str:
    counts = f"{documented.task_count} tasks, {documented.dependency_count} dependencies"
    return f"{documented.name} ({documented.state.value}): {counts}"


def _overview(documented: DocumentedPlan) -> Iterator[str]:
    counts = documented.get_statistics()["task_status_counts"]
    yield "  " + (", ".join(f"{count} {status}" for status, count in counts.items()) or "no task")


def _topology(documented: DocumentedPlan) -> Iterator[str]:
    for task_id in documented.get_topological_order():
        lines = documented.get_task_dependencies(task_id)
        after = [f"{line.from_task_id} ({line.dependency_type.value})" for line in lines]
        yield f"  {task_id}" + (f" <- {', '.join(after)}" if after else "")


def _details(documented: DocumentedPlan) -> Iterator[str]:
    for task in _in_order(documented):
        device = task.target_device_id or "any device"
        yield f"  {task.task_id}: {task.name}, {task.status.value}, priority {task.priority.name}, {device}"
        if task.description:
            yield f"    {task.description}"
        if task.error is not None:
            yield f"    error: {task.error}"


def _execution(documented: DocumentedPlan) -> Iterator[str]:
    for task in _in_order(documented):
        took = task.execution_duration
        yield f"  {task.task_id}: {task.status.value}" + ("" if took is None else f" after {took:.2f} s")


def _in_order(documented: DocumentedPlan) -> Iterator[TaskStar]:
    tasks = documented.tasks
    return (tasks[task_id] for task_id in documented.get_topological_order())


_MODES: dict[str, Callable[[DocumentedPlan], Iterator[str]]] = {
    "overview": _overview,
    "topology": _topology,
    "details": _details,
    "execution": _execution,
}
