"""Events as sentences, one line for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

from asterism.base.durations import format_duration
from asterism.base.text import plural
from asterism.core.errors import SENTENCE_ERRORS, AsterismError, RecordedError, error_text
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.journal import RecordedConstellation
from asterism.orchestrator.events import ConstellationEvent, DeviceEvent, EditEvent, Event, TaskEvent

MOST_NAMES = 6
MOST_EDITS = 20


def sentence(event: Event, plan: Constellation) -> str:
    """The event as a sentence. ``plan`` is the constellation of the event."""
    describe = _SENTENCES.get(event.kind)
    return describe(event, plan) if describe is not None else event.kind.replace("_", " ")


def reason(error: BaseException | None) -> str:
    """Why something failed. Our own errors are sentences, also in a record; others are shown with their type."""
    if isinstance(error, RecordedError) and error.message and error.kind in SENTENCE_ERRORS:
        return error.message
    return str(error) if isinstance(error, AsterismError) else error_text(error)


def names(tasks: Iterable[str], count: int) -> str:
    """``a, b, c and 4 more``: the first of ``count`` tasks; the others are not read."""
    shown = ", ".join(islice(tasks, MOST_NAMES))
    return shown if count <= MOST_NAMES else f"{shown} and {count - MOST_NAMES:,} more"


def _started(event: TaskEvent, plan: Constellation) -> str:
    how = " provisionally" if event.provisional else ""
    again = f", attempt {event.attempt}" if event.attempt > 1 else ""
    # a plan in a store offers its tasks to a whole fleet; the device is known at the end
    where = "in the fleet" if isinstance(plan, RecordedConstellation) else f"on {event.device}"
    return f"{event.task_id} started{how} {where}{again}"


def _retrying(event: TaskEvent, plan: Constellation) -> str:
    return f"{event.task_id}: attempt {event.attempt} failed and will be retried: {reason(event.error)}"


def _ended(event: TaskEvent, plan: Constellation) -> str:
    node = plan.nodes.get(event.task_id)
    span = None if node is None else node.span
    took = f" after {format_duration((span[1] or event.at) - span[0])}" if span is not None else ""
    why = f": {reason(event.error) if event.error is not None else event.reason}"
    why = "" if why == ": " else why
    where = f" on {event.device}" if isinstance(plan, RecordedConstellation) and event.device is not None else ""
    return f"{event.task_id} {event.status}{where}{took}{why}"


def _plan_started(event: ConstellationEvent, plan: Constellation) -> str:
    return f"{plan.id} started with {plural(len(plan), 'task')}"


def _plan_ended(event: ConstellationEvent, plan: Constellation) -> str:
    state = plan.state_text if plan.repaired else event.state.replace("_", " ")
    return f"{plan.id} ended: {state}, version {event.version}"


def _applied(event: EditEvent, plan: Constellation) -> str:
    edits = event.edits if len(event.edits) <= MOST_EDITS else (*event.edits[:MOST_EDITS], _more(event.edits))
    why = f" ({event.reason})" if event.reason else ""
    return f"edit by {event.author or 'unknown'} applied{why}: {'; '.join(edits)}"


def _more(edits: Sequence[str]) -> str:
    return f"and {len(edits) - MOST_EDITS:,} more edits"


def _rejected(event: EditEvent, plan: Constellation) -> str:
    reasons = "; ".join(violation.message for violation in event.violations)
    return f"edit by {event.author or 'unknown'} rejected: {reasons}"


def _waits(event: TaskEvent, plan: Constellation) -> str:
    node = plan.nodes.get(event.task_id)
    wait = None if node is None else node.task.wait_for or node.task.approval
    return f"{event.task_id} waits" if node is None or wait is None else f"{event.task_id} waits {node.task.wait_text}"


def _approval(event: EditEvent, state: str) -> str:
    what = f"the edit of {event.author}" if event.author else "the start of a task"
    return f"approval {event.approval}: {what} {state}: {event.reason}"


def _task(text: str) -> Callable[[Any, Constellation], str]:
    return lambda event, plan: text.format(task=event.task_id)


def _cycle(text: str) -> Callable[[Any, Constellation], str]:
    return lambda event, plan: text.format(
        cycle=event.cycle,
        tasks=names(event.tasks, len(event.tasks)) if event.tasks else "the whole plan",
        author=event.author or "unknown",
        error=reason(event.error),
        approval=event.approval,
        reason=event.reason,
    )


def _plan(text: str) -> Callable[[Any, Constellation], str]:
    return lambda event, plan: text.format(plan=plan.id)


def _device(text: str) -> Callable[[DeviceEvent, Constellation], str]:
    return lambda event, plan: text.format(device=event.device, task=event.task_id, detail=event.detail)


_SENTENCES: dict[str, Callable[[Any, Constellation], str]] = {
    "task_started": _started,
    "task_retrying": _retrying,
    "task_completed": _ended,
    "task_failed": _ended,
    "task_cancelled": _ended,
    "task_revoked": _task("{task} revoked: an edit changed the plan that it started from"),
    "task_confirmed": _task("{task} confirmed"),
    "task_released": _task("{task} put back: its device left before it started"),
    "task_waiting": _waits,
    "task_unchanged": _task("{task} is unchanged: its recorded result is used"),
    "task_result_refused": _task("{task}: a late result was refused"),
    "constellation_started": _plan_started,
    "constellation_paused": _plan("{plan} paused"),
    "constellation_resumed": _plan("{plan} resumed"),
    "constellation_cancelling": _plan("{plan} is being cancelled"),
    **{f"constellation_{end}": _plan_ended for end in ("completed", "failed", "partially_failed", "cancelled")},
    "cycle_opened": _cycle("cycle {cycle} opened for {tasks}"),
    "stuck": _cycle("cycle {cycle} opened: no task can start"),
    "edit_applied": _applied,
    "edit_rejected": _rejected,
    "edit_waiting": lambda event, plan: _approval(event, "waits"),
    "edit_escalated": lambda event, plan: _approval(event, "still waits"),
    "edit_refused": lambda event, plan: _approval(event, "was refused"),
    "edit_abandoned": _cycle("cycle {cycle}: too many edits of {author} were rejected; the cycle closes without one"),
    "edit_overtaken": _cycle("cycle {cycle}: part of the plan of {author} was dropped: its tasks have progressed"),
    "edit_timeout": _cycle("cycle {cycle}: no answer in time"),
    "editor_held": _cycle("cycle {cycle}: {author} waits for a person: {reason}"),
    "editor_failed": _cycle("cycle {cycle}: the editor failed: {error}"),
    "cycle_closed": _cycle("cycle {cycle} closed"),
    "device_joined": _device("device {device} joined"),
    "device_left": _device("device {device} left"),
    "device_lost": _device("device {device} was lost with {task}"),
    "no_device": _device("{task}: {detail}"),
}
