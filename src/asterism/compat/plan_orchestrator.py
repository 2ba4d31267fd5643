"""The documented orchestrator: one Orchestrator per run, with the lock policy ``global`` unless another is set."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from asterism.compat import manual_progress
from asterism.compat.documented_names import GALAXY, Naming, ReadOnly
from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.event_bus import Outlet, add_run, drop_run, get_event_bus, runs_on, untouched
from asterism.compat.managed_devices import Fleet, PlanRegistry
from asterism.compat.plan_run import Run, RunOptions, merged_by
from asterism.compat.task_star import TaskStar
from asterism.compat.vocabulary import DeviceManager, ExecutionResult, refusing
from asterism.core.plan.assignment_lock import POLICIES
from asterism.core.plan.node import Node
from asterism.orchestrator.events import DRAIN_TIMEOUT
from asterism.orchestrator.orchestrator import Orchestrator

logger = logging.getLogger("asterism.compat.orchestrator")


class PlanOrchestrator:
    """The common part of TaskConstellationOrchestrator and TaskOrionOrchestrator."""

    naming: ClassVar[Naming] = GALAXY
    registry_class: ClassVar[type[PlanRegistry]] = PlanRegistry

    def __init__(
        self, device_manager: DeviceManager | None = None, enable_logging: bool = True, event_bus: Any = None
    ) -> None:
        self._logger = logger if enable_logging else None
        self._event_bus = get_event_bus() if event_bus is None else event_bus
        self._modification_synchronizer: Any = None
        self._device_timeout = 300.0
        self._lock_policy = "global"
        self._runs: dict[str, Run] = {}
        self.registry = self.registry_class(device_manager, enable_logging)

    @property
    def event_bus(self) -> Any:
        return self._event_bus

    @property
    def _device_manager(self) -> DeviceManager | None:
        return self.registry.device_manager

    @_device_manager.setter
    def _device_manager(self, value: DeviceManager | None) -> None:
        self.registry.device_manager = value

    def set_device_manager(self, device_manager: DeviceManager) -> None:
        self._device_manager = device_manager

    def set_modification_synchronizer(self, synchronizer: Any) -> None:
        """From the next run on, dispatch nothing while the synchronizer waits for an answer. Any object with the
        documented methods will do."""
        self._modification_synchronizer = synchronizer

    def set_device_timeout(self, timeout: float) -> None:
        """Set how many seconds a task waits for a disconnected device before it fails, from the next run on."""
        if timeout <= 0:
            raise ValueError(f"a timeout is above 0, not {timeout}")
        self._device_timeout = timeout

    def set_lock_policy(self, policy: str) -> None:
        """Choose what an unanswered end holds, from the next run on: everything (``global``, as documented), the tasks
        below it (``scoped``), or nothing that can be revoked (``speculative``)."""
        if policy not in POLICIES:
            raise ValueError(f"the lock policy is one of {', '.join(POLICIES)}, not {policy!r}")
        self._lock_policy = policy

    async def orchestrate(
        self,
        live: DocumentedPlan,
        device_assignments: Mapping[str, str] | None = None,
        assignment_strategy: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Run a plan to its end. Raises ValueError if it cannot run; a failed task is not an error. A plan that has run
        before may be run again: ended tasks stay, the others run.

        Cancelling the caller stops the running tasks, cleans up, and raises CancelledError."""
        manager = self._manager()
        self._admit(live)
        terms = RunOptions.of(device_assignments, assignment_strategy, metadata, self._device_timeout)
        terms = replace(terms, lock_policy=self._lock_policy, sync=self._own_sync())
        synchronizer, source = self._modification_synchronizer, f"orchestrator_{id(self)}"
        run = Run(self.naming, live, manager, Outlet(self._event_bus), source, synchronizer, terms)
        plan_id = live.plan_id
        add_run(self._event_bus, plan_id, run)
        self.registry.register(live, terms.metadata)
        self._runs[plan_id] = run
        if run.review is not None:
            run.review.begin()
        live.runner = self
        self._log("%s starts: %d tasks", plan_id, len(live.plan))
        try:
            with refusing():
                return await run.to_the_end()
        finally:
            self._log("%s is %s", plan_id, live.state)
            try:
                await run.outlet.drain(DRAIN_TIMEOUT)
            finally:
                self._dismiss(run)

    def _dismiss(self, run: Run) -> None:
        plan_id = run.live.plan_id
        run.live.runner = None
        del self._runs[plan_id]
        self.registry.unregister(plan_id)
        drop_run(self._event_bus, plan_id)
        if run.review is not None:
            run.review.end()

    async def sync_modifications(self, live: DocumentedPlan) -> DocumentedPlan:
        """Wait for the answers to all ends and return the plan with them; see ``_sync_constellation_modifications``."""
        synchronizer = self._modification_synchronizer
        if synchronizer is None:
            return live
        waiting = synchronizer.wait_for_pending_modifications()
        if inspect.isawaitable(waiting):
            await waiting
        merged = merged_by(synchronizer, live)
        return live if merged is None else merged

    def _own_sync(self) -> Callable[[DocumentedPlan], Awaitable[Any]] | None:
        """``_sync_…_modifications`` of a subclass, or one that was put on this object."""
        name = f"_sync_{self.naming.noun}_modifications"
        return None if untouched(self, name) else getattr(self, name)

    def _manager(self) -> DeviceManager:
        if self._device_manager is None:
            raise ValueError("there is no device manager: use set_device_manager first")
        return self._device_manager

    def _admit(self, live: DocumentedPlan) -> None:
        if not isinstance(live, DocumentedPlan):
            raise TypeError(f"this takes a {self.naming.noun}, not {live!r}")
        if live.runner is not None:
            raise ValueError(f"{live.plan_id!r} is being run already; one orchestrator owns it at a time")
        if live.plan_id in runs_on(self._event_bus):
            raise ValueError(
                f"another {self.naming.noun} with the id {live.plan_id!r} is running on this event bus, "
                "and events tell them apart by their ids: give this one its own"
            )
        valid, errors = live.validate_dag()
        if not valid:
            raise ValueError(f"{live.plan_id!r} cannot be run: {'; '.join(errors)}")

    async def cancel(self, plan_id: str) -> bool:
        """Stop a run and wait for its end. True if the plan does not run then, so also if it did not run before; False
        if another orchestrator runs it."""
        run = self._runs.get(plan_id)
        if run is None:
            return plan_id not in runs_on(self._event_bus)
        if run.live.plan.owner is not None:
            await run.core.cancel(plan_id)
        return True

    async def execute_single_task(self, task: TaskStar, target_device_id: str | None = None) -> Any:
        """Execute one task that is in no constellation, with its timeout and retries, and return the device's answer.
        For a task of a constellation, a copy of it is executed. No event is published.

        Raises ValueError when no device is connected, and the error of a task that fails."""
        manager = self._manager()
        star = task if task.home is None else copy.deepcopy(task)
        if target_device_id is not None:
            star.target_device_id = target_device_id
        fleet = Fleet(manager, lambda task_id: star, lambda device, status: None)
        if not fleet.here:
            raise ValueError(f"no device is connected that could take task {star.task_id!r}")
        if star.target_device_id is not None and star.target_device_id not in fleet.known:
            raise ValueError(f"the device manager does not know the device {star.target_device_id!r}")
        core = Orchestrator(fleet.here.values(), strategy="round_robin", no_device_timeout=self._device_timeout)
        with refusing():
            manual_progress.reopen(star.plan)
            await core.run(star.plan)
        return _answer_of(star.node)

    async def status_of(self, live: DocumentedPlan) -> dict[str, Any] | None:
        """Progress of a plan that runs here; None if it does not."""
        return await self.registry.status(live.plan_id)

    async def assign_devices_automatically(
        self, live: DocumentedPlan, strategy: str = "round_robin", device_preferences: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Give every task that has not started a device, in one edit; see ConstellationManager and OrionManager."""
        return await self.registry.assign_devices_automatically(live, strategy, device_preferences)

    async def get_available_devices(self) -> list[dict[str, Any]]:
        """The description of each connected device."""
        return await self.registry.get_available_devices()

    def _log(self, message: str, *about: object) -> None:
        if self._logger is not None:
            self._logger.info(message, *about)

    # -- private names that the documents show -------------------------------------------------------------------------

    @property
    def running_tasks(self) -> Mapping[str, TaskStar]:
        """The tasks that are being executed here now."""
        runs = self._runs.values()
        return MappingProxyType({task.task_id: task for run in runs for task in run.live.get_running_tasks()})

    _execution_tasks = ReadOnly("running_tasks", "tasks are started by the orchestrator alone")


def _answer_of(node: Node) -> Any:
    """Return the device's answer, or raise the error that it reported."""
    if node.error is not None:
        raise node.error
    return node.value.result if isinstance(node.value, ExecutionResult) else node.value
