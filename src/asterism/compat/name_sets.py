"""The two sets of documented names, Galaxy and Orion."""

from __future__ import annotations

from dataclasses import dataclass

from asterism.compat.documented_events import ConstellationEvent, EventType, OrionEvent
from asterism.compat.record_models import TaskConstellationSchema, TaskOrionSchema


@dataclass(frozen=True, slots=True)
class Naming:
    """What a plan is called, in attributes and in the data of events."""

    noun: str
    event: type[ConstellationEvent] | type[OrionEvent]
    schema: type[TaskConstellationSchema] | type[TaskOrionSchema]

    @property
    def id_key(self) -> str:
        return f"{self.noun}_id"

    @property
    def new_key(self) -> str:
        return f"new_{self.noun}"

    def event_type(self, what: str) -> EventType:
        """``started``, ``completed``, ``failed`` or ``modified``."""
        return EventType(f"{self.noun}_{what}")


GALAXY = Naming("constellation", ConstellationEvent, TaskConstellationSchema)
ORION = Naming("orion", OrionEvent, TaskOrionSchema)
