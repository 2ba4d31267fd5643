"""What ``asterism top`` lists: a listing for each tab, and for the tasks of a plan, read with operations of a system.

However large the store is, a listing has a bounded number of runs, plans and notices.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from rich.text import Text

from asterism.api import documents
from asterism.api.documents import read_pages
from asterism.api.run_operations import MOST_AT_ONCE
from asterism.api.system import System
from asterism.base.durations import format_age
from asterism.base.status_colours import DIM, mark, tone
from asterism.base.text import clean, plural
from asterism.cli.cli_context import format_time
from asterism.cli.fleet.fleet_views import DEVICE_COLUMNS, device_row
from asterism.cli.plan.plan_views import PLAN_COLUMNS, plan_row
from asterism.cli.run.run_views import RUN_COLUMNS, run_row, since_of
from asterism.cli.screen import Cell, Column
from asterism.cli.series.series_views import SeriesView, status_columns, status_row
from asterism.core.run.run import COMPLETED, FAILED, OWNED, PROCESSING, REPORTED_STATUSES, UNOWNED

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


# -- plans -------------------------------------------------------------------------------------------------------------


async def _plans(system: System) -> Listing:
    """Those that have not ended first, then the newest."""
    pages = [await system.list_plans(state="open", limit=MOST_PLANS)]
    room = MOST_PLANS - len(pages[0].items)
    if room:
        pages.append(await system.list_plans(state="ended", limit=room))
    plans, now = [plan for page in pages for plan in page.items], pages[0].now or 0.0
    rows = [Row(Subject(PLANS, plan.name), plan_row(plan, now), _plan_order(plan, now)) for plan in plans]
    more = not room or pages[-1].next is not None
    return Listing(PLAN_COLUMNS, rows, f"the newest {len(rows)} of them" if more else "")


def _plan_order(plan: documents.PlanSummary, now: float) -> dict[str, float]:
    heard = plan.heard_at or plan.last_heard_at
    return {"TASKS": -plan.tasks, "HEARD": now - heard if heard is not None else now}


async def _tasks(system: System, name: str) -> Listing:
    plan = await system.show_plan(name)
    after = defaultdict[str, list[str]](list)
    for edge in plan.dependencies:
        after[edge.target].append(edge.source)
    rows = [_task_row(name, task, after[task.id], plan.now) for task in plan.tasks]
    return Listing(_TASK_COLUMNS, rows, heading=f"Tasks of plan {name}")


def _task_row(plan: str, task: documents.PlanTask, after: Sequence[str], now: float) -> Row:
    held = "held for review" if task.held_by and task.status != "waiting" else ""
    status = "waiting" if held else task.phase or task.status
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
        Text(clean(task.reason or held), DIM),
    ]
    return Row(Subject(TASKS, task.id, plan), cells, {"FOR": -(lasted or 0.0), "TRIES": -task.attempts})


# -- runs and devices --------------------------------------------------------------------------------------------------


async def _runs(fleet: documents.FleetView) -> Listing:
    rows = _run_rows([*fleet.owned, *fleet.waiting, *fleet.ended], fleet.now)
    return Listing(RUN_COLUMNS, rows, _more(sum(fleet.counts.values()), len(rows), "run"))


async def _found_runs(system: System, wanted: Filter) -> Listing:
    conditions: dict[str, Any] = {**wanted.fields}
    page = await read_pages(system.list_runs, MOST_AT_ONCE, MOST_AT_ONCE, **conditions)
    rows = _run_rows(page.items, page.now or 0.0)
    return Listing(RUN_COLUMNS, rows, f"the newest {len(rows)} of them" if page.next else "")


def _run_rows(runs: Iterable[documents.Run], now: float) -> list[Row]:
    rows = []
    for run in runs:
        for_how_long = run.took if run.ended else now - since_of(run)
        beat = run.last_heartbeat_at
        order = {"FOR": -(for_how_long or 0.0), "BEAT": beat - now if beat is not None else 0.0}
        rows.append(Row(Subject(RUNS, run.id), run_row(run, now), order))
    return rows


async def _devices(system: System) -> Listing:
    page = await system.list_devices()
    now = page.now or 0.0
    rows = [
        Row(
            Subject(DEVICES, device.name),
            device_row(device, now),
            {
                "SLOTS": -device.used,
                "LOAD": -device.load,
                "QUALITY": -device.quality,
                "RANK": -(device.rank or 0.0),
                "BEAT": now - device.last_heartbeat_at,
            },
        )
        for device in page.items
    ]
    return Listing(DEVICE_COLUMNS, rows)


# -- series and notices ------------------------------------------------------------------------------------------------


async def _series(system: System) -> Listing:
    page = await system.list_series()
    now = page.now or 0.0
    rows = [
        Row(
            Subject(SERIES, series.name),
            status_row(SeriesView.of(series), now),
            {"FOR": 0.0 if series.since is None else now - series.since},
        )
        for series in page.items
    ]
    return Listing(status_columns(), rows)


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


def _more(number: int, shown: int, what: str) -> str:
    return f"{shown:,} of {plural(number, what)}" if number > shown else ""
