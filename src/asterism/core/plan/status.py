"""Status of tasks and state of plans, with the table of transitions of a task.

A task::

    pending --start--> running --complete--> completed
       |                 |  |
       |                 |  +----fail------> failed
       |                 +-------cancel----> cancelled
       |                 +-------release---> pending
       +----cancel-----> cancelled
       +----fail-------> failed

A task is released if its device left before the work began, or if its start was provisional and an edit revoked it. A
pending task fails if no device became available in time.

A terminal status never changes while the plan runs. A plan that has ended can be reopened, which is one recorded step
(plan_end.py): the tasks that it chooses are pending again, and their next execution has a new epoch.

A plan that is cancelled is ``cancelling`` until the tasks that ran have stopped and its teardowns have run
(teardowns.py). That state is a step of the journal, so a process that takes the plan over continues there.

A *provisional* task that has ended stays ``running`` until it is confirmed, so a result that may be revoked never looks
final. Views show a pending task with open dependencies as ``waiting``; records never contain that word.
"""

from __future__ import annotations

from enum import StrEnum


class TaskStatus(StrEnum):
    __hash__ = str.__hash__  # faster than the hash of Enum, and used for every task

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class ConstellationState(StrEnum):
    CREATED = "created"
    READY = "ready"
    EXECUTING = "executing"
    CANCELLING = "cancelling"
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
"""Event -> status before -> status after."""

EVENTS = {COMPLETED: "complete", FAILED: "fail", CANCELLED: "cancel"}
"""Terminal status -> the event that leads to it."""

TERMINAL = frozenset({COMPLETED, FAILED, CANCELLED})

EXIT_CODES = {
    ConstellationState.COMPLETED: 0,
    ConstellationState.FAILED: 1,
    ConstellationState.PARTIALLY_FAILED: 2,
    ConstellationState.CANCELLED: 130,
}

ENDED_STATES = frozenset(EXIT_CODES)


def state_diagram() -> str:
    """The transitions of a task as a Mermaid diagram for the docs, made from the table."""
    lines = ["stateDiagram-v2", "    [*] --> pending"]
    lines += [f"    {old} --> {new}: {event}" for event, moves in TRANSITIONS.items() for old, new in moves.items()]
    lines += [f"    {status} --> [*]" for status in TaskStatus if status in TERMINAL]
    return "\n".join(lines) + "\n"
