"""The states of a task and of a constellation, as tables.

A task::

    pending --start--> running --complete--> completed
       |                 |  |
       |                 |  +----fail------> failed
       |                 +-------cancel----> cancelled
       |                 +-------release---> pending
       +----cancel-----> cancelled
       +----fail-------> failed

It is released when its device left before the work began, or when its start was provisional and an edit revoked it. A
pending task fails when no device could take it in time.

Terminal states have no way out. A *provisional* task that has ended stays ``running`` until it is confirmed, so that
a result which may still be revoked never looks like one that stands. ``waiting`` is what a pending task with open
dependencies is called in views; it is never stored.
"""

from __future__ import annotations

from enum import StrEnum


class TaskStatus(StrEnum):
    __hash__ = str.__hash__  # Enum's own hash is Python code, and these are looked up for every task

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ConstellationState(StrEnum):
    CREATED = "created"
    READY = "ready"
    EXECUTING = "executing"
    COMPLETED = "completed"
    FAILED = "failed"
    PARTIALLY_FAILED = "partially_failed"
    CANCELLED = "cancelled"


PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = TaskStatus

TRANSITIONS: dict[str, dict[TaskStatus, TaskStatus]] = {
    "start": {PENDING: RUNNING},
    "complete": {RUNNING: COMPLETED},
    "fail": {RUNNING: FAILED, PENDING: FAILED},
    "cancel": {RUNNING: CANCELLED, PENDING: CANCELLED},
    "release": {RUNNING: PENDING},
}
"""Event -> state before -> state after."""

EVENTS = {COMPLETED: "complete", FAILED: "fail", CANCELLED: "cancel"}
"""Which event leads to which end."""

TERMINAL = frozenset({COMPLETED, FAILED, CANCELLED})

ENDED_STATES = frozenset(
    {
        ConstellationState.COMPLETED,
        ConstellationState.FAILED,
        ConstellationState.PARTIALLY_FAILED,
        ConstellationState.CANCELLED,
    }
)

EXIT_CODES = {
    ConstellationState.COMPLETED: 0,
    ConstellationState.FAILED: 1,
    ConstellationState.PARTIALLY_FAILED: 2,
    ConstellationState.CANCELLED: 130,
}


def state_diagram() -> str:
    """The task machine as Mermaid text, made from the table so that the docs cannot drift from the code."""
    lines = ["stateDiagram-v2", "    [*] --> pending"]
    lines += [f"    {old} --> {new}: {event}" for event, moves in TRANSITIONS.items() for old, new in moves.items()]
    lines += [f"    {status} --> [*]" for status in TaskStatus if status in TERMINAL]
    return "\n".join(lines) + "\n"
