"""The documented orchestrator: a shell around one orchestrator of the runtime per run, under the policy ``global``."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from asterism.compat.changes import refusing
from asterism.compat.events import EventBus, get_event_bus
from asterism.compat.living import LivingPlan
from asterism.compat.naming import GALAXY, Naming
from asterism.compat.run import Run
from asterism.compat.vocabulary import DeviceManager
from asterism.runtime.orchestrator import DRAIN

if TYPE_CHECKING:
    from asterism.compat.synchronizer import PlanSynchronizer

logger = logging.getLogger("asterism.compat.orchestrator")


class PlanOrchestrator:
    """What TaskConstellationOrchestrator and TaskOrionOrchestrator are, but for their names."""

    naming: ClassVar[Naming] = GALAXY

    def __init__(
        self,
        device_manager: DeviceManager | None = None,
        enable_logging: bool = True,
        event_bus: EventBus | None = None,
    ) -> None:
        self._device_manager = device_manager
        self._logging = enable_logging
        self._event_bus = get_event_bus() if event_bus is None else event_bus
        self._synchronizer: PlanSynchronizer | None = None
        self._runs: dict[str, Run] = {}

    @property
    def event_bus(self) -> EventBus:
        return self._event_bus

    def set_device_manager(self, device_manager: DeviceManager) -> None:
        self._device_manager = device_manager

    def set_modification_synchronizer(self, synchronizer: PlanSynchronizer) -> None:
        """From the next run on, nothing new is dispatched while an answer is due that the synchronizer knows of."""
        self._synchronizer = synchronizer

    async def orchestrate(
        self,
        live: LivingPlan,
        device_assignments: Mapping[str, str] | None = None,
        assignment_strategy: str | None = None,
    ) -> dict[str, Any]:
        """Run a plan to its end. Raises ValueError for one that cannot run; a task that fails is no error.

        Cancelling the caller stops the running tasks, cleans up, and is passed on."""
        if self._device_manager is None:
            raise ValueError("there is no device manager: use set_device_manager first")
        self._admit(live)
        run = Run(
            self.naming,
            live,
            self._device_manager,
            self._event_bus,
            f"orchestrator_{id(self)}",
            self._synchronizer,
            device_assignments or {},
            assignment_strategy,
        )
        plan_id = live.plan_id
        self._event_bus.running.add(plan_id)
        self._runs[plan_id] = run
        live.runner = self
        if run.synchronizer is not None:
            run.synchronizer.watch(live)
        self._log("%s starts: %d tasks", plan_id, len(live.plan))
        try:
            with refusing():
                return await run.to_the_end()
        finally:
            self._log("%s is %s", plan_id, live.state)
            try:
                await self._event_bus.drain(DRAIN)
            finally:
                self._dismiss(run)

    def _dismiss(self, run: Run) -> None:
        run.live.runner = None
        del self._runs[run.live.plan_id]
        self._event_bus.running.discard(run.live.plan_id)
        if run.synchronizer is not None:
            run.synchronizer.forget(run.live.plan_id)

    def _admit(self, live: LivingPlan) -> None:
        if not isinstance(live, LivingPlan):
            raise TypeError(f"this takes a {self.naming.noun}, not {live!r}")
        if live.runner is not None:
            raise ValueError(f"{live.plan_id!r} is being run already; one orchestrator owns it at a time")
        if live.plan_id in self._event_bus.running:
            raise ValueError(
                f"another {self.naming.noun} with the id {live.plan_id!r} is running on this event bus, "
                "and events tell them apart by their ids: give this one its own"
            )
        valid, errors = live.validate_dag()
        if not valid:
            raise ValueError(f"{live.plan_id!r} cannot be run: {'; '.join(errors)}")

    async def cancel(self, plan_id: str) -> bool:
        """Stop a run and wait for its end. False when no such plan is running here."""
        run = self._runs.get(plan_id)
        if run is None or run.live.plan.owner is None:
            return False
        await run.core.cancel(plan_id)
        return True

    def _log(self, message: str, *about: object) -> None:
        if self._logging:
            logger.info(message, *about)
