"""Who did what, when and where: read from the story of a run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush

from asterism.core.history import Entry
from asterism.report.report_data import ExecutionBar

OUTCOMES = {
    "completed": "completed",
    "completed provisionally": "completed",
    "failed": "failed",
    "failed provisionally": "failed",
    "attempt failed": "failed",
    "cancelled": "cancelled",
    "revoked": "revoked",
    "put back": "cancelled",
}
"""How an execution ends with an entry of the story."""


@dataclass(slots=True)
class _Execution:
    task: str
    device: str
    start: float
    provisional: bool
    end: float | None = None
    outcome: str = "cancelled"


def execution_bars(story: Iterable[Entry], ended_at: float, devices: Mapping[str, str]) -> tuple[ExecutionBar, ...]:
    """One bar for each execution, each in a slot of its device that is free for that time. ``devices`` says by task
    which device it was in the end: what it was given to may stand for many."""
    return tuple(_placed(sorted(_executions(story, devices), key=lambda one: one.start), ended_at))


def _executions(story: Iterable[Entry], devices: Mapping[str, str]) -> list[_Execution]:
    latest: dict[str, _Execution] = {}
    found = []
    for at, what, task, why in story:
        if task is None:
            continue
        if what in ("started", "started provisionally"):
            latest[task] = _Execution(task, why, at, provisional=what != "started")
            found.append(latest[task])
        elif what in OUTCOMES and task in latest:
            execution = latest[task]
            if execution.end is None:
                execution.end, execution.outcome = at, OUTCOMES[what]
            elif what == "revoked" and execution.provisional:  # it had ended; its result is gone all the same
                execution.outcome = "revoked"
    for task, execution in latest.items():
        execution.device = devices.get(task, execution.device)
    return found


def _placed(executions: Iterable[_Execution], ended_at: float) -> Iterator[ExecutionBar]:
    """The lowest slot that is free. A device has as many as were ever in use at once."""
    free: dict[str, list[int]] = {}
    busy: dict[str, list[tuple[float, int]]] = {}
    for one in executions:
        open_slots, taken = free.setdefault(one.device, []), busy.setdefault(one.device, [])
        while taken and taken[0][0] <= one.start:
            heappush(open_slots, heappop(taken)[1])
        slot = heappop(open_slots) if open_slots else len(taken) + 1
        end = ended_at if one.end is None else one.end
        heappush(taken, (end, slot))
        yield ExecutionBar(one.task, one.device, slot, one.start, end, one.outcome, one.provisional)
