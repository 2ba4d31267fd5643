"""Timestamps and sizes as short text."""

from __future__ import annotations

import time


def format_time(at: float | None) -> str:
    """A timestamp in local time: ``2026-03-01 14:05:09``; empty for None."""
    return "" if at is None else _format(at, "%Y-%m-%d %H:%M:%S")


def format_clock(at: float) -> str:
    """The time of day of a timestamp, in local time: ``14:05:09``."""
    return _format(at, "%H:%M:%S")


def _format(at: float, form: str) -> str:
    try:
        return time.strftime(form, time.localtime(at))
    except (OverflowError, OSError, ValueError):  # outside of the calendar
        return f"{at:.0f}"


def format_size(number: float) -> str:
    """A number of bytes: ``64 KiB``, ``10 MiB``."""
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"
