"""The documented API under its Galaxy names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.compat import documented_names
from asterism.compat.documented_names import *  # noqa: F403 - its __all__ says which
from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.managed_devices import PlanRegistry
from asterism.compat.plan_editor import PlanEditor
from asterism.compat.plan_orchestrator import PlanOrchestrator
from asterism.compat.plan_records import TaskConstellationSchema
from asterism.compat.session_observers import PlanProgressObserver, SessionMetricsObserver
from asterism.compat.synchronizer import PlanSynchronizer
from asterism.compat.vocabulary import (
    GALAXY,
    Alias,
    ConstellationEvent,
    ReadOnly,
)
from asterism.core.json_values import JsonObject


class TaskConstellation(DocumentedPlan):
    naming = GALAXY
    schema = TaskConstellationSchema

    def __init__(
        self, constellation_id: str | None = None, name: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(constellation_id, name, metadata)

    @property
    def constellation_id(self) -> str:
        return self.plan_id

    _constellation_id = ReadOnly("plan_id", "a constellation keeps its id")


class ConstellationEditor(PlanEditor):
    naming = GALAXY
    plan_class = TaskConstellation

    def __init__(
        self, constellation: DocumentedPlan | None = None, enable_history: bool = True, max_history_size: int = 100
    ) -> None:
        super().__init__(constellation, enable_history, max_history_size)

    @property
    def constellation(self) -> DocumentedPlan:
        return self.plan

    build_constellation = PlanEditor.build
    clear_constellation = PlanEditor.clear
    merge_constellation = PlanEditor.merge
    save_constellation = PlanEditor.save
    load_constellation = PlanEditor.load
    validate_constellation = PlanEditor.validate
    display_constellation = PlanEditor.display


class ConstellationManager(PlanRegistry):
    naming = GALAXY

    def register_constellation(self, constellation: DocumentedPlan, metadata: Mapping[str, Any] | None = None) -> str:
        return self.register(constellation, metadata)

    def unregister_constellation(self, constellation_id: str) -> bool:
        return self.unregister(constellation_id)

    def get_constellation(self, constellation_id: str) -> DocumentedPlan | None:
        return self.get(constellation_id)

    list_constellations = PlanRegistry.listed

    async def get_constellation_status(self, constellation_id: str) -> JsonObject | None:
        """Progress of a registered constellation; None if it is not registered."""
        return await self.status(constellation_id)

    def validate_constellation_assignments(self, constellation: DocumentedPlan) -> tuple[bool, list[str]]:
        """Whether every task has a device."""
        return self.validate(constellation)


class TaskConstellationOrchestrator(PlanOrchestrator):
    naming = GALAXY
    registry_class = ConstellationManager
    _constellation_manager = ReadOnly("registry", "use set_device_manager")

    async def orchestrate_constellation(
        self,
        constellation: TaskConstellation,
        device_assignments: Mapping[str, str] | None = None,
        assignment_strategy: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> JsonObject:
        """Run a constellation to its end. Raises ValueError if it cannot run."""
        return await self.orchestrate(constellation, device_assignments, assignment_strategy, metadata)

    async def execute_constellation(self, constellation: TaskConstellation) -> JsonObject:
        """The same as ``orchestrate_constellation``; the pages on observers use this name."""
        return await self.orchestrate(constellation)

    async def get_constellation_status(self, constellation: DocumentedPlan) -> JsonObject | None:
        """Progress of a constellation that runs here; None if it does not."""
        return await self.status_of(constellation)

    async def cancel_execution(self, constellation_id: str) -> bool:
        """Stop a run and wait for its end. True if the constellation does not run then; False if another orchestrator
        runs it."""
        return await self.cancel(constellation_id)

    async def _sync_constellation_modifications(self, constellation: DocumentedPlan) -> DocumentedPlan:
        """Wait for the answers to all ends, and return the constellation with them. A subclass may override it: a run
        then calls it after each end, and merges what it returns."""
        return await self.sync_modifications(constellation)


class ConstellationModificationSynchronizer(PlanSynchronizer):
    naming = GALAXY
    _current_constellation = Alias("_current", write="set_current")
    _current_constellation_id = ReadOnly("current_id", "it is the id of _current_constellation")

    async def _handle_constellation_event(self, event: ConstellationEvent) -> None:
        self.notice(event)

    def merge_and_sync_constellation_states(self, orchestrator_constellation: DocumentedPlan) -> DocumentedPlan:
        """Merge the agent's changes into the orchestrator's constellation; its progress does not change."""
        return self.merge_and_sync(orchestrator_constellation)

    get_current_constellation = PlanSynchronizer.current


class ConstellationProgressObserver(PlanProgressObserver):
    naming = GALAXY


__all__ = [
    "ConstellationEditor",
    "ConstellationEvent",
    "ConstellationManager",
    "ConstellationModificationSynchronizer",
    "ConstellationProgressObserver",
    "SessionMetricsObserver",
    "TaskConstellation",
    "TaskConstellationOrchestrator",
    "TaskConstellationSchema",
]
__all__ += documented_names.__all__
