"""The values of a tick: what ``{tick}``, ``{tick.date}``, ``{tick.previous}`` and ``{tick.end}`` stand for in a plan.

The *tick* is the nominal time of a schedule, at which its plan is due, whenever it really starts. ``tick.end`` is the
tick after it and ``tick.previous`` the tick before it, by the cron expression or the interval alone, whether these were
created or not. All are texts with the offset of the schedule's time zone, so that both hours that a clock shows twice
have their own text; ``tick.date`` is the day that the zone has at the tick. A tick that a person gives belongs to no
schedule: the ticks beside it are a day away.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Self

from asterism.core.errors import AsterismError, safe_repr
from asterism.core.json_values import NOTHING
from asterism.core.schedule.ticks import NextTick

TickValues = Mapping[str, str]
"""The values of a tick, by the paths of TICK_PATHS. ``tick.end`` is left out if no tick follows."""

TICK_PATHS = ("tick", "tick.date", "tick.previous", "tick.end", "tick.zone")

VARIABLES = {path: f"ASTERISM_{path.upper().replace('.', '_')}" for path in TICK_PATHS}
"""The environment variables that have the values of a tick, by path."""

TICK_INPUT = "$tick"
"""The input of a run that has the values of its tick. It is no input to the work, but says for which tick it is."""

FIRST_YEAR, LAST_YEAR = 1970, 9000
LONGEST_GAP = 50 * 366 * 86_400
"""No two ticks of a schedule are farther apart, in seconds."""

_TIME = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?(Z|[+-]\d\d:\d\d)?)?", re.ASCII)


class Tick(str):
    """A tick as a Python function gets it: the text of ``{tick}``, with the others as its attributes."""

    def __new__(cls, values: TickValues) -> Self:
        return super().__new__(cls, values["tick"])

    def __init__(self, values: TickValues) -> None:
        self.date, self.zone = values["tick.date"], values.get("tick.zone")
        self.previous, self.end = values.get("tick.previous"), values.get("tick.end")


class InvalidTick(AsterismError, ValueError):
    """A text that is not a day or a time."""

    def __init__(self, text: object) -> None:
        examples = "2026-11-17, 2026-11-17T03:00, 2026-11-17T03:00+01:00"
        super().__init__(f"{safe_repr(text)} is not a valid tick (examples: {examples})")


def read_tick(data: object) -> TickValues:
    """The values of a tick from JSON; empty if the data have another form."""
    if not isinstance(data, Mapping) or not {"tick", "tick.date"} <= set(data) <= set(TICK_PATHS):
        return NOTHING
    return data if all(isinstance(value, str) for value in data.values()) else NOTHING


def tick_variables(values: TickValues) -> dict[str, str]:
    """The environment variables of a tick."""
    return {VARIABLES[path]: value for path, value in values.items()}


def tick_values(tick: int, next_tick: NextTick, zone: tzinfo) -> TickValues:
    """The values of a tick of a schedule. ``zone`` is the time zone of the schedule."""
    end = next_tick(tick)
    return _values(*(_local(at, zone) for at in (tick, previous_tick(tick, next_tick), end)))


def tick_on_request(text: str) -> TickValues:
    """The values of a tick that a person gives, such as ``2026-11-17``; without an offset it is in UTC. Raises
    InvalidTick."""
    at, _ = parse_time(text, UTC)
    return _values(at, at - timedelta(days=1), at + timedelta(days=1))


def _values(at: datetime | None, previous: datetime | None, end: datetime | None) -> TickValues:
    assert at is not None
    times = {"tick": at, "tick.previous": previous, "tick.end": end}
    return {"tick.date": at.date().isoformat(), "tick.zone": _zone_name(at)} | {
        path: time.isoformat() for path, time in times.items() if time is not None
    }


def _zone_name(at: datetime) -> str:
    """The name of the time zone of a time; its offset, such as ``+01:00``, if the zone has no name."""
    name = "UTC" if at.tzinfo is UTC else getattr(at.tzinfo, "key", None)
    return at.isoformat()[-6:] if name is None else str(name)


def _local(at: int | None, zone: tzinfo) -> datetime | None:
    return None if at is None else datetime.fromtimestamp(at, zone)


def previous_tick(tick: int, next_tick: NextTick) -> int | None:
    """The tick before a tick; None if there is none. Searches ever longer times before it, so few ticks are passed."""
    width = 1
    while True:
        before, candidate = None, next_tick(float(tick - min(width, LONGEST_GAP)))
        while candidate is not None and candidate < tick:
            before, candidate = candidate, next_tick(float(candidate))
        if before is not None or width >= LONGEST_GAP:
            return before
        width *= 4


def parse_time(text: str, zone: tzinfo) -> tuple[datetime, bool]:
    """A day or a time as text, in a time zone unless it has an offset; and whether it is a whole day, whose beginning
    is returned. Raises InvalidTick."""
    match = _TIME.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise InvalidTick(text)
    try:
        at = datetime.fromisoformat(match[0])
    except ValueError:  # such as the 30th of February
        raise InvalidTick(text) from None
    if not FIRST_YEAR <= at.year <= LAST_YEAR:  # a day beside it must be a date, too
        raise InvalidTick(text)
    return at if at.tzinfo is not None else at.replace(tzinfo=zone), match[1] is None


def time_until(text: str, zone: tzinfo) -> float:
    """The end of a time that a day or a time as text is the end of, in seconds since 1970: a day is meant as a whole,
    also one that has 23 or 25 hours. Raises InvalidTick."""
    end, whole = parse_time(text, zone)
    return end.timestamp() if not whole else (end + timedelta(days=1)).timestamp() - 1
