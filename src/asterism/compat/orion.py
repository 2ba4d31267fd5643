"""The documented API with its Orion names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.compat.changes import ModificationRejected
from asterism.compat.events import (
    Event,
    EventBus,
    EventType,
    IEventObserver,
    OrionEvent,
    TaskEvent,
    get_event_bus,
)
from asterism.compat.lines import TaskStarLine
from asterism.compat.living import LivingPlan
from asterism.compat.naming import ORION
from asterism.compat.orchestrator import PlanOrchestrator
from asterism.compat.stars import TaskStar
from asterism.compat.synchronizer import PlanSynchronizer
from asterism.compat.vocabulary import (
    ConstellationState,
    DependencyType,
    DeviceType,
    ExecutionResult,
    TaskPriority,
    TaskStatus,
)

OrionState = ConstellationState


class TaskOrion(LivingPlan):
    naming = ORION

    def __init__(
        self, orion_id: str | None = None, name: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(orion_id, name, metadata)

    @property
    def orion_id(self) -> str:
        return self.plan_id


class TaskOrionOrchestrator(PlanOrchestrator):
    naming = ORION

    async def orchestrate_orion(
        self,
        orion: TaskOrion,
        device_assignments: Mapping[str, str] | None = None,
        assignment_strategy: str | None = None,
    ) -> dict[str, Any]:
        """Run an orion to its end. Raises ValueError for one that cannot run."""
        return await self.orchestrate(orion, device_assignments, assignment_strategy)

    async def cancel_execution(self, orion_id: str) -> bool:
        """Stop a run and wait for its end. False when no such orion is running here."""
        return await self.cancel(orion_id)


class OrionModificationSynchronizer(PlanSynchronizer):
    naming = ORION

    def merge_and_sync_orion_states(self, orchestrator_orion: LivingPlan) -> LivingPlan:
        """The orchestrator's orion with the agent's changes merged in; its progress stands."""
        return self.merge_and_sync(orchestrator_orion)

    def get_current_orion(self) -> LivingPlan | None:
        return self.current()


__all__ = [
    "DependencyType",
    "DeviceType",
    "Event",
    "EventBus",
    "EventType",
    "ExecutionResult",
    "IEventObserver",
    "ModificationRejected",
    "OrionEvent",
    "OrionModificationSynchronizer",
    "OrionState",
    "TaskEvent",
    "TaskOrion",
    "TaskOrionOrchestrator",
    "TaskPriority",
    "TaskStar",
    "TaskStarLine",
    "TaskStatus",
    "get_event_bus",
]
