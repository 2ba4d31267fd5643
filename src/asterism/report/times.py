"""The ticks of a time axis: their step and their labels."""

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
