"""Commands of every orchestrator for plans that run in this process: pause, resume, explain, claim edit cycles."""

from __future__ import annotations

from asterism.core.plan.explain import Why, why
from asterism.core.plan.lock import EditCycle
from asterism.orchestrator.events import Event, EventBus
from asterism.orchestrator.scheduler import DeviceScheduler


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
        return why(execution.plan, execution.lock, node, execution.placement(node), self.scheduler.now())

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
