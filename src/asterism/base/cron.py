"""Cron expressions in a time zone: the first tick after a time, with the rules of Debian's cron for daylight saving.

The times come from cronsim, and the time zones from the standard library; both are imported on first use.

When clocks are set forward, a job at a time that does not exist fires once at the first minute that exists. When clocks
are set back, it fires at the first of the two times, once. An expression whose minute or hour begins with ``*`` goes by
the time that passes: it fires in no hour that does not exist, and in both of a repeated one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
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
YEARS = 50
"""An expression that does not fire in so many years never fires; cronsim searches no further."""


class InvalidCron(ValueError):
    """A cron expression or a time zone that cannot be used; the message says why."""


def time_zone(name: str) -> ZoneInfo:
    """The time zone of a name, such as Europe/Berlin. Raises InvalidCron."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

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
    from cronsim import CronSim

    place = time_zone(zone)
    standard = _standard(expression)

    def next_tick(after: float) -> int | None:
        # cronsim drops the second of two equal local times, so its first answers may lie before
        for found in CronSim(standard, datetime.fromtimestamp(after, place)):
            tick = int(found.timestamp())
            if tick > after:
                return tick
        return None

    return next_tick


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
