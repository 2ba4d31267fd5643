"""The documented API under its Galaxy names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.compat import documented_names
from asterism.compat.documented_names import *  # noqa: F403 - its __all__ says which
from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.plan_orchestrator import PlanOrchestrator
from asterism.compat.session_observers import PlanProgressObserver, SessionMetricsObserver
from asterism.compat.synchronizer import PlanSynchronizer
from asterism.compat.vocabulary import (
    GALAXY,
    ConstellationEvent,
    ReadOnly,
)
from asterism.core.json_values import JsonObject


class TaskConstellation(DocumentedPlan):
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
        metadata: Mapping[str, Any] | None = None,
    ) -> JsonObject:
        """Run a constellation to its end. Raises ValueError if it cannot run."""
        return await self.orchestrate(constellation, device_assignments, assignment_strategy, metadata)

    async def cancel_execution(self, constellation_id: str) -> bool:
        """Stop a run and wait for its end. True if the constellation does not run then; False if another orchestrator
        runs it."""
        return await self.cancel(constellation_id)


class ConstellationModificationSynchronizer(PlanSynchronizer):
    naming = GALAXY
    _current_constellation = ReadOnly("current", "publish a copy in an event")

    def merge_and_sync_constellation_states(self, orchestrator_constellation: DocumentedPlan) -> DocumentedPlan:
        """Merge the agent's changes into the orchestrator's constellation; its progress does not change."""
        return self.merge_and_sync(orchestrator_constellation)


class ConstellationProgressObserver(PlanProgressObserver):
    naming = GALAXY


__all__ = [
    "ConstellationEvent",
    "ConstellationModificationSynchronizer",
    "ConstellationProgressObserver",
    "SessionMetricsObserver",
    "TaskConstellation",
    "TaskConstellationOrchestrator",
]
__all__ += documented_names.__all__
