"""Commands for plans that run in this process: pause, resume, explain, claim edit cycles."""

from __future__ import annotations

from asterism.core.plan.explain import Holder, Why
from asterism.core.plan.explain import why as explain
from asterism.core.plan.lock import EditCycle
from asterism.core.plan.node import Node
from asterism.core.plan.ready_queue import lane_of
from asterism.orchestrator.events import Event, EventBus
from asterism.orchestrator.execution import Execution
from asterism.orchestrator.scheduler import DeviceScheduler
from asterism.orchestrator.unplaceable_tasks import missing


class PlanCommands:
    """``plan_id`` may be left out while one plan runs. Call these on the event loop that runs the plan."""

    def __init__(self, scheduler: DeviceScheduler) -> None:
        self.events = EventBus()
        self.scheduler = scheduler

    def now(self) -> float:
        """The orchestrator's clock: seconds since 1970."""
        return self.scheduler.now()

    def pause(self, plan_id: str) -> None:
        """Start no more tasks; running tasks continue."""
        self.scheduler.find(plan_id).pause()

    def resume(self, plan_id: str) -> None:
        """Start tasks again."""
        self.scheduler.find(plan_id).resume()

    def why(self, task_id: str, plan_id: str | None = None) -> Why:
        """Why a task is not running: what holds it."""
        execution = self.scheduler.find(plan_id)
        node = execution.plan.node(task_id)
        holder = _placement_holder(execution, self.scheduler, node)
        return explain(execution.plan, execution.lock, node, holder, self.scheduler.now())

    def cycles(self, plan_id: str | None = None) -> list[EditCycle]:
        """The open edit cycles."""
        return list(self.scheduler.find(plan_id).lock.cycles.values())

    def claim(self, cycle_id: int, who: str, *, lease: float = 60.0, plan_id: str | None = None) -> EditCycle:
        """Claim a cycle for ``lease`` seconds, in order to answer it; call again to renew. Raises CycleGone or
        CycleClaimed."""
        return self.scheduler.find(plan_id).cycles.claim(cycle_id, who, lease)

    def events_of(self, cycle_id: int, plan_id: str | None = None) -> list[Event]:
        """The events that an editor receives about a cycle."""
        execution = self.scheduler.find(plan_id)
        return execution.cycles.events_of(execution.lock.get(cycle_id))


def _placement_holder(execution: Execution, scheduler: DeviceScheduler, node: Node) -> Holder | None:
    """What keeps a ready task from a device; None if nothing does."""
    if execution.cancelling:
        return Holder("cancel", execution.plan.id, "the plan is being cancelled")
    if execution.paused:
        return Holder("pause", execution.plan.id, "the plan is paused")
    if node in execution.parked:
        return Holder("stopping", "", "its last execution was asked to stop and has not stopped yet")
    if node in execution.backing_off:
        return Holder("backoff", "", "it waits before its next attempt")
    capable = scheduler.roster.capable(lane_of(node.task))
    if not capable:
        return Holder("no_device", "", f"{missing(node)} has joined; the devices are {scheduler.roster.names()}")
    if not any(member.reachable for member in capable):
        resting = ", ".join(member.id for member in capable)
        return Holder("resting", resting, f"every device that can run it gave it back: {resting}")
    if not any(member.free for member in capable):
        busy = ", ".join(f"{member.id} ({member.running})" for member in capable)
        return Holder("busy", busy, f"every device that can run it is busy: {busy}")
    if not scheduler.has_room:
        return Holder("concurrency", "", f"the limit of {scheduler.concurrency} running tasks is reached")
    return None
