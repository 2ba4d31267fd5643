"""An outbox of a device in memory: a machine that crashes keeps its disk."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from asterism.core.json_values import JsonObject


class MemoryOutbox:
    """See ``asterism.gateway.outbox.Outbox``."""

    def __init__(self) -> None:
        self._messages: dict[str, JsonObject] = {}
        self._number = 0

    def put(self, message: Mapping[str, Any]) -> str | None:
        self._number += 1
        name = f"{self._number:06d}"
        self._messages[name] = json.loads(json.dumps(message))
        return name

    def remove(self, name: str) -> None:
        self._messages.pop(name, None)

    def waiting(self) -> Iterator[tuple[str, JsonObject]]:
        yield from list(self._messages.items())
