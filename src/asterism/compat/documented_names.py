"""The two sets of documented names, Galaxy and Orion, and descriptors for documented private names.

Reading a documented private name works; writing it has an effect or raises. With an ordinary attribute the write would
succeed and change nothing, since the core holds the facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NoReturn

from asterism.compat.plan_records import TaskConstellationSchema, TaskOrionSchema
from asterism.compat.vocabulary import ConstellationEvent, EventType, OrionEvent


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of a plan in attributes and in event data."""

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


class Alias:
    """A private name for a public attribute: reading and writing go there, with all its checks."""

    def __init__(self, public: str) -> None:
        self._public = public
        self._read = attrgetter(public)

    def __get__(self, thing: Any, owner: type) -> Any:
        return self if thing is None else self._read(thing)

    def __set__(self, thing: Any, value: Any) -> None:
        setattr(thing, self._public, value)


class ReadOnly:
    """A private name that can only be read. ``instead`` says how to change what it shows."""

    def __init__(self, public: str, instead: str) -> None:
        self._read = attrgetter(public)
        self._instead = instead

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, thing: Any, owner: type) -> Any:
        return self if thing is None else self._read(thing)

    def __set__(self, thing: Any, value: Any) -> NoReturn:
        raise AttributeError(f"{type(thing).__name__}.{self._name} cannot be written: {self._instead}")
