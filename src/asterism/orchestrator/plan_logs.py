"""The logs of a plan that runs in this process: what each attempt at each task printed, in memory.

Each attempt keeps at most ``log_limit`` bytes, and the plan at most ``PLAN_FACTOR`` times that: beyond, the logs of the
attempts that ended first are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from asterism.base.log_recorder import LogRecorder
from asterism.base.secret_mask import Mask
from asterism.core.attempt_log import TaskLog
from asterism.core.history import PlanEntry
from asterism.core.plan.constellation import Constellation

PLAN_FACTOR = 256
"""How many full logs a plan keeps in memory."""


FAILURES = ("attempt failed", "failed", "failed provisionally")
"""The entries of a story that a failed attempt leaves."""


def tasks_with_tracebacks(plan: Constellation, story: Iterable[PlanEntry]) -> list[str]:
    """The tasks of a story whose logs may have tracebacks: functions that failed."""
    failed = dict.fromkeys(entry.task for entry in story if entry.what in FAILURES)
    nodes = [plan.nodes[task] for task in failed if task is not None and task in plan]
    return [node.id for node in nodes if node.task.call is not None]


def tracebacks_in(story: Sequence[PlanEntry], logs: Mapping[str, Sequence[TaskLog]]) -> dict[int, str]:
    """The traceback of each entry of a story that has one, by the place of the entry: that of the last attempt which
    failed until then. The attempts of a run are one for the plan."""
    places: dict[str, list[int]] = {}
    for place, entry in enumerate(story):
        if entry.what in FAILURES and entry.task is not None:
            places.setdefault(entry.task, []).append(place)
    tracebacks: dict[int, str] = {}
    for task, failures in places.items():
        for log in logs.get(task, ()):
            if lines := log.traceback:
                # the clock of a device may be ahead of that of the plan
                after = (place for place in failures if story[place].at >= lines[-1].at)
                tracebacks[next(after, failures[-1])] = "\n".join(line.text for line in lines)
    return tracebacks


class PlanLogs:
    """``clock`` dates the lines, ``mask`` returns the secrets of the plan."""

    def __init__(self, clock: Callable[[], float], limit: int, mask: Callable[[], Mask]) -> None:
        self._clock, self._limit, self._mask = clock, limit, mask
        self._tasks: dict[str, dict[int, tuple[int, LogRecorder]]] = {}  # by task and epoch: attempt and recorder
        self._ended: dict[tuple[str, int], int] = {}  # executions in the order of their ends, and the size of each log
        self._size = 0

    def recorder(self, task_id: str, epoch: int, attempt: int) -> LogRecorder:
        """The recorder of an execution, made at the first call. May be called in any thread."""
        epochs = self._tasks.setdefault(task_id, {})  # in one step: several threads may print at once
        entry = epochs.get(epoch)
        if entry is None:
            entry = epochs.setdefault(epoch, (attempt, LogRecorder(self._clock, self._limit, mask=self._mask)))
        return entry[1]

    def close(self, task_id: str, epoch: int) -> None:
        """An execution has ended. What it prints from now on is dropped."""
        if task_id not in self._tasks or epoch not in self._tasks[task_id]:  # most tasks print nothing
            return
        recorder = self._tasks[task_id][epoch][1]
        recorder.close()
        self._ended[task_id, epoch] = recorder.size
        self._size += recorder.size
        while self._size > PLAN_FACTOR * self._limit and len(self._ended) > 1:
            task, oldest = next(iter(self._ended))
            self._size -= self._ended.pop((task, oldest))
            del self._tasks[task][oldest]

    def of(self, task_id: str) -> list[TaskLog]:
        """The logs of the attempts at a task that printed something, oldest first."""
        epochs = sorted(self._tasks.get(task_id, {}).items())
        return [TaskLog(attempt, tuple(recorder.chunks())) for _, (attempt, recorder) in epochs if recorder]

    def __bool__(self) -> bool:
        """Whether any task has printed something."""
        return bool(self._tasks)
