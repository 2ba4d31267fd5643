"""Cron expressions in a time zone: the first tick after a time, with the rules of Debian's cron for daylight saving.

The local times come from cronsim, and the time zones from the standard library; both are imported on first use. What
happens when clocks are set is decided here: cronsim takes each change for one of whole hours.

When clocks are set forward, a job at a time that does not exist fires once at the first minute that exists. When clocks
are set back, it fires at the first of the two times, once. An expression whose minute or hour begins with ``*`` goes by
the time that passes: it fires in no hour that does not exist, and in both of a repeated one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
"""Names of expressions."""

FIELDS = "minute, hour, day of month, month and day of week"
LONGEST_EXPRESSION = 500
LONGEST_ZONE = 255
YEARS = 50
"""An expression that does not fire in so many years never fires; cronsim searches no further."""


LONGEST_CHANGE = 26 * 3600.0
"""No change of an offset from UTC sets clocks by more, in seconds."""

CHANGES_APART = 1800.0
"""Two changes of an offset are farther apart, in seconds."""


class InvalidCron(ValueError):
    """A cron expression or a time zone that cannot be used; the message says why."""


def time_zone(name: str) -> ZoneInfo:
    """The time zone of a name, such as Europe/Berlin. Raises InvalidCron."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

    if len(name) > LONGEST_ZONE:  # to look for a similar name would take hours
        raise InvalidCron(f"the name of a time zone has at most {LONGEST_ZONE} characters, not {len(name):,}")
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = available_timezones()
    if not known:
        raise InvalidCron("this machine has no time zone database; install the package tzdata") from None
    from difflib import get_close_matches

    close = get_close_matches(name, known, 1) or [zone for zone in sorted(known) if zone.endswith(f"/{name.title()}")]
    meant = f"; did you mean {close[0]}?" if close else " (examples: UTC, Europe/Berlin)"
    raise InvalidCron(f"there is no time zone {name!r}{meant}") from None


def cron_ticks(expression: str, zone: str) -> Callable[[float], int | None]:
    """The function from a time to the first tick after it. Raises InvalidCron, also for an expression that never
    fires."""
    place, standard = time_zone(zone), _standard(expression)
    minute, hour = standard.split()[:2]
    if minute.startswith("*") or hour.startswith("*"):
        return lambda after: _next_as_time_passes(standard, place, after)
    return lambda after: _next_time_of_day(standard, place, after)


def _next_time_of_day(standard: str, place: ZoneInfo, after: float) -> int | None:
    """The next tick of a job at times of the day: each local time counts once, also if it comes twice or never."""
    from cronsim import CronSim

    for local in CronSim(standard, _local(after, place)):
        tick = _first_instant(local, place)
        if tick > after:  # the search may begin in the second of two equal hours
            return tick
    return None


def _next_as_time_passes(standard: str, place: ZoneInfo, after: float) -> int | None:
    """The next tick of a job that goes by the time that passes: each instant counts whose local time matches.

    While the offset from UTC is the same, local time is as good as any. So the search goes from change to change. No
    local time matches between the beginning and the first match, so that changes far from both do not matter."""
    from cronsim import CronSim

    local, offset = _local(after, place), _offset(after, place)
    while True:
        match = next(CronSim(standard, local), None)
        if match is None:
            return None
        tick = int(match.replace(tzinfo=UTC).timestamp()) - offset
        change = _next_change(after, min(tick, after + LONGEST_CHANGE), place)
        if change is not None:
            after, offset = change, _offset(change, place)
            local = _local(change, place) - timedelta(seconds=1)
        elif tick <= after + LONGEST_CHANGE:
            return tick
        else:
            after = max(after + LONGEST_CHANGE, tick - LONGEST_CHANGE)
            local, offset = _local(after, place), _offset(after, place)


def _next_change(after: float, until: float, place: ZoneInfo) -> int | None:
    """When the offset from UTC changes, after one time and up to another; None if it does not."""
    low, offset = after, _offset(after, place)
    while low < until:
        high = min(low + CHANGES_APART, until)
        if _offset(high, place) != offset:
            return _change_between(low, high, place)
        low = high
    return None


def _change_between(low: float, high: float, place: ZoneInfo) -> int:
    """The first second with the offset of ``high``, which is not that of ``low``."""
    before, first, last = _offset(low, place), math.floor(low), math.ceil(high)
    while last - first > 1:
        middle = (first + last) // 2
        if _offset(middle, place) == before:
            first = middle
        else:
            last = middle
    return last


def _first_instant(local: datetime, place: ZoneInfo) -> int:
    """The first instant of a local time; for one that does not exist, the first instant that does after it."""
    before, after = (local.replace(tzinfo=place, fold=fold).timestamp() for fold in (0, 1))
    if before > after:  # clocks were set forward between the two
        return _change_between(after, before, place)
    return int(before)


def _local(instant: float, place: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(instant, place).replace(tzinfo=None)


def _offset(instant: float, place: ZoneInfo) -> int:
    offset = datetime.fromtimestamp(instant, place).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def check_cron(expression: str, zone: str, now: float) -> None:
    """Raises InvalidCron for an expression or a time zone that cannot be used, or that never fires from now on."""
    if cron_ticks(expression, zone)(now) is None:
        why = f"it matches no day of the next {YEARS} years"
        raise InvalidCron(f"the cron expression {expression!r} never fires: {why}")


def _standard(expression: str) -> str:
    """The expression in five fields. Raises InvalidCron."""
    from cronsim import CronSim, CronSimError

    if len(expression) > LONGEST_EXPRESSION:
        raise InvalidCron(f"the cron expression is longer than {LONGEST_EXPRESSION} characters")
    standard = NAMED.get(expression.strip().lower(), expression)
    parts = standard.split()
    if len(parts) != 5:
        plural = "field" if len(parts) == 1 else "fields"
        hint = "; for times within a minute use an interval" if len(parts) == 6 else ""
        raise InvalidCron(
            f"the cron expression {expression!r} has {len(parts)} {plural}; it must have 5: {FIELDS}{hint}"
        )
    try:
        CronSim(standard, datetime(2000, 1, 1))
    except CronSimError as error:
        wrong = str(error).removeprefix("Bad ").replace("-", " ")
        in_any_month = " ".join([*parts[:3], "*", parts[4]])
        if wrong == "day of month" and _is_valid(in_any_month):
            raise InvalidCron(
                f"the cron expression {expression!r} never fires: no month that it names has such a day"
            ) from None
        raise InvalidCron(f"the cron expression {expression!r} is not valid: its {wrong} cannot be read") from None
    return standard


def _is_valid(expression: str) -> bool:
    from cronsim import CronSim, CronSimError

    try:
        CronSim(expression, datetime(2000, 1, 1))
    except CronSimError:
        return False
    return True
