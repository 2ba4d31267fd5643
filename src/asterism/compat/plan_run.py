"""One run of a documented plan on an Orchestrator, with its events under the documented names.

Events are translated within the step that publishes them: when the orchestrator records a task's end and holds the
tasks below it, the synchronizer is called in the same step, before anything else can happen.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from asterism.compat import manual_progress
from asterism.compat.documented_names import Naming
from asterism.compat.documented_plan import DocumentedPlan
from asterism.compat.event_bus import Outlet, PromptObserver, untouched
from asterism.compat.managed_devices import CONNECTED, Fleet, profiles_of
from asterism.compat.manual_progress import newly_ready
from asterism.compat.synchronizer import PlanSynchronizer, merge_copy
from asterism.compat.task_star import TaskStar, moment
from asterism.compat.vocabulary import (
    DeviceEvent,
    DeviceManager,
    Event,
    EventType,
    ExecutionResult,
    ModificationRejected,
    TaskEvent,
    TaskFailed,
    TaskStatus,
)
from asterism.core.plan.constellation import ConstellationView
from asterism.core.plan.node import Node
from asterism.core.plan.status import PENDING, RUNNING
from asterism.orchestrator import events as runtime
from asterism.orchestrator.orchestrator import Orchestrator

logger = logging.getLogger("asterism.compat.devices")
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
    """The arguments of a run."""

    assignments: dict[str, str]
    strategy: str
    metadata: dict[str, Any]
    device_timeout: float
    lock_policy: str = "global"
    sync: Callable[[DocumentedPlan], Awaitable[Any]] | None = None
    """``_sync_…_modifications`` of a subclass of the orchestrator."""

    @classmethod
    def of(
        cls,
        assignments: Mapping[str, str] | None,
        strategy: str | None,
        metadata: Mapping[str, Any] | None,
        device_timeout: float,
    ) -> RunOptions:
        return cls(dict(assignments or {}), strategy or DEFAULT_STRATEGY, dict(metadata or {}), device_timeout)


class Run:
    """``synchronizer`` is the documented one or the user's own; with None nothing is reviewed."""

    def __init__(
        self,
        naming: Naming,
        live: DocumentedPlan,
        manager: DeviceManager,
        outlet: Outlet,
        source_id: str,
        synchronizer: Any,
        terms: RunOptions,
    ) -> None:
        self.naming, self.live, self.outlet, self.source_id = naming, live, outlet, source_id
        self.terms, self.synchronizer = terms, synchronizer
        reviewed = synchronizer is not None or terms.sync is not None
        self.review = Review(synchronizer, live, outlet, terms.sync) if reviewed else None
        self.fleet = Fleet(manager, self._star, self._publish_device)
        self._check_devices()
        self.core = Orchestrator(
            self.fleet.here.values(),
            editor=self._review if reviewed else None,
            policy=terms.lock_policy,
            edit_timeout=float("inf"),  # the synchronizer has a timeout of its own
            strategy=terms.strategy,
            conditions=live.conditions,
            no_device_timeout=terms.device_timeout,
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
        wanted = {task_id: node.task.device for task_id, node in self.live.plan.nodes.items()} | self.terms.assignments
        problems = [
            f"there is no task {task_id!r}" for task_id in self.terms.assignments if task_id not in self.live.plan
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

    async def to_the_end(self) -> dict[str, Any]:
        plan = self.live.plan
        manual_progress.reopen(plan)
        plan.ended_at = None
        for node in [node for node in plan.nodes.values() if node.status is RUNNING]:
            plan.note(plan.clock(), "put back", node.id, "it was marked as running, but no orchestrator was running it")
            manual_progress.state(plan, node, PENDING)
        watch = _DeviceWatch(self.source_id, partial(self.fleet.refresh, self.core))
        self.outlet.subscribe(watch)
        try:
            await self.core.run(plan, assignments=self.terms.assignments)
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
            "assignment_strategy": self.terms.strategy,
            "device_assignments": self.terms.assignments,
            "metadata": self.terms.metadata,
        }
        if what != "started":
            data["statistics"] = self.live.get_statistics()
            data["execution_duration"] = self.live.execution_duration
        kind, state = naming.event_type(what), self.live.state.value
        self.outlet.publish(naming.event(kind, self.source_id, event.at, data, self.live.plan_id, state))

    def _publish_device(self, device: str, status: str) -> None:
        """A device connected or disconnected. Tasks that need it wait ``device_timeout`` seconds before they fail."""
        connected = status == CONNECTED
        logger.log(
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
    return ExecutionResult(
        node.id,
        TaskStatus(node.status),
        node.value,
        why if node.error is None else node.error if isinstance(node.error, Exception) else repr(node.error),
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
            self._merge(await self._sync(self._live), tasks)
            return
        if self._documented:
            assert self._ours is not None
            await self._ours.pending.answered(self._live.plan_id, tasks)
        else:
            waiting = self._synchronizer.wait_for_pending_modifications()
            if inspect.isawaitable(waiting):
                await waiting
        self._merge(merged_by(self._synchronizer, self._live), tasks)

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
