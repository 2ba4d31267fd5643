"""Outcomes of assignments: how each of a run ended and with which score, how long the run waited and worked.

From these, metrics show whether devices with high scores do better than others (``fleet/selection_metrics.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from asterism.core.run.run import COMPLETED, PROCESSING, Run
from asterism.core.run.transitions import DECLINED, FORGOTTEN


class Outcome(NamedTuple):
    """The end of one assignment. ``reason`` is ``completed`` or one of REASONS; ``score`` is None if it is unknown."""

    device: str
    reason: str
    score: float | None


def outcomes(run: Run) -> Iterator[Outcome]:
    """How the assignments of a run ended, in their order. The one under way is not among them."""
    for assignment in run.previous:
        yield Outcome(assignment.device, assignment.reason, assignment.score)
    if run.status is COMPLETED:
        device = str(run.device)
        yield Outcome(device, str(COMPLETED), run.scores.get(device))


def declines(run: Run) -> Iterator[str]:
    """The device of each decline: of an assignment, and of an offer that a device did not take."""
    for assignment in run.previous:
        if assignment.reason == DECLINED:
            yield assignment.device
    for entry in run.story:
        if entry.what == DECLINED:
            yield entry.why.removeprefix("by ").partition(": ")[0]


_EXECUTED = frozenset({str(PROCESSING), FORGOTTEN})


def was_executed(run: Run) -> bool:
    """Whether a device has begun to execute a run, now or in an earlier assignment. A run whose end is unknown counts
    as executed."""
    return run.started_at is not None or any(entry.what in _EXECUTED for entry in run.story)


def waiting_time(run: Run) -> float | None:
    """How long a run waited for its last execution, without the time of earlier assignments. None if it has neither
    started nor ended."""
    begun = run.started_at if run.started_at is not None else run.ended_at
    if begun is None:
        return None
    ended = run.ended_at if run.ended_at is not None else inf
    tried = sum(
        assignment.ended_at - assignment.assigned_at for assignment in run.previous if assignment.ended_at < ended
    )
    return max(0.0, begun - run.created_at - tried)


def work_time(run: Run) -> float | None:
    """How long the last execution of an ended run took. None if it has not ended, or ended before it started."""
    return None if run.ended_at is None or run.started_at is None else max(0.0, run.ended_at - run.started_at)


def attempt_of(run: Run) -> int:
    """The number of the current execution of a run, from 1; declined assignments do not count."""
    return 1 + sum(assignment.reason != DECLINED for assignment in run.previous)


def attempts_of(run: Run) -> int:
    """How many executions a run has had, including the current one; declined assignments do not count."""
    closed = bool(run.previous) and run.previous[-1].epoch == run.epoch
    return attempt_of(run) - (closed or run.epoch == 0)
