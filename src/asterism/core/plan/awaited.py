"""What a task waits for that is not in its plan: an event, a time, or a task of another plan.

``wait_for={"event": "payment/17", "timeout": 21600}``, ``{"until": "2026-11-18T09:00+01:00"}`` or ``{"plan": "nightly",
"task": "load"}``. Such a task is executed by no device. When its dependencies hold it *waits*: it stays pending, has
left the ready queue, and the plan records since when (``Graph.wait``). Its end is a start and an end in one step.

An event is a fact that is kept for a while, and not a message to somebody: it continues every task that waits for its
name, and tasks that begin to wait later. ``event_for`` is the rule that keeps the event of yesterday from continuing
the plan of today.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, tzinfo
from typing import Annotated, Any, NamedTuple

from asterism.core.errors import AsterismError
from asterism.core.plan.plan_name import EACH_TICK, plan_name
from asterism.core.record import Meta, Name, Record, Seconds
from asterism.core.schedule.schedule import event_name_problem, interval_text
from asterism.core.schedule.tick_values import FIRST_YEAR, LAST_YEAR

KINDS = ("event", "until", "plan")

FIELDS = {"event": {"event", "timeout"}, "until": {"until"}, "plan": {"plan", "task", "tick", "timeout"}}
"""The fields of each kind. Only ``tick`` and ``timeout`` may be left out."""


class WaitFor(Record, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a task waits for, one of: an event, a time, or a task of another plan. It uses no slot."""

    event: Annotated[Name | None, Meta(description="the name of an event; its data are the result")] = None
    until: Annotated[Name | None, Meta(description="a time, in the time zone of the tick, else in UTC")] = None
    plan: Annotated[Name | None, Meta(description="the name of a stored plan, or with `tick` of a schedule")] = None
    task: Annotated[Name | None, Meta(description="the task of that plan; its result is the result")] = None
    tick: Annotated[Name | None, Meta(description="`same`, or a time such as `{tick.previous}`")] = None
    timeout: Annotated[Seconds | None, Meta(description="the task fails after so long; default: never")] = None

    def __post_init__(self) -> None:
        if problems := [*self._problems()]:
            raise ValueError("; ".join(problems))

    def _problems(self) -> Iterator[str]:
        given = [name for name in self.__struct_fields__ if getattr(self, name) is not None]
        kinds = [kind for kind in KINDS if kind in given]
        if len(kinds) != 1:
            yield f"it has one of {', '.join(KINDS)}"
            return
        (kind,) = kinds
        if unknown := [name for name in given if name not in FIELDS[kind]]:
            yield f"it has no field {', '.join(unknown)} beside {kind}"
        if kind == "plan" and self.task is None:
            yield "it needs task, to wait for a task of another plan"
        problem = _time_problem(self.until or "{") if self.event is None else event_name_problem(self.event)
        if problem is not None:
            yield problem


EXCLUDED = (
    *("call", "argv", "shell", "http", "agent", "plugin", "inputs", "env", "cwd", "device", "needs"),
    *("retries", "timeout", "revocable", "foreach", "skip_if_unchanged", "outputs", "uses"),
)
"""The fields that say how a device executes a task: one that waits has none of them."""


class WaitFailed(AsterismError):
    """What a task waited for cannot happen any more."""


class KeptEvent(NamedTuple):
    """An event of the name that a task waits for: its number, and when it was sent."""

    number: int
    at: float


def event_for(
    events: Sequence[KeptEvent], takers: Mapping[int, set[str]], plan: str, began_at: float
) -> KeptEvent | None:
    """The event that continues a task of a plan; None if the task has to wait. ``takers`` are the plans of the same
    plan file that have taken each event.

    Every plan that was there when an event was sent gets it. Of the plans of one plan file that came later, one gets
    it, and none if an earlier plan of that file has taken it. All tasks of a plan that wait for the same name get the
    same event."""
    for event in events:
        if plan in takers.get(event.number, ()):
            return event
    for event in events:
        if event.at >= began_at or not takers.get(event.number):
            return event
    return None


def excluded_problem(task: Any, fields: Sequence[str] = EXCLUDED) -> str | None:
    """Why a task, or one in a plan file, cannot have ``wait_for`` beside its other fields; None if it can."""
    excluded = [name for name in fields if getattr(task, name)]
    if not excluded:
        return None
    return f"a task with wait_for is executed by no device, so it cannot have {', '.join(excluded)}"


def moment(text: object, zone: tzinfo) -> datetime:
    """A time, in a time zone unless it has an offset. One that the zone leaves out when its clocks go forward is as
    much later. Raises WaitFailed."""
    try:
        at = datetime.fromisoformat(text.strip())  # type: ignore[attr-defined]
    except (AttributeError, ValueError):
        raise WaitFailed(f"{text!r} is not a time (examples: 2026-11-18T09:00, 2026-11-18T09:00+01:00)") from None
    if not FIRST_YEAR <= at.year <= LAST_YEAR:
        raise WaitFailed(f"{text!r} is not a time between the years {FIRST_YEAR} and {LAST_YEAR}")
    return at if at.tzinfo is not None else at.replace(tzinfo=zone)


def _time_problem(text: str) -> str | None:
    """Why a text is not a time; None if it is, or if it has a placeholder, which is replaced later."""
    if "{" in text:
        return None
    try:
        moment(text, UTC)
    except WaitFailed as error:
        return f"until: {error}"
    return None


def with_zone(text: str, zone: tzinfo) -> str:
    """A time of ``until`` with the offset that a time zone has then, unless it has one. Other texts stay unchanged."""
    try:
        return moment(text, zone).isoformat()
    except WaitFailed:
        return text


def deadline(wait: Mapping[str, Any], since: float) -> float | None:
    """When a wait ends at the latest; None if never. Raises WaitFailed for an ``until`` that is no time."""
    if "until" in wait:
        return moment(wait["until"], UTC).timestamp()
    return since + wait["timeout"] if "timeout" in wait else None


def awaited_plan(wait: Mapping[str, Any]) -> str:
    """The name of the plan with the task that is awaited: with ``tick``, that of a schedule at this tick. Raises
    WaitFailed for a ``tick`` that is no time."""
    if "tick" not in wait:
        return str(wait["plan"])
    at = moment(wait["tick"], UTC)
    return plan_name(EACH_TICK, wait["plan"], datetime.fromtimestamp(at.timestamp(), UTC))


def awaited_text(wait: Mapping[str, Any]) -> str:
    """What is awaited, such as ``event 'payment/17'``."""
    if "event" in wait:
        return f"event {wait['event']!r}"
    if "until" in wait:
        return str(wait["until"])
    at = f" at {wait['tick']}" if "tick" in wait else ""
    return f"task {wait['task']!r} of plan {wait['plan']!r}{at}"


def wait_text(wait: Mapping[str, Any]) -> str:
    """What is awaited and how long, such as ``for event 'payment/17', at most 6h``."""
    limit = f", at most {_duration(wait['timeout'])}" if "timeout" in wait else ""
    return f"{'until' if 'until' in wait else 'for'} {awaited_text(wait)}{limit}"


def timeout_error(wait: Mapping[str, Any]) -> WaitFailed:
    """The error of a task whose ``timeout`` is over."""
    what = "did not arrive" if "event" in wait else "did not complete"
    return WaitFailed(f"{awaited_text(wait)} {what} within {_duration(wait['timeout'])}")


def _duration(seconds: float) -> str:
    return interval_text(int(seconds)) if seconds == int(seconds) else f"{seconds:g}s"
