"""What ``asterism top`` shows, read from a store: a listing for each tab, pages about one thing, and logs.

However large the store is, a listing reads a bounded number of runs, plans and notices. A plan that has ended is loaded
once, until its head changes; the others are loaded for each listing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from rich.text import Text

from asterism.api.documents import Run
from asterism.api.local.plan_documents import summary
from asterism.api.local.run_handlers import run_documents
from asterism.api.local.series_handlers import all_series
from asterism.api.system import LocalSystem
from asterism.base.durations import format_age
from asterism.base.status_colours import DIM, mark, tone
from asterism.base.text import clean, plural
from asterism.cli.cli_context import format_time
from asterism.cli.fleet.fleet_views import DEVICE_COLUMNS, device_row
from asterism.cli.plan.plan_views import PLAN_COLUMNS, plan_row
from asterism.cli.run.run_views import RUN_COLUMNS, run_row, since_of
from asterism.cli.screen import Cell, Column
from asterism.cli.series.series_views import SeriesView, status_columns, status_row
from asterism.core.errors import AsterismError, error_text
from asterism.core.plan.node import Node
from asterism.core.plan.status import PENDING
from asterism.core.run.run import COMPLETED, FAILED, OWNED, PROCESSING, REPORTED_STATUSES, UNOWNED
from asterism.durable.journal_store import UnknownConstellation, decode_head
from asterism.durable.stored_plans import HEADS, StoredPlan, UnreadablePlan, read_plan
from asterism.fleet.fleet import Fleet
from asterism.fleet.run_queries import list_runs, take_snapshot
from asterism.orchestrator.plan_mask import PlanMask
from asterism.series.store_register import StoreRegister
from asterism.store.protocol import ENDED, OFFERED, Register
from asterism.store.store_errors import StoreUnavailable

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


class FleetListings:
    """Listings of one fleet. ``changed`` waits until they may have changed."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._ended_plans: dict[str, tuple[int, StoredPlan]] = {}
        self._open_runs: Collection[str] = ()
        self._watch = fleet.store.watch(frozenset({OFFERED, ENDED}))

    def close(self) -> None:
        self._watch.close()

    async def changed(self, timeout: float) -> None:
        """Return when a run was offered or has ended, or after ``timeout`` seconds."""
        await self._watch.wait(timeout)

    async def heading(self) -> str:
        """The store, and its runs in figures."""
        counts = await self.fleet.store.counts()
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
        return clean(f"{self.fleet.store.url}  runs: {shown or 'none'}")

    async def listing(self, kind: str, wanted: Filter, plan: str = "") -> Listing:
        """The rows of a tab, or of the tasks of ``plan``."""
        if kind == TASKS:
            return await self._tasks(plan)
        read = {
            PLANS: self._plans,
            RUNS: self._runs,
            DEVICES: self._devices,
            SERIES: self._series,
            NOTICES: self._notices,
        }
        return await read[kind](wanted)

    # -- plans ---------------------------------------------------------------------------------------------------------

    async def _plans(self, wanted: Filter) -> Listing:
        registers = sorted(await self.fleet.store.registers(HEADS), key=_urgency)
        now = self.fleet.store.clock()
        plans = [await self._plan(register) for register in registers[:MOST_PLANS]]
        self._ended_plans = {name: kept for name, kept in self._ended_plans.items() if name in _names(registers)}
        rows = [
            Row(Subject(PLANS, _plan_name(one)), plan_row(summary(one), now), _plan_order(one, now))
            for one in plans
            if one is not None
        ]
        return Listing(PLAN_COLUMNS, rows, _more(len(registers), MOST_PLANS, "plan"))

    async def _plan(self, register: Register) -> StoredPlan | UnreadablePlan | None:
        """None if the plan was pruned since the registers were read."""
        name = register.key.removeprefix(HEADS)
        revision, kept = self._ended_plans.get(name, (0, None))
        if kept is not None and revision == register.revision:
            return kept
        try:
            decode_head(register)
            found = await read_plan(self.fleet, name)
        except UnknownConstellation:
            return None
        except StoreUnavailable:
            raise
        except AsterismError as error:
            return UnreadablePlan(name, str(error))
        if found.record.head.ended:
            self._ended_plans[name] = (found.record.revision, found)
        return found

    async def _tasks(self, name: str) -> Listing:
        stored = await read_plan(self.fleet, name)
        plan = stored.record.plan
        now, mask = self.fleet.store.clock(), PlanMask(plan)
        rows = [_task_row(stored, node, mask, now) for node in plan.nodes.values()]
        return Listing(_TASK_COLUMNS, rows)

    # -- runs and devices ----------------------------------------------------------------------------------------------

    async def _runs(self, wanted: Filter) -> Listing:
        if wanted.fields:
            return await self._found_runs(wanted)
        snapshot = await take_snapshot(self.fleet, MOST_RUNS, self._open_runs)
        self._open_runs = [run.id for run in (*snapshot.owned, *snapshot.waiting)]
        rows = _run_rows(await run_documents(self.fleet, snapshot.runs), snapshot.now)
        return Listing(RUN_COLUMNS, rows, _more(sum(snapshot.counts.values()), len(rows), "run"))

    async def _found_runs(self, wanted: Filter) -> Listing:
        terms = {name: wanted.fields.get(name) for name in ("workflow", "device", "series", "search")}
        statuses = (wanted.fields["status"],) if "status" in wanted.fields else ()
        found = await list_runs(self.fleet, statuses=statuses, limit=3 * MOST_RUNS, newest=True, **terms)
        rows = _run_rows(await run_documents(self.fleet, found.runs), self.fleet.store.clock())
        return Listing(RUN_COLUMNS, rows, f"the newest {len(rows)} of them" if found.more else "")

    async def _devices(self, wanted: Filter) -> Listing:
        page = await LocalSystem(self.fleet).list_devices()
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

    # -- series and notices --------------------------------------------------------------------------------------------

    async def _series(self, wanted: Filter) -> Listing:
        page, now = await all_series(StoreRegister(self.fleet.store, owned=False)), self.fleet.store.clock()
        views = [SeriesView.of(document) for document in page.items]
        rows = [
            Row(Subject(SERIES, view.name), status_row(view, now), {"FOR": now - _since(view, now)}) for view in views
        ]
        return Listing(status_columns(), rows)

    async def _notices(self, wanted: Filter) -> Listing:
        page = await LocalSystem(self.fleet).list_notices(limit=MOST_NOTICES, latest=True)
        rows = [
            Row(
                Subject(NOTICES, f"{format_time(notice.at)} {notice.number}", notice.run or ""),
                [Text(format_time(notice.at), DIM), notice.kind, notice.device or "", notice.message],
                {"WHEN": -notice.at},
            )
            for notice in page.items
        ]
        return Listing(_NOTICE_COLUMNS, rows[::-1])


