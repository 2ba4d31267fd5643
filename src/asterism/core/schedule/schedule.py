"""The record of a schedule: what it creates, when, and how far it has come.

A schedule creates runs of a workflow, or plans from a plan file that the store keeps. Its times are a cron expression
in a time zone, or an interval; or each event of a name creates a plan. The definition changes when a person changes it.
The state (``after``, ``next``, ``due``, ``seen``, ``open``, ``replaced``, ``made``) changes with each tick or event.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asterism.core.errors import AsterismError, safe_repr
from asterism.core.json_values import NOTHING, JsonObject
from asterism.core.record import InvalidRecord, Record, replace

CATCH_UP = ("none", "last", "all")
"""What happens with missed ticks: none is created, only the last one, or all of them."""

OVERLAP = ("skip", "queue", "replace", "allow")
"""What happens if the work of an earlier tick has not ended: the tick is skipped, its work waits, it replaces the
earlier work, or both run."""

AFTER_PREVIOUS = (None, "success")
"""What the plan of a tick waits for: nothing, or the success of the plan of the tick before."""

LONGEST_NAME = 80
MOST_PARALLEL = 100
LONGEST_INTERVAL = 10 * 366 * 86_400
"""The longest interval and jitter, in seconds."""


class InvalidSchedule(AsterismError, ValueError):
    """A schedule with values that cannot be used, or a record that cannot be read."""


class Schedule(Record, omit_defaults=True, forbid_unknown_fields=True):
    """``workflow`` or ``plan``, and one of ``cron``, ``every`` and ``on_event`` are set.

    ``workflow``    the workflow whose runs are created; each tick uses its latest version
    ``input``       the input of each run
    ``priority``    the priority of each run; None for that of the workflow
    ``device``      the only device that may execute the runs; None for that of the workflow
    ``plan``        the name of the plan file whose plan is created
    ``cron``        a cron expression with five fields
    ``every``       an interval in whole seconds, counted from ``start``
    ``on_event``    the name of the events that create a plan each; ``payment/*`` is every name below ``payment/``
    ``timezone``    the time zone of the cron expression
    ``catch_up``    one of CATCH_UP
    ``overlap``     one of OVERLAP, for a tick while ``parallel`` earlier ones have not ended
    ``parallel``    how many runs or plans may be at work at once
    ``after_previous`` one of AFTER_PREVIOUS
    ``late_after``  a notice says if the plan of a tick has not ended so many seconds after the tick; None for none
    ``jitter``      each tick fires up to so many seconds late, so that many schedules do not fire at one moment
    ``start``       when the schedule was added, in whole seconds
    ``created_by``  who added it; its runs are created in this name
    ``paused``      who paused it, and why; None if it is not paused
    ``after``       all ticks up to this time are decided
    ``next``        the next tick; None if there is none
    ``due``         when the next tick fires: later than ``next`` by its share of the jitter
    ``seen``        all events up to this number are decided
    ``open``        the runs or plans of earlier ticks that may not have ended, oldest first
    ``replaced``    those of them that are to be cancelled
    ``made``        how many runs or plans were created
    ``late``        those of ``open`` whose time to end has passed: if they had not ended then, a notice says so
    """

    name: str
    workflow: str | None = None
    input: Mapping[str, Any] = NOTHING
    priority: int | None = None
    device: str | None = None
    plan: str | None = None
    cron: str | None = None
    every: int | None = None
    timezone: str = "UTC"
    catch_up: str = "last"
    overlap: str = "skip"
    jitter: float = 0.0
    start: int = 0
    created_by: str = ""
    paused: str | None = None
    after: float = 0.0
    next: int | None = None
    due: float | None = None
    open: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    made: int = 0
    after_previous: str | None = None
    late_after: float | None = None
    late: tuple[str, ...] = ()
    on_event: str | None = None
    seen: int = 0
    parallel: int = 1

    def __post_init__(self) -> None:
        problems = [text for text in (_name_problem(self.name), *_problems(self)) if text is not None]
        if problems:
            raise InvalidSchedule(f"schedule {safe_repr(self.name)}: {'; '.join(problems)}")

    @property
    def target(self) -> str:
        """What it creates, in words."""
        return f"workflow {self.workflow}" if self.workflow is not None else f"plan {self.plan}"

    @property
    def times(self) -> str:
        """When it creates that, in words."""
        if self.on_event is not None:
            return f"on event {self.on_event}"
        return f"{self.cron} ({self.timezone})" if self.cron is not None else f"every {interval_text(self.every or 0)}"

    def changed(self, **changes: Any) -> Schedule:
        return replace(self, **changes)

    @classmethod
    def from_json(cls, data: object) -> Schedule:
        """The schedule that ``to_json`` wrote. Raises InvalidSchedule."""
        try:
            return super().from_json(data)
        except InvalidRecord as error:
            name = data.get("name") if isinstance(data, Mapping) else data
            raise InvalidSchedule(f"schedule {safe_repr(name)}: {error}") from None


def interval_text(seconds: int) -> str:
    """An interval as a person would write it: ``90s``, ``5m``, ``2h``, ``1d``."""
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds and seconds % length == 0:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _name_problem(name: object) -> str | None:
    printable = isinstance(name, str) and name.isprintable() and name == name.strip()
    if isinstance(name, str) and printable and 0 < len(name) <= LONGEST_NAME and not set(name) & set("/@|"):
        return None
    return f"the name must have 1 to {LONGEST_NAME} printable characters without '/', '@' and '|'"


def _problems(schedule: Schedule) -> list[str | None]:
    """The problems of all fields but the name."""
    return [
        _one_of(schedule, "workflow", "plan"),
        _one_of(schedule, "cron", "every", "on_event"),
        _event_problem(schedule),
        _parallel_problem(schedule),
        *(
            f"{name} must be one of {', '.join(filter(None, choices))}, not {safe_repr(getattr(schedule, name))}"
            for name, choices in (("catch_up", CATCH_UP), ("overlap", OVERLAP), ("after_previous", AFTER_PREVIOUS))
            if getattr(schedule, name) not in choices
        ),
        _range_problem("every", schedule.every, int, 1) if schedule.every is not None else None,
        _range_problem("jitter", schedule.jitter, (int, float), 0),
        _range_problem("late_after", schedule.late_after, (int, float), 1) if schedule.late_after is not None else None,
        _run_term_problem(schedule),
    ]


def _one_of(schedule: Schedule, *names: str) -> str | None:
    chosen = [name for name in names if getattr(schedule, name) is not None]
    if len(chosen) != 1:
        return f"give one of {', '.join(names)}{', not ' + ' and '.join(chosen) if chosen else ''}"
    value = getattr(schedule, chosen[0])
    if chosen[0] != "every" and (not isinstance(value, str) or not value.strip() or not value.isprintable()):
        return f"{chosen[0]} must be a text of printable characters, not {safe_repr(value)}"
    return None


def _event_problem(schedule: Schedule) -> str | None:
    if schedule.on_event is None:
        return None
    if schedule.workflow is not None:
        return "events create plans, not runs of a workflow"
    if schedule.jitter or schedule.after_previous is not None or schedule.late_after is not None:
        return "jitter, after_previous and late_after are for times, not for events"
    return event_name_problem(schedule.on_event)


def _parallel_problem(schedule: Schedule) -> str | None:
    number = schedule.parallel
    if type(number) is not int or not 1 <= number <= MOST_PARALLEL:
        return f"parallel must be a whole number from 1 to {MOST_PARALLEL}, not {safe_repr(number)}"
    if number > 1 and schedule.workflow is not None and schedule.overlap in ("queue", "replace"):
        return f"runs of a workflow with overlap {schedule.overlap} have no parallel above 1: let them use a limit"
    return None


def _range_problem(name: str, value: object, kinds: type | tuple[type, ...], least: int) -> str | None:
    if isinstance(value, kinds) and not isinstance(value, bool) and least <= value <= LONGEST_INTERVAL:  # type: ignore[operator]
        return None
    what = "a whole number of seconds" if kinds is int else "a number of seconds"
    return f"{name} must be {what} from {least} to {LONGEST_INTERVAL:,}, not {safe_repr(value)}"


def _run_term_problem(schedule: Schedule) -> str | None:
    if not isinstance(schedule.input, Mapping):
        return f"input must be an object of named values, not {safe_repr(schedule.input)}"
    if schedule.plan is not None and (schedule.input or schedule.priority is not None or schedule.device is not None):
        return "input, priority and device are for the runs of a workflow, not for a plan"
    if schedule.plan is None and (schedule.after_previous is not None or schedule.late_after is not None):
        return "after_previous and late_after are for plans, not for the runs of a workflow"
    if schedule.priority is not None and (type(schedule.priority) is not int or abs(schedule.priority) > 1_000_000):
        return f"priority must be a whole number between -1,000,000 and 1,000,000, not {safe_repr(schedule.priority)}"
    return None


# -- names of events ---------------------------------------------------------------------------------------------------


LONGEST_EVENT_NAME = 200
"""How many characters the name of an event has at most."""

EACH = "/*"
"""The end of a pattern for each name that begins with the part before the star."""


def event_name_problem(name: object) -> str | None:
    """Why a text cannot be the name of an event; None if it can."""
    if isinstance(name, str) and 0 < len(name) <= LONGEST_EVENT_NAME and name.isprintable() and name == name.strip():
        return None
    return f"the name of an event has 1 to {LONGEST_EVENT_NAME} printable characters, and no space at its ends"


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
