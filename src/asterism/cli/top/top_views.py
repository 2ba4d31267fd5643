"""What ``asterism top`` shows and does with operations of a system: listings, pages about one thing, and actions.

There is a listing for each tab, and for the tasks of a plan. However large the store is, a listing has a bounded number
of runs, plans and notices.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from rich.text import Text

from asterism.api import documents
from asterism.api.client_errors import NotFound
from asterism.api.documents import read_pages
from asterism.api.run_operations import MOST_AT_ONCE
from asterism.api.system import LocalSystem, System
from asterism.base.durations import format_age
from asterism.base.status_colours import BOLD, DIM, mark, tone
from asterism.base.text import clean, plural, short
from asterism.cli.cli_context import format_time
from asterism.cli.fleet.fleet_views import DEVICE_TABLE, device_lines
from asterism.cli.log_output import line_text, run_lines
from asterism.cli.plan.plan_views import (
    PLAN_TABLE,
    command_at,
    paused_line,
    reopened_line,
    review_lines,
    story_lines,
)
from asterism.cli.plan.plan_views import explanation_lines as task_explanation_lines
from asterism.cli.plan.plan_views import status_lines as plan_status_lines
from asterism.cli.plan.plan_watch import cancelled_end, request_cancel
from asterism.cli.run.run_views import (
    RUN_TABLE,
    describe_outcome,
    details_lines,
    explanation_lines,
    since_of,
)
from asterism.cli.series.series_commands import SERIES_TABLE, changes_table, status_lines
from asterism.cli.series.series_context import SeriesView
from asterism.cli.tables import Cell, Column, Item, TimedTable, wrapped
from asterism.core.errors import AsterismError
from asterism.core.run.run import COMPLETED, FAILED, OWNED, PROCESSING, REPORTED_STATUSES, UNOWNED
from asterism.fleet.fleet import UnknownDevice
from asterism.report.picture import counts_text

PLANS, RUNS, DEVICES, SERIES, NOTICES = TABS = ("plans", "runs", "devices", "series", "notices")
TASKS = "tasks"
"""The listing of the tasks of one plan."""

MOST_RUNS = 200
"""How many runs of each kind (owned, waiting, ended) a listing has."""

MOST_PLANS = 200
MOST_NOTICES = 300

FIELDS = ("status", "workflow", "device", "series", "search")
"""Filters of runs that the store applies: ``status:failed``. Other words are compared with what the rows show."""

EMPTY = {
    PLANS: "The store has no plans. Start one with: asterism run PLAN.YAML --store URL",
    RUNS: "There are no runs. Create one with: asterism runs create WORKFLOW",
    DEVICES: "No device is joined. Start one with: asterism device join NAME",
    SERIES: "There is no series. Create one with: asterism series claim SERIES --issue N",
    NOTICES: "There are no notices.",
    TASKS: "The plan has no tasks.",
}

_TASK_COLUMNS = (
    Column(""),
    Column("TASK", least=10, name=True),
    Column("STATUS"),
    Column("DEVICE", least=8, name=True),
    Column("TRIES", right=True, needed=False),
    Column("FOR", right=True),
    Column("AFTER", least=8, needed=False),
    Column("NOTE", least=10, needed=False),
)
_NOTICE_COLUMNS = (Column("WHEN"), Column("KIND"), Column("DEVICE", least=8, needed=False), Column("MESSAGE", least=20))


class Subject(NamedTuple):
    """What a row is about. ``kind`` is that of its listing; ``plan`` is the plan of a task."""

    kind: str
    name: str
    plan: str = ""


class Row(NamedTuple):
    """``order`` has the values by which columns are sorted whose text would sort otherwise."""

    subject: Subject
    cells: Sequence[Cell]
    order: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class Listing:
    columns: Sequence[Column]
    rows: Sequence[Row]
    note: str = ""
    """How much more there is."""

    heading: str = ""


@dataclass(frozen=True, slots=True)
class Filter:
    """``fields`` are for the store, ``words`` must all occur in a row."""

    fields: Mapping[str, str] = field(default_factory=dict)
    words: Sequence[str] = ()

    @classmethod
    def parse(cls, text: str) -> Filter:
        """``status:failed device:gpu-1 video``. Raises ValueError for an unknown status."""
        fields, words = {}, []
        for word in text.split():
            name, colon, value = word.partition(":")
            if colon and value and name in FIELDS:
                fields[name] = value
            else:
                words.append(word.casefold())
        statuses = ("open", "ended", *REPORTED_STATUSES)
        if fields.get("status", "open") not in statuses:
            raise ValueError(f"{fields['status']!r} is not a status; use one of: {', '.join(statuses)}")
        return cls(fields, words)

    def matches(self, row: Row) -> bool:
        if not self.words:
            return True
        text = " ".join(str(cell) for cell in (*row.cells, row.subject.name)).casefold()
        return all(word in text for word in self.words)


async def read_listing(system: System, kind: str, wanted: Filter, plan: str = "") -> Listing:
    """The rows of a tab, or of the tasks of ``plan``."""
    if kind == TASKS:
        return await _tasks(system, plan)
    fleet = await system.show_fleet(MOST_RUNS if kind == RUNS and not wanted.fields else 1)
    if kind == RUNS:
        listing = await (_found_runs(system, wanted) if wanted.fields else _runs(fleet))
    else:
        listing = await {PLANS: _plans, DEVICES: _devices, SERIES: _series, NOTICES: _notices}[kind](system)
    return replace(listing, heading=_heading(system.url, fleet.counts))


def _heading(url: str, counts: Mapping[str, int]) -> str:
    """The system, and its runs in figures."""
    waiting = sum(counts.get(status, 0) for status in UNOWNED)
    owned = sum(counts.get(status, 0) for status in OWNED) - counts.get(PROCESSING, 0)
    figures = [
        (counts.get(PROCESSING, 0), "processing"),
        (owned, "about to start"),
        (waiting, "waiting"),
        (counts.get(COMPLETED, 0), "completed"),
        (counts.get(FAILED, 0), "failed or cancelled"),
    ]
    shown = ", ".join(f"{number:,} {what}" for number, what in figures if number)
    return f"{url}  runs: {shown or 'none'}"


def _listing(
    kind: str,
    table: TimedTable[Item],
    items: Iterable[Item],
    now: float,
    name: Callable[[Item], str],
    order: Callable[[Item], Mapping[str, float]],
    note: str = "",
) -> Listing:
    """A row for each item of a table."""
    rows = [Row(Subject(kind, name(item)), table.row(item, now), order(item)) for item in items]
    return Listing(table.columns, rows, note)


# -- plans -------------------------------------------------------------------------------------------------------------


async def _plans(system: System) -> Listing:
    """Those that have not ended first, then the newest."""
    pages = [await system.list_plans(state="open", limit=MOST_PLANS)]
    room = MOST_PLANS - len(pages[0].items)
    if room:
        pages.append(await system.list_plans(state="ended", limit=room))
    plans, now = [plan for page in pages for plan in page.items], pages[0].now or 0.0
    note = f"the newest {len(plans)} of them" if not room or pages[-1].next is not None else ""
    return _listing(PLANS, PLAN_TABLE, plans, now, lambda plan: plan.name, partial(_plan_order, now), note)


def _plan_order(now: float, plan: documents.PlanSummary) -> dict[str, float]:
    heard = plan.heard_at or plan.last_heard_at
    return {"TASKS": -plan.tasks, "HEARD": now - heard if heard is not None else now}


async def _tasks(system: System, name: str) -> Listing:
    plan = await system.show_plan(name, folded=True)
    after = defaultdict[str, list[str]](list)
    for edge in plan.dependencies:
        after[edge.target].append(edge.source)
    rows = [_task_row(name, task, after[task.id], plan.now) for task in plan.tasks]
    return Listing(_TASK_COLUMNS, rows, heading=f"Tasks of plan {name}")


def _task_row(plan: str, task: documents.PlanTask, after: Sequence[str], now: float) -> Row:
    held = "held for review" if task.held_by and task.status != "waiting" else ""
    status = "waiting" if held else task.phase or task.status
    elements = counts_text(task.behind)
    times = task.attempt
    begun, ended = (task.started_at, task.ended_at) if times is None else (times.begun_at, times.ended_at)
    lasted = None if begun is None else (now if ended is None else ended) - begun
    cells: list[Cell] = [
        Text(mark(status), tone(status)),
        task.id,
        Text(status, tone(status)),
        Text(clean(task.device or ""), "" if task.ended_at is None else DIM),
        str(task.attempts) if task.attempts > 1 else "",
        "" if lasted is None else format_age(lasted),
        Text(clean(", ".join(after)), DIM),
        Text(clean(task.reason or held or elements), DIM),
    ]
    return Row(Subject(TASKS, task.id, plan), cells, {"FOR": -(lasted or 0.0), "TRIES": -task.attempts})


# -- runs and devices --------------------------------------------------------------------------------------------------


async def _runs(fleet: documents.FleetView) -> Listing:
    runs, number = [*fleet.owned, *fleet.waiting, *fleet.ended], sum(fleet.counts.values())
    note = f"{len(runs):,} of {plural(number, 'run')}" if number > len(runs) else ""
    return _run_listing(runs, fleet.now, note)


async def _found_runs(system: System, wanted: Filter) -> Listing:
    conditions: dict[str, Any] = {**wanted.fields}
    page = await read_pages(system.list_runs, MOST_AT_ONCE, MOST_AT_ONCE, **conditions)
    return _run_listing(page.items, page.now or 0.0, f"the newest {len(page.items)} of them" if page.next else "")


def _run_listing(runs: Sequence[documents.Run], now: float, note: str) -> Listing:
    def order(run: documents.Run) -> dict[str, float]:
        lasted, beat = run.took if run.ended else now - since_of(run), run.last_heartbeat_at
        return {"FOR": -(lasted or 0.0), "BEAT": beat - now if beat is not None else 0.0}

    return _listing(RUNS, RUN_TABLE, runs, now, lambda run: run.id, order, note)


async def _devices(system: System) -> Listing:
    page = await system.list_devices()
    now = page.now or 0.0

    def order(device: documents.Device) -> dict[str, float]:
        figures = {"SLOTS": device.used, "LOAD": device.load, "QUALITY": device.quality, "RANK": device.rank or 0.0}
        return {**{title: -figure for title, figure in figures.items()}, "BEAT": now - device.last_heartbeat_at}

    return _listing(DEVICES, DEVICE_TABLE, page.items, now, lambda device: device.name, order)


# -- series and notices ------------------------------------------------------------------------------------------------


async def _series(system: System) -> Listing:
    page = await system.list_series()
    now = page.now or 0.0
    since = {series.name: series.since for series in page.items}

    def order(view: SeriesView) -> dict[str, float]:
        at = since[view.name]
        return {"FOR": 0.0 if at is None else now - at}

    return _listing(SERIES, SERIES_TABLE, map(SeriesView.of, page.items), now, lambda view: view.name, order)


async def _notices(system: System) -> Listing:
    page = await system.list_notices(limit=MOST_NOTICES, latest=True)
    rows = [
        Row(
            Subject(NOTICES, f"{format_time(notice.at)} {notice.number}", notice.run or ""),
            [Text(format_time(notice.at), DIM), notice.kind, notice.device or "", notice.message],
            {"WHEN": -notice.at},
        )
        for notice in page.items
    ]
    return Listing(_NOTICE_COLUMNS, rows[::-1])


# -- pages -------------------------------------------------------------------------------------------------------------

MOST_CHANGES = 50
"""How many changes of a series its page shows."""


def has_log(subject: Subject) -> bool:
    return subject.kind in (PLANS, TASKS, RUNS)


async def page(system: System, subject: Subject, width: int) -> list[Text]:
    """Everything about a subject, as lines for a terminal of this width."""
    if subject.kind == RUNS:
        return _clean(details_lines(await system.show_run(subject.name), width))
    if subject.kind == TASKS:
        return await _task_page(system, subject, width)
    if subject.kind == DEVICES:
        return await _device_page(system, subject.name, width)
    if subject.kind == SERIES:
        return await _series_page(system, subject.name, width)
    if subject.kind == NOTICES:
        return await page(system, Subject(RUNS, subject.plan), width)
    return await why_page(system, subject, width)


async def why_page(system: System, subject: Subject, width: int) -> list[Text]:
    """Why a run or task does not run, and the state of anything else."""
    if subject.kind == RUNS:
        return _clean(explanation_lines(await system.explain_run(subject.name), width))
    if subject.kind == TASKS:
        why = await system.explain_task(subject.plan, subject.name)
        return _clean(task_explanation_lines(why, width))
    if subject.kind == PLANS:
        plan, url = await system.show_plan(subject.name, tasks=False), system.url
        sentences = plan_status_lines(plan, command_at(url, "resume", subject.name))
        sentences += review_lines(plan, f" --store {shlex.quote(url)}")
        return _clean(line for sentence in sentences for line in wrapped(sentence, width))
    return await page(system, subject, width)


async def _task_page(system: System, subject: Subject, width: int) -> list[Text]:
    story = story_lines((await system.read_story(subject.plan, subject.name)).items)
    return [*await why_page(system, subject, width), Text(), Text("Story", BOLD), *_clean(story)]


async def _device_page(system: System, name: str, width: int) -> list[Text]:
    try:
        return _clean(device_lines(await system.show_device(name), width))
    except (UnknownDevice, NotFound):
        return [Text(clean(f"The store knows no device {name!r} any more."))]


async def _series_page(system: System, name: str, width: int) -> list[Text]:
    series = await system.show_series(name)
    changes = (await system.list_series_changes(name, MOST_CHANGES)).items
    return _clean([*status_lines(SeriesView.of(series), series.now), Text(), *changes_table(changes, width)])


def _clean(told: Iterable[Text]) -> list[Text]:
    lines = []
    for line in told:
        line.plain = clean(line.plain)  # text from outside may contain line breaks and control characters
        lines.append(line)
    return lines


class LogFeed:
    """The log of a run, a task or a plan, from where it was read the last time."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._position: str | None = None
        self._attempt: tuple[str, int] | None = None

    async def read(self, system: System) -> list[Text]:
        """The lines that are new, in the order of time."""
        kind, name, plan = self._subject
        lines: list[documents.TaskLogEntry] = []
        more = True
        while more:
            page: documents.RunLog | documents.PlanLog
            if kind == RUNS:
                page = await system.read_run_logs(name, self._position)
                lines += run_lines(page)
                more = bool(page.items)
            else:
                where, task = (name, None) if kind == PLANS else (plan, name)
                page = await system.read_plan_logs(where, task, self._position)
                lines += page.items
                more = page.more
            self._position = page.next
        lines.sort(key=lambda line: line.at)
        return [text for line in lines for text in self._texts(line)]

    def _texts(self, line: documents.TaskLogEntry) -> list[Text]:
        if line.task != (self._subject.name if self._subject.kind == TASKS else ""):
            return [Text(clean(f"{line.task} | "), DIM).append_text(line_text(line))]
        before, self._attempt = self._attempt, (line.run, line.attempt)
        heading = [Text(f"-- attempt {line.attempt} --", DIM)] if before not in (None, self._attempt) else []
        return [*heading, line_text(line)]


