"""Manual progress: start and end tasks by hand, while no orchestrator runs the plan."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from asterism.compat import manual_steps
from asterism.compat.checked_changes import by_hand, refuse, refusing
from asterism.core.plan import status as core
from asterism.core.plan.node import Node
from asterism.core.plan.status import ENDED_STATES

if TYPE_CHECKING:
    from asterism.compat.task_star import TaskStar
    from asterism.core.plan.constellation import Constellation


class DrivenByHand:
    """The part of a LivingPlan that records progress without an orchestrator."""

    plan: Constellation
    if TYPE_CHECKING:

        def get_task(self, task_id: str) -> TaskStar | None: ...

    def is_complete(self) -> bool:
        """Whether every task has ended."""
        return not self.plan.counts[core.PENDING] and not self.plan.counts[core.RUNNING]

    def _handle(self, task_id: str) -> TaskStar:
        star = self.get_task(task_id)
        if star is None:
            raise refuse("unknown_task", f"there is no task {task_id!r} in the plan")
        return star

    def start_execution(self) -> None:
        """It begins now. Refused when it has begun already."""
        by_hand(self.plan)
        if self.plan.state in ENDED_STATES:
            manual_steps.reopen(self.plan)
        with refusing():
            self.plan.begin(time.time())
        self.plan.ended_at = None

    def start_task(self, task_id: str) -> None:
        """A task has started. Refused when it is not ready."""
        self._handle(task_id).start_execution()

    def complete_execution(self) -> None:
        """It is over. Refused while a task has not ended."""
        by_hand(self.plan)
        if not self.is_complete():
            left = ", ".join(node.id for node in self.plan.nodes.values() if node.status not in core.TERMINAL)
            raise refuse("progress", f"{self.plan.id!r} is not complete: {left} have not ended")
        if self.plan.state not in ENDED_STATES:
            self.plan.close(time.time())

    def mark_task_completed(
        self, task_id: str, success: bool, result: Any = None, error: BaseException | None = None
    ) -> list[TaskStar]:
        """Record an end by hand and return what that made ready. Refused while an orchestrator runs the plan."""
        by_hand(self.plan)
        star = self._handle(task_id)
        if star.node.status is core.PENDING:
            star.start_execution()
        if success:
            star.complete_with_success(result)
        else:
            star.complete_with_failure(error)
        return [self._handle(child) for child in newly_ready(star.node)]


def newly_ready(node: Node) -> list[str]:
    """The tasks that the end of this one has made ready: before it, its own edge was open."""
    return [child.id for child in node.children.values() if child.status is core.PENDING and not child.open]
