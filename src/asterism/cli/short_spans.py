"""Ages and sizes in a few letters, for tables in which they change while one looks at them."""

from __future__ import annotations

import time


def span(seconds: float | None) -> str:
    """``0 s``, ``12 s``, ``3 min``, ``5 h``, ``12 d``; nothing for None."""
    if seconds is None:
        return ""
    seconds = max(0.0, seconds)
    if seconds < 99.5:
        return f"{seconds:.0f} s" if seconds >= 9.95 or seconds < 0.05 else f"{seconds:.1f} s"
    if seconds < 99.5 * 60:
        return f"{seconds / 60:.0f} min"
    if seconds < 72 * 3600:
        return f"{seconds / 3600:.0f} h"
    return f"{seconds / 86_400:.0f} d"


def within(seconds: float) -> str:
    """``in 3 min``, or ``at once`` where ``in 0 s`` would be said."""
    told = span(seconds)
    return "at once" if told == "0 s" else f"in {told}"


def moment(at: float | None) -> str:
    """A time of the store in the time of this place: ``2026-03-01 14:05:09``."""
    return "" if at is None else _written(at, "%Y-%m-%d %H:%M:%S")


def hour(at: float) -> str:
    """``14:05:09``."""
    return _written(at, "%H:%M:%S")


def _written(at: float, form: str) -> str:
    try:
        return time.strftime(form, time.localtime(at))
    except (OverflowError, OSError, ValueError):  # a clock that is beyond all calendars
        return f"{at:.0f}"


def size(number: float) -> str:
    """``64 KiB``, ``10 MiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"