# -- rows --------------------------------------------------------------------------------------------------------------


def _run_rows(runs: Iterable[Run], now: float) -> list[Row]:
    rows = []
    for run in runs:
        for_how_long = run.took if run.ended else now - since_of(run)
        beat = run.last_heartbeat_at
        order = {"FOR": -(for_how_long or 0.0), "BEAT": beat - now if beat is not None else 0.0}
        rows.append(Row(Subject(RUNS, run.id), run_row(run, now), order))
    return rows


def _task_row(stored: StoredPlan, node: Node, mask: PlanMask, now: float) -> Row:
    waits = node.status is PENDING and (node.open or node.held)
    status = "waiting" if waits else stored.phase(node) or str(node.status)
    span, ended = stored.span(node), node.ended_at
    lasted = None if span is None else (now if span[1] is None else span[1]) - span[0]
    reason = error_text(node.error) or node.reason
    held = "held for review" if node.status is PENDING and node.held and not node.open else ""
    cells: list[Cell] = [
        Text(mark(status), tone(status)),
        node.id,
        Text(status, tone(status)),
        Text(clean(node.device or ""), "" if ended is None else DIM),
        str(node.attempts) if node.attempts > 1 else "",
        "" if lasted is None else format_age(lasted),
        Text(clean(", ".join(node.parents)), DIM),
        Text(clean(str(mask.shown(reason)) if reason else held), DIM),
    ]
    return Row(
        Subject(TASKS, node.id, stored.record.head.name), cells, {"FOR": -(lasted or 0.0), "TRIES": -node.attempts}
    )


def _plan_order(one: StoredPlan | UnreadablePlan, now: float) -> dict[str, float]:
    if isinstance(one, UnreadablePlan):
        return {"TASKS": 0.0, "HEARD": 0.0}
    heard = one.owner or one.gone
    return {"TASKS": -len(one.record.plan), "HEARD": now - heard.beat_at if heard is not None else now}


def _plan_name(one: StoredPlan | UnreadablePlan) -> str:
    return one.name if isinstance(one, UnreadablePlan) else one.record.head.name


def _names(registers: Iterable[Register]) -> set[str]:
    return {register.key.removeprefix(HEADS) for register in registers}


def _urgency(register: Register) -> tuple[bool, float]:
    """Plans that have not ended first, then the newest. The value may be anything: another program may have written
    it."""
    value = register.value if isinstance(register.value, Mapping) else {}
    created = value.get("created_at")
    return value.get("ended_at") is not None, -created if isinstance(created, int | float) else 0.0


def _since(view: SeriesView, now: float) -> float:
    return now if view.series is None or view.series.since is None else view.series.since


def _more(number: int, shown: int, what: str) -> str:
    return f"{shown:,} of {plural(number, what)}" if number > shown else ""
