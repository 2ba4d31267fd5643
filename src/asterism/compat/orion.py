"""The documented API under its Orion names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.compat import documented_names, session_observers
from asterism.compat.documented_names import *  # noqa: F403 - its __all__ says which
from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.plan_orchestrator import PlanOrchestrator
from asterism.compat.session_observers import PlanProgressObserver
from asterism.compat.synchronizer import PlanSynchronizer
from asterism.compat.vocabulary import (
    ORION,
    ConstellationState,
    OrionEvent,
    ReadOnly,
)
from asterism.core.json_values import JsonObject

OrionState = ConstellationState


class TaskOrion(DocumentedPlan):
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
        metadata: Mapping[str, Any] | None = None,
    ) -> JsonObject:
        """Run an orion to its end. Raises ValueError if it cannot run."""
        return await self.orchestrate(orion, device_assignments, assignment_strategy, metadata)

    async def cancel_execution(self, orion_id: str) -> bool:
        """Stop a run and wait for its end. True if the orion does not run then; False if another orchestrator runs
        it."""
        return await self.cancel(orion_id)


class OrionModificationSynchronizer(PlanSynchronizer):
    naming = ORION
    _current_orion = ReadOnly("current", "publish a copy in an event")

    def merge_and_sync_orion_states(self, orchestrator_orion: DocumentedPlan) -> DocumentedPlan:
        """Merge the agent's changes into the orchestrator's orion; its progress does not change."""
        return self.merge_and_sync(orchestrator_orion)


class SessionMetricsObserver(session_observers.SessionMetricsObserver):
    naming = ORION


class OrionProgressObserver(PlanProgressObserver):
    naming = ORION


__all__ = [
    "OrionEvent",
    "OrionModificationSynchronizer",
    "OrionProgressObserver",
    "OrionState",
    "SessionMetricsObserver",
    "TaskOrion",
    "TaskOrionOrchestrator",
]
__all__ += documented_names.__all__
