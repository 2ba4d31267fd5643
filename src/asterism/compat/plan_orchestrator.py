"""The documented orchestrator: one Orchestrator per run, with the lock policy ``global`` unless another is set.

``Run`` is one run of a documented plan. Its events are translated within the step that publishes them: when the
orchestrator records a task's end and holds the tasks below it, the synchronizer is called in the same step, before
anything else can happen. ``Review`` waits for the answers of agents meanwhile.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from asterism.compat import manual_progress
from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.event_bus import Outlet, PromptObserver, add_run, drop_run, get_event_bus, runs_on, untouched
from asterism.compat.managed_devices import CONNECTED, Fleet, PlanRegistry, profiles_of
from asterism.compat.manual_progress import newly_ready
from asterism.compat.synchronizer import PlanSynchronizer, merge_copy
from asterism.compat.task_star import TaskStar, moment
from asterism.compat.vocabulary import (
    GALAXY,
    Alias,
    DeviceEvent,
    DeviceManager,
    Event,
    EventType,
    ExecutionResult,
    ModificationRejected,
    Naming,
    ReadOnly,
    TaskEvent,
    TaskFailed,
    TaskStatus,
    refusing,
)
from asterism.core.json_values import JsonObject
from asterism.core.plan.assignment_lock import POLICIES
from asterism.core.plan.constellation import ConstellationView
from asterism.core.plan.node import Node
from asterism.core.plan.status import PENDING, RUNNING
from asterism.orchestrator import events as runtime
from asterism.orchestrator.events import DRAIN_TIMEOUT
from asterism.orchestrator.orchestrator import Orchestrator

logger = logging.getLogger("asterism.compat.orchestrator")
_device_logger = logging.getLogger("asterism.compat.devices")
_edit_logger = logging.getLogger("asterism.compat.synchronizer")

DEFAULT_STRATEGY = "round_robin"

POLL_INTERVAL = 1.0
"""Interval in seconds for polling the device manager while a task waits for a device."""


class _Prompt(runtime.Subscription):
    """A subscription without a queue: it is called within the step that publishes."""

    def __init__(self, bus: runtime.EventBus, handle: Callable[[runtime.Event], None]) -> None:
        super().__init__(bus, (), None, 1)
        self._handle = handle

    def offer(self, event: runtime.Event) -> None:
        self._handle(event)


class _DeviceWatch(PromptObserver):
    """Looks at the device manager when somebody else, such as the manager itself, publishes an event of a device."""

    def __init__(self, source_id: str, refresh: Callable[[], None]) -> None:
        self._source_id, self._refresh = source_id, refresh

    def notice(self, event: Event) -> None:
        if isinstance(event, DeviceEvent) and event.source_id != self._source_id:
            self._refresh()


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The arguments of a run. ``synchronizer`` is the documented one or the user's own; with None nothing is reviewed,
    unless ``sync`` is ``_sync_…_modifications`` of a subclass of the orchestrator."""

    assignments: dict[str, str]
    strategy: str
    metadata: dict[str, Any]
    device_timeout: float
    lock_policy: str
    synchronizer: Any
    sync: Callable[[DocumentedPlan], Awaitable[Any]] | None


