"""Names of events, and the patterns of schedules that create a plan for each event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.core.json_values import JsonObject

LONGEST_NAME = 200
"""How many characters the name of an event has at most."""

EACH = "/*"
"""The end of a pattern for each name that begins with the part before the star."""


def event_name_problem(name: object) -> str | None:
    """Why a text cannot be the name of an event; None if it can."""
    if isinstance(name, str) and 0 < len(name) <= LONGEST_NAME and name.isprintable() and name == name.strip():
        return None
    return f"the name of an event has 1 to {LONGEST_NAME} printable characters, and no space at its ends"


def is_named(pattern: str, name: str) -> bool:
    """Whether a pattern means the events of a name."""
    return name == pattern or (pattern.endswith(EACH) and name.startswith(pattern[:-1]) and len(name) >= len(pattern))


def of_event(plan: Mapping[str, Any], pattern: str, name: str) -> JsonObject:
    """A plan as JSON in which the tasks that wait for a pattern wait for the event that starts the plan."""

    def named(node: JsonObject) -> JsonObject:
        wait = node["task"].get("wait_for") or {}
        if wait.get("event") != pattern:
            return node
        return {**node, "task": {**node["task"], "wait_for": {**wait, "event": name}}}

    return {**plan, "tasks": [named(node) for node in plan["tasks"]]}
