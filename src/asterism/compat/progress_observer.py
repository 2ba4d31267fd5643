"""The documented observer between the bus and an agent: it hands the ends over and remembers the results."""

from __future__ import annotations

import logging
from typing import Any, ClassVar

from asterism.compat.documented_events import TASK_ENDS, Event, IEventObserver, TaskEvent
from asterism.compat.name_sets import GALAXY, Naming


class PlanProgressObserver(IEventObserver):
    """What ConstellationProgressObserver and OrionProgressObserver are, but for their names.

    The agent has the documented ``add_task_completion_event`` and ``add_constellation_completion_event``."""

    naming: ClassVar[Naming] = GALAXY

    def __init__(self, agent: Any) -> None:
        self.agent = agent
        self.task_results: dict[str, dict[str, Any]] = {}
        self.logger = logging.getLogger("asterism.compat.recorded_progress")

    async def on_event(self, event: Event) -> None:
        if isinstance(event, TaskEvent):
            self.task_results[event.task_id] = {
                "task_id": event.task_id,
                "status": event.status,
                "result": event.result,
                "error": event.error,
                "timestamp": event.timestamp,
            }
            if event.event_type in TASK_ENDS:
                await self.agent.add_task_completion_event(event)
        elif event.event_type is self.naming.event_type("completed"):
            await getattr(self.agent, f"add_{self.naming.noun}_completion_event")(event)