class Run:
    """One run of a plan. ``source_id`` is the source of its events."""

    def __init__(
        self,
        naming: Naming,
        live: DocumentedPlan,
        manager: DeviceManager,
        outlet: Outlet,
        source_id: str,
        options: RunOptions,
    ) -> None:
        self.naming, self.live, self.outlet, self.source_id = naming, live, outlet, source_id
        self.options, self.synchronizer = options, options.synchronizer
        reviewed = options.synchronizer is not None or options.sync is not None
        self.review = Review(options.synchronizer, live, outlet, options.sync) if reviewed else None
        self.fleet = Fleet(manager, self._star, self._publish_device)
        self._check_devices()
        self.core = Orchestrator(
            self.fleet.here.values(),
            editor=self._review if reviewed else None,
            policy=options.lock_policy,
            edit_timeout=float("inf"),  # the synchronizer has a timeout of its own
            strategy=options.strategy,
            conditions=live.conditions,
            no_device_timeout=options.device_timeout,
        )
        self._poll: asyncio.TimerHandle | None = None
        self._begun: set[str] = set()  # tasks whose start was published
        self.core.events.subscriptions.append(_Prompt(self.core.events, self._on_event))

    def _star(self, task_id: str) -> TaskStar:
        star = self.live.get_task(task_id)
        assert star is not None, "a task that runs cannot be removed"
        return star

    def _check_devices(self) -> None:
        """Refuse assignments of unknown tasks or to unknown devices."""
        wanted = {
            task_id: node.task.device for task_id, node in self.live.plan.nodes.items()
        } | self.options.assignments
        problems = [
            f"there is no task {task_id!r}" for task_id in self.options.assignments if task_id not in self.live.plan
        ]
        problems += [
            f"task {task_id!r} asks for the device {device!r}, which the device manager does not know"
            for task_id, device in wanted.items()
            if device is not None and device not in self.fleet.known and self._is_open(task_id)
        ]
        if not self.live.is_complete() and not self.fleet.known:
            problems.append("the device manager has no device")
        if problems:
            raise ValueError(f"{self.live.plan_id!r} cannot be run: {'; '.join(problems)}")

    def _is_open(self, task_id: str) -> bool:
        star = self.live.get_task(task_id)
        return star is not None and not star.is_terminal

    async def to_the_end(self) -> JsonObject:
        plan = self.live.plan
        manual_progress.reopen(plan)
        plan.ended_at = None
        for node in [node for node in plan.nodes.values() if node.status is RUNNING]:
            plan.note(plan.clock(), "put back", node.id, "it was marked as running, but no orchestrator was running it")
            manual_progress.state(plan, node, PENDING)
        watch = _DeviceWatch(self.source_id, partial(self.fleet.refresh, self.core))
        self.outlet.subscribe(watch)
        try:
            await self.core.run(plan, assignments=self.options.assignments)
        finally:
            self.outlet.unsubscribe(watch)
            if self._poll is not None:
                self._poll.cancel()
        why = {entry.task: entry.why for entry in plan.story() if entry.what == "cancelled"}
        return {
            "results": {node.id: execution_of(node, why.get(node.id)) for node in plan.nodes.values()},
            "status": self.live.state.value,
            "total_tasks": len(plan),
            "statistics": self.live.get_statistics(),
        }

    async def _review(self, view: ConstellationView, events: Sequence[runtime.Event]) -> None:
        """The editor: it returns when every end has its answer. Answers are applied as they arrive."""
        assert self.review is not None
        await self.review.over(tuple(event.task_id for event in events if isinstance(event, runtime.TaskEvent)))

    # -- events --------------------------------------------------------------------------------------------------------

    def _on_event(self, event: runtime.Event) -> None:
        if isinstance(event, runtime.ConstellationEvent):
            self._publish_plan(event)
        elif isinstance(event, runtime.TaskEvent):
            if event.kind == "task_started" and event.task_id not in self._begun:
                self._begun.add(event.task_id)
                self._publish_task(EventType.TASK_STARTED, event)
            elif event.kind in _ENDS:
                self._publish_task(_ENDS[event.kind], event)
                self.fleet.refresh(self.core)
            elif event.kind == "task_released":
                asyncio.get_running_loop().call_soon(self.fleet.refresh, self.core)
        elif event.kind == "no_device" and self._poll is None:
            self._poll = asyncio.get_running_loop().call_later(POLL_INTERVAL, self._poll_devices)

    def _poll_devices(self) -> None:
        """Poll for new devices while a task waits for one: a device manager may publish no events."""
        self.fleet.refresh(self.core)
        waiting = self.core.has_unplaceable_tasks
        self._poll = asyncio.get_running_loop().call_later(POLL_INTERVAL, self._poll_devices) if waiting else None

    def _publish_task(self, kind: EventType, event: runtime.TaskEvent) -> None:
        node = self.live.plan.nodes[event.task_id]
        data: dict[str, Any] = {self.naming.id_key: self.live.plan_id, self.naming.noun: self.live}
        published = TaskEvent(kind, self.source_id, event.at, data, node.id, event.status.value)
        if kind is not EventType.TASK_STARTED:
            published.result, published.error = execution_of(node), node.error
            data["newly_ready_tasks"] = newly_ready(node)
            data["result"], data["execution_time"] = published.result, node.worked
        self.outlet.publish(published)

    def _publish_plan(self, event: runtime.ConstellationEvent) -> None:
        naming, what = self.naming, _PLAN_EVENTS.get(event.kind)
        if what is None:
            return
        data = {
            naming.id_key: self.live.plan_id,
            naming.noun: self.live,
            "total_tasks": len(self.live.plan),
            "assignment_strategy": self.options.strategy,
            "device_assignments": self.options.assignments,
            "metadata": self.options.metadata,
        }
        if what != "started":
            data["statistics"] = self.live.get_statistics()
            data["execution_duration"] = self.live.execution_duration
        kind, state = naming.event_type(what), self.live.state.value
        self.outlet.publish(naming.event(kind, self.source_id, event.at, data, self.live.plan_id, state))

    def _publish_device(self, device: str, status: str) -> None:
        """A device connected or disconnected. Tasks that need it wait ``device_timeout`` seconds before they fail."""
        connected = status == CONNECTED
        _device_logger.log(
            logging.INFO if connected else logging.WARNING, "%s: device %r has %s", self.live.plan_id, device, status
        )
        devices = profiles_of(self.fleet.manager)
        kind = EventType.DEVICE_CONNECTED if connected else EventType.DEVICE_DISCONNECTED
        data = {self.naming.id_key: self.live.plan_id}
        at = self.live.plan.clock()
        self.outlet.publish(DeviceEvent(kind, self.source_id, at, data, device, status, devices.get(device), devices))


