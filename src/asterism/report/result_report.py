"""The data of a report from the result of a plan: the documents that the page asks a server for, with the same fields.

``Recording`` keeps the plan as it started and the answers of editors.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from asterism.base.durations import format_duration
from asterism.base.secret_mask import HIDDEN, named_like_a_secret
from asterism.base.text import json_text, masked_urls, plural
from asterism.core.errors import NotJson
from asterism.core.history import PlanEntry
from asterism.core.json_values import JsonObject
from asterism.core.plan.constellation import Constellation
from asterism.core.plan.node import AttemptTimes, Node
from asterism.core.plan.status import FAILED, RUNNING
from asterism.core.plan.step_changes import task_progress
from asterism.core.plan.task import Dependency
from asterism.core.record import Record, asdict
from asterism.orchestrator.events import EditEvent, EventBus, Subscription
from asterism.orchestrator.plan_mask import PlanMask
from asterism.orchestrator.result import Result, tasks_with_tracebacks, tracebacks_in
from asterism.report.html_report import report
from asterism.report.result_summary import LogsOf, figures

COMPLETED = ("completed", "repaired")
ABOUT_THE_SAME = 0.05
"""A difference of durations below this share of the usual one is not named."""
MOST_DEVICES = 8
MOST_DETAILS = 5_000
"""Of how many tasks a report has the definition, result, story and output: those that failed first."""
LONGEST_VALUE = 4_000
MOST_LINES = 500
"""How many lines of the output of an attempt a report has: the last ones."""
LARGEST_OUTPUT = 4_000_000
"""How many letters of output a report has in all."""


BY_TASK = ("tasks", "logs")
"""The parts of a report whose keys are the names of tasks."""


class _Brief(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxdict, self.maxlist, self.maxtuple = 6, 50, 50, 50
        self.maxstring = self.maxother = LONGEST_VALUE


class EarlierRun(Record):
    """An earlier plan of the same plan file. It has no `ended_at` while it goes on, and no `started_at` before it
    begins."""

    name: str
    state: str
    started_at: float | None
    ended_at: float | None

    @property
    def took(self) -> float | None:
        return None if self.started_at is None or self.ended_at is None else self.ended_at - self.started_at


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
    """Write the report of a result as one HTML file. Raises OSError."""
    Path(path).write_text(report(report_of(result, recording, logs_of, origin)), encoding="utf-8")


def report_of(
    result: Result,
    recording: Recording | None = None,
    logs_of: LogsOf | None = None,
    origin: PlanOrigin = NO_ORIGIN,
) -> JsonObject:
    """The data of a report, with secrets masked. Without a recording it has fewer details of edits. ``logs_of`` reads
    what a task printed, by default what this process has kept."""
    plan, logs_of = result.plan, logs_of or result.logs
    secrets = PlanMask(plan)
    story = [entry._replace(why=secrets.shown(entry.why)) for entry in result.story()]
    gone = dict.fromkeys(entry.task for entry in story if entry.task is not None and entry.task not in plan)
    first = recording.first if recording is not None else {}
    removed = {task: first.get(task, ()) for task in gone}
    nodes = sorted(plan.nodes.values(), key=lambda node: node.status is not FAILED)[:MOST_DETAILS]
    return {
        "plan": _plan(plan, secrets, removed, story),
        "tasks": _details(plan, nodes, story, secrets, logs_of),
        "logs": _logs(nodes, logs_of),
        "versions": _versions(result, story, recording, secrets),
        "changes": [*_executions(plan, story), *_cycles(result)],
        "summary": _summary(result, origin, secrets),
    }


# -- the plan ----------------------------------------------------------------------------------------------------------


def _plan(
    plan: Constellation, secrets: PlanMask, removed: Mapping[str, Iterable[Dependency]], story: Sequence[PlanEntry]
) -> JsonObject:
    """The view of a plan; tasks that edits have removed are in it, after the tasks that they waited for."""
    reasons = {entry.task: entry.why for entry in story if entry.what == "removed"}
    cancelled = {entry.task: entry.why for entry in story if entry.what == "cancelled"}
    groups = {
        element: node.id
        for node in plan.nodes.values()
        if node.task.foreach is not None
        for element in node.task.foreach.get("of", ())
    }
    tasks = [
        {
            **{"id": node.id, "name": secrets.shown(node.task.description) or node.id},
            **{"group": groups.get(node.id), "estimate": node.task.estimate, "held_by": [], "behind": {}},
            **_progress(node, secrets, cancelled.get(node.id, "")),
        }
        for node in plan.nodes.values()
    ]
    tasks += [{"id": task, "name": task, "status": "removed", "reason": reasons.get(task, "")} for task in removed]
    edges = [edge for node in plan.nodes.values() for edge in node.parents.values()]
    edges += [edge for edges in removed.values() for edge in edges]
    known = plan.nodes.keys() | removed.keys()
    counts = Counter(node.shown_status for node in plan.nodes.values())
    return {
        **{"name": plan.id, "version": plan.version, "counts": counts},
        **{"state": "repaired" if plan.repaired else str(plan.state), "state_text": plan.state_text},
        **{"as_of": plan.ended_at, "tasks": tasks},
        "dependencies": [
            {"source": edge.source, "target": edge.target, "on": edge.on, "when": secrets.shown(edge.when)}
            for edge in edges
            if edge.source in known
        ],
    }


def _progress(node: Node, secrets: PlanMask, cancelled: str) -> JsonObject:
    progress = task_progress(node)
    reason = secrets.shown(progress["reason"]) or cancelled
    phase = node.times.phase if node.times is not None and node.status is RUNNING else None
    return {**progress, "reason": reason, "phase": phase, "status": node.shown_status}


def _details(
    plan: Constellation, nodes: Sequence[Node], story: Sequence[PlanEntry], secrets: PlanMask, logs_of: LogsOf
) -> JsonObject:
    """The definition, result and story of tasks; the story also of those that were removed."""
    shown = {node.id for node in nodes}
    failed = [task for task in tasks_with_tracebacks(plan, story) if task in shown]
    tracebacks = tracebacks_in(story, {task: logs_of(task) for task in failed})
    values = secrets.results()
    stories: dict[str, list[JsonObject]] = {}
    for place, (at, what, task, why, _) in enumerate(story):
        if task is not None:
            line = {"at": at, "what": str(what), "why": why, "traceback": tracebacks.get(place, "")}
            stories.setdefault(task, []).append(line)
    details = {
        node.id: {
            "definition": _without_secrets("", secrets.shown(_definition(node))),
            "result": None if values.get(node.id) is None else secrets.shown(_shown(values[node.id])),
            "story": stories.get(node.id, []),
        }
        for node in nodes
    }
    return {**{task: {"story": lines} for task, lines in stories.items() if task not in details}, **details}


def _definition(node: Node) -> JsonObject:
    try:
        return node.task.to_json()
    except NotJson as error:  # a function of this process
        return {"id": node.id, "call": str(error)}


def _shown(value: object) -> str:
    """A result in short. The repr of an object may show secrets."""
    if isinstance(value, str):
        return value if len(value) <= LONGEST_VALUE else f"{value[:LONGEST_VALUE]}… ({len(value):,} characters)"
    return _Brief().repr(value)


def _logs(nodes: Sequence[Node], logs_of: LogsOf) -> JsonObject:
    """What the attempts at tasks printed, as long as the file does not become too large."""
    logs: dict[str, list[JsonObject]] = {}
    size = 0
    for node in nodes:
        for log in logs_of(node.id):
            lines = [] if size > LARGEST_OUTPUT else [(line.stream, line.text) for line in log.lines[-MOST_LINES:]]
            size += sum(len(text) for _, text in lines)
            part = {"attempt": log.attempt, "lines": lines, "left_out": len(log.lines) - len(lines)}
            logs.setdefault(node.id, []).append(part)
    return logs


# -- what happened -----------------------------------------------------------------------------------------------------

OUTCOMES = {
    "completed": "completed",
    "completed provisionally": "completed",
    "failed": "failed",
    "failed provisionally": "failed",
    "attempt failed": "failed",
    "cancelled": "cancelled",
    "revoked": "cancelled",
    "put back": "cancelled",
}
"""The status of an execution after each entry of a story that ends one."""


def _executions(plan: Constellation, story: Iterable[PlanEntry]) -> list[JsonObject]:
    """Each execution, as the last event about it. The times of its attempt, if a fleet made it, say when it worked."""
    latest: dict[str, JsonObject] = {}
    executions = []
    for at, what, task, why, facts in story:
        if task is None:
            continue
        if what in ("started", "started provisionally"):
            provisional = what != "started"
            latest[task] = {"kind": "task", "task": task, "at": at, "status": "running", "provisional": provisional}
            latest[task] |= {"started_at": at, "ended_at": None, "device": why, "attempt": None}
            executions.append(latest[task])
        elif what == "run ended" and task in latest:
            latest[task]["attempt"] = AttemptTimes(**facts).to_json()
        elif what in OUTCOMES and task in latest:
            execution = latest[task]
            if execution["ended_at"] is None:
                execution |= {"ended_at": at, "status": OUTCOMES[what]}
            elif what == "revoked" and execution["provisional"]:  # it had ended; its result is dropped
                execution["status"] = OUTCOMES[what]
    for task, execution in latest.items():
        node = plan.nodes.get(task)
        if node is not None and node.device:  # the one at the start may stand for a whole fleet
            execution["device"] = node.device
        if node is not None and node.times is not None:
            execution["attempt"] = node.times.to_json()
    return executions


def _cycles(result: Result) -> Iterator[JsonObject]:
    """The edit cycles as events, with the ends under review, below which tasks were held."""
    nodes = result.plan.nodes
    for cycle in result.cycles:
        about = {"kind": "cycle", "cycle": cycle.id, "tasks": list(cycle.tasks)}
        for task in cycle.tasks:
            if task in nodes and nodes[task].children:
                yield {"kind": "task", "task": task, "at": cycle.opened_at, "review": True}
        yield {**about, "what": "opened", "at": cycle.opened_at}
        if cycle.closed_at is not None:
            yield {**about, "what": "closed", "at": cycle.closed_at}


def _versions(result: Result, story: Sequence[PlanEntry], recording: Recording | None, secrets: PlanMask) -> JsonObject:
    """Accepted edits are in the story; rejected ones, and all details, only in the recording."""
    answers = recording.edits if recording is not None else []
    applied = {event.version: event for event in answers if event.kind == "edit_applied"}
    accepted = [entry for entry in story if entry.what == "edited" and entry.task is None]
    return {
        "items": [_accepted(entry, applied, secrets) for entry in accepted],
        "rejected": [
            {
                **{"number": number, "at": event.at, "version": event.version, "author": event.author, "reason": ""},
                **{"triggers": [], "edits": []},
                "violations": [
                    {"rule": violation.rule, "edit": violation.edit, "message": secrets.shown(violation.message)}
                    for violation in event.violations
                ],
            }
            for number, event in enumerate(answers)
            if event.kind == "edit_rejected"
        ],
        "cycles": [
            {
                **{"id": cycle.id, "tasks": list(cycle.tasks), "outcome": cycle.outcome, "version": None},
                **{"opened_at": cycle.opened_at, "closed_at": cycle.closed_at, "cost": asdict(cycle.cost)},
            }
            for cycle in result.cycles
            if cycle.closed_at is not None and cycle.cost is not None
        ],
        "cost": asdict(result.editor_cost) if result.editor_cost else None,
    }


def _accepted(entry: PlanEntry, applied: Mapping[int, EditEvent], secrets: PlanMask) -> JsonObject:
    """An accepted edit: from the recorded event, or in short from the story."""
    version, author, edits = (entry.facts[name] for name in ("version", "author", "edits"))
    event = applied.get(version)
    about = {"version": version, "at": entry.at, "triggers": [], "undoes": None, "edits": []}
    if event is None:
        return {**about, "author": secrets.shown(author), "reason": "", "changes": [secrets.shown(edits)]}
    changes = [secrets.shown(edit) for edit in event.edits]
    return {**about, "author": event.author, "reason": secrets.shown(event.reason), "changes": changes}


# -- the summary -------------------------------------------------------------------------------------------------------


def _summary(result: Result, origin: PlanOrigin, secrets: PlanMask) -> JsonObject:
    """What is only in reports: how long the plan took, with which parameters, beside earlier plans of its file."""
    plan = result.plan
    state = "repaired" if plan.repaired else str(result.state)
    seconds = None if plan.started_at is None or plan.ended_at is None else plan.ended_at - plan.started_at
    took = "" if seconds is None else f"after {format_duration(seconds)}{_compared(state, seconds, origin.earlier)}"
    return {
        "took": took,
        "began": "" if plan.started_at is None else _date(plan.started_at),
        "device": list(dict.fromkeys(node.device for node in plan.nodes.values() if node.device))[:MOST_DEVICES],
        "file": origin.file,
        "figures": figures(result)[2:],  # the page begins with the state and the counts
        "params": [(name, _param(name, value, secrets)) for name, value in origin.params.items()],
        "earlier": [{**asdict(run), "took": run.took} for run in origin.earlier],
    }


def _compared(state: str, took: float, earlier: Sequence[EarlierRun]) -> str:
    """How the duration compares with that of earlier plans of the file, if this one and they completed."""
    times = [run.took for run in earlier if run.state in COMPLETED and run.took is not None]
    if not times or state not in COMPLETED:
        return ""
    usual = median(times)
    more = took - usual
    than = f"{format_duration(abs(more))} {'longer' if more > 0 else 'shorter'} than"
    if abs(more) < ABOUT_THE_SAME * usual:
        than = "about as long as"
    what = "the earlier run" if len(times) == 1 else f"the median of {plural(len(times), 'earlier run')}"
    return f", {than} {what} that completed ({format_duration(usual)})"


def _date(seconds: float) -> str:
    at = datetime.fromtimestamp(seconds, UTC)
    return f"{at.day} {at:%B %Y, %H:%M:%S} UTC"


def _param(name: str, value: Any, secrets: PlanMask) -> str:
    """The value of a parameter, without secrets: plan files should not have such a parameter."""
    value = _without_secrets(name, secrets.shown(value))
    return value if isinstance(value, str) else json_text(value)


def _without_secrets(name: str, value: Any) -> Any:
    """A value without what a name in it calls a secret, and without the logins of addresses, however deep."""
    if named_like_a_secret(name.replace("-", "_")) or name.lower() in ("authorization", "cookie"):
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: _without_secrets(str(key), item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets("", item) for item in value]
    return masked_urls(value) if isinstance(value, str) else value


# -- recording ---------------------------------------------------------------------------------------------------------

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
