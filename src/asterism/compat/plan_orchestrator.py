"""The documented orchestrator: one Orchestrator per run, with the lock policy ``global`` unless another is set.

``Run`` is one run of a documented plan. Its events are translated within the step that publishes them: when the
orchestrator records a task's end and holds the tasks below it, the synchronizer is called in the same step, before
anything else can happen.

``ManagedDevice`` and ``Fleet`` are the devices of a documented device manager as devices of an orchestrator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, ClassVar

from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.event_bus import EventBus, PromptObserver, add_run, drop_run, get_event_bus, runs_on, untouched
from asterism.compat.synchronizer import PlanSynchronizer
from asterism.compat.task_star import TaskStar, moment, needs_of, newly_ready, reopen
from asterism.compat.vocabulary import (
    GALAXY,
    DeviceEvent,
    DeviceManager,
    DeviceType,
    Event,
    EventType,
    ExecutionResult,
    Naming,
    ReadOnly,
    TaskEvent,
    TaskFailed,
    TaskStatus,
    member,
    refusing,
)
from asterism.core.errors import DeviceUnavailable
from asterism.core.json_values import JsonObject
from asterism.core.plan.assignment_lock import POLICIES
from asterism.core.plan.constellation import ConstellationView
from asterism.core.plan.node import Node
from asterism.core.plan.status import RUNNING
from asterism.orchestrator import events as runtime
from asterism.orchestrator.devices import Work
from asterism.orchestrator.events import DRAIN_TIMEOUT
from asterism.orchestrator.orchestrator import Orchestrator

logger = logging.getLogger("asterism.compat.orchestrator")
_device_logger = logging.getLogger("asterism.compat.devices")

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
    """The arguments of a run. Without a synchronizer nothing is reviewed."""

    assignments: dict[str, str]
    strategy: str
    metadata: dict[str, Any]
    device_timeout: float
    lock_policy: str
    synchronizer: PlanSynchronizer | None


class Run:
    """One run of a plan. ``source_id`` is the source of its events."""

    def __init__(
        self,
        naming: Naming,
        live: DocumentedPlan,
        manager: DeviceManager,
        bus: EventBus,
        source_id: str,
        options: RunOptions,
    ) -> None:
        self.naming, self.live, self.bus, self.source_id = naming, live, bus, source_id
        self.options = options
        self.fleet = Fleet(manager, self._star, self._publish_device)
        self._check_devices()
        self.core = Orchestrator(
            self.fleet.here.values(),
            editor=None if options.synchronizer is None else self._review,
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
        reopen(plan)
        plan.ended_at = None
        for node in [node for node in plan.nodes.values() if node.status is RUNNING]:
            plan.release(node, plan.clock(), "it was marked as running, but no orchestrator was running it")
        watch = _DeviceWatch(self.source_id, partial(self.fleet.refresh, self.core))
        self.bus.subscribe(watch)
        try:
            await self.core.run(plan, assignments=self.options.assignments)
        finally:
            self.bus.unsubscribe(watch)
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
        synchronizer = self.options.synchronizer
        assert synchronizer is not None
        await self.bus.caught_up(synchronizer, synchronizer.pending.timeout)
        if untouched(synchronizer, "wait_for_pending_modifications"):
            tasks = [event.task_id for event in events if isinstance(event, runtime.TaskEvent)]
            await synchronizer.pending.answered(self.live.plan_id, tasks)
        else:
            await synchronizer.wait_for_pending_modifications()
        synchronizer.merge_and_sync(self.live)

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
        self.bus.deliver(published)

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
        self.bus.deliver(naming.event(kind, self.source_id, event.at, data, self.live.plan_id, state))

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
        self.bus.deliver(DeviceEvent(kind, self.source_id, at, data, device, status, devices.get(device), devices))


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
    return ExecutionResult(
        node.id,
        TaskStatus(node.status),
        node.value,
        why if node.error is None else node.error if isinstance(node.error, Exception) else repr(node.error),
        start_time=moment(node.started_at),
        end_time=moment(node.ended_at),
    )


class PlanOrchestrator:
    """The common part of TaskConstellationOrchestrator and TaskOrionOrchestrator."""

    naming: ClassVar[Naming] = GALAXY

    def __init__(
        self,
        device_manager: DeviceManager | None = None,
        enable_logging: bool = True,
        event_bus: EventBus | None = None,
    ) -> None:
        self._logger = logger if enable_logging else None
        self._event_bus = get_event_bus() if event_bus is None else event_bus
        if not untouched(self._event_bus, "publish_event"):
            raise TypeError(f"the bus of an orchestrator is an EventBus, not {event_bus!r}")
        self._modification_synchronizer: PlanSynchronizer | None = None
        self._device_timeout = 300.0
        self._lock_policy = "global"
        self._runs: dict[str, Run] = {}
        self._device_manager = device_manager

    @property
    def event_bus(self) -> EventBus:
        return self._event_bus

    def set_device_manager(self, device_manager: DeviceManager) -> None:
        self._device_manager = device_manager

    def set_modification_synchronizer(self, synchronizer: PlanSynchronizer) -> None:
        """From the next run on, dispatch nothing while the synchronizer waits for an answer."""
        if not isinstance(synchronizer, PlanSynchronizer):
            raise TypeError(
                f"this takes a {self.naming.noun.capitalize()}ModificationSynchronizer, not {synchronizer!r}"
            )
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
        )
        run = Run(self.naming, live, manager, self._event_bus, f"orchestrator_{id(self)}", options)
        plan_id = live.plan_id
        add_run(self._event_bus, plan_id, run)
        self._runs[plan_id] = run
        if options.synchronizer is not None:
            options.synchronizer.watch(live)
        live.runner = self
        self._log("%s starts: %d tasks", plan_id, len(live.plan))
        try:
            with refusing():
                return await run.to_the_end()
        finally:
            self._log("%s is %s", plan_id, live.state)
            try:
                await self._event_bus.drain(DRAIN_TIMEOUT)
            finally:
                self._dismiss(run)

    def _dismiss(self, run: Run) -> None:
        plan_id = run.live.plan_id
        run.live.runner = None
        del self._runs[plan_id]
        drop_run(self._event_bus, plan_id)
        if run.options.synchronizer is not None:
            run.options.synchronizer.forget(plan_id)

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


CONNECTED, DISCONNECTED = "connected", "disconnected"


class ManagedDevice:
    """One device of a manager. It has no limit of parallel tasks: the manager has its own queue."""

    slots = None

    def __init__(self, id: str, can: frozenset[str], fleet: Fleet) -> None:
        self.id, self.can = id, can
        self._fleet = fleet

    async def execute(self, work: Work) -> Any:
        """Return the ExecutionResult of a success. Raises the error that the manager reported otherwise."""
        if not self._fleet.is_connected(self.id):
            raise DeviceUnavailable(f"{self.id!r} has disconnected")
        answer = await self._fleet.star(work.task.id).execute(self._fleet.manager)
        result = ExecutionResult.of(work.task.id, answer)  # a subclass of TaskStar may answer with a class of its own
        if result.is_successful:
            return result
        raise result.error if isinstance(result.error, Exception) else TaskFailed(result)


class Fleet:
    """The connected devices of a manager.

    ``star`` finds the handle of a task, ``changed`` is called when a device connects or disconnects."""

    def __init__(
        self, manager: DeviceManager, star: Callable[[str], TaskStar], changed: Callable[[str, str], None]
    ) -> None:
        self.manager, self.star = manager, star
        self._changed = changed
        self._types = {device: _type_of(profile) for device, profile in profiles_of(manager).items()}
        self.here = {device: self._device(device) for device in manager.get_connected_devices()}

    @property
    def known(self) -> set[str]:
        """Every device that the manager knows, connected or not."""
        return {*self._types, *self.here}

    def _device(self, device: str) -> ManagedDevice:
        """A device serves as its own type, and as each type that no device has, so that such a type is ignored."""
        own = self._types.get(device)
        present = {kind for kind in self._types.values() if kind is not None}
        serves = [kind for kind in DeviceType if own is None or kind is own or kind not in present]
        return ManagedDevice(device, frozenset().union(*map(needs_of, serves)), self)

    def _connected(self) -> set[str] | None:
        try:
            return set(self.manager.get_connected_devices())
        except Exception:
            _device_logger.exception("the device manager could not list the connected devices")
            return None

    def is_connected(self, device: str) -> bool:
        """Whether the manager says so now; if it raises, its last answer."""
        connected = self._connected()
        return device in (self.here if connected is None else connected)

    def refresh(self, orchestrator: Orchestrator) -> None:
        """Let newly connected devices join and disconnected devices leave."""
        connected = self._connected()
        if connected is None:
            return
        for device in sorted(connected - self.here.keys()):
            self.here[device] = self._device(device)
            self._changed(device, CONNECTED)
            orchestrator.join(self.here[device])
        for device in sorted(self.here.keys() - connected):
            del self.here[device]
            self._changed(device, DISCONNECTED)
            orchestrator.leave(device)


def profiles_of(manager: Any) -> dict[str, Any]:
    """The profile of each device; empty if the device manager cannot list them."""
    try:
        profiles = manager.get_all_devices(connected=False)
    except Exception:
        _device_logger.exception("the device manager could not list its devices")
        return {}
    return dict(profiles) if isinstance(profiles, Mapping) else {}


def part_of(profile: Any, name: str) -> Any:
    """An entry of a profile, which is a mapping or an object."""
    return profile.get(name) if isinstance(profile, Mapping) else getattr(profile, name, None)


def _type_of(profile: Any) -> DeviceType | None:
    """The type that a profile states as ``device_type`` or ``os``, if it is one of the documented ones."""
    for name in ("device_type", "os"):
        try:
            return member(DeviceType, part_of(profile, name))
        except ValueError:
            continue
    return None