# -- actions -----------------------------------------------------------------------------------------------------------

PAUSE, CANCEL, RETRY = ACTIONS = ("pause", "cancel", "retry")


class Question(NamedTuple):
    """What is asked before an action. ``action`` is what happens after a yes: ``pause`` may have become ``resume``."""

    text: str
    action: str


async def question(system: System, action: str, subject: Subject) -> Question:
    """Raises AsterismError if the action does not apply to the subject."""
    if subject.kind == RUNS:
        run = await system.show_run(subject.name)
        paused, name, ended = run.paused is not None, f"run {short(run.id)}", run.ended
    elif subject.kind == PLANS:
        plan = await system.show_plan(subject.name, tasks=False)
        paused, name, ended = plan.paused is not None, f"plan {plan.name!r}", plan.ended
    else:
        raise AsterismError("only plans and runs can be paused, cancelled and retried")
    if action == RETRY and not ended:
        raise AsterismError(f"{name} has not ended: only what has ended can be retried")
    if action != RETRY and ended:
        raise AsterismError(f"{name} has already ended")
    action = "resume" if action == PAUSE and paused else action
    return Question(clean(f"{action.capitalize()} {name}?"), action)


async def act(system: System, action: str, subject: Subject) -> str:
    """Do what was asked, and return the outcome as a sentence. Raises AsterismError if it is refused."""
    if subject.kind == RUNS:
        before = await system.show_run(subject.name)
        request = {
            "pause": system.pause_run,
            "resume": system.resume_run,
            "cancel": system.cancel_run,
            "retry": system.retry_run,
        }
        return describe_outcome(before, await request[action](before.id))
    return clean(await _act_on_plan(system, action, subject.name))


async def _act_on_plan(system: System, action: str, name: str) -> str:
    if action == "pause":
        return paused_line(await system.pause_plan(name))
    if action == "cancel":
        owner = await request_cancel(system, name)
        if owner is not None:
            return f"{owner} runs plan {name!r}, and was asked to cancel it."
        if not isinstance(system, LocalSystem):
            return f"The server was asked to cancel plan {name!r}."
        return f"Plan {name!r} is {(await cancelled_end(system, name)).state}."
    resume = command_at(system.url, "resume", name)
    if action == "retry":
        return f"{reopened_line(name, (await system.retry_plan(name)).tasks or [])} Run it with: {resume}"
    owner = (await system.resume_plan(name)).owner
    by = f"{owner} runs it." if owner is not None else f"No process runs it; run it with: {resume}"
    return f"Plan {name!r} is resumed. {by}"
