"""Durations: parse text such as 30s, 5m or 1d as seconds, and format seconds for people."""

from __future__ import annotations

import math
import re

from asterism.core.errors import describe_value

DURATION_PATTERN = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d|w)"
"""A duration as text with its unit, as files have it."""

_DURATION = re.compile(f"{DURATION_PATTERN}?", re.ASCII)
_UNIT_SECONDS = {"ms": 0.001, None: 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}


class InvalidDuration(ValueError):
    """A value that is not a duration."""

    def __init__(self, value: object) -> None:
        super().__init__(f"{describe_value(value)} is not a valid duration (examples: 30s, 5m, 2h)")


def parse_duration(value: object, *, unit_required: bool = False) -> float:
    """Seconds from text such as ``90``, ``500ms``, ``90s``, ``15m``, ``36h``, ``1d`` or ``2w``, or from a number.

    In a file, where numbers are not text, ``unit_required`` refuses text without a unit. Raises InvalidDuration. A
    number is returned as it is: the caller checks its range."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None or (unit_required and match[2] is None):
        raise InvalidDuration(value)
    seconds = float(match[1]) * _UNIT_SECONDS[match[2]]
    if not math.isfinite(seconds):  # several hundred digits
        raise InvalidDuration(value)
    return seconds


def format_duration(seconds: float) -> str:
    """How long something took, in up to two units: ``0 s``, ``340 ms``, ``12.3 s``, ``2 min 05 s``, ``1 h 03 min``."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    return f"{minutes // 60} h {minutes % 60:02} min"


def format_age(seconds: float | None) -> str:
    """A changing duration in one unit: ``0 s``, ``1.3 s``, ``12 s``, ``3 min``, ``5 h``, ``12 d``; empty for None."""
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


def format_delay(seconds: float) -> str:
    """How soon something happens: ``in 3 min``, or ``at once``."""
    age = format_age(seconds)
    return "at once" if age == "0 s" else f"in {age}"