_ENDS = {"task_completed": EventType.TASK_COMPLETED, "task_failed": EventType.TASK_FAILED}

_PLAN_EVENTS = {
    "constellation_started": "started",
    "constellation_completed": "completed",
    "constellation_partially_failed": "completed",  # the state tells the difference
    "constellation_failed": "failed",
    "constellation_cancelled": "failed",
}


def execution_of(node: Node, why: str | None = None) -> ExecutionResult:
    """The result of a task as the device manager reported it or, without a report, from the plan."""
    if isinstance(node.value, ExecutionResult):
        return node.value
    if isinstance(node.error, TaskFailed):
        return node.error.execution
    error: Exception | str | None = why
    if node.error is not None:
        error = node.error if isinstance(node.error, Exception) else repr(node.error)
    return ExecutionResult(
        node.id,
        TaskStatus(node.status),
        node.value,
        error,
        start_time=moment(node.started_at),
        end_time=moment(node.ended_at),
    )


def merged_by(synchronizer: Any, live: DocumentedPlan) -> Any:
    """The plan that ``merge_and_sync_…_states`` of a synchronizer returns; the live one if it has no such method."""
    noun = live.naming.noun
    merge = getattr(synchronizer, f"merge_and_sync_{noun}_states", None)
    return live if merge is None else merge(**{f"orchestrator_{noun}": live})


