"""What a plan says of its own shape: checks, paths and figures. Nothing here changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from asterism.compat import plan_display, plan_statistics

if TYPE_CHECKING:
    from asterism.compat.living_plan import LivingPlan
    from asterism.compat.task_star_line import Conditions
    from asterism.core.plan.constellation import Constellation


class Analysis:
    """The reading half of a LivingPlan."""

    plan: Constellation
    conditions: Conditions

    @property
    def _living(self) -> LivingPlan:
        return cast("LivingPlan", self)

    def validate_dag(self) -> tuple[bool, list[str]]:
        """Whether it can run, and what stands in the way. A cycle or a loose end cannot: they are refused at once."""
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

    def get_longest_path(self) -> tuple[int, list[str]]:
        """The number of tasks on the longest chain, and the chain."""
        return plan_statistics.longest_path(self._living)

    def get_critical_path_length_with_time(self) -> tuple[float, list[str]]:
        """The seconds of the longest chain, and the chain; 0 seconds before every task has ended."""
        return plan_statistics.critical_path(self._living)

    def get_max_width(self) -> int:
        """How many tasks could run at once, at most."""
        return plan_statistics.max_width(self._living)

    def get_total_work(self) -> float:
        """The seconds that the tasks took together."""
        return plan_statistics.total_work(self._living)

    def get_parallelism_metrics(self) -> dict[str, Any]:
        return plan_statistics.parallelism_metrics(self._living)

    def get_statistics(self) -> dict[str, Any]:
        return plan_statistics.statistics(self._living)

    def display_dag(self, mode: str = "overview") -> None:
        """Print it: ``overview``, ``topology``, ``details`` or ``execution``."""
        print(plan_display.text(self._living, mode))

    def _are_dependencies_satisfied(self, task_id: str) -> bool:
        node = self.plan.nodes.get(task_id)
        return node is not None and not node.open

    def _would_create_cycle(self, from_task_id: str, to_task_id: str) -> bool:
        return plan_statistics.reaches(self._living, to_task_id, from_task_id)
