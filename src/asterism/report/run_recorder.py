"""What a report needs and a finished plan no longer tells: the plan as it began, and what became of each edit."""

from __future__ import annotations

from asterism.core.plan.constellation import Constellation
from asterism.core.plan.task import Dependency
from asterism.orchestrator.events import EditEvent, EventBus, Subscription

ANSWERS = ("edit_applied", "edit_rejected")


class Recording:
    """Begins when it is made: make it before the plan runs. ``edits`` are the answers of editors, in order."""

    def __init__(self, plan: Constellation, events: EventBus) -> None:
        self.plan_id = plan.id
        self.first: dict[str, tuple[Dependency, ...]] = {
            node.id: tuple(node.parents.values()) for node in plan.nodes.values()
        }
        self.edits: list[EditEvent] = []
        self._subscription: Subscription = events.subscribe(self._note, EditEvent, limit=1_000_000)

    def _note(self, event: EditEvent) -> None:
        if event.kind in ANSWERS and event.constellation == self.plan_id:
            self.edits.append(event)

    def close(self) -> None:
        self._subscription.close()
