"""Timestamps and sizes as short text, for tables."""

from __future__ import annotations

import time


def format_time(at: float | None) -> str:
    """A time of the store in the time of this place: ``2026-03-01 14:05:09``."""
    return "" if at is None else _written(at, "%Y-%m-%d %H:%M:%S")


def format_clock(at: float) -> str:
    """``14:05:09``."""
    return _written(at, "%H:%M:%S")


def _written(at: float, form: str) -> str:
    try:
        return time.strftime(form, time.localtime(at))
    except (OverflowError, OSError, ValueError):  # a clock that is beyond all calendars
        return f"{at:.0f}"


def format_size(number: float) -> str:
    """``64 KiB``, ``10 MiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"
