"""The documented API under its Orion names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.compat import documented_names, session_observers
from asterism.compat.documented_names import *  # noqa: F403 - its __all__ says which
from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.managed_devices import PlanRegistry
from asterism.compat.plan_editor import PlanEditor
from asterism.compat.plan_orchestrator import PlanOrchestrator
from asterism.compat.plan_records import TaskOrionSchema
from asterism.compat.session_observers import PlanProgressObserver
from asterism.compat.synchronizer import PlanSynchronizer
from asterism.compat.vocabulary import (
    ORION,
    Alias,
    ConstellationState,
    OrionEvent,
    ReadOnly,
)
from asterism.core.json_values import JsonObject

OrionState = ConstellationState


class TaskOrion(DocumentedPlan):
    naming = ORION
    schema = TaskOrionSchema

    def __init__(
        self, orion_id: str | None = None, name: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(orion_id, name, metadata)

    @property
    def orion_id(self) -> str:
        return self.plan_id

    _orion_id = ReadOnly("plan_id", "an orion keeps its id")


class OrionEditor(PlanEditor):
    naming = ORION
    plan_class = TaskOrion

    def __init__(
        self, orion: DocumentedPlan | None = None, enable_history: bool = True, max_history_size: int = 100
    ) -> None:
        super().__init__(orion, enable_history, max_history_size)

    @property
    def orion(self) -> DocumentedPlan:
        return self.plan

    build_orion = PlanEditor.build
    clear_orion = PlanEditor.clear
    merge_orion = PlanEditor.merge
    save_orion = PlanEditor.save
    load_orion = PlanEditor.load
    validate_orion = PlanEditor.validate
    display_orion = PlanEditor.display


class OrionManager(PlanRegistry):
    naming = ORION

    def register_orion(self, orion: DocumentedPlan, metadata: Mapping[str, Any] | None = None) -> str:
        return self.register(orion, metadata)

    def unregister_orion(self, orion_id: str) -> bool:
        return self.unregister(orion_id)

    def get_orion(self, orion_id: str) -> DocumentedPlan | None:
        return self.get(orion_id)

    list_orions = PlanRegistry.listed

    async def get_orion_status(self, orion_id: str) -> JsonObject | None:
        """Progress of a registered orion; None if it is not registered."""
        return await self.status(orion_id)

    def validate_orion_assignments(self, orion: DocumentedPlan) -> tuple[bool, list[str]]:
        """Whether every task has a device."""
        return self.validate(orion)


class TaskOrionOrchestrator(PlanOrchestrator):
    naming = ORION
    registry_class = OrionManager
    _orion_manager = ReadOnly("registry", "use set_device_manager")

    async def orchestrate_orion(
        self,
        orion: TaskOrion,
        device_assignments: Mapping[str, str] | None = None,
        assignment_strategy: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> JsonObject:
        """Run an orion to its end. Raises ValueError if it cannot run."""
        return await self.orchestrate(orion, device_assignments, assignment_strategy, metadata)

    async def execute_orion(self, orion: TaskOrion) -> JsonObject:
        """The same as ``orchestrate_orion``; the pages on observers use this name."""
        return await self.orchestrate(orion)

    async def get_orion_status(self, orion: DocumentedPlan) -> JsonObject | None:
        """Progress of an orion that runs here; None if it does not."""
        return await self.status_of(orion)

    async def cancel_execution(self, orion_id: str) -> bool:
        """Stop a run and wait for its end. True if the orion does not run then; False if another orchestrator runs
        it."""
        return await self.cancel(orion_id)

    async def _sync_orion_modifications(self, orion: DocumentedPlan) -> DocumentedPlan:
        """Wait for the answers to all ends, and return the orion with them. A subclass may override it: a run then
        calls it after each end, and merges what it returns."""
        return await self.sync_modifications(orion)


class OrionModificationSynchronizer(PlanSynchronizer):
    naming = ORION
    _current_orion = Alias("_current", write="set_current")
    _current_orion_id = ReadOnly("current_id", "it is the id of _current_orion")

    async def _handle_orion_event(self, event: OrionEvent) -> None:
        self.notice(event)

    def merge_and_sync_orion_states(self, orchestrator_orion: DocumentedPlan) -> DocumentedPlan:
        """Merge the agent's changes into the orchestrator's orion; its progress does not change."""
        return self.merge_and_sync(orchestrator_orion)

    get_current_orion = PlanSynchronizer.current


class SessionMetricsObserver(session_observers.SessionMetricsObserver):
    naming = ORION


class OrionProgressObserver(PlanProgressObserver):
    naming = ORION


__all__ = [
    "OrionEditor",
    "OrionEvent",
    "OrionManager",
    "OrionModificationSynchronizer",
    "OrionProgressObserver",
    "OrionState",
    "SessionMetricsObserver",
    "TaskOrion",
    "TaskOrionOrchestrator",
    "TaskOrionSchema",
]
__all__ += documented_names.__all__
