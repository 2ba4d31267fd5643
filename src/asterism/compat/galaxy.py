"""The documented API with its Galaxy names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.compat.changes import ModificationRejected
from asterism.compat.events import (
    ConstellationEvent,
    Event,
    EventBus,
    EventType,
    IEventObserver,
    TaskEvent,
    get_event_bus,
)
from asterism.compat.lines import TaskStarLine
from asterism.compat.living import LivingPlan
from asterism.compat.naming import GALAXY
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


class TaskConstellation(LivingPlan):
    naming = GALAXY

    def __init__(
        self, constellation_id: str | None = None, name: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(constellation_id, name, metadata)

    @property
    def constellation_id(self) -> str:
        return self.plan_id


class TaskConstellationOrchestrator(PlanOrchestrator):
    naming = GALAXY

    async def orchestrate_constellation(
        self,
        constellation: TaskConstellation,
        device_assignments: Mapping[str, str] | None = None,
        assignment_strategy: str | None = None,
    ) -> dict[str, Any]:
        """Run a constellation to its end. Raises ValueError for one that cannot run."""
        return await self.orchestrate(constellation, device_assignments, assignment_strategy)

    async def cancel_execution(self, constellation_id: str) -> bool:
        """Stop a run and wait for its end. False when no such constellation is running here."""
        return await self.cancel(constellation_id)


class ConstellationModificationSynchronizer(PlanSynchronizer):
    naming = GALAXY

    def merge_and_sync_constellation_states(self, orchestrator_constellation: LivingPlan) -> LivingPlan:
        """The orchestrator's constellation with the agent's changes merged in; its progress stands."""
        return self.merge_and_sync(orchestrator_constellation)

    def get_current_constellation(self) -> LivingPlan | None:
        return self.current()


__all__ = [
    "ConstellationEvent",
    "ConstellationModificationSynchronizer",
    "ConstellationState",
    "DependencyType",
    "DeviceType",
    "Event",
    "EventBus",
    "EventType",
    "ExecutionResult",
    "IEventObserver",
    "ModificationRejected",
    "TaskConstellation",
    "TaskConstellationOrchestrator",
    "TaskEvent",
    "TaskPriority",
    "TaskStar",
    "TaskStarLine",
    "TaskStatus",
    "get_event_bus",
]
