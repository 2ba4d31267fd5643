"""Server-sent events from the lines of a stream."""

from __future__ import annotations

from typing import NamedTuple


class ReceivedEvent(NamedTuple):
    id: str
    kind: str
    data: str


class EventLines:
    """Collects lines until an event is complete. ``last_id`` is what to continue after."""

    def __init__(self, last_id: str | None = None) -> None:
        self.last_id, self._id = last_id, last_id
        self._kind, self._data = "message", list[str]()

    def add(self, line: str) -> ReceivedEvent | None:
        """The event that this line completes."""
        if not line:
            kind, data = self._kind, "\n".join(self._data)
            complete = bool(self._data)
            self.last_id = self._id  # only now: an event that breaks off comes again
            self._kind, self._data = "message", []
            return ReceivedEvent(self.last_id or "", kind, data) if complete else None
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id" and "\0" not in value:
            self._id = value
        elif name == "event":
            self._kind = value
        elif name == "data":
            self._data.append(value)
        return None

    def reset(self) -> None:
        """Forget an event that is not complete: the stream has broken."""
        self._kind, self._data, self._id = "message", [], self.last_id
