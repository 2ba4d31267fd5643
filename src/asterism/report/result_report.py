"""The data of a report from the result of a plan, and a recording of its first version and its edits.

``Recording`` keeps the plan as it started and the answers of editors; ``execution_bars`` reads the executions from the
story.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

from asterism.base.secret_mask import HIDDEN, named_like_a_secret
from asterism.base.text import json_text, masked_urls
from asterism.core.errors import error_text
from asterism.core.history import PlanEntry
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import AttemptTimes, Node
from asterism.core.plan.status import FAILED
from asterism.core.plan.task import Dependency
from asterism.orchestrator.events import EditEvent, EventBus, Subscription
from asterism.orchestrator.plan_logs import tasks_with_tracebacks, tracebacks_in
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.result import Result
from asterism.report.html_report import MOST_ROWS, report
from asterism.report.log_text import LogsOf
from asterism.report.picture import picture
from asterism.report.report_data import (
    CycleBar,
    EarlierRun,
    EditRow,
    ExecutionBar,
    Hold,
    OutputRow,
    Report,
    StoryLine,
    TaskRow,
)
from asterism.report.result_summary import figures

CYCLE_OUTCOMES = {
    "accepted": "accepted",
    "empty": "empty",
    "abandoned": "rejected",
    "timeout": "timeout",
    "unclaimed": "timeout",
    "editor_failed": "failed",
}
"""The outcomes of cycles in a report; a cycle with any other outcome was cut off by the end of the plan."""

LONGEST_VALUE = 160
MOST_LINES = 500
"""How many lines of the output of an attempt a report shows: the last ones."""
LARGEST_OUTPUT = 4_000_000
"""How many letters of output a report shows in all."""


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist, self.maxtuple = 4, 12, 12, 12
        self.maxstring = self.maxother = LONGEST_VALUE


@dataclass(frozen=True, slots=True)
class PlanOrigin:
    """Where a plan comes from, which its result does not say: the name of its plan file, the values of its parameters,
    and the last plans of that file before it, the newest first."""

    file: str = ""
    params: Mapping[str, Any] = field(default_factory=dict)
    earlier: Sequence[EarlierRun] = ()


NO_ORIGIN = PlanOrigin()


def write_report(
    path: str | Path,
    result: Result,
    recording: Recording | None = None,
    logs_of: LogsOf | None = None,
    origin: PlanOrigin = NO_ORIGIN,
) -> None:
    """Write the report of a result as one HTML page. Raises OSError."""
    Path(path).write_text(report(report_of(result, recording, logs_of, origin)), encoding="utf-8")


def report_of(
    result: Result,
    recording: Recording | None = None,
    logs_of: LogsOf | None = None,
    origin: PlanOrigin = NO_ORIGIN,
) -> Report:
    """The data of a report, with secrets masked. Without a recording it has fewer details of edits. ``logs_of`` reads
    what a task printed, by default what this process has kept."""
    logs_of = logs_of or result.logs
    output, output_left_out = _output(result, logs_of)
    plan, secrets = result.plan, PlanMask(result.plan)
    values = secrets.results()
    story = [_hidden(entry, secrets) for entry in result.story()]
    failed = tasks_with_tracebacks(plan, story)[:MOST_ROWS]
    tracebacks = tracebacks_in(story, {task: logs_of(task) for task in failed})
    by_task: dict[str, list[PlanEntry]] = {}
    lines: dict[str, list[StoryLine]] = {}
    for place, entry in enumerate(story):
        if entry.task is not None:
            by_task.setdefault(entry.task, []).append(entry)
            line = StoryLine(entry.at, entry.what, entry.why, tracebacks.get(place, ""))
            lines.setdefault(entry.task, []).append(line)
    gone = {task: entries for task, entries in by_task.items() if task not in plan}
    first = recording.first if recording is not None else {}
    started, ended = plan.started_at or 0.0, plan.ended_at or 0.0
    return Report(
        title=plan.id,
        state="repaired" if plan.repaired else str(result.state),
        started_at=started,
        ended_at=ended,
        figures=figures(result)[1:],  # the page begins with the state
        picture=picture(plan, secrets, {task: first.get(task, ()) for task in gone}),
        executions=execution_bars(story, ended, {node.id: node.device for node in plan.nodes.values() if node.device}),
        cycles=_cycles(result, ended),
        holds=_holds(result),
        tasks=(
            *(task_row(node, values.get(node.id), secrets) for node in plan.nodes.values()),
            *(_removed(task, entries) for task, entries in gone.items()),
        ),
        edits=tuple(sorted(_edits(story, recording, secrets), key=lambda row: row.at)),
        stories=tuple((task, tuple(steps)) for task, steps in lines.items()),
        output=output,
        output_left_out=output_left_out,
        file=origin.file,
        params=tuple((name, _param(name, value, secrets)) for name, value in origin.params.items()),
        earlier=tuple(origin.earlier),
    )


def _param(name: str, value: Any, secrets: PlanMask) -> str:
    """The value of a parameter, without secrets: plan files should not have such a parameter."""
    value = _without_secrets(name, secrets.shown(value))
    return value if isinstance(value, str) else json_text(value)


def _without_secrets(name: str, value: Any) -> Any:
    """A value without what a name in it calls a secret, and without the logins of addresses, however deep."""
    if named_like_a_secret(name):
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: _without_secrets(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets("", item) for item in value]
    return masked_urls(value) if isinstance(value, str) else value


def _output(result: Result, logs_of: LogsOf) -> tuple[tuple[OutputRow, ...], int]:
    """What the tasks printed, failed ones first, and how many attempts are left out because the page would be too
    large."""
    nodes = sorted(result.plan.nodes.values(), key=lambda node: node.status is not FAILED)
    rows: list[OutputRow] = []
    left_out = size = 0
    for node in nodes:
        for log in logs_of(node.id):
            if size > LARGEST_OUTPUT:
                left_out += 1
                continue
            lines = log.lines
            shown = tuple((line.stream, line.text) for line in lines[-MOST_LINES:])
            size += sum(len(text) for _, text in shown)
            rows.append(OutputRow(node.id, log.attempt, shown, len(lines) - len(shown)))
    return tuple(rows), left_out


def _hidden(entry: PlanEntry, secrets: PlanMask) -> PlanEntry:
    why = secrets.shown(entry.why)
    return entry if why == entry.why else entry._replace(why=why)


def _cycles(result: Result, ended: float) -> tuple[CycleBar, ...]:
    return tuple(
        CycleBar(
            id=cycle.id,
            opened=cycle.opened_at,
            closed=ended if cycle.closed_at is None else cycle.closed_at,
            triggers=cycle.tasks,
            outcome=CYCLE_OUTCOMES.get(cycle.outcome, "cancelled"),
            edits=cycle.edits,
            cost="" if cycle.cost is None else str(cycle.cost),
        )
        for cycle in result.cycles
    )


def _holds(result: Result) -> tuple[Hold, ...]:
    """The holds, each with the cycle that held it: the last one that reviewed one of its parents."""
    reviewed = {task: cycle for cycle in result.cycles for task in cycle.tasks}
    nodes = result.plan.nodes
    holds = []
    for task, start, end in result.holds:
        above = [reviewed[source] for source in nodes[task].parents if source in reviewed]
        last = max(above, key=lambda cycle: cycle.closed_at or 0.0, default=None)
        holds.append(Hold(task, start, end, None if last is None else last.id))
    return tuple(holds)


def task_row(node: Node, value: object, secrets: PlanMask) -> TaskRow:
    reason = secrets.shown(error_text(node.error) or node.reason)
    returned = "" if value is None else secrets.shown(_shown(value))  # the repr of an object may show secrets
    start, end = node.span or (None, None)
    waited = start - node.times.created if node.times is not None and start is not None else None
    device = node.device or ""
    return TaskRow(node.id, str(node.status), device, node.attempts, start, end, reason, returned, waited)


def _removed(task: str, entries: Sequence[PlanEntry]) -> TaskRow:
    starts = [entry for entry in entries if entry.what in STARTS]
    reason = next((entry.why for entry in reversed(entries) if entry.what == "removed"), "")
    return TaskRow(task, "removed", starts[-1].why if starts else "", len(starts), None, None, reason, "")


def _shown(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= LONGEST_VALUE else _Brief().repr(value)


def _edits(story: Sequence[PlanEntry], recording: Recording | None, secrets: PlanMask) -> Iterator[EditRow]:
    """Accepted edits are in the story; rejected ones only in the recording."""
    answers = recording.edits if recording is not None else []
    applied = {event.version: event for event in answers if event.kind == "edit_applied"}
    for entry in story:
        if entry.what == "edited" and entry.task is None:
            yield _accepted(entry, applied, secrets)
    for event in answers:
        if event.kind == "edit_rejected":
            violations = tuple(secrets.shown(str(violation)) for violation in event.violations)
            yield EditRow(None, event.at, event.author, "", (), "rejected", violations)


def _accepted(entry: PlanEntry, applied: dict[int, EditEvent], secrets: PlanMask) -> EditRow:
    """An accepted edit: from the recorded event, or in short from the story."""
    version, author, edits = (entry.facts[name] for name in ("version", "author", "edits"))
    event = applied.get(version)
    if event is None:
        return EditRow(version, entry.at, secrets.shown(author), "", (secrets.shown(edits),), "accepted", ())
    operations = tuple(map(secrets.shown, event.edits))
    return EditRow(version, entry.at, event.author, secrets.shown(event.reason), operations, "accepted", ())


STARTS = ("started", "started provisionally")

OUTCOMES = {
    "completed": "completed",
    "completed provisionally": "completed",
    "failed": "failed",
    "failed provisionally": "failed",
    "attempt failed": "failed",
    "cancelled": "cancelled",
    "revoked": "revoked",
    "put back": "cancelled",
}
"""The outcome of an execution for each entry of a story that ends one."""


@dataclass(slots=True)
class _Execution:
    task: str
    device: str
    start: float
    provisional: bool
    end: float | None = None
    outcome: str = "cancelled"
    over: bool = False
    begun: bool = True


def execution_bars(story: Iterable[PlanEntry], ended_at: float, devices: Mapping[str, str]) -> tuple[ExecutionBar, ...]:
    """One bar for each execution, in a free slot of its device. ``devices`` has the device of each task at its end: the
    device at its start may stand for a whole fleet."""
    return tuple(_placed(sorted(_executions(story, devices), key=lambda execution: execution.start), ended_at))


def _executions(story: Iterable[PlanEntry], devices: Mapping[str, str]) -> list[_Execution]:
    latest: dict[str, _Execution] = {}
    executions = []
    for at, what, task, why, facts in story:
        if task is None:
            continue
        if what in STARTS:
            latest[task] = _Execution(task, why, at, provisional=what != "started")
            executions.append(latest[task])
        elif what == "run ended" and task in latest:
            _correct_times(latest[task], AttemptTimes(**facts).seconds)
        elif what in OUTCOMES and task in latest:
            execution = latest[task]
            if not execution.over:
                execution.over, execution.outcome = True, OUTCOMES[what]
                execution.end = at if execution.end is None else execution.end
            elif what == "revoked" and execution.provisional:  # it had ended; its result is dropped
                execution.outcome = "revoked"
    for task, execution in latest.items():
        execution.device = devices.get(task, execution.device)
    return [execution for execution in executions if execution.begun]


def _correct_times(execution: _Execution, seconds: tuple[float, float] | None) -> None:
    """A plan counts a task as started when it offers it to a fleet: the bar begins with the work."""
    if seconds is not None:
        execution.start += seconds[0]
        execution.end = execution.start + seconds[1]
    else:
        execution.begun = False


def _placed(executions: Iterable[_Execution], ended_at: float) -> Iterator[ExecutionBar]:
    """Put each execution in the lowest free slot. A device has as many slots as were ever used at once."""
    free: dict[str, list[int]] = {}
    busy: dict[str, list[tuple[float, int]]] = {}
    for execution in executions:
        open_slots, taken = free.setdefault(execution.device, []), busy.setdefault(execution.device, [])
        while taken and taken[0][0] <= execution.start:
            heappush(open_slots, heappop(taken)[1])
        slot = heappop(open_slots) if open_slots else len(taken) + 1
        end = ended_at if execution.end is None else execution.end
        heappush(taken, (end, slot))
        yield ExecutionBar(
            execution.task, execution.device, slot, execution.start, end, execution.outcome, execution.provisional
        )


ANSWERS = ("edit_applied", "edit_rejected")


class Recording:
    """Records from its creation: create it before the plan runs. ``edits`` are the answers of editors, in order."""

    def __init__(self, plan: Constellation, events: EventBus) -> None:
        self.plan_id = plan.id
        self.first: dict[str, tuple[Dependency, ...]] = {
            node.id: tuple(node.parents.values()) for node in plan.nodes.values()
        }
        self.edits: list[EditEvent] = []
        self._subscription: Subscription = events.subscribe(self._note, EditEvent, limit=1_000_000)

    def _note(self, event: EditEvent) -> None:
        if event.kind in ANSWERS and event.constellation == self.plan_id:
            self.edits.append(event)

    def close(self) -> None:
        self._subscription.close()
