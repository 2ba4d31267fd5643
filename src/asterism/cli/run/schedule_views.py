"""Schedules for people, made of their documents: the table, the details with the next times, and the history."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import datetime

from rich.text import Text

from asterism.api.documents import Backfill, CalendarTick, Schedule, ScheduleDetails, Tick
from asterism.api.system import System
from asterism.base.clock import BootClock, Clock, Looks
from asterism.base.cron import InvalidCron, time_zone
from asterism.base.durations import format_delay, format_duration
from asterism.base.status_colours import BOLD, DIM, mark, tone
from asterism.base.text import short
from asterism.cli.cli_context import format_time, note
from asterism.cli.tables import Cell, Column, TimedTable, fact_lines, table_of
from asterism.core.run.run_label import value_text
from asterism.core.schedule.schedule import interval_text
from asterism.core.schedule.ticks import CREATED, DUE, EXISTS, FAILED, MISSED, NONE, SKIPPED, SUCCEEDED

_LOOKS = {CREATED: "completed", EXISTS: "completed", SKIPPED: "waiting", MISSED: "failed", FAILED: "failed"}
"""The task status whose mark and colour an outcome shares."""

_TICK_LOOKS = {SUCCEEDED: "completed", SKIPPED: "waiting", MISSED: "failed", NONE: "cancelled", DUE: "pending"}
"""The same for the states of ticks that are not called like those of a task."""

HISTORY_SHOWN = 5


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


def _due(schedule: Schedule) -> Cell:
    return "" if schedule.due_in is None else format_delay(schedule.due_in).removeprefix("in ")


def _next(schedule: Schedule) -> Cell:
    if schedule.paused is not None:
        return "paused"
    return zone_time(schedule, schedule.next) if schedule.on_event is None else "event"


SCHEDULE_TABLE = TimedTable[Schedule](
    {
        Column("SCHEDULE", least=8): lambda schedule, now: Text(schedule.name, "" if schedule.paused is None else DIM),
        Column("CREATES", least=10): lambda schedule, now: schedule.target,
        Column("TIMES", least=10): lambda schedule, now: schedule.times,
        Column("NEXT"): lambda schedule, now: _next(schedule),
        Column("IN", right=True, needed=False): lambda schedule, now: _due(schedule),
        Column("MADE", right=True): lambda schedule, now: str(schedule.made),
        Column("OPEN", right=True): lambda schedule, now: str(len(schedule.open)),
        Column("OVERLAP", needed=False): lambda schedule, now: schedule.overlap,
        Column("CATCH-UP", needed=False): lambda schedule, now: schedule.catch_up,
        Column("NOTE", least=8, needed=False): lambda schedule, now: Text(schedule.paused or "", DIM),
    }
)


# -- details -----------------------------------------------------------------------------------------------------------


def details_lines(schedule: ScheduleDetails, width: int | None) -> Iterator[Text]:
    yield Text(schedule.name, BOLD)
    yield from fact_lines({name: text for name, text in _facts(schedule) if text})
    if schedule.history:
        yield Text()
        yield from history_table(schedule, schedule.history[-HISTORY_SHOWN:], width)


def _facts(schedule: ScheduleDetails) -> Iterator[tuple[str, str]]:
    yield "creates", schedule.target
    yield "times", schedule.times
    yield "input", json.dumps(schedule.input, ensure_ascii=False) if schedule.input else ""
    yield "params", ", ".join(f"{name}={value_text(value)}" for name, value in schedule.params.items())
    yield "priority", "" if schedule.priority is None else str(schedule.priority)
    yield "device", schedule.device or ""
    yield "overlap", schedule.overlap
    yield "catch-up", schedule.catch_up if schedule.on_event is None else ""
    yield "parallel", str(schedule.parallel) if schedule.parallel > 1 else ""
    yield "jitter", f"up to {interval_text(int(schedule.jitter))}" if schedule.jitter else ""
    yield "after previous", schedule.after_previous or ""
    yield "late after", "" if schedule.late_after is None else interval_text(int(schedule.late_after))
    yield "added", f"{format_time(schedule.start)} by {schedule.created_by}"
    yield "paused", schedule.paused or ""
    if schedule.paused is None:
        yield "next", ", ".join(zone_time(schedule, at) for at in schedule.next_times)
    yield "made", str(schedule.made)
    yield "open", ", ".join(schedule.open)
    if schedule.awaited is not None:
        again = f"if it failed, run it again with: asterism plan retry {schedule.awaited}"
        yield "waits", f"{schedule.open[0]} waits until {schedule.awaited} has succeeded; {again}"
    elif schedule.unowned is not None:
        yield "waits", f"no process runs {schedule.unowned}. Start one with: asterism monitor"
    yield "coordinator", schedule.coordinator or "none: nothing is created. Start one with: asterism monitor"


# -- backfills ---------------------------------------------------------------------------------------------------------

FOLLOW_INTERVAL, TOLD_EVERY = 1.0, 5.0
"""Seconds between two looks at a backfill, and between two lines about it."""


async def followed_backfill(system: System, backfill: Backfill, clock: Clock | None = None) -> Backfill:
    """The backfill once it has ended. Prints a line when it has come further."""
    clock = clock or BootClock()
    told, number = float("-inf"), -1
    async for _ in Looks(clock, interval=FOLLOW_INTERVAL):
        backfill = await system.show_backfill(backfill.schedule)
        if backfill.ended_at is not None:
            break
        ended = backfill.succeeded + backfill.failed + backfill.skipped
        if ended != number and clock.time() - told >= TOLD_EVERY:
            note(backfill_line(backfill))
            told, number = clock.time(), ended
    return backfill


def backfill_line(backfill: Backfill) -> str:
    """How far a backfill has come."""
    ended = backfill.succeeded + backfill.failed + backfill.skipped
    counts = {"succeeded": backfill.succeeded, "failed": backfill.failed, "skipped": backfill.skipped}
    parts = [f"{count:,} {word}" for word, count in counts.items() if count]
    if backfill.open:
        parts.append(f"{len(backfill.open)} open")
    if backfill.time_left is not None:
        parts.append(f"about {format_duration(backfill.time_left)} left")
    state = "" if backfill.cancelled is None else f", cancelled {backfill.cancelled}"
    failures = f". Failed: {', '.join(backfill.failures)}" if backfill.failures and backfill.ended_at else ""
    of = f"{ended:,} of {backfill.total:,} ticks done{state}"
    return f"Backfill of {backfill.schedule}: {of}{': ' if parts else ''}{', '.join(parts)}{failures}"


def _took(tick: CalendarTick) -> Cell:
    if tick.started_at is None or tick.ended_at is None:
        return ""
    return format_duration(tick.ended_at - tick.started_at)


def _state(tick: CalendarTick) -> Cell:
    return Text(f"{tick.state}, late" if tick.late else tick.state, tone(_TICK_LOOKS.get(tick.state, tick.state)))


TICK_TABLE = TimedTable[CalendarTick](
    {
        Column(""): lambda tick, now: mark(_TICK_LOOKS.get(tick.state, tick.state)),
        Column("TICK"): lambda tick, now: tick.local,
        Column("STATE"): lambda tick, now: _state(tick),
        Column("CREATED", least=8): lambda tick, now: tick.work or "",
        Column("TOOK", right=True, needed=False): lambda tick, now: _took(tick),
        Column("WHY", least=10, needed=False): lambda tick, now: Text(tick.why, DIM),
    }
)


def history_table(schedule: Schedule, entries: Sequence[Tick], width: int | None) -> list[Text]:
    def tick(entry: Tick) -> Cell:
        if entry.tick is None:
            cause = "on request" if schedule.on_event is None else "event"
            return f"{cause}, {zone_time(schedule, entry.at)}"
        return zone_time(schedule, entry.tick)

    def outcome(entry: Tick) -> Cell:
        word = f"{entry.number} missed" if entry.outcome == MISSED else entry.outcome
        return Text(word, tone(_LOOKS[entry.outcome]))

    def created(entry: Tick) -> Cell:
        if entry.what is None:
            return ""
        return entry.what if schedule.workflow is None else short(entry.what)

    return table_of(
        entries,
        {
            Column(""): lambda entry: Text(mark(_LOOKS[entry.outcome]), tone(_LOOKS[entry.outcome])),
            Column("TICK"): tick,
            Column("OUTCOME"): outcome,
            Column("CREATED", least=8): created,
            Column("WHY", least=10, needed=False): lambda entry: Text(entry.why, DIM),
        },
        width,
    )
