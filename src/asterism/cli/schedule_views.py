"""Schedules for people and as JSON: the table, the details with the next times, and the history."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rich.text import Text

from asterism.base.cron import InvalidCron, time_zone
from asterism.base.durations import format_delay
from asterism.base.text import short
from asterism.cli.cli_context import format_time
from asterism.cli.screen import Cell, Column, fact_lines, table
from asterism.core.run.run_label import value_text
from asterism.core.schedule.schedule import Schedule, interval_text
from asterism.core.schedule.ticks import CREATED, EXISTS, FAILED, MISSED, SKIPPED, TickEntry
from asterism.fleet.fleet import Fleet
from asterism.fleet.fleet_json import entry_json, masked_input, schedule_json
from asterism.fleet.scheduled_work import ScheduledWork, plan_key
from asterism.report.status_style import BOLD, DIM, mark, tone

_LOOKS = {CREATED: "completed", EXISTS: "completed", SKIPPED: "waiting", MISSED: "failed", FAILED: "failed"}
"""The task status whose mark and colour an outcome shares."""

NEXT_SHOWN, HISTORY_SHOWN = 3, 5


def zone_time(schedule: Schedule, at: float | None) -> str:
    """A time in the time zone of a schedule: ``2026-11-17 03:00:00 CET``."""
    if at is None:
        return "never"
    if schedule.cron is None:
        return format_time(at)
    try:
        return datetime.fromtimestamp(at, time_zone(schedule.timezone)).strftime("%Y-%m-%d %H:%M:%S %Z")
    except InvalidCron:  # this machine does not know the zone
        return format_time(at)


# -- the table ---------------------------------------------------------------------------------------------------------


_COLUMNS = (
    Column("SCHEDULE", least=8),
    Column("CREATES", least=10),
    Column("TIMES", least=10),
    Column("NEXT"),
    Column("IN", right=True, needed=False),
    Column("MADE", right=True),
    Column("OPEN", right=True),
    Column("OVERLAP", needed=False),
    Column("CATCH-UP", needed=False),
    Column("NOTE", least=8, needed=False),
)


async def open_numbers(fleet: Fleet, schedules: Sequence[Schedule]) -> dict[str, int]:
    """How many runs or plans of each schedule have not ended, by name."""
    work = ScheduledWork(fleet)
    return {schedule.name: len(await work.open_work(schedule)) for schedule in schedules}


def schedules_table(
    schedules: Sequence[Schedule], open_work: dict[str, int], now: float, width: int | None
) -> list[Text]:
    rows: list[list[Cell]] = []
    for one in schedules:
        paused = one.paused is not None
        rows.append(
            [
                Text(one.name, DIM if paused else ""),
                one.target,
                one.times,
                "paused" if paused else zone_time(one, one.next),
                "" if paused or one.due is None else format_delay(one.due - now).removeprefix("in "),
                str(one.made),
                str(open_work[one.name]),
                one.overlap,
                one.catch_up,
                Text(one.paused or "", DIM),
            ]
        )
    return table(_COLUMNS, rows, width)


# -- details -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScheduleDetails:
    """A schedule with everything that ``schedule show`` prints."""

    schedule: Schedule
    next_times: Sequence[int]
    history: Sequence[TickEntry]
    open_work: Sequence[str]
    coordinator: str | None
    params: Mapping[str, Any]
    """The parameters of its plan file."""

    unowned: str | None
    """The oldest open plan, if no process runs it."""

    now: float


async def read_details(fleet: Fleet, name: str) -> ScheduleDetails:
    """Raises UnknownSchedule."""
    schedule = await fleet.schedules.get(name)
    open_work = await ScheduledWork(fleet).open_work(schedule)
    return ScheduleDetails(
        schedule,
        await fleet.schedules.next_times(name, NEXT_SHOWN),
        await fleet.schedules.history(name),
        open_work,
        await fleet.coordinator(),
        await _params(fleet, schedule),
        await _unowned(fleet, open_work[0]) if schedule.plan is not None and open_work else None,
        fleet.store.clock(),
    )


async def _params(fleet: Fleet, schedule: Schedule) -> Mapping[str, Any]:
    document = None if schedule.plan is None else await fleet.store.register(plan_key(schedule.name))
    return {} if document is None else document.value.get("params", {})


async def _unowned(fleet: Fleet, plan: str) -> str | None:
    """The plan, if no process runs it."""
    from asterism.durable.admin import live_owner
    from asterism.durable.journal_store import read_head

    head, _ = await read_head(fleet.store, plan)
    return plan if await live_owner(fleet.store, head) is None else None


def details_json(found: ScheduleDetails) -> dict[str, Any]:
    return {
        **schedule_json(found.schedule, found.now),
        "params": dict(found.params),
        "open": list(found.open_work),
        "next_times": list(found.next_times),
        "history": [entry_json(entry) for entry in found.history],
        "coordinator": found.coordinator,
    }


def details_lines(found: ScheduleDetails, width: int | None) -> Iterator[Text]:
    schedule = found.schedule
    yield Text(schedule.name, BOLD)
    yield from fact_lines(_facts(found))
    if found.history:
        yield Text()
        yield from history_table(schedule, found.history[-HISTORY_SHOWN:], width)


def _facts(found: ScheduleDetails) -> dict[str, str]:
    schedule = found.schedule
    facts = {"creates": schedule.target, "times": schedule.times}
    if schedule.input:
        facts["input"] = json.dumps(masked_input(schedule), ensure_ascii=False)
    if found.params:
        facts["params"] = ", ".join(f"{name}={value_text(value)}" for name, value in found.params.items())
    if schedule.priority is not None:
        facts["priority"] = str(schedule.priority)
    if schedule.device is not None:
        facts["device"] = schedule.device
    facts |= {"overlap": schedule.overlap, "catch-up": schedule.catch_up}
    if schedule.jitter:
        facts["jitter"] = f"up to {interval_text(int(schedule.jitter))}"
    facts["added"] = f"{format_time(schedule.start)} by {schedule.created_by}"
    if schedule.paused is not None:
        facts["paused"] = schedule.paused
    elif found.next_times:
        facts["next"] = ", ".join(zone_time(schedule, at) for at in found.next_times)
    facts["made"] = str(schedule.made)
    if found.open_work:
        facts["open"] = ", ".join(found.open_work)
    if found.unowned is not None:
        facts["waits"] = f"no process runs {found.unowned}. Start one with: asterism monitor"
    facts["coordinator"] = found.coordinator or "none: nothing is created. Start one with: asterism monitor"
    return facts


_HISTORY_COLUMNS = (
    Column(""),
    Column("TICK"),
    Column("OUTCOME"),
    Column("CREATED", least=8),
    Column("WHY", least=10, needed=False),
)


def history_table(schedule: Schedule, entries: Sequence[TickEntry], width: int | None) -> list[Text]:
    rows: list[list[Cell]] = []
    for entry in entries:
        style = tone(_LOOKS[entry.outcome])
        outcome = f"{entry.number} missed" if entry.outcome == MISSED else entry.outcome
        tick = f"on request, {zone_time(schedule, entry.at)}" if entry.tick is None else zone_time(schedule, entry.tick)
        what = "" if entry.what is None else short(entry.what) if schedule.workflow is not None else entry.what
        mark_text = Text(mark(_LOOKS[entry.outcome]), style)
        rows.append([mark_text, tick, Text(outcome, style), what, Text(entry.why, DIM)])
    return table(_HISTORY_COLUMNS, rows, width)