class Review:
    """One synchronizer in one run. The plan is held from a task's end until ``over`` returns."""

    def __init__(
        self,
        synchronizer: Any,
        live: DocumentedPlan,
        outlet: Outlet,
        sync: Callable[[DocumentedPlan], Awaitable[Any]] | None = None,
    ) -> None:
        self._synchronizer, self._live, self._outlet, self._sync = synchronizer, live, outlet, sync
        self._ours = synchronizer if issubclass(type(synchronizer), PlanSynchronizer) else None
        self._documented = self._ours is not None and untouched(synchronizer, "wait_for_pending_modifications")

    def begin(self) -> None:
        if self._ours is not None:
            self._ours.watch(self._live)

    def end(self) -> None:
        if self._ours is not None:
            self._ours.forget(self._live.plan_id)

    async def over(self, tasks: tuple[str, ...]) -> None:
        """Wait until these ends are answered, then merge the answers into the plan."""
        timeout = 600.0 if self._ours is None else self._ours.pending.timeout
        await self._outlet.delivered(self._synchronizer, timeout)
        if self._sync is not None:
            try:
                merged = await self._sync(self._live)
            except Exception:
                self._hook_failed(f"_sync_{self._live.naming.noun}_modifications", "the plan is held as by default")
            else:
                self._merge(merged, tasks)
                return
        await self._answered(tasks)
        self._merge(self._merged(), tasks)

    async def _answered(self, tasks: tuple[str, ...]) -> None:
        if not self._documented and self._synchronizer is not None:
            try:
                waiting = self._synchronizer.wait_for_pending_modifications()
                if inspect.isawaitable(waiting):
                    await waiting
                return
            except Exception:
                self._hook_failed("wait_for_pending_modifications", "the plan is held as by default")
        if self._ours is not None:
            await self._ours.pending.answered(self._live.plan_id, tasks)

    def _hook_failed(self, name: str, consequence: str) -> None:
        """Log and count the exception of an overridden method. An object of another class has no default to fall back
        to: its exception is raised again."""
        if self._ours is not None:
            self._ours.pending.hook_failed(name, f"{self._live.plan_id}: {consequence}")
        elif self._synchronizer is None:
            _edit_logger.exception("the overridden %s failed: %s: %s", name, self._live.plan_id, consequence)
        else:
            raise

    def _merged(self) -> Any:
        """The merged plan; the live one, which has the answers already, if the method of a subclass fails."""
        try:
            return merged_by(self._synchronizer, self._live)
        except Exception:
            self._hook_failed(f"merge_and_sync_{self._live.naming.noun}_states", "the answers are merged as by default")
            return self._live

    def _merge(self, merged: Any, tasks: tuple[str, ...]) -> None:
        """Merge the plan that the synchronizer returns, unless it merged the answers itself."""
        noun = self._live.naming.noun
        if merged is None or merged is self._live:
            return
        if not isinstance(merged, DocumentedPlan):
            name = f"merge_and_sync_{noun}_states" if self._sync is None else f"_sync_{noun}_modifications"
            _edit_logger.warning("%s must return a %s, not %r", name, noun, merged)
            return
        try:
            merge_copy(self._live, merged, None, tasks, _edit_logger)
        except ModificationRejected as rejected:
            _edit_logger.warning(
                "the answer to %s was not applied to %s: %s", list(tasks), self._live.plan_id, rejected
            )


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
        self._cancelling: set[str] = set()
        self.registry = self.registry_class(device_manager, enable_logging)

    @property
    def event_bus(self) -> Any:
        return self._event_bus

    def set_device_manager(self, device_manager: DeviceManager) -> None:
        self.registry.device_manager = device_manager

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
    ) -> JsonObject:
        """Run a plan to its end. Raises ValueError if it cannot run; a failed task is not an error. A plan that has run
        before may be run again: ended tasks stay, the others run.

        Cancelling the caller stops the running tasks, cleans up, and raises CancelledError."""
        manager = self._manager()
        self._admit(live)
        options = RunOptions(
            assignments=dict(device_assignments or {}),
            strategy=assignment_strategy or DEFAULT_STRATEGY,
            metadata=dict(metadata or {}),
            device_timeout=self._device_timeout,
            lock_policy=self._lock_policy,
            synchronizer=self._modification_synchronizer,
            sync=self._own_sync(),
        )
        run = Run(self.naming, live, manager, Outlet(self._event_bus), f"orchestrator_{id(self)}", options)
        plan_id = live.plan_id
        add_run(self._event_bus, plan_id, run)
        self.registry.register(live, options.metadata)
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
        self._cancelling.discard(plan_id)
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
        if self.registry.device_manager is None:
            raise ValueError("there is no device manager: use set_device_manager first")
        return self.registry.device_manager

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
            self._cancelling.add(plan_id)
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

    async def status_of(self, live: DocumentedPlan) -> JsonObject | None:
        """Progress of a plan that runs here; None if it does not."""
        return await self.registry.status(live.plan_id)

    async def assign_devices_automatically(
        self, live: DocumentedPlan, strategy: str = "round_robin", device_preferences: Mapping[str, str] | None = None
    ) -> dict[str, str]:
        """Give every task that has not started a device, in one edit; see ConstellationManager and OrionManager."""
        return await self.registry.assign_devices_automatically(live, strategy, device_preferences)

    async def get_available_devices(self) -> list[JsonObject]:
        """The description of each connected device."""
        return await self.registry.get_available_devices()

    def _log(self, message: str, *about: object) -> None:
        if self._logger is not None:
            self._logger.info(message, *about)

    # -- private names that the documents show -------------------------------------------------------------------------

    @property
    def executions(self) -> Mapping[str, asyncio.Task[Any]]:
        """The asyncio task of each task that is being executed here now."""
        runs = self._runs.values()
        return MappingProxyType({task_id: task for run in runs for task_id, task in run.fleet.executions.items()})

    @property
    def cancellations(self) -> Mapping[str, bool]:
        """True for each plan whose run is being cancelled."""
        return MappingProxyType(dict.fromkeys(self._cancelling, True))

    _device_manager = Alias("registry.device_manager")
    _execution_tasks = ReadOnly("executions", "tasks are started by the orchestrator alone")
    _cancellation_requested = ReadOnly("cancellations", "use the documented method that cancels")


def _answer_of(node: Node) -> Any:
    """Return the device's answer, or raise the error that it reported."""
    if node.error is not None:
        raise node.error
    return node.value.result if isinstance(node.value, ExecutionResult) else node.value
