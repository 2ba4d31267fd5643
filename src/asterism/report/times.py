"""Times as people read them, and the ticks of a time axis."""

from __future__ import annotations

from math import ceil

_STEPS = (
    *(digit * 10.0**power for power in range(-6, 1) for digit in (1, 2, 5)),
    *(
        10.0,
        15.0,
        30.0,
        60.0,
        120.0,
        300.0,
        600.0,
        900.0,
        1800.0,
        3600.0,
        7200.0,
        14400.0,
        21600.0,
        43200.0,
        86400.0,
    ),
)


def duration(seconds: float) -> str:
    """`0 s`, `340 ms`, `12.3 s`, `2 min 05 s`, `1 h 03 min`."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
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


def tick(seconds: float, step: float) -> str:
    """The label of a tick. The step chooses the unit, so that all ticks of an axis have the same."""
    if seconds == 0:
        return "0"
    if step <= 0.1:
        return f"{seconds * 1000:.6g} ms"
    if step < 60:
        return f"{seconds:.6g} s"
    return f"{seconds / 60:.6g} min" if step < 3600 else f"{seconds / 3600:.6g} h"


def tick_step(span: float, most: int) -> float:
    """The smallest round step that divides the span into at most `most` parts."""
    for step in _STEPS:
        if span <= step * most:
            return step
    return ceil(span / most / _STEPS[-1]) * _STEPS[-1]
